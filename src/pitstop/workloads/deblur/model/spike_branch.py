"""The branch that reads spikes: an encoder, attention over time, and fusion with VRT's features.

Everything after the encoder looks at one pixel at a time, over its frames. Volumes are laid out
(B, T, h, w, C) as in the stages they are fused with; the encoder, which convolves over time as
well, works on (B, C, T, h, w). Four scales: the size of the frames, a half, a quarter, an eighth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import ConfigError
from pitstop.workloads.deblur.model.blocks import Recompute, plain_call

NUM_FUSED: Final = 4
"""Stages whose outputs are fused with spikes: the first four, each at its own scale."""

SPATIAL_STRIDE: Final = 2
"""From scale to scale, as VRT's own stages go down."""

_BLOCKS_A_SCALE: Final = 2

FusionKind: TypeAlias = Literal["cross_attention", "early"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What attention over time and its feed-forward part are made of."""

    heads: int = 4
    dropout: float = 0.0
    """Of attention weights, in training."""
    mlp_ratio: float = 2.0
    chunk: int | None = None
    """Side of the square of pixels worked on at once; None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeShape:
    """The whole branch.

    Raises:
        ConfigError: When numbers do not fit together.
    """

    bins: int = 32
    """Channels of the spikes that come in."""
    channels: int = 96
    """Of the branch at every scale; those of the stages it is fused with."""
    temporal_strides: Sequence[int] = (1, 1, 1)
    """Frames become fewer by these factors on the way down; fusion attends to what is left."""
    attention: AttentionShape = AttentionShape()
    fusion: AttentionShape = AttentionShape()
    kind: FusionKind = "cross_attention"
    """`early` has no branch at all: spikes are further channels of the frames."""

    def __post_init__(self) -> None:
        if len(self.temporal_strides) != NUM_FUSED - 1:
            raise ConfigError(
                f"the spike encoder goes down {NUM_FUSED - 1} times and needs as many temporal "
                f"strides, not {len(self.temporal_strides)}"
            )
        for part, shape in (("spike", self.attention), ("fusion", self.fusion)):
            if self.channels % shape.heads:
                raise ConfigError(
                    f"model.spike.channels is {self.channels}, no multiple of the {shape.heads} "
                    f"heads of model.{part}"
                )


class ResidualConv(nn.Module):
    """Two convolutions over space and time, added to what came in; no norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.recompute_spikes: Recompute = plain_call

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, h, w) -> same."""
        return self.recompute_spikes(self.residual_part, x)

    def residual_part(self, x: Tensor) -> Tensor:
        """Convolve twice and add."""
        return functional.relu(x + self.conv2(functional.relu(self.conv1(x))))


class SpikeEncoder(nn.Module):
    """Turns binned spikes into features at four scales."""

    def __init__(self, bins: int, channels: int, *, temporal_strides: Sequence[int]) -> None:
        super().__init__()
        self.in_proj = nn.Conv3d(bins, channels, 3, padding=1)
        self.res0 = _residuals(channels)
        self.downs = nn.ModuleList(
            nn.Conv3d(
                channels, channels, 3, stride=(stride, SPATIAL_STRIDE, SPATIAL_STRIDE), padding=1
            )
            for stride in temporal_strides
        )
        self.residuals = nn.ModuleList(_residuals(channels) for _ in temporal_strides)

    def forward(self, voxels: Tensor) -> list[Tensor]:
        """(B, T, bins, H, W) -> four of (B, T_i, H / 2^i, W / 2^i, C)."""
        x = self.res0(functional.relu(self.in_proj(voxels.transpose(1, 2))))
        scales = [x]
        for down, residuals in zip(self.downs, self.residuals, strict=True):
            x = residuals(functional.relu(down(x)))
            scales.append(x)
        return [scale.permute(0, 2, 3, 4, 1) for scale in scales]


class PixelAttention(nn.Module):
    """Attention over the frames of each pixel; names of weights are `nn.MultiheadAttention`'s."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj = nn.Linear(dim, dim)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """Let each frame of a pixel ask all frames of the same pixel in the memory.

        Written out, not `scaled_dot_product_attention`: at 256x256 there are more pixels than a
        device takes in one launch of it (65,535), and scores over a few frames are small.

        Args:
            query: (B, T, h, w, C).
            memory: (B, S, h, w, C).

        Returns:
            (B, T, h, w, C).
        """
        weights = self.in_proj_weight.chunk(3)
        biases = self.in_proj_bias.chunk(3)
        q, k, v = (
            self._by_pixel(functional.linear(x, weight, bias))
            for x, weight, bias in zip((query, memory, memory), weights, biases, strict=True)
        )
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        share = functional.dropout(scores.softmax(dim=-1), self.dropout, training=self.training)
        gathered = (share @ v).permute(0, 4, 1, 2, 3, 5).flatten(-2)
        return self.out_proj(gathered)

    def _by_pixel(self, x: Tensor) -> Tensor:
        """(B, T, h, w, C) -> (B, h, w, heads, T, C / heads)."""
        return x.unflatten(-1, (self.heads, -1)).permute(0, 2, 3, 4, 1, 5)


class TemporalSelfAttention(nn.Module):
    """Each pixel's spikes, seen over all frames; then a feed-forward part."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.chunk = shape.chunk
        self.ln1 = nn.LayerNorm(dim)
        self.attn = PixelAttention(dim, shape)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = _feed_forward(dim, shape)
        self.recompute_attention: Recompute = plain_call
        self.recompute_feed_forward: Recompute = plain_call

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, h, w, C) -> same."""
        return by_squares(self._square, self.chunk, x)

    def attention_part(self, x: Tensor) -> Tensor:
        """Norm, attend over time."""
        normed = self.ln1(x)
        return self.attn(normed, normed)

    def feed_forward_part(self, x: Tensor) -> Tensor:
        """Norm, project up and down."""
        return self.mlp(self.ln2(x))

    def _square(self, x: Tensor) -> Tensor:
        x = x + self.recompute_attention(self.attention_part, x)
        return x + self.recompute_feed_forward(self.feed_forward_part, x)


class SpikeAttention(nn.Module):
    """Attention over time at each of the four scales."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TemporalSelfAttention(dim, shape) for _ in range(NUM_FUSED))

    def forward(self, scales: Sequence[Tensor]) -> list[Tensor]:
        """Work on each scale by itself."""
        return [block(scale) for block, scale in zip(self.blocks, scales, strict=True)]


class CrossAttention(nn.Module):
    """Attention of frames over spikes, under the name that the weights have it by."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.attn = PixelAttention(dim, shape)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """See `PixelAttention`."""
        return self.attn(query, memory)


class TemporalFusion(nn.Module):
    """Frames ask the spikes of their own pixel, over all frames, and add the answer."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.chunk = shape.chunk
        self.ln_q = nn.LayerNorm(dim)
        self.ln_kv = nn.LayerNorm(dim)
        self.attn = CrossAttention(dim, shape)
        self.ln_ffn = nn.LayerNorm(dim)
        self.ffn = _feed_forward(dim, shape)
        self.recompute_attention: Recompute = plain_call
        self.recompute_feed_forward: Recompute = plain_call

    def forward(self, features: Tensor, spikes: Tensor) -> Tensor:
        """(B, T, h, w, C) of frames and (B, S, h, w, C) of spikes -> (B, T, h, w, C)."""
        return by_squares(self._square, self.chunk, features, spikes)

    def attention_part(self, features: Tensor, spikes: Tensor) -> Tensor:
        """Norm both, attend over time."""
        return self.attn(self.ln_q(features), self.ln_kv(spikes))

    def feed_forward_part(self, x: Tensor) -> Tensor:
        """Norm, project up and down."""
        return self.ffn(self.ln_ffn(x))

    def _square(self, features: Tensor, spikes: Tensor) -> Tensor:
        x = features + self.recompute_attention(self.attention_part, features, spikes)
        return x + self.recompute_feed_forward(self.feed_forward_part, x)


class SpikeFusion(nn.Module):
    """The fusions after stages 1 to 4; called by number, so it has no forward of its own."""

    def __init__(self, dim: int, shape: AttentionShape) -> None:
        super().__init__()
        self.fuse_blocks = nn.ModuleList(TemporalFusion(dim, shape) for _ in range(NUM_FUSED))


def by_squares(fn: Callable[..., Tensor], side: int | None, *maps: Tensor) -> Tensor:
    """Work on squares of pixels one after the other, where pixels do not know of each other.

    Only what ``fn`` makes on its way becomes smaller: what it returns is joined, not written into
    a volume made beforehand, so that nothing is copied twice.

    Args:
        fn: Takes as many volumes (B, T, h, w, C) as are given and returns one of the same h and w.
        side: Of a square; None for everything at once.
        *maps: Volumes of the same h and w.
    """
    height, width = maps[0].shape[2:4]
    if side is None or side >= max(height, width):
        return fn(*maps)
    rows = [
        torch.cat(
            [
                fn(*(each[:, :, top : top + side, left : left + side] for each in maps))
                for left in range(0, width, side)
            ],
            dim=3,
        )
        for top in range(0, height, side)
    ]
    return torch.cat(rows, dim=2)


def _residuals(channels: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualConv(channels) for _ in range(_BLOCKS_A_SCALE)))


def _feed_forward(dim: int, shape: AttentionShape) -> nn.Sequential:
    hidden = int(dim * shape.mlp_ratio)
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
