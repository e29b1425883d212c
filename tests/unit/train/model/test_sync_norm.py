"""Batch norm over ranks, and what is said of micro-batches and ranks."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pitstop.errors import ConfigError
from pitstop.train.model.sync_norm import (
    RankedBatchNorm,
    describe_batches,
    synchronise_norms,
)

CPU = torch.device("cpu")


def norms() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    meet = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_of_one_rank_it_is_torchs_batch_norm(
    one_rank: None, affine: bool, momentum: float | None
) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, affine=affine, momentum=momentum).double()
    twin = nn.BatchNorm2d(3, affine=affine, momentum=momentum).double()
    if affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
        twin.load_state_dict(plain.state_dict())
    ranked = RankedBatchNorm(twin)
    for _ in range(3):
        x = (torch.randn(4, 3, 5, 6, dtype=torch.float64) * 3 + 100).requires_grad_()
        y = x.detach().clone().requires_grad_()
        weights = torch.randn(4, 3, 5, 6, dtype=torch.float64)
        wanted, found = plain(x), ranked(y)
        torch.testing.assert_close(found, wanted)
        (wanted * weights).sum().backward()
        (found * weights).sum().backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-7, atol=1e-9)
    assert ranked.state_dict().keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ranked.state_dict()[name], value)
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(ranked.eval()(x), plain.eval()(x))


def test_names_and_tensors_stay_what_they_were() -> None:
    model = norms()
    before = dict(model.state_dict(keep_vars=True))
    _, facts = synchronise_norms(model, ranks=2, device=CPU)
    assert (facts.norms, facts.ranks, facts.own) == (2, 2, True)
    after = dict(model.state_dict(keep_vars=True))
    assert after.keys() == before.keys()
    assert all(after[name] is value for name, value in before.items())


def test_one_rank_is_left_alone_and_a_model_without_batch_norm_is_refused() -> None:
    model = norms()
    same, facts = synchronise_norms(model, ranks=1, device=CPU)
    assert isinstance(same.get_submodule("1"), nn.BatchNorm2d)
    assert facts.ranks == 1
    with pytest.raises(ConfigError, match=r"train.sync_norm has no effect: .* no batch norm"):
        synchronise_norms(nn.Linear(2, 2), ranks=2, device=CPU)


@pytest.mark.parametrize(
    ("accumulate", "ranks", "synchronised", "words"),
    [
        (1, 1, False, None),
        (1, 2, True, None),
        (
            2,
            1,
            False,
            r"^2 micro-batches are not a batch of 8: .* \(2 of them, such as 1\) takes .* 4 ",
        ),
        (1, 2, False, r"^2 ranks are not a batch of 8: .* train.sync_norm: true for ranks changes"),
        (2, 2, True, r"^2 micro-batches on 2 ranks are not a batch of 16: .* of 8 samples"),
    ],
)
def test_what_is_not_the_large_batch_is_said(
    accumulate: int, ranks: int, synchronised: bool, words: str | None
) -> None:
    found = describe_batches(
        norms(), batch_size=4, accumulate=accumulate, ranks=ranks, synchronised=synchronised
    )
    if words is None:
        assert found == ()
        return
    [message] = found
    assert re.search(words, message), message
