from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.kernels.block import ALIGNED_BYTES
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.workloads.deblur.model import spynet
from pitstop.workloads.deblur.model.casts import (
    Stack,
    autocast_together,
    cast_together,
)
from pitstop.workloads.deblur.model.spynet import SpyNet

torch.set_num_threads(1)

shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4)), max_size=3)


class Casts(TorchDispatchMode):
    """Counts operations that copy, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        self.count[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def one_by_one(stacks: Sequence[Stack], dtype: torch.dtype) -> list[Tensor]:
    return [torch.cat([part.to(dtype) for part in stack]) for stack in stacks]


def normal(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.lists(shapes.filter(bool), min_size=1, max_size=5))
def test_tensors_cast_together_are_those_cast_one_by_one(sizes: list[list[Any]]) -> None:
    stacks = [
        [normal((size[0], *stack[0][1:]), seed).requires_grad_() for seed, size in enumerate(stack)]
        for stack in sizes
    ]
    leaves = [part for stack in stacks for part in stack]
    found = {}
    for way in (cast_together, one_by_one):
        out = way(stacks, torch.bfloat16)
        weights = [normal(tuple(part.shape), 7).bfloat16() for part in out]
        found[way] = [*out, *torch.autograd.grad(out, leaves, weights)]
    for mine, want in zip(found[cast_together], found[one_by_one], strict=True):
        assert mine.dtype == want.dtype
        assert torch.equal(mine, want)


def test_what_fills_whole_lines_begins_at_one() -> None:
    sizes = [(2,), (4, 8), (3, 3), (16,), (8, 2), (5,)]
    parts = cast_together([[normal(size)] for size in sizes], torch.float16)
    starts = [part.storage_offset() * 2 for part in parts]
    assert [start % ALIGNED_BYTES for start in starts[1:2] + starts[3:5]] == [0, 0, 0]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_off_cuda_devices_parameters_stay_as_they_are(kernels: Any) -> None:
    weight, bias = normal((4, 3)), normal((4,))
    with torch.autocast("cpu", torch.bfloat16):
        alone, both = autocast_together(kernels, normal((1,)), [[weight], [bias, bias]])
    assert alone is weight
    assert torch.equal(both, torch.cat((bias, bias)))


def results(net: nn.Module, run: Callable[[], Sequence[Tensor]]) -> tuple[list[Tensor], Casts]:
    """What a run gives, and the gradients of all parameters; with what was copied."""
    net.zero_grad()
    with Casts() as casts:
        with torch.autocast("cpu", torch.bfloat16):
            outs = run()
        sum(out.float().square().sum() for out in outs).backward()  # pyright: ignore[reportAttributeAccessIssue]
    grads = [parameter.grad for parameter in net.parameters()]
    return [*(out.detach() for out in outs), *(grad for grad in grads if grad is not None)], casts


def test_flow_is_the_same_to_the_bit_and_takes_fewer_casts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    net, frames = SpyNet((8, 8, 8, 8)), torch.rand(3, 3, 32, 32)
    pairs = neighbour_pairs(1, 3, frames.device)
    apart, casts_apart = results(net, lambda: net(frames, pairs))
    monkeypatch.setattr(
        spynet, "autocast_together", lambda *given: cast_together(given[2], torch.bfloat16)
    )
    together, casts_together = results(net, lambda: net(frames, pairs))
    assert len(apart) == 4 + 60
    assert all(torch.equal(*pair) for pair in zip(apart, together, strict=True))
    name = "aten::_to_copy"
    assert casts_apart.count[name] - casts_together.count[name] == 2 * (60 - 1)


def test_a_stacked_layer_is_the_same_to_the_bit() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.ModuleList([nn.Linear(24, 16), nn.Linear(24, 16), nn.Linear(32, 24)]),
        normal((9, 24)),
    )
    stacks = [*zip(net[0].parameters(), net[1].parameters(), strict=True)]
    stacks += [(part,) for part in net[2].parameters()]

    def run(way: Callable[..., list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
        weight, bias, *back = way(stacks, dtype)
        hidden = functional.gelu(functional.linear(x, weight, bias))
        return [functional.linear(hidden, *back)]

    together, _ = results(net, lambda: run(cast_together, torch.bfloat16))
    apart, _ = results(net, lambda: run(one_by_one, torch.float32))
    assert all(torch.equal(*pair) for pair in zip(apart, together, strict=True))
