"""Fetching the features of neighbouring frames to where they belong in the current one.

A clip is aligned in both directions at once by playing it both ways: the first half of the
doubled batch runs forward in time and looks at what follows, the second half runs backward. One
call then serves every pair of frames and both directions.

With fused kernels nothing is doubled: they read frames where they are, by the numbers of each
pair, and what goes into the offsets' network, and what comes out of all, is written joined. The
channels of that network's last layer are turned so that what one tap needs lies together.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.kernels import Kernels, deform_conv, flow_warp
from pitstop.kernels.fallback import runs_fused
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.train.model.recompute import keeps_outputs
from pitstop.workloads.deblur.model.casts import autocast_together

TAPS = 9
CHANNEL_MULTIPLE = 64
SLOPE = 0.1
"""Of the leaky rectifiers."""

Flows: TypeAlias = tuple[Tensor, ...]
"""Flows to the frame 1, 2, ... steps on, (2B, D - step, 2, h, w) each, of a clip played both ways.

Element t of the first B leads from frame t to frame t + step; the last B say the same of the clip
in reverse order.
"""


def both_ways(clip: Tensor) -> Tensor:
    """(B, D, ...) -> (2B, D, ...): the clip, and the clip in reverse order."""
    return torch.cat((clip, clip.flip(1)))


def split_ways(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Undo `both_ways` for one result a pair, with zeros where a frame has no neighbour.

    Args:
        pairs: (2B, D - 1, ...).

    Returns:
        What each frame got from its successor and from its predecessor, (B, D, ...) each, in the
        clip's own order.
    """
    after, before = pairs.chunk(2)
    nothing = torch.zeros_like(after[:, :1])
    return torch.cat((after, nothing), dim=1), torch.cat((nothing, before.flip(1)), dim=1)


def compose_flows(single: Tensor, *, num_steps: int, kernels: Kernels = "auto") -> Flows:
    """Chain single steps into flows to frames further on.

    Args:
        single: (2B, D - 1, 2, h, w) flows to the next frame.
        num_steps: How far to go.
        kernels: Which version of the warp to run.

    Returns:
        ``num_steps`` flows; those that lead beyond the clip are empty.
    """
    warp = flow_warp.dispatch(kernels).bilinear
    flows = [single]
    for step in range(1, num_steps):
        so_far = flows[-1][:, :-1]
        if so_far.shape[1] == 0:
            flows.append(so_far)
            continue
        onward = warp(single[:, step:].flatten(0, 1), so_far.flatten(0, 1))
        flows.append(so_far + onward.view_as(so_far))
    return tuple(flows)


class Alignment(nn.Module):
    """Deformable convolution over neighbouring frames, guided by optical flow.

    Args:
        dim: Channels of a frame.
        num_steps: Neighbours on each side.
        deformable_groups: Slices of the channels that choose their places apart.
        max_residue: How many pixels a learned offset may lead away from the flow.
        kernels: Which versions of warp and convolution to run.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_steps: int,
        deformable_groups: int,
        max_residue: float,
        kernels: Kernels = "auto",
    ) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.deformable_groups = deformable_groups
        self.max_residue = max_residue
        self.kernels: Kernels = kernels
        bound = (TAPS * dim) ** -0.5
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(dim))
        last = nn.Conv2d(dim, 3 * TAPS * deformable_groups, 3, padding=1)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        nn.init.zeros_(last.bias)
        self.conv_offset = nn.Sequential(
            nn.Conv2d((1 + num_steps) * dim + 2 * num_steps, dim, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            last,
        )

    def forward(self, x: Tensor, flows: Flows) -> Tensor:
        """Align every frame's neighbours to it.

        Args:
            x: (B, D, h, w, C).
            flows: As many as there are steps, at the scale of ``x``.

        Returns:
            (B, D, h, w, 3 C): the frames, features aligned from the frames after them and from the
            frames before them, zero where there is no such frame.
        """
        if x.shape[1] == 1:
            return functional.pad(x, (0, 2 * x.shape[-1]))
        if runs_fused(self.kernels, operation="alignment", obstacle=self._obstacle(x)):
            return self._fused(x, flows[0].flatten(0, 1))
        num_pairs = x.shape[1] - 1
        clip = both_ways(x)
        current = _as_images(clip[:, :-1])
        neighbours = [
            _as_images(_fill(clip[:, step:], num_pairs)) for step in range(1, self.num_steps + 1)
        ]
        steps = [_fill(flow, num_pairs).flatten(0, 1) for flow in flows]
        aligned = self._align(current, neighbours, steps)
        pairs = aligned.permute(0, 2, 3, 1).unflatten(0, (-1, num_pairs))
        return torch.cat((x, *split_ways(pairs)), dim=-1)

    def _obstacle(self, x: Tensor) -> str | None:
        """Why fused kernels cannot align ``x``, or None."""
        if self.num_steps > 1:
            return "frames are aligned with more than one neighbour on a side"
        return deform_conv.obstacle_of(_as_images(x), self.weight)

    def _fused(self, x: Tensor, flow: Tensor) -> Tensor:
        """The same by kernels that read frames by the numbers of their pairs."""
        frames = _as_images(x)
        pairs = neighbour_pairs(x.shape[0], x.shape[1], x.device)
        dtype = compute_type(x.device, x.dtype)
        *operands, last, raw_bias = self.conv_offset.parameters()
        *operands, last = autocast_together(self.kernels, x, [[part] for part in (*operands, last)])
        weight = self._by_tap(last)
        # Filled up to a multiple of 64: cuDNN takes three times as long for the gradient of its
        # input where there are 432 channels.
        missing = -weight.shape[0] % CHANNEL_MULTIPLE
        weight = functional.pad(weight, (0, 0, 0, 0, 0, 0, 0, missing))
        # Without a name here: nothing holds what the network sees once its first layer has run.
        hidden = hidden_of_offsets(
            flow_warp.join_fused(frames, flow, pairs, first="warped", dtype=dtype), operands
        )
        raw = functional.conv2d(hidden, weight, padding=1)
        del hidden
        joined = deform_conv.align_fused(
            frames,
            raw,
            flow,
            self.weight,
            bias=self.bias,
            raw_bias=self._by_tap(raw_bias),
            pairs=pairs,
            max_residue=self.max_residue,
        )
        return joined.unflatten(0, x.shape[:2])

    def _by_tap(self, last: Tensor) -> Tensor:
        """A parameter of the last layer with its channels as (tap, (dy, dx, mask), group)."""
        groups = self.deformable_groups
        offsets, mask = last.split([2 * TAPS * groups, TAPS * groups])
        offsets = offsets.unflatten(0, (groups, TAPS, 2))
        mask = mask.unflatten(0, (groups, TAPS, 1))
        return torch.cat((offsets, mask), dim=2).movedim(0, 2).flatten(0, 2)

    def _align(self, current: Tensor, neighbours: list[Tensor], flows: list[Tensor]) -> Tensor:
        """(P, C, h, w) for each of P pairs, from the pair's current frame and its neighbours."""
        warp = flow_warp.dispatch(self.kernels).bilinear
        warped = [warp(image, flow) for image, flow in zip(neighbours, flows, strict=True)]
        seen = torch.cat((*warped, current, *(flow.to(current.dtype) for flow in flows)), dim=1)
        first, second, mask = self.conv_offset(seen).chunk(3, dim=1)
        residue = self.max_residue * torch.tanh(torch.cat((first, second), dim=1))
        convolve = deform_conv.dispatch(self.kernels)
        return convolve(
            torch.cat(neighbours, dim=1),
            _add_flows(residue, flows),
            torch.sigmoid(mask),
            self.weight,
            bias=self.bias,
        )


def hidden_of_offsets(seen: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """What the offsets' network knows before its last layer, from channels filled up."""
    for weight, bias in zip(operands[::2], operands[1::2], strict=True):
        missing = seen.shape[1] - weight.shape[1]
        whole = functional.pad(weight, (0, 0, 0, 0, 0, missing)) if missing else weight
        seen = functional.conv2d(seen, whole, bias, padding=1)
        # Nothing else reads what is changed here, unless outputs are kept by themselves.
        seen = functional.leaky_relu(seen, SLOPE, inplace=not keeps_outputs())
    return seen


def compute_type(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What convolutions compute in on ``device``: as autocast says, or ``dtype``."""
    if device.type in {"cuda", "cpu"} and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def _add_flows(residue: Tensor, flows: Sequence[Tensor]) -> Tensor:
    """Lay each flow, turned to (dy, dx), under its share of the offsets."""
    shares = residue.unflatten(1, (len(flows), -1, 2))
    guide = torch.stack([flow.flip(1) for flow in flows], dim=1)
    return (shares + guide[:, :, None]).flatten(1, 3)


def _as_images(frames: Tensor) -> Tensor:
    """(B, D, h, w, C) -> (B * D, C, h, w), without moving channels in memory."""
    return frames.flatten(0, 1).permute(0, 3, 1, 2)


def _fill(frames: Tensor, num_frames: int) -> Tensor:
    """Append frames of zeros until there are ``num_frames``."""
    missing = num_frames - frames.shape[1]
    if missing == 0:
        return frames
    return functional.pad(frames, (0, 0) * (frames.dim() - 2) + (0, missing))
