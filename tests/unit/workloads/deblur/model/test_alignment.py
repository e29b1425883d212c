"""What the fused alignment holds on to, and what its network of offsets gives when run again."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from pitstop.kernels import deform_conv, flow_warp
from pitstop.train.model.recompute import (
    RecomputeCall,
    plain_call,
    recompute_all,
    recompute_cheap,
)
from pitstop.workloads.deblur.model.alignment import Alignment, hidden_of_offsets


def test_what_the_offsets_network_sees_is_gone_before_frames_are_aligned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a sixth of a pass's peak, and the peak is where frames are aligned."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def join(frames: Tensor, flow: Tensor, pairs: Any, **_: Any) -> Tensor:
        dim = frames.shape[1]
        seen = torch.zeros(pairs.current.shape[0], 2 * dim + 2, *flow.shape[2:])
        made.append(weakref.ref(seen))
        return seen

    def align(frames: Tensor, *_: Any, **__: Any) -> Tensor:
        alive.append(sum(ref() is not None for ref in made))
        return frames.permute(0, 2, 3, 1)

    monkeypatch.setattr(flow_warp, "join_fused", join)
    monkeypatch.setattr(deform_conv, "align_fused", align)
    alignment = Alignment(8, num_steps=1, deformable_groups=2, max_residue=10.0, kernels="fused")
    monkeypatch.setattr(alignment, "_obstacle", lambda _: None)
    x = torch.rand(1, 3, 4, 4, 8)
    with torch.no_grad():
        assert torch.equal(alignment(x, (torch.zeros(2, 2, 2, 4, 4),)), x)
    assert alive == [0]
    assert len(made) == 1


@pytest.mark.parametrize("call", [recompute_all, recompute_cheap])
def test_the_offsets_network_is_the_same_when_it_runs_again(call: RecomputeCall) -> None:
    """Selective recomputation keeps convolutions, which an activation in place would change."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((8, 12, 3, 3), (8,), (8, 8, 3, 3), (8,))
    leaves = [torch.randn(2, 16, 6, 6, generator=draw)]
    leaves += [0.2 * torch.randn(shape, generator=draw) for shape in shapes]
    found = []
    for how in (plain_call, call):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        out = how(hidden_of_offsets, given[0], given[1:])
        found.append((out, *torch.autograd.grad(out.square().sum(), given)))
    for plain, again in zip(*found, strict=True):
        assert torch.equal(plain, again)


def test_the_offsets_network_is_compiled_in_one_piece() -> None:
    """Asking whether outputs are kept must not break the graph."""
    given = torch.rand(1, 4, 5, 5), [torch.rand(4, 4, 3, 3), torch.rand(4)]
    compiled = torch.compile(hidden_of_offsets, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*given), hidden_of_offsets(*given))
