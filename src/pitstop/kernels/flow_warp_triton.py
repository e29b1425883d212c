"""Flow warps for Triton: places, corners, blend and what the result is joined with in one pass.

A program takes a run of pixels with all their channels, or 128 of them. It reads images and
writes results with the strides they have; channels that lie together are read together. Places
and blending are float32. Backward, the gradient of an image is added up where its pixels came
from: in no order, or as integers (``exact_sums``), where no order changes the sums.

What must move for 10 pairs of 256x256 pixels, 96 channels in 2 bytes, joined for the next
convolution: 151 MB of the six frames and 5 MB of flows in, 262 MB out (200 channels).

This file is imported where Triton is. Under ``TRITON_INTERPRET=1`` it runs on a CPU.
"""
# Triton is an optional dependency without types: a kernel's arguments are what it makes of them.
# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# A kernel has no objects to put its arguments into, and compile-time ones are spelt in capitals.
# ruff: noqa: N803, N806, PLR0913, PLR0915, PLR0917

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pitstop.kernels import block_size
from pitstop.kernels.deform_conv_triton import is_inside, scatter, whole_part
from pitstop.kernels.pairs import pixel_stride


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    block_values: int
    """Pixels times channels of a program."""
    num_warps: int


FORWARD = Launch(1024, 2)
BACKWARD = Launch(2048, 4)

MAX_BLOCK_CHANNELS = 128


class Layout(NamedTuple):
    """Channels of a result: how many, and where each part begins; -1 for a part it lacks."""

    num_channels: int
    warped: int
    current: int = -1
    flow: int = -1


class Order(NamedTuple):
    """Images of each pair, (P,) int32: what is joined as it is, and what is warped."""

    current: Tensor
    neighbours: Tensor


def warp(
    images: Tensor,
    flow: Tensor,
    out: Tensor,
    order: Order,
    layout: Layout,
    *,
    border: bool,
    launch: Launch | None = None,
) -> None:
    """Write warped images, and what they are joined with, into ``out``.

    Args:
        images: (M, C, H, W), any strides whose rows follow one another.
        flow: (P, 2, H, W), likewise.
        out: (P, channels of the layout, H, W), likewise. Channels that belong to no part become 0.
        order: Images of each pair.
        layout: Where parts go.
        border: Whether the outermost pixels go on outside, instead of zeros.
        launch: How the kernel is cut; `FORWARD` where nothing is said.
    """
    launch = launch or FORWARD
    common = _common(images, flow, out, launch)
    blocks = triton.cdiv(images.shape[1], common["BLOCK_CHANNELS"])
    _warp[(triton.cdiv(common["num_pixels"], common["BLOCK_PIXELS"]), blocks)](
        images,
        flow,
        order.current,
        order.neighbours,
        out,
        **common,
        **_parts(layout),
        NUM_OUT=layout.num_channels,
        BORDER=border,
        num_warps=launch.num_warps,
    )


def warp_backward(
    images: Tensor,
    flow: Tensor,
    grad: Tensor,
    order: Order,
    layout: Layout,
    *,
    border: bool,
    needs_images: bool = True,
    exact_sums: bool = False,
    launch: Launch | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Give the gradients of images, (M, C, H, W) channels last, and flow, contiguous.

    Args:
        images: As forward.
        flow: As forward.
        grad: The gradient of ``out``, with rows that follow one another.
        order: As forward.
        layout: As forward.
        border: As forward.
        needs_images: Whether the images have a gradient; None is given for it if not.
        exact_sums: Whether that gradient is to have the same bits at every call.
        launch: How the kernel is cut; `BACKWARD` where nothing is said.
    """
    launch = launch or BACKWARD
    # Where sums are not exact the kernel makes nothing of it.
    scale = _scale_of(grad) if exact_sums else flow
    totals = _totals(images, exact_sums=exact_sums) if needs_images else scale
    grad_flow = torch.empty(flow.shape, dtype=flow.dtype, device=flow.device)
    common = _common(images, flow, grad, launch)
    _warp_backward[(triton.cdiv(common["num_pixels"], common["BLOCK_PIXELS"]),)](
        images,
        flow,
        order.current,
        order.neighbours,
        grad,
        totals,
        grad_flow,
        scale,
        **common,
        **_parts(layout),
        BORDER=border,
        NEEDS_IMAGES=needs_images,
        EXACT=exact_sums,
        num_warps=launch.num_warps,
    )
    if not needs_images:
        return None, grad_flow
    return _from_totals(totals, scale, images.dtype, exact_sums=exact_sums), grad_flow


def nearest4(images: Tensor, flow: Tensor, out: Tensor) -> None:
    """Write the four pixels around each place into ``out``, (N, 4 C, H, W)."""
    common = _common(images, flow, out, FORWARD)
    _nearest4[(triton.cdiv(common["num_pixels"], common["BLOCK_PIXELS"]),)](
        images, flow, out, out, flow, **common, BACKWARD=False, EXACT=False
    )


def nearest4_backward(
    images: Tensor, flow: Tensor, grad: Tensor, *, exact_sums: bool = False
) -> Tensor:
    """Give the gradient of images from that of the four pixels, (N, 4 C, H, W)."""
    scale = _scale_of(grad) if exact_sums else flow
    totals = _totals(images, exact_sums=exact_sums)
    common = _common(images, flow, grad, FORWARD)
    _nearest4[(triton.cdiv(common["num_pixels"], common["BLOCK_PIXELS"]),)](
        images, flow, grad, totals, scale, **common, BACKWARD=True, EXACT=exact_sums
    )
    return _from_totals(totals, scale, images.dtype, exact_sums=exact_sums)


def _common(images: Tensor, flow: Tensor, out: Tensor, launch: Launch) -> dict[str, Any]:
    channels = images.shape[1]
    pairs, _, height, width = flow.shape
    block_channels = min(block_size(channels), MAX_BLOCK_CHANNELS)
    return {
        "num_pixels": pairs * height * width,
        "height": height,
        "width": width,
        "image_n": images.stride(0),
        "image_p": pixel_stride(images),
        "image_c": images.stride(1),
        "flow_n": flow.stride(0),
        "flow_p": pixel_stride(flow),
        "flow_c": flow.stride(1),
        "out_n": out.stride(0),
        "out_p": pixel_stride(out),
        "out_c": out.stride(1),
        "CHANNELS": channels,
        "BLOCK_CHANNELS": block_channels,
        "BLOCK_PIXELS": max(launch.block_values // block_channels, 16),
    }


def _parts(layout: Layout) -> dict[str, int]:
    return {
        "WARPED": layout.warped,
        "CURRENT": layout.current,
        "FLOW": layout.flow,
    }


def _totals(images: Tensor, *, exact_sums: bool) -> Tensor:
    num_images, channels, height, width = images.shape
    dtype = torch.int64 if exact_sums else torch.float32
    return torch.zeros(num_images, height, width, channels, dtype=dtype, device=images.device)


def _from_totals(totals: Tensor, scale: Tensor, dtype: torch.dtype, *, exact_sums: bool) -> Tensor:
    sums = totals / scale if exact_sums else totals
    return sums.to(dtype).permute(0, 3, 1, 2)


def _scale_of(grad: Tensor) -> Tensor:
    """What makes whole numbers of shares in a sum, (1,): none overflows, whatever there is."""
    return (2.0**38 / grad.abs().amax().float().clamp(min=1e-30)).reshape(1)


@triton.jit
def _place(steps, start, size, BORDER: tl.constexpr):
    """A place from a step, and whether it moves with the step.

    What is no number leads to the middle, and along one pixel there is one place: as in torch.
    """
    place = start + steps
    number = place == place  # noqa: PLR0124 - NaN
    last = size - 1.0
    low = 0.0 if BORDER else -2.0
    high = last if BORDER else last + 2.0
    moves = number & (size > 1)
    if BORDER:
        moves = moves & (place > 0) & (place < last)
    pulled = tl.minimum(tl.maximum(tl.where(number, place, last / 2), low), high)
    return tl.where(size > 1, pulled, 0.0), moves


@triton.jit
def _warp(
    images_ptr,
    flow_ptr,
    current_ptr,
    neighbours_ptr,
    out_ptr,
    num_pixels,
    height,
    width,
    image_n,
    image_p,
    image_c,
    flow_n,
    flow_p,
    flow_c,
    out_n,
    out_p,
    out_c,
    NUM_OUT: tl.constexpr,
    WARPED: tl.constexpr,
    CURRENT: tl.constexpr,
    FLOW: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BORDER: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    there = pixel < num_pixels
    per_image = height * width
    pair = pixel // per_image
    inside = pixel % per_image
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    real = there[:, None] & (channel < CHANNELS)[None, :]
    at_flow = pair.to(tl.int64) * flow_n + inside * flow_p
    step_x = tl.load(flow_ptr + at_flow, mask=there, other=0.0).to(tl.float32)
    step_y = tl.load(flow_ptr + at_flow + flow_c, mask=there, other=0.0).to(tl.float32)
    place_x, _ = _place(step_x, inside % width, width, BORDER)
    place_y, _ = _place(step_y, inside // width, height, BORDER)
    top, part_y = whole_part(place_y, height)
    left, part_x = whole_part(place_x, width)
    up, down = is_inside(top, height), is_inside(top + 1, height)
    near, far = is_inside(left, width), is_inside(left + 1, width)
    source = tl.load(neighbours_ptr + pair, mask=there, other=0).to(tl.int64)
    at_corner = source * image_n + (top * width + left) * image_p
    corner_ptr = images_ptr + at_corner[:, None] + (channel * image_c)[None, :]
    below_ptr = corner_ptr + width * image_p
    a = tl.load(corner_ptr, mask=real & (up & near)[:, None], other=0.0).to(tl.float32)
    b = tl.load(corner_ptr + image_p, mask=real & (up & far)[:, None], other=0.0).to(tl.float32)
    c = tl.load(below_ptr, mask=real & (down & near)[:, None], other=0.0).to(tl.float32)
    d = tl.load(below_ptr + image_p, mask=real & (down & far)[:, None], other=0.0).to(tl.float32)
    upper = a * (1 - part_x)[:, None] + b * part_x[:, None]
    lower = c * (1 - part_x)[:, None] + d * part_x[:, None]
    value = upper * (1 - part_y)[:, None] + lower * part_y[:, None]
    at_out = pair.to(tl.int64) * out_n + inside * out_p
    target_ptr = out_ptr + at_out[:, None] + (channel * out_c)[None, :]
    tl.store(target_ptr + WARPED * out_c, value, mask=real)
    if CURRENT >= 0:
        own = tl.load(current_ptr + pair, mask=there, other=0).to(tl.int64) * image_n
        own_ptr = images_ptr + (own + inside * image_p)[:, None] + (channel * image_c)[None, :]
        own_value = tl.load(own_ptr, mask=real, other=0.0)
        tl.store(target_ptr + CURRENT * out_c, own_value, mask=real)
    if FLOW >= 0:
        # Everything behind the flow is filled up with zeros.
        REST: tl.constexpr = NUM_OUT - FLOW
        if tl.program_id(1) == 0:
            lane = tl.arange(0, 16)
            last = tl.where((lane == 0)[None, :], step_x[:, None], 0.0)
            last = tl.where((lane == 1)[None, :], step_y[:, None], last)
            last_ptr = out_ptr + at_out[:, None] + ((FLOW + lane) * out_c)[None, :]
            tl.store(last_ptr, last, mask=there[:, None] & (lane < REST)[None, :])


@triton.jit
def _warp_backward(
    images_ptr,
    flow_ptr,
    current_ptr,
    neighbours_ptr,
    grad_ptr,
    totals_ptr,
    grad_flow_ptr,
    scale_ptr,
    num_pixels,
    height,
    width,
    image_n,
    image_p,
    image_c,
    flow_n,
    flow_p,
    flow_c,
    out_n,
    out_p,
    out_c,
    WARPED: tl.constexpr,
    CURRENT: tl.constexpr,
    FLOW: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BORDER: tl.constexpr,
    NEEDS_IMAGES: tl.constexpr,
    EXACT: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    there = pixel < num_pixels
    per_image = height * width
    pair = pixel // per_image
    inside = pixel % per_image
    at_flow = pair.to(tl.int64) * flow_n + inside * flow_p
    step_x = tl.load(flow_ptr + at_flow, mask=there, other=0.0).to(tl.float32)
    step_y = tl.load(flow_ptr + at_flow + flow_c, mask=there, other=0.0).to(tl.float32)
    place_x, moves_x = _place(step_x, inside % width, width, BORDER)
    place_y, moves_y = _place(step_y, inside // width, height, BORDER)
    top, part_y = whole_part(place_y, height)
    left, part_x = whole_part(place_x, width)
    up, down = is_inside(top, height), is_inside(top + 1, height)
    near, far = is_inside(left, width), is_inside(left + 1, width)
    source = tl.load(neighbours_ptr + pair, mask=there, other=0).to(tl.int64)
    own = tl.load(current_ptr + pair, mask=there, other=0).to(tl.int64)
    corner = top * width + left
    scale = tl.load(scale_ptr)
    at_grad = pair.to(tl.int64) * out_n + inside * out_p
    grad_x = tl.zeros((BLOCK_PIXELS,), dtype=tl.float32)
    grad_y = tl.zeros((BLOCK_PIXELS,), dtype=tl.float32)
    for first in range(0, CHANNELS, BLOCK_CHANNELS):
        channel = first + tl.arange(0, BLOCK_CHANNELS)
        real = there[:, None] & (channel < CHANNELS)[None, :]
        grads_ptr = grad_ptr + at_grad[:, None] + (channel * out_c)[None, :]
        grad = tl.load(grads_ptr + WARPED * out_c, mask=real, other=0.0).to(tl.float32)
        at_corner = source * image_n + corner * image_p
        corner_ptr = images_ptr + at_corner[:, None] + (channel * image_c)[None, :]
        below_ptr = corner_ptr + width * image_p
        has_a, has_b = real & (up & near)[:, None], real & (up & far)[:, None]
        has_c, has_d = real & (down & near)[:, None], real & (down & far)[:, None]
        a = tl.load(corner_ptr, mask=has_a, other=0.0).to(tl.float32)
        b = tl.load(corner_ptr + image_p, mask=has_b, other=0.0).to(tl.float32)
        c = tl.load(below_ptr, mask=has_c, other=0.0).to(tl.float32)
        d = tl.load(below_ptr + image_p, mask=has_d, other=0.0).to(tl.float32)
        across = (b - a) * (1 - part_y)[:, None] + (d - c) * part_y[:, None]
        along = (c - a) * (1 - part_x)[:, None] + (d - b) * part_x[:, None]
        grad_x += tl.sum(grad * across, axis=1)
        grad_y += tl.sum(grad * along, axis=1)
        if NEEDS_IMAGES:
            at_total = (source * per_image + corner) * CHANNELS
            total_ptr = totals_ptr + at_total[:, None] + channel[None, :]
            beneath_ptr = total_ptr + width * CHANNELS
            upper, lower = grad * (1 - part_y)[:, None], grad * part_y[:, None]
            scatter(total_ptr, upper * (1 - part_x)[:, None], has_a, scale, EXACT)
            scatter(total_ptr + CHANNELS, upper * part_x[:, None], has_b, scale, EXACT)
            scatter(beneath_ptr, lower * (1 - part_x)[:, None], has_c, scale, EXACT)
            scatter(beneath_ptr + CHANNELS, lower * part_x[:, None], has_d, scale, EXACT)
            if CURRENT >= 0:
                straight = tl.load(grads_ptr + CURRENT * out_c, mask=real, other=0.0)
                at_own = (own * per_image + inside) * CHANNELS
                own_ptr = totals_ptr + at_own[:, None] + channel[None, :]
                scatter(own_ptr, straight.to(tl.float32), real, scale, EXACT)
    grad_x = tl.where(moves_x, grad_x, 0.0)
    grad_y = tl.where(moves_y, grad_y, 0.0)
    if FLOW >= 0:
        last_ptr = grad_ptr + at_grad + FLOW * out_c
        grad_x += tl.load(last_ptr, mask=there, other=0.0).to(tl.float32)
        grad_y += tl.load(last_ptr + out_c, mask=there, other=0.0).to(tl.float32)
    at_grad_flow = pair.to(tl.int64) * (2 * per_image) + inside
    tl.store(grad_flow_ptr + at_grad_flow, grad_x, mask=there)
    tl.store(grad_flow_ptr + at_grad_flow + per_image, grad_y, mask=there)


@triton.jit
def _or_middle(steps, start, size):
    """A step, or the one to the whole place nearest to the middle for what is no number."""
    middle = (size - 1) // 2
    middle += (size - 1) % 2 * (middle % 2)
    return tl.where(steps == steps, steps, (middle - start).to(tl.float32))  # noqa: PLR0124 - NaN


@triton.jit
def _nearest4(
    images_ptr,
    flow_ptr,
    out_ptr,
    totals_ptr,
    scale_ptr,
    num_pixels,
    height,
    width,
    image_n,
    image_p,
    image_c,
    flow_n,
    flow_p,
    flow_c,
    out_n,
    out_p,
    out_c,
    CHANNELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BACKWARD: tl.constexpr,
    EXACT: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    there = pixel < num_pixels
    per_image = height * width
    pair = (pixel // per_image).to(tl.int64)
    inside = pixel % per_image
    column, row = inside % width, inside // width
    at_flow = pair * flow_n + inside * flow_p
    step_x = tl.load(flow_ptr + at_flow, mask=there, other=0.0).to(tl.float32)
    step_y = tl.load(flow_ptr + at_flow + flow_c, mask=there, other=0.0).to(tl.float32)
    place_x, _ = _place(_or_middle(step_x, column, width), column, width, BORDER=False)
    place_y, _ = _place(_or_middle(step_y, row, height), row, height, BORDER=False)
    at_out = pair * out_n + inside * out_p
    for corner in tl.static_range(4):
        x = (tl.ceil(place_x) if corner >= 2 else tl.floor(place_x)).to(tl.int32)
        y = (tl.ceil(place_y) if corner % 2 == 1 else tl.floor(place_y)).to(tl.int32)
        exists = there & is_inside(x, width) & is_inside(y, height)
        for first in range(0, CHANNELS, BLOCK_CHANNELS):
            channel = first + tl.arange(0, BLOCK_CHANNELS)
            known = (channel < CHANNELS)[None, :]
            target = at_out[:, None] + ((corner * CHANNELS + channel) * out_c)[None, :]
            if BACKWARD:
                grad = tl.load(out_ptr + target, mask=exists[:, None] & known, other=0.0)
                at_total = (pair * per_image + y * width + x) * CHANNELS
                total_ptr = totals_ptr + at_total[:, None] + channel[None, :]
                scale = tl.load(scale_ptr)
                scatter(total_ptr, grad.to(tl.float32), exists[:, None] & known, scale, EXACT)
            else:
                at_image = pair * image_n + (y * width + x) * image_p
                image_ptr = images_ptr + at_image[:, None] + (channel * image_c)[None, :]
                value = tl.load(image_ptr, mask=exists[:, None] & known, other=0.0)
                tl.store(out_ptr + target, value, mask=there[:, None] & known)
