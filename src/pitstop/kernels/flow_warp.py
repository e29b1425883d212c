"""Fetching pixels from where an optical flow points.

``flow[:, 0]`` is the step in x and ``flow[:, 1]`` the step in y, in pixels of the image being
warped: the result at (x, y) is read at (x + flow_x, y + flow_y). Places are computed in float32
or wider whatever the image's type, because half precision cannot tell neighbouring pixels of a
large image apart.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, check_word
from pitstop.kernels.fallback import obstacle_on, runs_fused
from pitstop.kernels.pairs import Pairs, in_rows

Padding: TypeAlias = Literal["zeros", "border"]
"""What lies outside the image: nothing, or its outermost pixels repeated."""

First: TypeAlias = Literal["warped", "current"]
"""Which of two joined images has the first channels."""

CHANNEL_MULTIPLE: Final = 8
"""Convolutions of half numbers want their channels in multiples of this."""


class FlowWarp(NamedTuple):
    """The operations of this file in the version that was asked for."""

    bilinear: Callable[..., Tensor]
    nearest4: Callable[..., Tensor]
    join: Callable[..., Tensor]


def dispatch(kernels: Kernels = "auto") -> FlowWarp:
    """Give the versions that ``kernels`` asks for.

    Raises:
        ConfigError: When the word names none.
    """
    check_word(kernels)
    if kernels == "reference":
        return FlowWarp(bilinear_reference, nearest4_reference, join_reference)
    return FlowWarp(
        partial(_run, kernels, bilinear_reference, bilinear_fused),
        partial(_run, kernels, nearest4_reference, nearest4_fused),
        partial(_run, kernels, join_reference, join_fused),
    )


def _run(  # noqa: PLR0917 - what is to be run, and with what
    kernels: Kernels,
    reference: Callable[..., Tensor],
    fused: Callable[..., Tensor],
    image: Tensor,
    flow: Tensor,
    *rest: Any,
    **options: Any,
) -> Tensor:
    obstacle = obstacle_on(image) or obstacle_on(flow)
    version = reference
    if runs_fused(kernels, operation="flow warping", obstacle=obstacle):
        version = fused
    return version(image, flow, *rest, **options)


def bilinear_reference(image: Tensor, flow: Tensor, *, padding: Padding = "zeros") -> Tensor:
    """Blend the four pixels around each place.

    Args:
        image: (N, C, H, W), any strides.
        flow: (N, 2, H, W).
        padding: What lies outside the image.

    Returns:
        (N, C, H, W) in the image's type.
    """
    x, y = _places(flow)
    return _sample(image, x, y, mode="bilinear", padding=padding)


def nearest4_reference(image: Tensor, flow: Tensor) -> Tensor:
    """Hand over the four pixels around each place unblended; zeros outside the image.

    The flow gets no gradient from this.

    Args:
        image: (N, C, H, W), any strides.
        flow: (N, 2, H, W).

    Returns:
        (N, 4C, H, W): all channels at (left, top), then (left, bottom), (right, top) and
        (right, bottom), in the image's type.
    """
    x, y = _places(flow.detach())
    corners = ((x.floor(), y.floor()), (x.floor(), y.ceil()))
    corners += ((x.ceil(), y.floor()), (x.ceil(), y.ceil()))
    samples = [_sample(image, cx, cy, mode="nearest", padding="zeros") for cx, cy in corners]
    return torch.cat(samples, dim=1)


def join_reference(
    images: Tensor,
    flow: Tensor,
    pairs: Pairs,
    *,
    first: First,
    padding: Padding = "zeros",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Warp the neighbour of each pair, and join it with the current image and the flow.

    Args:
        images: (M, C, H, W), any strides.
        flow: (P, 2, H, W).
        pairs: Which images are the current one and its neighbour.
        first: Which of the two comes first.
        padding: What lies outside the image.
        dtype: Of the result; that of ``images`` if None.

    Returns:
        (P, channels, H, W) in the memory order of the images: both images, the flow, and zeros up
        to a multiple of 8 channels.
    """
    dtype = dtype or images.dtype
    warped = bilinear_reference(images.index_select(0, pairs.neighbours), flow, padding=padding)
    current = images.index_select(0, pairs.current)
    both = (warped, current) if first == "warped" else (current, warped)
    parts = [part.to(dtype) for part in (*both, flow)]
    fill = -(2 * images.shape[1] + 2) % CHANNEL_MULTIPLE
    if fill:
        parts.append(parts[-1].new_zeros(flow.shape[0], fill, *flow.shape[2:]))
    return torch.cat(parts, dim=1)


def bilinear_fused(image: Tensor, flow: Tensor, *, padding: Padding = "zeros") -> Tensor:
    """Do as `bilinear_reference` does with Triton, in the memory order of the image.

    The gradient of the image is summed in no order, unless torch is set to use deterministic
    algorithms: it then has the same bits always.
    """
    layout = [image.shape[1], 0, -1, -1]
    return _warp_op(in_rows(image), in_rows(flow), [], layout, padding == "border", image.dtype)


def join_fused(
    images: Tensor,
    flow: Tensor,
    pairs: Pairs,
    *,
    first: First,
    padding: Padding = "zeros",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Do as `join_reference` does with Triton; the result has its channels together in memory."""
    channels = images.shape[1]
    starts = (0, channels) if first == "warped" else (channels, 0)
    filled = 2 * channels + 2 + -(2 * channels + 2) % CHANNEL_MULTIPLE
    layout = [filled, *starts, 2 * channels]
    order = [pairs.current, pairs.neighbours]
    border, dtype = padding == "border", dtype or images.dtype
    return _warp_op(in_rows(images), in_rows(flow), order, layout, border, dtype)


def nearest4_fused(image: Tensor, flow: Tensor) -> Tensor:
    """Do as `nearest4_reference` does with Triton, in the memory order of the image."""
    return _nearest4_op(in_rows(image), in_rows(flow.detach()))


def _empty(images: Tensor, num_images: int, channels: int, dtype: torch.dtype) -> Tensor:
    """(N, C, H, W) with channels together where those of ``images`` are."""
    together = images.stride(1) == 1 and images.shape[1] > 1
    order = torch.channels_last if together else torch.contiguous_format
    shape = (num_images, channels, *images.shape[2:])
    return torch.empty(shape, dtype=dtype, device=images.device, memory_format=order)


def _empty_result(  # noqa: PLR0917 - what an operation is given
    images: Tensor, flow: Tensor, order: Sequence[Tensor], layout: Sequence[int], dtype: torch.dtype
) -> Tensor:
    if not order:
        return _empty(images, flow.shape[0], layout[0], dtype)
    shape = (flow.shape[0], *flow.shape[2:], layout[0])
    return torch.empty(shape, dtype=dtype, device=images.device).permute(0, 3, 1, 2)


def _order(images: Tensor, order: Sequence[Tensor]) -> Any:
    from pitstop.kernels.flow_warp_triton import Order

    if order:
        return Order(*order)
    alone = torch.arange(images.shape[0], dtype=torch.int32, device=images.device)
    return Order(alone, alone)


@torch.library.custom_op("pitstop::flow_warp", mutates_args=())
def _warp_op(  # noqa: PLR0917 - operations take all by place
    images: Tensor,
    flow: Tensor,
    order: Sequence[Tensor],
    layout: Sequence[int],
    border: bool,  # noqa: FBT001 - by place
    dtype: torch.dtype,
) -> Tensor:
    from pitstop.kernels.flow_warp_triton import Layout, warp

    out = _empty_result(images, flow, order, layout, dtype)
    warp(images, flow, out, _order(images, order), Layout(*layout), border=border)
    return out


@_warp_op.register_fake
def _(  # noqa: PLR0917 - operations take all by place
    images: Tensor,
    flow: Tensor,
    order: Sequence[Tensor],
    layout: Sequence[int],
    border: bool,  # noqa: ARG001, FBT001 - named by the operation
    dtype: torch.dtype,
) -> Tensor:
    return _empty_result(images, flow, order, layout, dtype)


@torch.library.custom_op("pitstop::flow_warp_backward", mutates_args=())
def _warp_backward_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,
    images: Tensor,
    flow: Tensor,
    order: Sequence[Tensor],
    layout: Sequence[int],
    border: bool,  # noqa: FBT001 - by place
    needs_images: bool,  # noqa: FBT001 - by place
) -> list[Tensor]:
    """The gradient of the flow, and that of the images where they have one."""
    from pitstop.kernels.flow_warp_triton import Layout, warp_backward

    grad_images, grad_flow = warp_backward(
        images,
        flow,
        grad,
        _order(images, order),
        Layout(*layout),
        border=border,
        needs_images=needs_images,
        exact_sums=torch.are_deterministic_algorithms_enabled(),
    )
    return [grad_flow] if grad_images is None else [grad_flow, grad_images]


@_warp_backward_op.register_fake
def _(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,  # noqa: ARG001 - named by the operation
    images: Tensor,
    flow: Tensor,
    order: Sequence[Tensor],  # noqa: ARG001 - named by the operation
    layout: Sequence[int],  # noqa: ARG001 - named by the operation
    border: bool,  # noqa: ARG001, FBT001 - named by the operation
    needs_images: bool,  # noqa: FBT001 - by place
) -> list[Tensor]:
    grad_flow = flow.new_empty(flow.shape)
    if not needs_images:
        return [grad_flow]
    return [grad_flow, torch.empty_like(images, memory_format=torch.channels_last)]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    images, flow, order, ctx.layout, ctx.border, _ = inputs
    ctx.save_for_backward(images, flow, *order)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    images, flow, *order = ctx.saved_tensors
    needs_images = ctx.needs_input_grad[0]
    grad_flow, *rest = _warp_backward_op(
        in_rows(grad), images, flow, order, ctx.layout, ctx.border, needs_images
    )
    return (rest[0] if rest else None), grad_flow, [None] * len(order), None, None, None


_warp_op.register_autograd(_backward, setup_context=_keep_for_backward)


@torch.library.custom_op("pitstop::nearest4", mutates_args=())
def _nearest4_op(image: Tensor, flow: Tensor) -> Tensor:
    from pitstop.kernels.flow_warp_triton import nearest4

    out = _empty(image, image.shape[0], 4 * image.shape[1], image.dtype)
    nearest4(image, flow, out)
    return out


@_nearest4_op.register_fake
def _(image: Tensor, flow: Tensor) -> Tensor:  # noqa: ARG001 - named by the operation
    return _empty(image, image.shape[0], 4 * image.shape[1], image.dtype)


@torch.library.custom_op("pitstop::nearest4_backward", mutates_args=())
def _nearest4_backward_op(grad: Tensor, image: Tensor, flow: Tensor) -> Tensor:
    from pitstop.kernels.flow_warp_triton import nearest4_backward

    exact_sums = torch.are_deterministic_algorithms_enabled()
    return nearest4_backward(image, flow, grad, exact_sums=exact_sums)


@_nearest4_backward_op.register_fake
def _(grad: Tensor, image: Tensor, flow: Tensor) -> Tensor:  # noqa: ARG001 - named by the operation
    return torch.empty_like(image, memory_format=torch.channels_last)


def _keep_nearest4(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    ctx.save_for_backward(*inputs)


def _nearest4_grads(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _nearest4_backward_op(in_rows(grad), *ctx.saved_tensors), None


_nearest4_op.register_autograd(_nearest4_grads, setup_context=_keep_nearest4)


def _places(flow: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 2, H, W) steps -> x and y of the places they lead to, (N, H, W) each."""
    flow = flow.to(torch.promote_types(flow.dtype, torch.float32))
    height, width = flow.shape[-2:]
    columns = torch.arange(width, device=flow.device, dtype=flow.dtype)
    rows = torch.arange(height, device=flow.device, dtype=flow.dtype)
    return flow[:, 0] + columns, flow[:, 1] + rows[:, None]


def _sample(image: Tensor, x: Tensor, y: Tensor, *, mode: str, padding: Padding) -> Tensor:
    height, width = image.shape[-2:]
    grid = torch.stack((2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1), dim=-1)
    # On a CPU the backward pass of grid_sample crashes the process at places that are not numbers.
    # The flow they come from is still NaN, and so is the loss: nothing is hidden.
    grid = torch.nan_to_num(grid)
    wide = image.to(torch.promote_types(image.dtype, grid.dtype))
    warped = functional.grid_sample(
        wide, grid.to(wide.dtype), mode=mode, padding_mode=padding, align_corners=True
    )
    return warped.to(image.dtype)


def bilinear_flops(*, batch: int, channels: int, height: int, width: int) -> int:
    """Four products and sums a value; finding the places is not counted."""
    return 8 * batch * channels * height * width


def bilinear_bytes(*, batch: int, channels: int, height: int, width: int, itemsize: int) -> int:
    """Image in, result out, and a float32 flow."""
    return batch * height * width * (2 * channels * itemsize + 2 * 4)


def join_flops(*, pairs: int, channels: int, height: int, width: int) -> int:
    """As many as for the warped image alone: the rest is copied."""
    return 8 * pairs * channels * height * width


def join_bytes(
    *, pairs: int, images: int, channels: int, height: int, width: int, itemsize: int
) -> int:
    """Each image in once, float32 flows in, and both images, flow and filling out."""
    filled = 2 * channels + 2 + -(2 * channels + 2) % CHANNEL_MULTIPLE
    numbers = images * channels + pairs * filled
    return height * width * (numbers * itemsize + pairs * 2 * 4)


def nearest4_flops(*, batch: int, channels: int, height: int, width: int) -> int:
    """None: pixels are copied."""
    return 0 * batch * channels * height * width


def nearest4_bytes(*, batch: int, channels: int, height: int, width: int, itemsize: int) -> int:
    """Image in, four times its size out, and a float32 flow."""
    return batch * height * width * (5 * channels * itemsize + 2 * 4)


FORMULAS: Final[dict[str, Formula]] = {
    "bilinear": Formula(flops=bilinear_flops, num_bytes=bilinear_bytes),
    "join": Formula(flops=join_flops, num_bytes=join_bytes),
    "nearest4": Formula(flops=nearest4_flops, num_bytes=nearest4_bytes),
}
