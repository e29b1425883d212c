"""Spikes of a frame's exposure turned into channels, on the device, as tensors of any batch.

Spikes arrive as bytes, (B, D, T, h, w): 0 and 1, and `NO_PLANE` throughout the planes that a
shorter file does not have. How many planes a frame has is counted here, so nothing is read back.
Every choice gives `bins` channels a frame:

    counts   spikes in each of `bins` segments of the exposure, as equal as can be
    tfp      share of planes with a spike, within `reach` planes of each of `bins` centres
    tfi      one over the interval between the spikes around each of `bins` centres
    raw      the `bins` planes in the middle, as they are
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

VoxelKind: TypeAlias = Literal["counts", "tfp", "tfi", "raw"]

NO_PLANE: Final = 255
"""What fills planes after a file's last one, where frames of a batch have unequal numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voxels:
    """How spikes become channels of the model's input."""

    kind: VoxelKind = "counts"
    bins: int = 32
    reach: int = 20
    """Planes on each side of a centre, for tfp."""
    log1p: bool = True
    """Give log(1 + count) instead of the count, for counts."""
    counted: bool = False
    """The bytes that arrive are counts already, (B, D, bins, h, w)."""

    def __call__(self, spikes: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, D, T, h, w) bytes -> (B, D, bins, H, W) fp32 at the size of the frames."""
        # Places and means need fp32, whatever precision the model runs in.
        with torch.autocast(spikes.device.type, enabled=False):
            return resize(self.channels(spikes), size)

    def channels(self, spikes: Tensor) -> Tensor:
        """Give the channels at the size of the spikes."""
        if self.kind == "counts":
            counts = spikes.float() if self.counted else count_spikes(spikes, self.bins)
            return counts.log1p() if self.log1p else counts
        assert not self.counted, "counts tell no intervals, means or planes"
        if self.kind == "tfp":
            return firing_shares(spikes, self.bins, reach=self.reach)
        return (
            intervals(spikes, self.bins) if self.kind == "tfi" else middle_planes(spikes, self.bins)
        )


def count_spikes(spikes: Tensor, bins: int) -> Tensor:
    """Count into bins: plane t of n lies in bin k where k n // bins <= t < (k + 1) n // bins."""
    edges = torch.arange(bins + 1, device=spikes.device) * _planes(spikes)[..., None] // bins
    place = _places(spikes)
    return _mix((place >= edges[..., :-1, None]) & (place < edges[..., 1:, None]), spikes)


def firing_shares(spikes: Tensor, bins: int, *, reach: int) -> Tensor:
    """Texture from playback: the share of planes around each centre that have a spike."""
    planes, place = _planes(spikes)[..., None, None], _places(spikes)
    near = (place - _centres(spikes, bins)[..., None]).abs() <= reach
    near = near & (place < planes)
    return _mix(near / near.sum(dim=-1, keepdim=True), spikes)


def intervals(spikes: Tensor, bins: int) -> Tensor:
    """Texture from intervals: one over the time between the spikes around each centre.

    From the last spike at or before the centre to the first one after it; 0 where one of them is
    not there, for then no interval is known.
    """
    fired = spikes == 1
    place = _places(spikes)[:, None, None].expand_as(spikes)
    none_yet, none_left = -1, spikes.shape[2]
    before = torch.where(fired, place, none_yet).cummax(dim=2).values
    after = torch.where(fired, place, none_left).flip(2).cummin(dim=2).values.flip(2)
    # The first spike after plane t is the first one at or after plane t + 1.
    after = functional.pad(after[:, :, 1:], (0, 0, 0, 0, 0, 1), value=none_left)
    at = _centres(spikes, bins)[..., None, None].expand(-1, -1, -1, *spikes.shape[-2:])
    start, end = before.gather(2, at), after.gather(2, at)
    known = (start != none_yet) & (end != none_left)
    return torch.where(known, 1.0 / (end - start).clamp_min(1), 0.0)


def middle_planes(spikes: Tensor, bins: int) -> Tensor:
    """Give the planes in the middle of the exposure; zeros where there are fewer than wanted."""
    planes = _planes(spikes)[..., None]
    wanted = (planes - bins).div(2, rounding_mode="floor") + torch.arange(
        bins, device=spikes.device
    )
    wanted = torch.where((wanted >= 0) & (wanted < planes), wanted, -1)
    return _mix(_places(spikes) == wanted[..., None], spikes)


def resize(voxels: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring (B, D, K, h, w) to the size of the frames, bilinearly."""
    if voxels.shape[-2:] == size:
        return voxels
    images = functional.interpolate(
        voxels.flatten(0, 1), size=size, mode="bilinear", align_corners=False
    )
    return images.unflatten(0, voxels.shape[:2])


def join_planes(clips: list[Tensor]) -> Tensor:
    """Stack (D, T, h, w) spikes of several samples, the shorter ones filled up with `NO_PLANE`."""
    longest = max(clip.shape[1] for clip in clips)
    return torch.stack([fill_planes(clip, longest) for clip in clips])


def fill_planes(spikes: Tensor, planes: int) -> Tensor:
    """Append planes that are none to (..., T, h, w) until there are so many."""
    missing = planes - spikes.shape[-3]
    return functional.pad(spikes, (0, 0, 0, 0, 0, missing), value=NO_PLANE) if missing else spikes


def _planes(spikes: Tensor) -> Tensor:
    """Count the planes of each frame, (B, D), by a corner pixel."""
    return (spikes[..., 0, 0] != NO_PLANE).sum(dim=-1)


def _places(spikes: Tensor) -> Tensor:
    return torch.arange(spikes.shape[2], device=spikes.device)


def _centres(spikes: Tensor, bins: int) -> Tensor:
    """Planes in the middle of equal segments, (B, D, bins)."""
    step = torch.arange(bins, device=spikes.device)
    return (2 * step + 1) * _planes(spikes)[..., None] // (2 * bins)


def _mix(weights: Tensor, spikes: Tensor) -> Tensor:
    """Add up planes by (B, D, K, T) weights; planes that are none add nothing."""
    fired = (spikes == 1).flatten(3).float()
    return (weights.float() @ fired).unflatten(-1, spikes.shape[-2:])
