"""Attention inside windows of a video volume, shifted or not.

Everything speaks in volumes: projections come in as (B, D, H, W, 3C) and the result leaves as
(B, D, H, W, C), so that rolling, cutting into windows and putting back are the business of the
version that runs, never of its caller. The last axis of a projection reads as
(query | key | value, head, channel of the head).

Tokens of a window are ordered depth first, then height, then width; windows likewise, inside
their batch element.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pitstop.kernels import Formula, Kernels, refuse_fused

MASKED_SCORE: Final = -100.0
"""Added to the score of two tokens that only meet because the volume was rolled."""

CPU_SCORES: Final = 2**20
"""Scores that a CPU makes at a time: 4 MiB of float32."""

Size: TypeAlias = tuple[int, int, int]
"""Depth, height and width."""


class Windows(NamedTuple):
    """How a volume is cut: the size of a window, and how far the grid is moved first."""

    size: Size
    shift: Size

    @property
    def num_tokens(self) -> int:
        """Tokens in one window."""
        depth, height, width = self.size
        return depth * height * width


class WindowAttention(NamedTuple):
    """The two operations of this file in the version that was asked for."""

    self_attention: Callable[..., Tensor]
    mutual_attention: Callable[..., Tensor]


def dispatch(kernels: Kernels = "auto") -> WindowAttention:
    """Give the versions that ``kernels`` asks for.

    Raises:
        ConfigError: When that version does not exist.
    """
    refuse_fused(kernels, operation="window attention")
    return WindowAttention(self_attention_reference, mutual_attention_reference)


def self_attention_reference(
    qkv: Tensor,
    bias_table: Tensor,
    bias_index: Tensor,
    regions: Tensor | None,
    *,
    windows: Windows,
    num_heads: int,
) -> Tensor:
    """Let every token attend to all tokens of its window, with a learned bias by relative place.

    Args:
        qkv: (B, D, H, W, 3C); D, H, W are multiples of the window's sides.
        bias_table: (places, heads), one learned number for each relative place and head.
        bias_index: (N, N) row of ``bias_table`` for each pair of the N tokens of a window.
        regions: (windows, N) labels from `shift_regions`, or None when every token may see every
            other one. Tokens with different labels get `MASKED_SCORE` added.
        windows: How the volume is cut.
        num_heads: Heads; C must be a multiple of it.

    Returns:
        (B, D, H, W, C), before the output projection.
    """
    num_tokens = windows.num_tokens
    query, key, value = _to_windows(qkv, windows, num_heads=num_heads)
    bias = bias_table.index_select(0, bias_index.reshape(-1)).view(num_tokens, num_tokens, -1)
    labels = None if regions is None else regions.repeat(qkv.shape[0], 1)
    out = _attend(query, key, value, bias=bias.permute(2, 0, 1).contiguous(), regions=labels)
    return _to_volume(out, qkv.shape, windows)


def mutual_attention_reference(
    qkv: Tensor, regions: Tensor | None, *, windows: Windows, num_heads: int
) -> Tensor:
    """Let the two frames of each window attend to one another: each asks, the other answers.

    The result at the first frame gathers values of the first frame by the queries of the second,
    and the other way round. No bias; both frames use the mask of the first frame's tokens, so
    frames that met by rolling in time still see each other.

    Args:
        qkv: (B, D, H, W, 3C), as for `self_attention_reference`.
        regions: (windows, N) labels or None, likewise.
        windows: How the volume is cut; its depth must be 2.
        num_heads: Heads; C must be a multiple of it.

    Returns:
        (B, D, H, W, C), before the output projection.
    """
    assert windows.size[0] == 2, "mutual attention pairs exactly two frames"
    half = windows.num_tokens // 2
    frames = _to_windows(qkv, windows, num_heads=num_heads).unflatten(-2, (2, half))
    query, key, value = frames
    labels = None if regions is None else regions[:, :half].repeat(qkv.shape[0], 1)
    out = _attend(
        query.flip(2).flatten(1, 2),
        key.flatten(1, 2),
        value.flatten(1, 2),
        bias=None,
        regions=labels,
    )
    return _to_volume(out.unflatten(1, (num_heads, 2)).flatten(2, 3), qkv.shape, windows)


def shift_regions(volume: Size, windows: Windows, *, device: torch.device) -> Tensor:
    """Label the tokens of a shifted cut by which of them were neighbours before the roll.

    Each axis falls into what lies before the last window, what the last window keeps, and what
    the roll brought round from the other end; 27 regions in all. An axis without a shift is one
    region. Only device-side arithmetic: nothing is read back.

    Returns:
        (windows, N) uint8 on ``device``.
    """
    depth, height, width = (
        _axis_regions(length, size, shift, device=device)
        for length, size, shift in zip(volume, windows.size, windows.shift, strict=True)
    )
    labels = depth[:, None, None] * 9 + height[:, None] * 3 + width
    return _cut(labels[None, ..., None], windows.size).reshape(-1, windows.num_tokens)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None, regions: Tensor | None
) -> Tensor:
    """Softmax attention of M tokens over M tokens, in each window and head apart.

    Args:
        query: (windows, heads, M, c), and so ``key`` and ``value``.
        key: What queries are compared with.
        value: What is gathered.
        bias: (heads, M, M) added to the scores, or None.
        regions: (windows, M) labels, or None.
    """
    outs = []
    for first, last in _rounds(query):
        part = slice(first, last)
        scores = (query[part] * query.shape[-1] ** -0.5) @ key[part].transpose(-2, -1)
        # In place: at full resolution the scores are the largest tensor of the whole model.
        if bias is not None:
            scores.add_(bias)
        if regions is not None:
            scores.add_(_apart(regions[part])[:, None], alpha=MASKED_SCORE)
        outs.append(scores.softmax(dim=-1) @ value[part])
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _rounds(query: Tensor) -> list[tuple[int, int]]:
    """Which windows to take at a time: all on a device, as many as its cache holds on a CPU.

    A CPU spends most of its time mapping pages when all scores are made at once; a compiler is
    left to find its own order.
    """
    count, heads, num_tokens, _ = query.shape
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return [(0, count)]
    step = max(CPU_SCORES // (heads * num_tokens * num_tokens), 1)
    return [(first, min(first + step, count)) for first in range(0, count, step)]


def _axis_regions(length: int, size: int, shift: int, *, device: torch.device) -> Tensor:
    place = torch.arange(length, device=device)
    if shift == 0:
        return torch.zeros_like(place, dtype=torch.uint8)
    return (place >= length - size).to(torch.uint8) + (place >= length - shift).to(torch.uint8)


def _apart(regions: Tensor) -> Tensor:
    """(windows, N) labels -> (windows, N, N), true where two tokens must not see each other."""
    return regions[:, :, None] != regions[:, None, :]


def _cut(volume: Tensor, size: Size) -> Tensor:
    """(B, D, H, W, C) -> (B, nd, nh, nw, wd, wh, ww, C), a view."""
    tiles = volume
    for axis, side in zip((1, 3, 5), size, strict=True):
        tiles = tiles.unflatten(axis, (-1, side))
    return tiles.permute(0, 1, 3, 5, 2, 4, 6, 7)


def _to_windows(qkv: Tensor, windows: Windows, *, num_heads: int) -> Tensor:
    """(B, D, H, W, 3C) -> (3, B * windows, heads, N, C / heads)."""
    head_dim = qkv.shape[-1] // (3 * num_heads)
    tiles = _cut(_roll(qkv, windows.shift, sign=-1), windows.size)
    tiles = tiles.unflatten(-1, (3, num_heads, head_dim)).permute(7, 0, 1, 2, 3, 8, 4, 5, 6, 9)
    return tiles.reshape(3, -1, num_heads, windows.num_tokens, head_dim)


def _to_volume(tokens: Tensor, shape: torch.Size, windows: Windows) -> Tensor:
    """(B * windows, heads, N, C / heads) -> (B, D, H, W, C), rolled back."""
    batch, depth, height, width, _ = shape
    wd, wh, ww = windows.size
    tiles = tokens.unflatten(2, (wd, wh, ww))
    tiles = tiles.unflatten(0, (batch, depth // wd, height // wh, width // ww))
    volume = tiles.permute(0, 1, 5, 2, 6, 3, 7, 4, 8).reshape(batch, depth, height, width, -1)
    return _roll(volume, windows.shift, sign=1)


def _roll(volume: Tensor, shift: Size, *, sign: int) -> Tensor:
    if not any(shift):
        return volume
    depth, height, width = (sign * step for step in shift)
    if torch.compiler.is_compiling():
        return volume.roll((depth, height, width), dims=(1, 2, 3))
    return _Roll.apply(volume, (depth, height, width))


class _Roll(torch.autograd.Function):
    """`torch.roll` over three axes in one pass over memory; its own takes a pass an axis."""

    @staticmethod
    def forward(ctx: Any, volume: Tensor, shift: Size) -> Tensor:
        ctx.shift = shift
        rolled = torch.empty_like(volume, memory_format=torch.contiguous_format)
        axes = [
            _roll_slices(length, step)
            for length, step in zip(volume.shape[1:4], shift, strict=True)
        ]
        for depth, height, width in product(*axes):
            rolled[:, depth[1], height[1], width[1]] = volume[:, depth[0], height[0], width[0]]
        return rolled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        depth, height, width = ctx.shift
        return _Roll.apply(grads[0], (-depth, -height, -width)), None


def _roll_slices(length: int, step: int) -> list[tuple[slice, slice]]:
    """Where the pieces of one axis come from and go to."""
    step %= length
    if step == 0:
        return [(slice(None), slice(None))]
    keep = length - step
    return [(slice(0, keep), slice(step, length)), (slice(keep, length), slice(0, step))]


def self_attention_flops(*, num_windows: int, num_tokens: int, channels: int) -> int:
    """Both matrix products over all windows of the batch; softmax and bias are not counted."""
    return 4 * num_windows * num_tokens * num_tokens * channels


def self_attention_bytes(
    *, num_windows: int, num_tokens: int, channels: int, itemsize: int, bias_bytes: int
) -> int:
    """Projections in, result out, and the bias table once (``bias_bytes``)."""
    return 4 * num_windows * num_tokens * channels * itemsize + bias_bytes


def mutual_attention_flops(*, num_windows: int, num_tokens: int, channels: int) -> int:
    """Half of self attention's: a token sees the other frame's half of the window only."""
    return 2 * num_windows * num_tokens * num_tokens * channels


def mutual_attention_bytes(
    *, num_windows: int, num_tokens: int, channels: int, itemsize: int
) -> int:
    """Projections in, result out."""
    return 4 * num_windows * num_tokens * channels * itemsize


FORMULAS: Final[dict[str, Formula]] = {
    "self_attention": Formula(flops=self_attention_flops, num_bytes=self_attention_bytes),
    "mutual_attention": Formula(flops=mutual_attention_flops, num_bytes=mutual_attention_bytes),
}
