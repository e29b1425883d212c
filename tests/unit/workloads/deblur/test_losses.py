"""The loss in numbers worked out by hand, in every precision, and what it refuses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.config.workloads.deblur import CharbonnierTerm, DeblurLoss
from pitstop.errors import ConfigError
from pitstop.workloads.deblur.losses import Term, build_terms, charbonnier, judge


def test_charbonnier_is_the_mean_root_of_square_and_eps() -> None:
    restored = torch.tensor([[[0.3, 0.0]], [[1.0, 0.5]]])
    sharp = torch.tensor([[[0.0, 0.4]], [[1.0, 0.5]]])
    found = charbonnier(restored, sharp, eps=0.16)
    torch.testing.assert_close(
        found, torch.tensor([(0.5 + math.sqrt(0.32)) / 2, 0.4]), atol=1e-7, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_have_finite_gradients_where_they_are_exact(
    dtype: torch.dtype,
) -> None:
    """1e-9 is zero in fp16, and the root of zero has no slope."""
    restored = torch.full((1, 4), 0.5, dtype=dtype, requires_grad=True)
    distance = charbonnier(restored, torch.full((1, 4), 0.5), eps=1e-9)
    assert distance.dtype == torch.float32
    distance.sum().backward()
    assert restored.grad is not None
    assert restored.grad.isfinite().all()


def test_double_precision_is_kept() -> None:
    assert charbonnier(torch.ones(1, 2).double(), torch.ones(1, 2), eps=1.0).dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 9))
def test_losses_of_micro_batches_add_up_to_the_large_batch(sizes: list[int], seed: int) -> None:
    terms = build_terms(DeblurLoss())
    generator = torch.Generator().manual_seed(seed)
    restored, sharp = torch.rand(2, sum(sizes), 2, 3, generator=generator, dtype=torch.float64)
    whole = judge(terms, restored, sharp, step=0)
    pieces = [
        judge(terms, mine, wanted, step=0)
        for mine, wanted in zip(restored.split(sizes), sharp.split(sizes), strict=True)
    ]
    torch.testing.assert_close(whole.total, torch.stack([p.total for p in pieces]).sum())
    assert whole.count == sum(int(piece.count) for piece in pieces) == sum(sizes)


def test_the_weight_scales_the_total_and_not_the_logged_mean() -> None:
    section = DeblurLoss(charbonnier=CharbonnierTerm(weight=3.0))
    restored, sharp = torch.rand(2, 2, 5, generator=torch.Generator().manual_seed(0))
    restored.requires_grad_()
    loss = judge(build_terms(section), restored, sharp, step=0)
    mean = charbonnier(restored, sharp, eps=1e-6).mean()
    torch.testing.assert_close(loss.total / loss.count, 3 * mean)
    torch.testing.assert_close(loss.terms["charbonnier"], mean.detach())
    assert loss.total.requires_grad
    assert not loss.terms["charbonnier"].requires_grad


def test_a_term_is_computed_at_its_own_cadence_only() -> None:
    calls: list[int] = []

    def counted(restored: torch.Tensor, sharp: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return restored.flatten(1).sum(dim=1)

    always = build_terms(DeblurLoss())[0]
    terms = (always, Term(name="rare", weight=2.0, every_steps=3, distance=counted))
    restored, sharp = torch.ones(1, 2), torch.zeros(1, 2)
    losses = [judge(terms, restored, sharp, step=step) for step in range(7)]
    assert ["rare" in loss.terms for loss in losses] == [True, False, False] * 2 + [True]
    assert len(calls) == 3
    torch.testing.assert_close(losses[0].total - losses[1].total, torch.tensor(4.0))


def test_steps_without_any_term_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss\.charbonnier\.every_steps is 2"):
        build_terms(DeblurLoss(charbonnier=CharbonnierTerm(every_steps=2)))
