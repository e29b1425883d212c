"""Norms of the convolutions behind the backbone."""

import math
from typing import Final, Literal

from torch import Tensor, nn

NormKind = Literal["batch", "group"]

NORM_GROUPS: Final = 16


class HalfwayNorm(nn.GroupNorm):
    """Group norm that computes in float32 under autocast, and answers in the dtype it was asked in.

    What autocast leaves in float32 goes through every shortcut behind it, and the blocks of a head
    are bound by the bytes they move.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """(N, C, H, W) of any floating dtype -> the same."""
        return super().forward(input).to(input.dtype)


def make_norm(kind: NormKind, channels: int) -> nn.Module:
    """Make a norm over a batch, or over groups of each sample's channels: 16, or fewer if few."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return HalfwayNorm(math.gcd(channels, NORM_GROUPS), channels)
