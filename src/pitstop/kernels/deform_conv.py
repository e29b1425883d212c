"""Convolution whose taps are read from learned places and multiplied by a learned mask.

Stride 1, dilation 1, output as large as the input; the kernel's sides are odd. Places, blending
and sums are float32 or wider even under autocast, for half precision cannot tell neighbouring
places of a large picture apart. The fused version multiplies in the type of what it samples, and
never holds the columns of sampled taps, nine times the size of its input, in memory.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, check_word
from pitstop.kernels.fallback import obstacle_on, runs_fused
from pitstop.kernels.pairs import Pairs, in_rows

MAX_CHANNELS: Final = 256
"""Output channels that a program of the fused version can hold."""


def dispatch(kernels: Kernels = "auto") -> Callable[..., Tensor]:
    """Give the version that ``kernels`` asks for; see `deform_conv_reference`.

    Raises:
        ConfigError: When the word names none.
    """
    check_word(kernels)
    if kernels == "reference":
        return deform_conv_reference
    return partial(_deform_conv, kernels)


def _deform_conv(  # noqa: PLR0917 - the first is bound
    kernels: Kernels, x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, *, bias: Tensor
) -> Tensor:
    obstacle = obstacle_of(x, weight)
    fused = runs_fused(kernels, operation="deformable convolution", obstacle=obstacle)
    version = deform_conv_fused if fused else deform_conv_reference
    return version(x, offset, mask, weight, bias=bias)


def obstacle_of(x: Tensor, weight: Tensor) -> str | None:
    """Why the fused version cannot run on (N, C_in, H, W), or None."""
    if x.shape[1] != weight.shape[1]:
        return "its weight has several groups"
    if weight.shape[0] > MAX_CHANNELS:
        return f"it gives {weight.shape[0]} channels, more than {MAX_CHANNELS}"
    return obstacle_on(x)


def deform_conv_reference(
    x: Tensor,
    offset: Tensor,
    mask: Tensor,
    weight: Tensor,
    *,
    bias: Tensor,
) -> Tensor:
    """Sample each tap bilinearly at its own place, mask it, and contract with the kernel.

    With K = kh * kw taps in row order and G deformable groups (contiguous slices of the input
    channels that share their places), outside the image everything is zero. The number of
    convolution groups is C_in over the weight's second side.

    Args:
        x: (N, C_in, H, W), any strides.
        offset: (N, 2 * G * K, H, W), channels read as (group, tap, (dy, dx)): how far each tap
            lies from its place in an ordinary convolution, in pixels.
        mask: (N, G * K, H, W), channels read as (group, tap).
        weight: (C_out, C_in / groups, kh, kw).
        bias: (C_out,).

    Returns:
        (N, C_out, H, W) in the type of ``x``.
    """
    # A CPU spends most of its time mapping pages when the taps of all images are read at once.
    one_by_one = x.device.type == "cpu" and not torch.compiler.is_compiling()
    dtype = torch.promote_types(x.dtype, torch.float32)
    full_precision = nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
    with full_precision:
        wide, places, weights = x.to(dtype), offset.to(dtype), mask.to(dtype)
        step = 1 if one_by_one else x.shape[0]
        rounds = zip(wide.split(step), places.split(step), weights.split(step), strict=True)
        kernel = weight.to(dtype)
        outs = [_convolve(image, place, tap, kernel) for image, place, tap in rounds]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return (out + bias.to(dtype)[:, None, None]).to(x.dtype)


def _convolve(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    batch, in_channels, height, width = x.shape
    out_channels, group_channels, kh, kw = weight.shape
    groups = in_channels // group_channels
    columns = _sample_taps(x, offset, kernel=weight.shape[-2:])
    weights = mask.reshape(batch, -1, 1, kh * kw, height * width)
    masked = columns.unflatten(1, (weights.shape[1], -1)) * weights
    kernel = weight.reshape(groups, out_channels // groups, -1)
    out = kernel @ masked.view(batch, groups, -1, height * width)
    return out.view(batch, out_channels, height, width)


def _sample_taps(x: Tensor, offset: Tensor, *, kernel: torch.Size) -> Tensor:
    """Read all taps of all pixels: (N, C, H, W) -> (N, C, K, H * W)."""
    batch, channels, height, width = x.shape
    kh, kw = kernel
    num_groups = offset.shape[1] // (2 * kh * kw)
    steps = offset.reshape(batch * num_groups, kh, kw, 2, height, width)
    y = steps[..., 0, :, :] + _tap_rows(kh, height, like=offset)[:, None, :, None]
    x_place = steps[..., 1, :, :] + _tap_rows(kw, width, like=offset)[:, None, :]
    # Pixel edges, not centres, span the range here, so that a single row or column still works.
    grid = torch.stack(((2 * x_place + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    sampled = functional.grid_sample(
        x.reshape(batch * num_groups, channels // num_groups, height, width),
        grid.view(batch * num_groups, kh * kw * height, width, 2),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    return sampled.reshape(batch, channels, kh * kw, height * width)


def _tap_rows(taps: int, length: int, *, like: Tensor) -> Tensor:
    """Where each tap of an ordinary convolution reads along one axis, (taps, length)."""
    places = torch.arange(length, device=like.device, dtype=like.dtype)
    return places + torch.arange(taps, device=like.device, dtype=like.dtype)[:, None] - taps // 2


def deform_conv_fused(
    x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, *, bias: Tensor
) -> Tensor:
    """Do the same with Triton, forward and backward, for weights of one group.

    Nothing is kept for the backward pass but the inputs. The gradient of ``x`` is summed in no
    order, unless torch is set to use deterministic algorithms: it then has the same bits always.
    """
    places = (in_rows(offset), in_rows(mask))
    out = _deform_conv_op(in_rows(x), *places, None, None, weight, bias, [], 0.0)
    return out.permute(0, 3, 1, 2)


def align_reference(  # noqa: PLR0913 - one signature for all versions
    frames: Tensor,
    raw: Tensor,
    flow: Tensor,
    weight: Tensor,
    *,
    bias: Tensor,
    raw_bias: Tensor,
    pairs: Pairs,
    max_residue: float,
) -> Tensor:
    """Convolve each frame's neighbours at places that a flow guides, and join them to the frame.

    The offset of a tap is its flow plus ``max_residue`` times the tanh of what ``raw`` says, its
    mask the sigmoid of it.

    Args:
        frames: (M, C, H, W), any strides.
        raw: (P, at least 3 * K * G, H, W), channels read as (tap, (dy, dx, mask), group); further
            ones count for nothing.
        flow: (P, 2, H, W): (x, y) steps from each current frame to its neighbour, in pixels.
        weight: (C, C, kh, kw).
        bias: (C,).
        raw_bias: (3 * K * G,), added to ``raw``.
        pairs: Which frames are aligned with which.
        max_residue: How many pixels a learned offset may lead away from the flow.

    Returns:
        (M, H, W, 3 * C) in the type of ``raw``: each frame, what it got from the frame after it
        and what it got from the one before it; zeros where there is none.
    """
    num_taps, num_frames = weight[0, 0].numel(), frames.shape[0]
    full = torch.promote_types(raw.dtype, torch.float32)
    learned = raw[:, : raw_bias.shape[0]].to(full) + raw_bias.to(full)[:, None, None]
    dy, dx, mask = learned.unflatten(1, (num_taps, 3, -1)).transpose(1, 3).unbind(2)
    residue = max_residue * torch.tanh(torch.stack((dy, dx), dim=3))
    offset = residue + flow.to(full).flip(1)[:, None, None]
    aligned = deform_conv_reference(
        frames.to(raw.dtype).index_select(0, pairs.neighbours),
        offset.flatten(1, 3),
        torch.sigmoid(mask).flatten(1, 2),
        weight,
        bias=bias,
    ).permute(0, 2, 3, 1)
    results = aligned.new_zeros(2 * num_frames, *aligned.shape[1:])
    results = results.index_copy(0, pairs.slots.long(), aligned)
    both = results.unflatten(0, (num_frames, 2)).permute(0, 2, 3, 1, 4).flatten(3)
    return torch.cat((frames.permute(0, 2, 3, 1).to(raw.dtype), both), dim=-1)


def align_fused(  # noqa: PLR0913 - one signature for all versions
    frames: Tensor,
    raw: Tensor,
    flow: Tensor,
    weight: Tensor,
    *,
    bias: Tensor,
    raw_bias: Tensor,
    pairs: Pairs,
    max_residue: float,
) -> Tensor:
    """Do the same with Triton; see `deform_conv_fused`."""
    places = (in_rows(raw), None, raw_bias, flow.contiguous())
    order = [pairs.neighbours, pairs.slots, pairs.lacks]
    return _deform_conv_op(in_rows(frames), *places, weight, bias, order, max_residue)


@torch.library.custom_op("pitstop::deform_conv", mutates_args=())
def _deform_conv_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    images: Tensor,
    places: Tensor,
    mask: Tensor | None,
    places_bias: Tensor | None,
    flow: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    order: Sequence[Tensor],
    max_residue: float,
) -> Tensor:
    """With an order of pairs, results are joined to the images; else they stand alone."""
    from pitstop.kernels.deform_conv_triton import Taps, convolve

    out = _empty_result(images, places, weight, order)
    taps = Taps(places, mask, places_bias, flow, max_residue)
    convolve(_scene(images, order), taps, weight, bias, out)
    return out


@_deform_conv_op.register_fake
def _(  # noqa: PLR0913, PLR0917 - operations take all by place
    images: Tensor,
    places: Tensor,
    mask: Tensor | None,  # noqa: ARG001 - named by the operation
    places_bias: Tensor | None,  # noqa: ARG001 - named by the operation
    flow: Tensor | None,  # noqa: ARG001 - named by the operation
    weight: Tensor,
    bias: Tensor,  # noqa: ARG001 - named by the operation
    order: Sequence[Tensor],
    max_residue: float,  # noqa: ARG001 - named by the operation
) -> Tensor:
    return _empty_result(images, places, weight, order)


def _empty_result(
    images: Tensor, places: Tensor, weight: Tensor, order: Sequence[Tensor]
) -> Tensor:
    num_pairs, _, height, width = places.shape
    if not order:
        return images.new_empty(num_pairs, height, width, weight.shape[0])
    channels = images.shape[1] + 2 * weight.shape[0]
    return places.new_empty(images.shape[0], height, width, channels)


def _scene(images: Tensor, order: Sequence[Tensor]) -> Any:
    from pitstop.kernels.deform_conv_triton import Scene

    if order:
        return Scene(images, *order)
    alone = torch.arange(images.shape[0], dtype=torch.int32, device=images.device)
    return Scene(images, alone, 2 * alone, None)


@torch.library.custom_op("pitstop::deform_conv_backward", mutates_args=())
def _deform_conv_backward_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,
    images: Tensor,
    places: Tensor,
    mask: Tensor | None,
    places_bias: Tensor | None,
    flow: Tensor | None,
    weight: Tensor,
    order: Sequence[Tensor],
    max_residue: float,
) -> list[Tensor]:
    """Gradients of images, places, weight and bias; then of mask, or of places' bias and flow."""
    from pitstop.kernels.deform_conv_triton import Taps, convolve_backward

    taps = Taps(places, mask, places_bias, flow, max_residue)
    exact_sums = torch.are_deterministic_algorithms_enabled()
    found = convolve_backward(_scene(images, order), taps, weight, grad, exact_sums=exact_sums)
    common = [found.images, found.places, found.weight, found.bias]
    rest = (found.mask, found.places_bias, found.flow)
    return common + [part for part in rest if part is not None]


@_deform_conv_backward_op.register_fake
def _(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,  # noqa: ARG001 - named by the operation
    images: Tensor,
    places: Tensor,
    mask: Tensor | None,
    places_bias: Tensor | None,
    flow: Tensor | None,
    weight: Tensor,
    order: Sequence[Tensor],  # noqa: ARG001 - named by the operation
    max_residue: float,  # noqa: ARG001 - named by the operation
) -> list[Tensor]:
    bias = weight.new_empty(weight.shape[0], dtype=torch.float32)
    found = [torch.empty_like(images), torch.empty_like(places), torch.empty_like(weight), bias]
    if mask is not None:
        return [*found, torch.empty_like(mask)]
    assert places_bias is not None
    assert flow is not None
    return [*found, places_bias.new_empty(places_bias.shape, dtype=torch.float32), flow.clone()]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    images, places, mask, places_bias, flow, weight, bias, order, max_residue = inputs
    ctx.save_for_backward(images, places, mask, places_bias, flow, weight, *order)
    ctx.bias_dtype, ctx.max_residue = bias.dtype, max_residue


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # what is recomputed may be asked for once only
    *inputs, weight = saved[:6]
    order = saved[6:]
    mask, places_bias = inputs[2], inputs[3]
    images, places, grad_weight, bias, *rest = _deform_conv_backward_op(
        grad.contiguous(), *inputs, weight, order, ctx.max_residue
    )
    guided = (None, None) if places_bias is None else (rest[0].to(places_bias.dtype), rest[1])
    places_and_mask = (places, None if mask is None else rest[0])
    orders = [None] * len(order)
    grads = (*guided, grad_weight, bias.to(ctx.bias_dtype), orders, None)
    return images, *places_and_mask, *grads


_deform_conv_op.register_autograd(_backward, setup_context=_keep_for_backward)


def _formula(*, products: int, value_flops: int, images: int, fields: int) -> Formula:
    """Count a pass of the convolution.

    Args:
        products: Times that columns and weights are multiplied.
        value_flops: Operations beside them for each sampled value.
        images: Times that the sampled channels are read or written.
        fields: The same for places and mask. The result is read or written once; weights are too
            small to count.
    """

    def flops(*, pixels: int, in_channels: int, out_channels: int, taps: int, groups: int) -> int:
        multiplied = 2 * products * pixels * out_channels * (in_channels // groups) * taps
        return multiplied + value_flops * pixels * in_channels * taps

    def num_bytes(
        *,
        pixels: int,
        in_channels: int,
        out_channels: int,
        taps: int,
        deform_groups: int,
        itemsize: int = 4,
    ) -> int:
        numbers = images * in_channels + 3 * fields * deform_groups * taps + out_channels
        return itemsize * pixels * numbers

    return Formula(flops=flops, num_bytes=num_bytes)


FORMULAS: Final[dict[str, Formula]] = {
    # A sampled value is a blend of four, times a mask.
    "deform_conv": _formula(products=1, value_flops=9, images=1, fields=1),
    # Products for the columns' and for the weight's gradient. For a value the blend once more (9),
    # its products with the gradient (8), and the shares that go back to the four corners (8).
    "deform_conv_backward": _formula(products=2, value_flops=25, images=2, fields=2),
}
"""``pixels`` are N * H * W, ``taps`` kh * kw."""
