"""Losses against loops over cells in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pitstop.config.sections import LossTerm
from pitstop.config.workloads.bev import FocalTerm, MonoLoss, PriorTerm, SurroundLoss
from pitstop.workloads.bev.losses import (
    focal_entropy,
    judge,
    mono_terms,
    seen_entropy,
    surround_terms,
    unseen_entropy,
)

torch.set_num_threads(1)
CPU = torch.device("cpu")
BATCH, CLASSES, ROWS, COLUMNS = 2, 3, 2, 4
CELLS = [
    (b, k, i, j)
    for b in range(BATCH)
    for k in range(CLASSES)
    for i in range(ROWS)
    for j in range(COLUMNS)
]


def scene(seed: int, *, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(BATCH, CLASSES, ROWS, COLUMNS, generator=generator)
    targets = torch.randint(0, 2, logits.shape, generator=generator)
    mask = torch.randint(0, 2, (BATCH, ROWS, COLUMNS), generator=generator)
    return logits.double(), targets.double(), mask.double()


def entropy(logit: float, wanted: float) -> float:
    """-(t log p + (1 - t) log(1 - p)), with both logarithms taken of the logit."""
    log_p = -math.log1p(math.exp(-logit))
    log_q = -math.log1p(math.exp(logit))
    return -(wanted * log_p + (1 - wanted) * log_q)


@given(seed=st.integers(0, 2**20), rates=st.lists(st.floats(0.001, 0.9), min_size=3, max_size=3))
def test_seen_cells_weigh_the_root_of_how_rare_their_class_is(
    seed: int, rates: list[float]
) -> None:
    logits, targets, mask = scene(seed)
    rare = (1 / torch.tensor(rates, dtype=torch.float64)).sqrt()
    wanted = [0.0] * BATCH
    for b, k, i, j in CELLS:
        if mask[b, i, j]:
            weight = math.sqrt(1 / rates[k]) if targets[b, k, i, j] else 1.0
            cell = entropy(float(logits[b, k, i, j]), float(targets[b, k, i, j]))
            wanted[b] += weight * cell / (CLASSES * ROWS * COLUMNS)
    got = seen_entropy(logits, targets, mask, rare=rare)
    assert got.tolist() == pytest.approx(wanted)


@given(seed=st.integers(0, 2**20), rates=st.lists(st.floats(0.001, 0.9), min_size=3, max_size=3))
def test_unseen_cells_are_pulled_to_the_frequencies(seed: int, rates: list[float]) -> None:
    logits, targets, mask = scene(seed)
    wanted = [0.0] * BATCH
    for b, k, i, j in CELLS:
        if not mask[b, i, j]:
            wanted[b] += entropy(float(logits[b, k, i, j]), rates[k]) / (CLASSES * ROWS * COLUMNS)
    got = unseen_entropy(logits, targets, mask, rates=torch.tensor(rates, dtype=torch.float64))
    assert got.tolist() == pytest.approx(wanted)
    flipped = unseen_entropy(
        logits, 1 - targets, mask, rates=torch.tensor(rates, dtype=torch.float64)
    )
    assert torch.equal(got, flipped)


@given(seed=st.integers(0, 2**20), gamma=st.floats(0, 4))
def test_focal_loss_is_the_sum_over_classes_of_means_over_cells(seed: int, gamma: float) -> None:
    logits, targets, mask = scene(seed)
    wanted = [0.0] * BATCH
    for b, k, i, j in CELLS:
        if mask[b, i, j]:
            logit, target = float(logits[b, k, i, j]), float(targets[b, k, i, j])
            chance = 1 / (1 + math.exp(-logit))
            missing = 1 - chance if target else chance
            wanted[b] += missing**gamma * entropy(logit, target) / (ROWS * COLUMNS)
    got = focal_entropy(logits, targets, mask, gamma=gamma)
    assert got.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_gradients_are_finite_where_the_network_is_sure(gamma: float) -> None:
    logits = torch.tensor([-60.0, -20.0, 0.0, 20.0, 60.0]).view(1, 1, 1, 5).requires_grad_()
    for targets in (torch.zeros(1, 1, 1, 5), torch.ones(1, 1, 1, 5)):
        focal_entropy(logits, targets, torch.ones(1, 1, 5), gamma=gamma).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_sum_of_weighted_terms_is_the_loss() -> None:
    logits, targets, mask = scene(3)
    rates = (0.5, 0.1, 0.02)
    terms = mono_terms(MonoLoss(bce=LossTerm(weight=2), prior=PriorTerm(weight=0.5)), rates, CPU)
    loss = judge(terms, logits, targets, mask, step=0)
    assert set(loss.terms) == {"bce", "prior"}
    assert loss.count == BATCH
    mean = 2 * loss.terms["bce"] + 0.5 * loss.terms["prior"]
    assert float(loss.total) == pytest.approx(float(mean) * BATCH)
    rare = torch.tensor([math.sqrt(1 / rate) for rate in rates])
    seen = seen_entropy(logits.float(), targets.float(), mask.float(), rare=rare)
    assert float(loss.terms["bce"]) == pytest.approx(float(seen.mean()))


def test_a_term_has_its_own_cadence_and_one_of_weight_zero_is_not_computed() -> None:
    logits, targets, mask = scene(4)
    every_third = mono_terms(MonoLoss(prior=PriorTerm(every_steps=3)), (0.1, 0.2, 0.3), CPU)
    seen = [set(judge(every_third, logits, targets, mask, step=step).terms) for step in range(4)]
    assert seen == [{"bce", "prior"}, {"bce"}, {"bce"}, {"bce", "prior"}]
    alone = mono_terms(MonoLoss(prior=PriorTerm(weight=0)), (0.1, 0.2, 0.3), CPU)
    assert [term.name for term in alone] == ["bce"]


def test_logits_of_half_precision_are_judged_in_full() -> None:
    logits, targets, mask = scene(5, spread=0.01)
    terms = surround_terms(SurroundLoss(focal=FocalTerm(gamma=1)))
    wide = judge(terms, logits.bfloat16().float(), targets, mask, step=0)
    narrow = judge(terms, logits.bfloat16(), targets.byte(), mask.byte(), step=0)
    assert narrow.total.dtype == torch.float32
    assert torch.equal(narrow.total, wide.total)


def test_nothing_is_learned_from_cells_that_do_not_count() -> None:
    logits, targets, _ = scene(6)
    logits.requires_grad_()
    hidden = torch.zeros(BATCH, ROWS, COLUMNS)
    for terms in (
        mono_terms(MonoLoss(prior=PriorTerm(weight=0)), (0.1, 0.2, 0.3), CPU),
        surround_terms(SurroundLoss()),
    ):
        judge(terms, logits, targets, hidden, step=0).total.backward()
    assert logits.grad is not None
    assert not logits.grad.any()
