"""Attention blocks of VRT, on volumes laid out (B, D, H, W, C).

Parameter and buffer names are those of the published checkpoints. The two halves of a block are
methods of their own, and what calls them is an attribute, so that an engine can recompute,
compile or time either half without touching this file.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.kernels import Kernels, gate, window_attention
from pitstop.kernels import block as block_ops
from pitstop.kernels.block import Encoding, Layer, Norm
from pitstop.kernels.window_attention import Size, Windows
from pitstop.train.optim.local_part import is_divided
from pitstop.workloads.deblur.model.casts import autocast_together


class Recompute(Protocol):
    """Calls ``fn(*args)``, keeping or dropping what its backward pass will need."""

    def __call__(self, fn: Callable[..., Tensor], *args: Any) -> Tensor:
        """Return what ``fn(*args)`` returns."""
        ...


def plain_call(fn: Callable[..., Tensor], *args: Any) -> Tensor:
    """Recompute nothing."""
    return fn(*args)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """What all blocks of one group share."""

    dim: int
    num_heads: int
    window: Size
    mutual: bool
    mlp_ratio: float
    qkv_bias: bool
    kernels: Kernels


BranchScale: TypeAlias = Tensor | bool
"""A factor for each sample, (B, 1, 1, 1, 1); or True: add the branch as it is, False: leave it."""


class BranchScales(NamedTuple):
    """What becomes of the two branches of a block in one pass."""

    attention: BranchScale
    feed_forward: BranchScale


KEEP_BOTH: Final = BranchScales(attention=True, feed_forward=True)


class GatedMLP(nn.Module):
    """Feed-forward layer in which one projection gates the other."""

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, *, kernels: Kernels = "auto"
    ) -> None:
        super().__init__()
        self.kernels: Kernels = kernels
        self.fc11 = nn.Linear(in_dim, hidden_dim)
        self.fc12 = nn.Linear(in_dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_dim) -> (..., out_dim)."""
        if self.kernels == "reference" or not x.is_cuda:
            return self.fc2(functional.gelu(self.fc11(x)) * self.fc12(x))
        # One product for both projections: its input is read once, and what gates lies beside what
        # is gated.
        pairs = zip(self.fc11.parameters(), self.fc12.parameters(), strict=True)
        stacks = [*pairs, *([part] for part in self.fc2.parameters())]
        weight, bias, *back = autocast_together(self.kernels, x, stacks)
        hidden = gate.dispatch(self.kernels)(functional.linear(x, weight, bias))
        return functional.linear(hidden, *back)

    def layers(self) -> list[Layer]:
        """The one that gates, the one that is gated, and the one back."""
        return [layer_of(layer) for layer in (self.fc11, self.fc12, self.fc2)]


def layer_of(linear: nn.Linear) -> Layer:
    """As kernels take it."""
    return Layer(linear.weight, linear.bias)


def norm_of(norm: nn.LayerNorm) -> Norm:
    """As kernels take it."""
    return Norm(norm.weight, norm.bias, norm.eps)


class WindowAttention(nn.Module):
    """Self attention in a window and, where asked, mutual attention between its two frames."""

    relative_position_index: Tensor
    position_bias: Tensor

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        depth, height, width = shape.window
        num_places = (2 * depth - 1) * (2 * height - 1) * (2 * width - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(num_places, shape.num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_position_index(shape.window))
        self.qkv_self = nn.Linear(shape.dim, 3 * shape.dim, bias=shape.qkv_bias)
        self.proj = nn.Linear((1 + shape.mutual) * shape.dim, shape.dim)
        if shape.mutual:
            self.register_buffer("position_bias", sine_encoding(height, width, shape.dim))
            self.qkv_mut = nn.Linear(shape.dim, 3 * shape.dim, bias=shape.qkv_bias)

    def forward(self, x: Tensor, windows: Windows, regions: Tensor | None) -> Tensor:
        """(B, D, H, W, C) -> same; D, H, W are multiples of the window's sides."""
        projected = [self.qkv_self(x)]
        encoding = self.encoding(windows)
        if encoding is not None:
            projected.append(self.qkv_mut(block_ops.add_by_place(x, encoding)))
        return self.proj(self.attend(projected, windows, regions))

    def attend(
        self, projected: Sequence[Tensor], windows: Windows, regions: Tensor | None
    ) -> Tensor:
        """From what the layers of `projections` give to what the output projection takes."""
        attend = window_attention.dispatch(self.shape.kernels)
        table = self.relative_position_bias_table
        bias = (table, self._bias_index(windows.size), regions)
        cut: dict[str, Any] = {"windows": windows, "num_heads": self.shape.num_heads}
        cut["table_window"] = self.shape.window
        if self.shape.mutual:
            return attend.joint_attention(*projected, *bias, **cut)
        return attend.self_attention(*projected, *bias, **cut)

    def projections(self) -> list[Layer]:
        """To query, key and value; the second one's input has the encoding of places added."""
        layers = [self.qkv_self, self.qkv_mut] if self.shape.mutual else [self.qkv_self]
        return [layer_of(layer) for layer in layers]

    def encoding(self, windows: Windows) -> Encoding | None:
        """What mutual attention adds to tokens by their place."""
        if not self.shape.mutual:
            return None
        _, height, width = windows.size
        table = self.position_bias
        if (height, width) != self.shape.window[1:]:
            table = table.view(*self.shape.window[1:], -1)[:height, :width].flatten(0, 1)
        return Encoding(table, (height, width), windows.shift[1:])

    def _bias_index(self, size: Size) -> Tensor:
        """Cut the index of the full window down to a window that shrank to fit its volume."""
        if size == self.shape.window:
            return self.relative_position_index
        depth, height, width = size
        index = self.relative_position_index.view(*self.shape.window, *self.shape.window)
        index = index[:depth, :height, :width, :depth, :height, :width]
        return index.reshape(depth * height * width, -1)


class AttentionBlock(nn.Module):
    """One attention branch and one feed-forward branch, each added to what came in."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.norm1 = nn.LayerNorm(shape.dim)
        self.attn = WindowAttention(shape)
        self.norm2 = nn.LayerNorm(shape.dim)
        hidden = int(shape.dim * shape.mlp_ratio)
        self.mlp = GatedMLP(shape.dim, hidden, shape.dim, kernels=shape.kernels)
        self.recompute_attention: Recompute = plain_call
        self.recompute_feed_forward: Recompute = plain_call

    def forward(
        self,
        x: Tensor,
        windows: Windows,
        regions: Tensor | None,
        scales: BranchScales = KEEP_BOTH,
        *,
        layers: Sequence[Layer] | None = None,
    ) -> Tensor:
        """(B, D, H, W, C) -> same.

        Args:
            x: Any D, H and W; the attention branch pads what it must.
            windows: How to cut the padded volume.
            regions: Labels of the shifted cut, from `window_attention.shift_regions`, or None.
            scales: Which branches count, and how much.
            layers: What `layers` gives, where somebody has prepared it.
        """
        *attention, gating, gated, back = layers or self.layers()
        if scales.attention is False:
            x = leave_branch(x, [*self.norm1.parameters(), *self.attn.parameters()])
        else:
            given = (x, windows, regions, scales.attention, attention)
            x = self.recompute_attention(self.attention_half, *given)
        if scales.feed_forward is False:
            return leave_branch(x, [*self.norm2.parameters(), *self.mlp.parameters()])
        given = (x, scales.feed_forward, (gating, gated, back))
        return self.recompute_feed_forward(self.feed_forward_half, *given)

    def layers(self) -> list[Layer]:
        """To query, key and value, the one behind attention, and those of `GatedMLP.layers`."""
        return [*self.attn.projections(), layer_of(self.attn.proj), *self.mlp.layers()]

    def attention_half(  # noqa: PLR0917 - recomputed with what it was called with
        self,
        x: Tensor,
        windows: Windows,
        regions: Tensor | None,
        scale: BranchScale,
        layers: Sequence[Layer],
    ) -> Tensor:
        """Norm, attend, and add to what came in."""
        volume = (x.shape[1], x.shape[2], x.shape[3])
        whole = padded_size(volume, windows.size) == volume
        *projections, back = layers
        if not whole or not block_ops.fits(self.shape.kernels, x, back):
            return _add(x, self._attention_branch(x, windows, regions), scale)
        encoding = self.attn.encoding(windows)
        x, *projected = block_ops.FUSED.norm_project(x, norm_of(self.norm1), projections, encoding)
        attended = self.attn.attend(projected, windows, regions)
        return block_ops.FUSED.project_add(x, attended, back, _factor(scale))

    def feed_forward_half(self, x: Tensor, scale: BranchScale, layers: Sequence[Layer]) -> Tensor:
        """Norm, gated projections, and add to what came in."""
        if not block_ops.fits(self.shape.kernels, x, layers[-1]):
            return _add(x, self.mlp(self.norm2(x)), scale)
        return block_ops.FUSED.feed_forward_add(x, norm_of(self.norm2), layers, _factor(scale))

    def _attention_branch(self, x: Tensor, windows: Windows, regions: Tensor | None) -> Tensor:
        _, depth, height, width, _ = x.shape
        padded = pad_to_windows(self.norm1(x), windows.size)
        return self.attn(padded, windows, regions)[:, :depth, :height, :width]


class BlockGroup(nn.Module):
    """Blocks in a row, every second one with its windows shifted by half."""

    MAX_CACHED_SHAPES: Final = 8

    def __init__(self, shape: BlockShape, *, drop_rates: Sequence[float]) -> None:
        super().__init__()
        self.shape = shape
        self.drop_rates = tuple(drop_rates)
        self.blocks = nn.ModuleList(AttentionBlock(shape) for _ in drop_rates)
        self._regions: dict[tuple[Size, Windows, torch.device], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W, C) -> same."""
        _, depth, height, width, _ = x.shape
        shifted = fit_windows((depth, height, width), self.shape)
        still = Windows(shifted.size, (0, 0, 0))
        regions = self._regions_of(padded_size((depth, height, width), shifted.size), shifted, x)
        scales = draw_scales(self.drop_rates if self.training else (), x)
        layers = self._layers(x)
        for place, block in enumerate(self.blocks):
            both = scales[place] if scales else KEEP_BOTH
            cut, labels = (shifted, regions) if place % 2 else (still, None)
            x = block(x, cut, labels, both, layers=layers[place])
        return x

    def _layers(self, x: Tensor) -> Sequence[Sequence[Layer] | None]:
        """The layers of each block, their weights cast together.

        None for each where weights are divided between ranks: a block's are there only while the
        block itself runs.
        """
        first = next(self.blocks.parameters(), None)
        if first is not None and is_divided(first):
            return [None] * len(self.blocks)
        each = [block.layers() for block in self.blocks]  # pyright: ignore[reportCallIssue]
        flat = [layer for layers in each for layer in layers]
        if not flat:
            return []
        ready = iter(block_ops.prepare(self.shape.kernels, x, flat))
        return [list(itertools.islice(ready, len(layers))) for layers in each]

    def _regions_of(self, volume: Size, windows: Windows, x: Tensor) -> Tensor | None:
        if not any(windows.shift) or len(self.blocks) < 2:
            return None
        key = (volume, windows, x.device)
        if key not in self._regions:
            if len(self._regions) == self.MAX_CACHED_SHAPES:
                self._regions.clear()
            self._regions[key] = window_attention.shift_regions(volume, windows, device=x.device)
        return self._regions[key]


def fit_windows(volume: Size, shape: BlockShape) -> Windows:
    """Shrink the window to the volume along each axis it does not fit into, and do not shift there.

    Mutual attention needs two frames, so its depth stays: a single frame is padded to a pair.
    """
    size, shift = [], []
    for length, side in zip(volume, shape.window, strict=True):
        fits = length > side
        size.append(side if fits else length)
        shift.append(side // 2 if fits else 0)
    depth = shape.window[0] if shape.mutual else size[0]
    return Windows((depth, size[1], size[2]), (shift[0], shift[1], shift[2]))


def padded_size(volume: Size, window: Size) -> Size:
    """The next multiples of the window's sides."""
    depth, height, width = (
        length + -length % side for length, side in zip(volume, window, strict=True)
    )
    return depth, height, width


def pad_to_windows(x: Tensor, window: Size) -> Tensor:
    """Append zeros along depth, height and width until the windows fit."""
    volume = (x.shape[1], x.shape[2], x.shape[3])
    depth, height, width = (
        new - old for new, old in zip(padded_size(volume, window), volume, strict=True)
    )
    if depth == height == width == 0:
        return x
    return functional.pad(x, (0, 0, 0, width, 0, height, 0, depth))


def draw_scales(rates: Sequence[float], x: Tensor) -> list[BranchScales]:
    """Draw, for each block, which samples skip its branches this time.

    A kept branch is scaled up by what its rate takes away on average. With one sample a dropped
    branch need not run at all, so the draw is made on the host; with more, or while compiling,
    on the device. Neither reads a device value back.
    """
    if not any(rates):
        return []
    if x.shape[0] > 1 or torch.compiler.is_compiling():
        return [BranchScales(_scale_samples(rate, x), _scale_samples(rate, x)) for rate in rates]
    draws = iter(torch.rand(2 * len(rates), device="cpu").tolist())
    return [
        BranchScales(
            _scale_whole(rate, x, draw=next(draws)), _scale_whole(rate, x, draw=next(draws))
        )
        for rate in rates
    ]


def _scale_samples(rate: float, x: Tensor) -> BranchScale:
    if rate == 0:
        return True
    return x.new_empty(x.shape[0], 1, 1, 1, 1).bernoulli_(1 - rate).div_(1 - rate)


def _scale_whole(rate: float, x: Tensor, *, draw: float) -> BranchScale:
    if rate == 0:
        return True
    return False if draw < rate else x.new_full((1, 1, 1, 1, 1), 1 / (1 - rate))


def _factor(scale: BranchScale) -> Tensor | None:
    return scale if isinstance(scale, Tensor) else None


def _add(x: Tensor, branch: Tensor, scale: BranchScale) -> Tensor:
    return x + branch * scale if isinstance(scale, Tensor) else x + branch


def project_add(kernels: Kernels, x: Tensor, branch: Tensor, linear: nn.Linear) -> Tensor:
    """Project what a group of blocks gave, and add it to what went in."""
    return block_ops.dispatch(kernels).project_add(x, branch, layer_of(linear), None)


def norm_project(kernels: Kernels, x: Tensor, norm: nn.LayerNorm, linear: nn.Linear) -> Tensor:
    """Norm and project each token of a volume."""
    layers = [layer_of(linear)]
    return block_ops.dispatch(kernels).norm_project(x, norm_of(norm), layers)[1]


def leave_branch(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Pass ``x`` on and give the parameters of a branch that did not run a gradient of zero.

    Without it they would have no gradient: the optimizer would pass them over and a distributed
    run would wait for them.
    """
    return _Untouched.apply(x, *parameters)


class _Untouched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return (grads[0], *(torch.zeros_like(parameter) for parameter in ctx.saved_tensors))


def relative_position_index(window: Size) -> Tensor:
    """Number the relative places of all pairs of tokens, (N, N) int64."""
    grids = torch.meshgrid(*(torch.arange(side) for side in window), indexing="ij")
    places = torch.stack(grids).flatten(1)
    apart = places[:, :, None] - places[:, None, :]
    _, height, width = window
    depth_apart, height_apart, width_apart = (
        step + side - 1 for step, side in zip(apart, window, strict=True)
    )
    return (depth_apart * (2 * height - 1) + height_apart) * (2 * width - 1) + width_apart


def sine_encoding(height: int, width: int, dim: int) -> Tensor:
    """Encode each place of a window, half of the channels by row and half by column.

    Returns:
        (1, height * width, dim).
    """
    rows = _sine_features(height, dim // 2)[:, None].expand(height, width, dim // 2)
    columns = _sine_features(width, dim // 2)[None].expand(height, width, dim // 2)
    return torch.cat((rows, columns), dim=-1).reshape(1, height * width, dim)


def _sine_features(length: int, num_features: int) -> Tensor:
    """(length, num_features), sine and cosine by turns, slower by the pair."""
    place = torch.arange(1, length + 1, dtype=torch.float32) / (length + 1e-6) * (2 * torch.pi)
    pair = torch.arange(num_features) // 2
    angle = place[:, None] / 10000 ** (2 * pair / num_features)
    return torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=-1).flatten(1)
