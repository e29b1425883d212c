"""Attention inside windows of a video volume, shifted or not.

Everything speaks in volumes: projections come in as (B, D, H, W, 3C) and the result leaves as
(B, D, H, W, C), so that rolling, cutting into windows and putting back are the business of the
version that runs, never of its caller. The last axis of a projection reads as
(query | key | value, head, channel of the head).

Tokens of a window are ordered depth first, then height, then width; windows likewise, inside
their batch element.

The fused versions read and write volumes where they lie and hold no scores in memory. What they
keep for the backward pass beside their inputs and result is one number a token and head.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pitstop.kernels import Formula, Kernels, check_word
from pitstop.kernels.fallback import obstacle_on, product_precision, runs_fused

MASKED_SCORE: Final = -100.0
"""Added to the score of two tokens that only meet because the volume was rolled."""

CPU_SCORES: Final = 2**20
"""Scores that a CPU makes at a time: 4 MiB of float32."""

MAX_TOKENS: Final = 512
MAX_CHANNELS: Final = 64
"""Tokens of a window, and channels of a head, that the fused versions take."""

HALVES_FOR_TF32 = True
"""Whether float32 is brought to float16 where torch is told that TF32 will do: the mantissas are
of one length, and exponents are moved where they do not fit."""

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
    """The operations of this file in the version that was asked for."""

    self_attention: Callable[..., Tensor]
    mutual_attention: Callable[..., Tensor]
    joint_attention: Callable[..., Tensor]


def dispatch(kernels: Kernels = "auto") -> WindowAttention:
    """Give the versions that ``kernels`` asks for.

    `auto` and `fused` run the fused versions on a CUDA device where there is Triton and the windows
    are of a size they take, and the references elsewhere; `fused` then warns, once.

    Raises:
        ConfigError: When the word names no version.
    """
    check_word(kernels)
    if kernels == "reference":
        return REFERENCE
    return WindowAttention(
        partial(_run, kernels, self_attention_reference, self_attention_fused),
        partial(_run, kernels, mutual_attention_reference, mutual_attention_fused),
        partial(_run, kernels, joint_attention_reference, joint_attention_fused),
    )


def self_attention_reference(  # noqa: PLR0913 - one signature for all versions
    qkv: Tensor,
    bias_table: Tensor,
    bias_index: Tensor,
    regions: Tensor | None,
    *,
    windows: Windows,
    num_heads: int,
    table_window: Size | None = None,  # noqa: ARG001 - read from the index here
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
        table_window: The window whose relative places ``bias_table`` numbers and ``bias_index``
            holds, as `relative_position_index` does; None for the window at hand.

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


def joint_attention_reference(  # noqa: PLR0913, PLR0917 - one signature for all versions
    qkv: Tensor,
    mutual_qkv: Tensor,
    bias_table: Tensor,
    bias_index: Tensor,
    regions: Tensor | None,
    *,
    windows: Windows,
    num_heads: int,
    table_window: Size | None = None,
) -> Tensor:
    """Do both: mutual attention of one projection, then self attention of the other.

    Returns:
        (B, D, H, W, 2C): what `mutual_attention_reference` gives, then what
        `self_attention_reference` gives.
    """
    cut = {"windows": windows, "num_heads": num_heads}
    alone = self_attention_reference(
        qkv, bias_table, bias_index, regions, **cut, table_window=table_window
    )
    return torch.cat((mutual_attention_reference(mutual_qkv, regions, **cut), alone), dim=-1)


REFERENCE: Final = WindowAttention(
    self_attention_reference, mutual_attention_reference, joint_attention_reference
)


def _run(
    kernels: Kernels,
    reference: Callable[..., Tensor],
    fused: Callable[..., Tensor],
    qkv: Tensor,
    *args: Any,
    **cut: Any,
) -> Tensor:
    obstacle = obstacle_of(qkv, **cut)
    is_fused = runs_fused(kernels, operation="window attention", obstacle=obstacle)
    return (fused if is_fused else reference)(qkv, *args, **cut)


def obstacle_of(
    qkv: Tensor,
    *,
    windows: Windows,
    num_heads: int,
    table_window: Size | None = None,  # noqa: ARG001 - any will do
) -> str | None:
    """Why the fused versions cannot run on a projection, or None."""
    if windows.num_tokens > MAX_TOKENS:
        return f"its windows have {windows.num_tokens} tokens, more than {MAX_TOKENS}"
    channels = qkv.shape[-1] // (3 * num_heads)
    if channels > MAX_CHANNELS:
        return f"its heads have {channels} channels, more than {MAX_CHANNELS}"
    return obstacle_on(qkv)


def self_attention_fused(  # noqa: PLR0913 - one signature for all versions
    qkv: Tensor,
    bias_table: Tensor,
    bias_index: Tensor,  # noqa: ARG001 - computed from places here
    regions: Tensor | None,
    *,
    windows: Windows,
    num_heads: int,
    table_window: Size | None = None,
) -> Tensor:
    """Do what `self_attention_reference` does with Triton; the same call gives the same bits.

    ``bias_index`` must be the `relative_position_index` of ``table_window``, cut down to the window
    at hand, and ``regions`` those of `shift_regions`: neither is read.
    """
    cut = _flat_cut(windows, table_window or windows.size)
    table = bias_table.contiguous()
    return _attend_op(qkv.contiguous(), table, None, cut, num_heads, regions is not None)[0]


def mutual_attention_fused(
    qkv: Tensor, regions: Tensor | None, *, windows: Windows, num_heads: int
) -> Tensor:
    """Do what `mutual_attention_reference` does with Triton."""
    cut = _flat_cut(windows, windows.size)
    return _attend_op(None, None, qkv.contiguous(), cut, num_heads, regions is not None)[0]


def joint_attention_fused(  # noqa: PLR0913, PLR0917 - one signature for all versions
    qkv: Tensor,
    mutual_qkv: Tensor,
    bias_table: Tensor,
    bias_index: Tensor,  # noqa: ARG001 - computed from places here
    regions: Tensor | None,
    *,
    windows: Windows,
    num_heads: int,
    table_window: Size | None = None,
) -> Tensor:
    """Do what `joint_attention_reference` does with Triton: both write into one result."""
    cut = _flat_cut(windows, table_window or windows.size)
    given = (qkv.contiguous(), bias_table.contiguous(), mutual_qkv.contiguous())
    return _attend_op(*given, cut, num_heads, regions is not None)[0]


def _flat_cut(windows: Windows, table_window: Size) -> list[int]:
    """As operations take it: sides of a window, shifts, and the window of the table."""
    return [*windows.size, *windows.shift, *table_window]


@torch.library.custom_op("pitstop::attend_volume", mutates_args=())
def _attend_op(  # noqa: PLR0917 - operations take all by place
    qkv: Tensor | None,
    bias_table: Tensor | None,
    mutual_qkv: Tensor | None,
    cut: Sequence[int],
    num_heads: int,
    masked: bool,  # noqa: FBT001 - operations take all by place
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Give the result and, for each kind of attention, what its backward pass needs.

    That are the rows of `attend` and, where the projections were brought to 16 bits, these and
    their largest numbers; else they are empty.
    """
    from pitstop.kernels.window_attention_triton import Stretch, attend, shorten

    results = _empty_results(qkv, mutual_qkv, cut, num_heads)
    out, rows, mutual_rows, short, mutual_short, tops = results
    alone, mutual = _cuts(qkv, mutual_qkv, cut, num_heads=num_heads, masked=masked)
    stretch = None
    if tops.numel():
        stretch = Stretch(tops.zero_())
        if mutual_qkv is not None:
            shorten(mutual_qkv, mutual_short, tops[1:])
            mutual_qkv = mutual_short
        if qkv is not None:
            shorten(qkv, short, tops[:1])
            qkv = short
    if mutual_qkv is not None:
        attend(mutual_qkv, None, out, mutual_rows, mutual, stretch=stretch)
    if qkv is not None:
        attend(qkv, bias_table, out, rows, alone, stretch=stretch)
    return results


@_attend_op.register_fake
def _(  # noqa: PLR0917 - operations take all by place
    qkv: Tensor | None,
    bias_table: Tensor | None,  # noqa: ARG001 - named by the operation
    mutual_qkv: Tensor | None,
    cut: Sequence[int],
    num_heads: int,
    masked: bool,  # noqa: ARG001, FBT001 - named by the operation
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_results(qkv, mutual_qkv, cut, num_heads)


@torch.library.custom_op("pitstop::attend_volume_backward", mutates_args=())
def _attend_backward_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,
    qkv: Tensor | None,
    bias_table: Tensor | None,
    mutual_qkv: Tensor | None,
    out: Tensor,
    rows: Tensor,
    mutual_rows: Tensor,
    tops: Tensor,
    cut: Sequence[int],
    num_heads: int,
    masked: bool,  # noqa: FBT001 - operations take all by place
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of the three inputs; empty where there is no input."""
    from pitstop.kernels.window_attention_triton import Stretch, attend_backward, shorten_grad

    grads = _empty_grads(grad, qkv, bias_table, mutual_qkv)
    alone, mutual = _cuts(qkv, mutual_qkv, cut, num_heads=num_heads, masked=masked)
    stretch = None
    if tops.numel():
        grad, grad_top = shorten_grad(grad, tops)
        stretch = Stretch(tops, grad_top)
    given = (out, mutual_rows, mutual, (grads[2], None))
    if mutual_qkv is not None:
        attend_backward(grad, mutual_qkv, None, *given, stretch=stretch)
    given = (out, rows, alone, (grads[0], grads[1]))
    if qkv is not None:
        attend_backward(grad, qkv, bias_table, *given, stretch=stretch)
    return grads


@_attend_backward_op.register_fake
def _(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,
    qkv: Tensor | None,
    bias_table: Tensor | None,
    mutual_qkv: Tensor | None,
    out: Tensor,  # noqa: ARG001 - named by the operation
    rows: Tensor,  # noqa: ARG001 - named by the operation
    mutual_rows: Tensor,  # noqa: ARG001 - named by the operation
    tops: Tensor,  # noqa: ARG001 - named by the operation
    cut: Sequence[int],  # noqa: ARG001 - named by the operation
    num_heads: int,  # noqa: ARG001 - named by the operation
    masked: bool,  # noqa: ARG001, FBT001 - named by the operation
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_grads(grad, qkv, bias_table, mutual_qkv)


def _empty_results(
    qkv: Tensor | None, mutual_qkv: Tensor | None, cut: Sequence[int], num_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = mutual_qkv if qkv is None else qkv
    assert given is not None, "there is nothing to attend to"
    kinds = 1 if qkv is None or mutual_qkv is None else 2
    volume = given.shape[:4]
    out = given.new_empty(*volume, kinds * given.shape[-1] // 3)
    for length, side in zip(volume[1:], cut, strict=False):
        assert length % side == 0, "the volume is no multiple of its windows"
    assert mutual_qkv is None or cut[0] == 2, "mutual attention pairs exactly two frames"
    tokens = num_heads * volume.numel()

    def rows(projection: Tensor | None) -> Tensor:
        return given.new_empty(0 if projection is None else tokens, dtype=torch.float32)

    shortens = HALVES_FOR_TF32 and product_precision(given.dtype) == "tf32"

    def short(projection: Tensor | None) -> Tensor:
        if projection is None or not shortens:
            return given.new_empty(0, dtype=torch.float16)
        return torch.empty_like(projection, dtype=torch.float16)

    tops = given.new_empty(2 if shortens else 0, dtype=torch.float32)
    return out, rows(qkv), rows(mutual_qkv), short(qkv), short(mutual_qkv), tops


def _empty_grads(grad: Tensor, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    # Projections may have been brought to 16 bits; their gradients have the type of the result's.
    first, second, third = (
        grad.new_empty(0) if given is None else torch.empty_like(given, dtype=dtype)
        for given, dtype in zip(inputs, (grad.dtype, None, grad.dtype), strict=True)
    )
    return first, second, third


def _cuts(
    qkv: Tensor | None,
    mutual_qkv: Tensor | None,
    cut: Sequence[int],
    *,
    num_heads: int,
    masked: bool,
) -> tuple[Any, Any]:
    """How the kernels cut for self and for mutual attention, whose results come first."""
    from pitstop.kernels.window_attention_triton import Cut

    size, shift, table = ((cut[at], cut[at + 1], cut[at + 2]) for at in (0, 3, 6))
    mutual = Cut(size, shift, masked, num_heads, table, mutual=True)
    first = 0 if qkv is None or mutual_qkv is None else qkv.shape[-1] // 3
    return mutual._replace(mutual=False, out_first=first), mutual


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    qkv, table, mutual_qkv, cut, num_heads, masked = inputs
    *rows, short, mutual_short, tops = output
    if tops.numel():
        qkv = None if qkv is None else short
        mutual_qkv = None if mutual_qkv is None else mutual_short
    ctx.save_for_backward(qkv, table, mutual_qkv, *rows, tops)
    ctx.how = (cut, num_heads, masked)
    # Nobody asks for gradients of the rows: without this, zeros are made for them.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    saved = ctx.saved_tensors
    grads = _attend_backward_op(grad.contiguous(), *saved, *ctx.how)
    kept = (None if given is None else mine for given, mine in zip(saved, grads, strict=False))
    return *kept, None, None, None


_attend_op.register_autograd(_backward, setup_context=_keep_for_backward)


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


def backward_flops(*, num_windows: int, num_tokens: int, channels: int) -> int:
    """Self attention's four products for gradients, and the scores once more.

    Where a window's keys fill several tiles, scores and their gradients are made twice; the floor
    does not count that.
    """
    return 10 * num_windows * num_tokens * num_tokens * channels


def backward_bytes(
    *, num_windows: int, num_tokens: int, channels: int, itemsize: int, bias_bytes: int
) -> int:
    """Projections, result and its gradient in, the projections' gradient out, and the bias."""
    return 8 * num_windows * num_tokens * channels * itemsize + 2 * bias_bytes


FORMULAS: Final[dict[str, Formula]] = {
    "self_attention": Formula(flops=self_attention_flops, num_bytes=self_attention_bytes),
    "mutual_attention": Formula(flops=mutual_attention_flops, num_bytes=mutual_attention_bytes),
    "self_attention_backward": Formula(flops=backward_flops, num_bytes=backward_bytes),
}
