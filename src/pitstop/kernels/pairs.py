"""Which frames of clips are paired: every frame with its neighbours, both ways.

A batch of B clips of D frames has 2 B (D - 1) pairs: first each frame with the one after it, clip
by clip, then each frame with the one before it, last frames first, as if clips were played
backward.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Neighbouring frames, by their numbers in (B * D) frames; (P,) int32 where nothing is said."""

    current: Tensor
    neighbours: Tensor
    slots: Tensor
    """Where a pair's result goes: twice its current frame, plus 1 if its neighbour came before."""
    lacks: Tensor
    """(B * D,) int32: 1 for frames that have nothing after them, 2 before them, 3 both."""


@lru_cache(maxsize=32)
def neighbour_pairs(batch: int, num_frames: int, device: torch.device) -> Pairs:
    """Pair all frames of ``batch`` clips with their neighbours; made once for each device."""
    # Whoever asks first may be an evaluation, and its tensors could not be saved for a gradient.
    with torch.inference_mode(mode=False):
        pair = torch.arange(2 * batch * (num_frames - 1), device=device, dtype=torch.int32)
        step = pair % (num_frames - 1)
        backward = pair // (batch * (num_frames - 1))
        clip = pair // (num_frames - 1) % batch
        current = clip * num_frames + torch.where(backward > 0, num_frames - 1 - step, step)
        frame = torch.arange(batch * num_frames, device=device, dtype=torch.int32) % num_frames
        lacks = (frame == num_frames - 1).int() + 2 * (frame == 0).int()
        return Pairs(current, current + 1 - 2 * backward, 2 * current + backward, lacks)


def in_rows(images: Tensor) -> Tensor:
    """Give (N, C, H, W) images whose rows follow one another, as they are or copied."""
    if images.stride(2) == images.shape[3] * images.stride(3) or 1 in images.shape[2:]:
        return images
    return images.contiguous()


def pixel_stride(images: Tensor) -> int:
    """Numbers from one pixel to the next of images that are `in_rows`."""
    return images.stride(2 if images.shape[3] == 1 else 3)
