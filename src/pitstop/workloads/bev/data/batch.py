"""What the network gets to see of the cameras around a car, and what it should find there.

Frames, none of them ever mirrored:

    camera   x right, y down, z forward
    ego      x forward, y left, z up
    pixel    u right, v down; the centre of the first pixel is (0, 0)

A sample has one *ground frame*, in which its targets lie. Where several cameras are one sample it
is the ego frame, and a camera's `cam_to_ego` leads there. Where one camera is one sample it is the
frame of the camera itself, and `cam_to_ego` is the identity. A point of the original image becomes
a point of the target by

    network pixel = image_transform @ (u, v, 1)
    point         = bev_transform @ cam_to_ego @ (depth * inverse(intrinsics) @ (u, v, 1), 1)

Rows of targets count cells forward (ego x, camera z), columns cells across (ego y, so to the left;
camera x, so to the right); both grow with the coordinate. Cell i of a bound (start, stop, step)
reaches from start + i * step to start + (i + 1) * step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BevSample:
    """The cameras of one moment, or one of them, and the ground around."""

    images: Tensor
    """(N, 3, H, W) uint8, levels 0 to 255."""
    intrinsics: Tensor
    """(N, 3, 3) float32, of the original image."""
    cam_to_ego: Tensor
    """(N, 4, 4) float32, from the camera to the ground frame."""
    image_transform: Tensor
    """(N, 3, 3) float32, from homogeneous pixels of the original to those of the network's."""
    bev_transform: Tensor
    """(4, 4) float32, what the ground frame went through before targets were drawn in it."""
    calibration: Tensor
    """() int64; equal numbers mean equal intrinsics, cam_to_ego, image_transform and
    bev_transform. -1 where something was drawn at random."""
    targets: Tensor
    """(K, h, w) uint8, 1 where the class is."""
    mask: Tensor
    """(h, w) uint8, 1 where a cell counts as seen; ones where every cell counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BevBatch:
    """Samples side by side; fields as in `BevSample` with the batch in front."""

    images: Tensor
    intrinsics: Tensor
    cam_to_ego: Tensor
    image_transform: Tensor
    bev_transform: Tensor
    calibration: Tensor
    targets: Tensor
    mask: Tensor


def collate(samples: Sequence[BevSample]) -> BevBatch:
    """Join samples of equal shape into a batch."""
    return BevBatch(
        **{
            part.name: torch.stack([getattr(sample, part.name) for sample in samples])
            for part in fields(BevSample)
        }
    )
