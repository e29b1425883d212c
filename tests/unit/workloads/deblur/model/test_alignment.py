"""What the fused alignment holds on to while it runs without gradients."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from pitstop.kernels import deform_conv, flow_warp
from pitstop.workloads.deblur.model.alignment import Alignment


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
