"""Modulated deformable convolution for Triton: columns of taps are built on the chip.

What is sampled is first laid out anew, (image, group, row, column, channel), a group's channels
filled up to a power of two: one corner of one tap of one group is then one aligned read of a few
bytes, its neighbour in the row lies beside it, and pixels next to each other, whose places are
mostly next to each other too, share lines of the cache. Places, blending and sums are float32.

Forward, a program takes a run of pixels and goes through groups and taps: it reads the places,
gathers and blends the corners, and multiplies the columns by the taps' weights on matrix units.
Backward, a program stays at one tap and some groups, whose weights and whose gradient of the
weights it keeps, and goes through its share of the pixels: the gradient of the columns is made on
the chip, gives the gradients of places and masks, and is added to the image's where it came from.
Those sums go in no order, except as integers (`exact_sums`), where no order changes them; the
other sums have one order, which shapes decide.

Counted for 10 pairs of 256x256 pixels, 96 channels, 16 groups, 9 taps, 2 bytes: 109 GFLOP of
products forward, 0.85 GB in and out, of which 0.57 are places and masks; 377 million reads of 16
bytes, from the caches. Backward: 217 GFLOP, 1.6 GB, and as many additions of 32 bytes.

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

from pitstop.kernels import block_size, product_block
from pitstop.kernels.fallback import product_precision, round_to_tf32_
from pitstop.kernels.pairs import pixel_stride
from pitstop.kernels.window_attention_triton import round_to_tf32


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    block_pixels: int
    block_groups: int
    """Deformable groups whose columns are held at once."""
    num_warps: int
    num_stages: int = 1
    programs: int = 1056
    """Backward: programs that keep a device busy; pixels are shared out among them."""
    max_registers: int | None = None
    """Of a thread: fewer let more programs share a processor; None leaves it to the compiler."""


FORWARD = Launch(64, 8, 8)
BACKWARD = Launch(64, 8, 8)
"""For numbers of two bytes."""
FLOAT_FORWARD = Launch(32, 4, 4)
FLOAT_BACKWARD = Launch(32, 8, 4, programs=2112)
"""For numbers of four bytes: what a program holds must fit on the chip."""

PACK_PIXELS = 32


class Taps(NamedTuple):
    """Places and masks of all taps, and what they are made from.

    Plainly: ``places`` (P, 2 G K, H, W) are offsets, channels (group, tap, (dy, dx)), and ``mask``
    (P, G K, H, W) has channels (group, tap). Guided by a flow: ``places`` (P, 3 K G or more, H, W)
    has channels (tap, (dy, dx, mask), group), all of them before bias, tanh and sigmoid.
    """

    places: Tensor
    mask: Tensor | None
    places_bias: Tensor | None
    """(3 K G,), or None where nothing guides."""
    flow: Tensor | None
    """(P, 2, H, W): (x, y) steps under all offsets."""
    max_residue: float

    @property
    def guided(self) -> bool:
        """Whether a flow guides the places."""
        return self.flow is not None

    @property
    def num_values(self) -> int:
        """Channels of the places that mean something; guided ones may have more."""
        return self.places.shape[1] if self.places_bias is None else self.places_bias.shape[0]


class Scene(NamedTuple):
    """What is convolved, and where results go."""

    images: Tensor
    """(M, C_in, H, W), any strides whose rows follow one another."""
    sources: Tensor
    """(P,) int32: the image that each pair samples."""
    slots: Tensor
    """(P,) int32: twice the picture that each pair's result goes to, plus 1 for the second one."""
    lacks: Tensor | None
    """(M,) int32: which of a picture's two results, 1 or 2 or 3 for both, no pair gives.

    With it pictures are made of an image and both results, joined in their channels. None: a
    picture is one result.
    """

    @property
    def head(self) -> int:
        """Numbers of a pixel before its first result."""
        return 0 if self.lacks is None else self.images.shape[1]


class Gradients(NamedTuple):
    """Of all that has one; None where nothing guides."""

    images: Tensor
    places: Tensor
    mask: Tensor | None
    places_bias: Tensor | None
    flow: Tensor | None
    weight: Tensor
    bias: Tensor
    """float32."""


def convolve(
    scene: Scene,
    taps: Taps,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    launch: Launch | None = None,
) -> None:
    """Write the convolution of each pair into ``out``, in whose type the images are sampled.

    Args:
        scene: Images, and which pair reads and writes where.
        taps: Places and masks.
        weight: (C_out, C_in, kh, kw).
        bias: (C_out,).
        out: Contiguous; images are copied to the heads of its pixels where it has any.
        launch: How the kernel is cut; `FORWARD` where nothing is said.
    """
    launch = launch or (FORWARD if out.dtype.itemsize < 4 else FLOAT_FORWARD)
    sizes = _sizes(scene, taps, weight, launch)
    packed = _pack(scene, sizes, out.dtype, joined=out if scene.head else None)
    _convolve[(triton.cdiv(sizes["num_pixels"], launch.block_pixels),)](
        packed,
        *_tap_pointers(taps),
        scene.sources,
        scene.slots,
        _by_tap(weight, out.dtype),
        bias,
        out,
        **sizes,
        **_tap_layout(taps, sizes),
        PRECISION=product_precision(out.dtype),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )


def convolve_backward(
    scene: Scene,
    taps: Taps,
    weight: Tensor,
    grad: Tensor,
    *,
    exact_sums: bool = False,
    launch: Launch | None = None,
) -> Gradients:
    """Give the gradients of what `convolve` read.

    Args:
        scene: As forward.
        taps: As forward.
        weight: (C_out, C_in, kh, kw).
        grad: The gradient of ``out``, contiguous, in its type.
        exact_sums: Whether the gradient of the images is to have the same bits at every call.
        launch: How the kernel is cut; `BACKWARD` where nothing is said.
    """
    launch = launch or (BACKWARD if grad.dtype.itemsize < 4 else FLOAT_BACKWARD)
    sizes = _sizes(scene, taps, weight, launch)
    images, device = scene.images, scene.images.device
    num_taps, groups, padded = sizes["TAPS"], sizes["GROUPS"], sizes["PADDED"]
    chunks = triton.cdiv(groups, sizes["BLOCK_GROUPS"])
    tiles = triton.cdiv(sizes["num_pixels"], launch.block_pixels)
    run = triton.cdiv(tiles, min(tiles, triton.cdiv(launch.programs, num_taps * chunks)))
    splits = triton.cdiv(tiles, run)

    # Where sums are not exact, or nothing guides, what stands in for a buffer is never used.
    scale = _scale_of(grad, weight, taps) if exact_sums else grad
    packed = _pack(scene, sizes, grad.dtype)
    totals = torch.zeros(
        packed.numel(), dtype=torch.int64 if exact_sums else torch.float32, device=device
    )

    # Each program writes its share of these whole.
    def parts_of(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    weight_parts = parts_of(splits, num_taps, groups * sizes["CHANNELS"], sizes["OUT"])
    out_bias_parts = parts_of(splits, sizes["OUT"])
    grad_places = torch.empty_like(taps.places)
    if taps.num_values < grad_places.shape[1]:
        grad_places[:, taps.num_values :].zero_()
    grad_mask = None if taps.mask is None else torch.empty_like(taps.mask)
    bias_parts = parts_of(splits, num_taps, 3, groups) if taps.guided else grad
    flow_parts = parts_of(num_taps * chunks, sizes["num_pixels"], 2) if taps.guided else grad
    _convolve_backward[(splits * num_taps * chunks,)](
        packed,
        *_tap_pointers(taps),
        scene.sources,
        scene.slots,
        _by_tap(weight, grad.dtype),
        grad,
        totals,
        weight_parts,
        grad_places,
        grad_places if grad_mask is None else grad_mask,
        bias_parts,
        flow_parts,
        out_bias_parts,
        scale,
        run=run,
        **sizes,
        **_tap_layout(taps, sizes),
        EXACT=exact_sums,
        PRECISION=product_precision(grad.dtype),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    grad_images = torch.empty_like(images)
    _unpack[(triton.cdiv(images.numel() // images.shape[1], PACK_PIXELS),)](
        totals,
        grad_images,
        grad,
        scale,
        **_image_layout(grad_images, sizes),
        PADDED=padded,
        COPIED=scene.head > 0,
        EXACT=exact_sums,
    )
    flow = None
    if taps.flow is not None:
        pairs, _, height, width = taps.flow.shape
        flow = flow_parts.sum(0).view(pairs, height, width, 2).permute(0, 3, 1, 2)
        flow = flow.to(taps.flow.dtype)
    grad_weight = weight_parts.sum(0).unflatten(0, weight.shape[2:]).permute(3, 2, 0, 1)
    return Gradients(
        grad_images,
        grad_places,
        grad_mask,
        bias_parts.sum(0).flatten() if taps.guided else None,
        flow,
        grad_weight.contiguous().to(weight.dtype),
        out_bias_parts.sum(0),
    )


def _sizes(scene: Scene, taps: Taps, weight: Tensor, launch: Launch) -> dict[str, Any]:
    out_channels, in_channels, taps_y, taps_x = weight.shape
    num_taps = taps_y * taps_x
    groups = taps.num_values // ((3 if taps.guided else 2) * num_taps)
    pairs, _, height, width = taps.places.shape
    channels = in_channels // groups
    padded = block_size(channels)
    # The matrix units take sixteen rows at least.
    block_groups = max(min(launch.block_groups, block_size(groups)), 16 // padded, 1)
    assert scene.images.shape[1] == in_channels, "the weight is of other channels"
    assert scene.lacks is None or in_channels == out_channels, "results are as wide as images"
    return {
        "num_pixels": pairs * height * width,
        "height": height,
        "width": width,
        "GROUPS": groups,
        "CHANNELS": channels,
        "PADDED": padded,
        "OUT": out_channels,
        "HEAD": scene.head,
        "out_p": out_channels if scene.lacks is None else in_channels + 2 * out_channels,
        "BLOCK_OUT": product_block(out_channels),
        "TAPS": num_taps,
        "TAPS_X": taps_x,
        "BLOCK_PIXELS": launch.block_pixels,
        "BLOCK_GROUPS": block_groups,
    }


def _tap_layout(taps: Taps, sizes: dict[str, Any]) -> dict[str, Any]:
    """How far apart groups, taps and directions lie in places and masks, in channels."""
    mask = taps.places if taps.mask is None else taps.mask
    strides = {
        "places_n": taps.places.stride(0),
        "places_p": pixel_stride(taps.places),
        "places_c": taps.places.stride(1),
        "mask_n": mask.stride(0),
        "mask_p": pixel_stride(mask),
        "mask_c": mask.stride(1),
        "max_residue": float(taps.max_residue),
    }
    num_taps, groups = sizes["TAPS"], sizes["GROUPS"]
    steps = (1, 3 * groups, groups, 1, 3 * groups, 2 * groups)
    if not taps.guided:
        steps = (2 * num_taps, 2, 1, num_taps, 1, 0)
    names = ("PLACE_GROUP", "PLACE_TAP", "PLACE_AXIS", "MASK_GROUP", "MASK_TAP", "MASK_FIRST")
    return {**strides, **dict(zip(names, steps, strict=True)), "GUIDED": taps.guided}


def _tap_pointers(taps: Taps) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    places = taps.places
    mask = places if taps.mask is None else taps.mask
    bias = places if taps.places_bias is None else taps.places_bias
    return places, mask, bias, places if taps.flow is None else taps.flow


def _image_layout(images: Tensor, sizes: dict[str, Any]) -> dict[str, Any]:
    num_images, _, height, width = images.shape
    return {
        "num_pixels": num_images * height * width,
        "per_image": height * width,
        "image_n": images.stride(0),
        "image_p": pixel_stride(images),
        "image_c": images.stride(1),
        "joined_p": sizes["out_p"],
        "GROUPS": sizes["GROUPS"],
        "CHANNELS": sizes["CHANNELS"],
        "BLOCK_GROUPS": block_size(sizes["GROUPS"]),
        "BLOCK_PIXELS": PACK_PIXELS,
    }


def _pack(
    scene: Scene, sizes: dict[str, Any], dtype: torch.dtype, *, joined: Tensor | None = None
) -> Tensor:
    """(M, C, H, W) -> (M, G, H, W, channels filled up); with ``joined`` also to its heads."""
    images = scene.images
    num_images, channels, height, width = images.shape
    shape = (num_images, sizes["GROUPS"], height, width, sizes["PADDED"])
    packed = torch.empty(shape, dtype=dtype, device=images.device)
    _pack_images[(triton.cdiv(images.numel() // channels, PACK_PIXELS),)](
        images,
        packed,
        packed if joined is None else joined,
        scene.sources if scene.lacks is None else scene.lacks,
        **_image_layout(images, sizes),
        PADDED=sizes["PADDED"],
        COPY=joined is not None,
    )
    return packed


def _by_tap(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(C_out, C_in, kh, kw) -> (kh, kw, C_in, C_out)."""
    turned = weight.detach().permute(2, 3, 1, 0).to(dtype)
    if product_precision(dtype) == "tf32":
        return round_to_tf32_(turned.clone(memory_format=torch.contiguous_format))
    return turned.contiguous()


def _scale_of(grad: Tensor, weight: Tensor, taps: Taps) -> Tensor:
    """What makes whole numbers of shares in a sum, (1,): none overflows, whatever there is."""
    largest = grad.abs().amax().float() * weight.detach().abs().sum(0).amax().float()
    if taps.mask is not None:
        largest = largest * taps.mask.abs().amax().float()
    return (2.0**38 / largest.clamp(min=1e-30)).reshape(1)


@triton.jit
def _pack_images(
    images_ptr,
    packed_ptr,
    joined_ptr,
    lacks_ptr,
    num_pixels,
    per_image,
    image_n,
    image_p,
    image_c,
    joined_p,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    COPY: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    image = (pixel // per_image).to(tl.int64)
    inside = pixel % per_image
    group = tl.arange(0, BLOCK_GROUPS)
    lane = tl.arange(0, PADDED)
    exists = ((group < GROUPS)[:, None] & (pixel < num_pixels)[None, :])[:, :, None]
    real = exists & (lane < CHANNELS)[None, None, :]
    channel = (group * CHANNELS)[:, None, None] + lane[None, None, :]
    source = (image * image_n + inside * image_p)[None, :, None] + channel * image_c
    value = tl.load(images_ptr + source, mask=real, other=0.0)
    first = image * (GROUPS * per_image) + inside
    target = first[None, :] + (group * per_image)[:, None]
    target = target[:, :, None] * PADDED + lane[None, None, :]
    tl.store(packed_ptr + target, value, mask=exists)
    if COPY:
        head = pixel.to(tl.int64)[None, :, None] * joined_p + channel
        tl.store(joined_ptr + head, value, mask=real)
        lacks = tl.load(lacks_ptr + image, mask=pixel < num_pixels, other=0)[None, :, None]
        nothing = tl.zeros_like(value)
        result_ptr = joined_ptr + head + GROUPS * CHANNELS
        tl.store(result_ptr, nothing, mask=real & (lacks % 2 == 1))
        tl.store(result_ptr + GROUPS * CHANNELS, nothing, mask=real & (lacks >= 2))


@triton.jit
def _unpack(
    totals_ptr,
    grad_images_ptr,
    joined_ptr,
    scale_ptr,
    num_pixels,
    per_image,
    image_n,
    image_p,
    image_c,
    joined_p,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    COPIED: tl.constexpr,
    EXACT: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    image = (pixel // per_image).to(tl.int64)
    inside = pixel % per_image
    group = tl.arange(0, BLOCK_GROUPS)
    lane = tl.arange(0, PADDED)
    exists = ((group < GROUPS)[:, None] & (pixel < num_pixels)[None, :])[:, :, None]
    real = exists & (lane < CHANNELS)[None, None, :]
    first = image * (GROUPS * per_image) + inside
    source = first[None, :] + (group * per_image)[:, None]
    source = source[:, :, None] * PADDED + lane[None, None, :]
    total = tl.load(totals_ptr + source, mask=real, other=0).to(tl.float32)
    if EXACT:
        total = total / tl.load(scale_ptr)
    channel = (group * CHANNELS)[:, None, None] + lane[None, None, :]
    if COPIED:
        head = pixel.to(tl.int64)[None, :, None] * joined_p + channel
        total += tl.load(joined_ptr + head, mask=real, other=0.0).to(tl.float32)
    target = (image * image_n + inside * image_p)[None, :, None] + channel * image_c
    tl.store(grad_images_ptr + target, total, mask=real)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _read_taps(
    places_ptr,
    mask_ptr,
    places_bias_ptr,
    flow_ptr,
    at_places,
    at_mask,
    at_flow,
    places_c,
    mask_c,
    per_image,
    max_residue,
    group,
    tap,
    here,
    PLACE_GROUP: tl.constexpr,
    PLACE_TAP: tl.constexpr,
    PLACE_AXIS: tl.constexpr,
    MASK_GROUP: tl.constexpr,
    MASK_TAP: tl.constexpr,
    MASK_FIRST: tl.constexpr,
    GROUPS: tl.constexpr,
    GUIDED: tl.constexpr,
):
    """Offsets (y, x) and mask of one tap, (pixels, groups); and where the first two lie.

    Guided by a flow, the tanh of both offsets as well, else the offsets twice.
    """
    channel = group * PLACE_GROUP + tap * PLACE_TAP
    place = at_places[:, None] + (channel * places_c)[None, :]
    y = tl.load(places_ptr + place, mask=here, other=0.0).to(tl.float32)
    x = tl.load(places_ptr + place + PLACE_AXIS * places_c, mask=here, other=0.0).to(tl.float32)
    mask_channel = group * MASK_GROUP + tap * MASK_TAP + MASK_FIRST
    mask_place = at_mask[:, None] + (mask_channel * mask_c)[None, :]
    mask = tl.load(mask_ptr + mask_place, mask=here, other=0.0).to(tl.float32)
    tanh_y, tanh_x = y, x
    if GUIDED:
        known = group < GROUPS
        bias_ptr = places_bias_ptr + channel
        y += tl.load(bias_ptr, mask=known, other=0.0).to(tl.float32)[None, :]
        x += tl.load(bias_ptr + PLACE_AXIS, mask=known, other=0.0).to(tl.float32)[None, :]
        mask_bias = tl.load(places_bias_ptr + mask_channel, mask=known, other=0.0)
        mask = tl.sigmoid(mask + mask_bias.to(tl.float32)[None, :])
        pixel_here = at_flow >= 0
        flow_x = tl.load(flow_ptr + at_flow, mask=pixel_here, other=0.0).to(tl.float32)
        flow_y = tl.load(flow_ptr + at_flow + per_image, mask=pixel_here, other=0.0)
        tanh_y, tanh_x = _tanh(y), _tanh(x)
        y = max_residue * tanh_y + flow_y.to(tl.float32)[:, None]
        x = max_residue * tanh_x + flow_x[:, None]
    return y, x, mask, tanh_y, tanh_x, place, mask_place


@triton.jit
def whole_part(place, size):
    """The whole part of a place as a number that fits, and its fraction.

    Far places are pulled to just outside. What is no number reads the first pixel, and its
    fraction spoils what it meets.
    """
    floor = tl.floor(place)
    pulled = tl.minimum(tl.maximum(floor, -2.0), size * 1.0)
    return tl.where(place == place, pulled, 0.0).to(tl.int32), place - floor  # noqa: PLR0124 - NaN


@triton.jit
def is_inside(place, size):
    """Whether a whole place lies on an axis."""
    return (place >= 0) & (place < size)


@triton.jit
def _convolve(
    packed_ptr,
    places_ptr,
    mask_ptr,
    places_bias_ptr,
    flow_ptr,
    sources_ptr,
    slots_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_pixels,
    height,
    width,
    places_n,
    places_p,
    places_c,
    mask_n,
    mask_p,
    mask_c,
    out_p,
    max_residue,
    PLACE_GROUP: tl.constexpr,
    PLACE_TAP: tl.constexpr,
    PLACE_AXIS: tl.constexpr,
    MASK_GROUP: tl.constexpr,
    MASK_TAP: tl.constexpr,
    MASK_FIRST: tl.constexpr,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    OUT: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_X: tl.constexpr,
    GUIDED: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    CHUNKS: tl.constexpr = (GROUPS + BLOCK_GROUPS - 1) // BLOCK_GROUPS
    ROWS: tl.constexpr = BLOCK_GROUPS * PADDED
    HALF_Y: tl.constexpr = TAPS // TAPS_X // 2
    HALF_X: tl.constexpr = TAPS_X // 2
    per_image = height * width
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    there = pixel < num_pixels
    pair = pixel // per_image
    inside = pixel % per_image
    row = inside // width
    column = inside % width
    wide_pair = pair.to(tl.int64)
    at_places = wide_pair * places_n + inside * places_p
    at_mask = wide_pair * mask_n + inside * mask_p
    at_flow = tl.where(there, wide_pair * (2 * per_image) + inside, -1)
    source = tl.load(sources_ptr + pair, mask=there, other=0).to(tl.int64)
    first = source * (GROUPS * per_image)
    lane = tl.arange(0, PADDED)
    output = tl.arange(0, BLOCK_OUT)
    known = output < OUT
    total = tl.zeros((BLOCK_PIXELS, BLOCK_OUT), dtype=tl.float32)
    for step in range(CHUNKS * TAPS):
        tap = step % TAPS
        chunk = step // TAPS * BLOCK_GROUPS
        group = chunk + tl.arange(0, BLOCK_GROUPS)
        here = there[:, None] & (group < GROUPS)[None, :]
        y, x, mask, _, _, _, _ = _read_taps(
            places_ptr,
            mask_ptr,
            places_bias_ptr,
            flow_ptr,
            at_places,
            at_mask,
            at_flow,
            places_c,
            mask_c,
            per_image,
            max_residue,
            group,
            tap,
            here,
            PLACE_GROUP,
            PLACE_TAP,
            PLACE_AXIS,
            MASK_GROUP,
            MASK_TAP,
            MASK_FIRST,
            GROUPS,
            GUIDED,
        )
        top, part_y = whole_part(y + (row + (tap // TAPS_X - HALF_Y))[:, None], height)
        left, part_x = whole_part(x + (column + (tap % TAPS_X - HALF_X))[:, None], width)
        up, down = here & is_inside(top, height), here & is_inside(top + 1, height)
        near, far = is_inside(left, width), is_inside(left + 1, width)
        upper, lower = mask * (1 - part_y), mask * part_y
        # What has weight zero is not read: so the weights alone say which corners exist.
        share_a = tl.where(up & near, upper * (1 - part_x), 0.0)[:, :, None]
        share_b = tl.where(up & far, upper * part_x, 0.0)[:, :, None]
        share_c = tl.where(down & near, lower * (1 - part_x), 0.0)[:, :, None]
        share_d = tl.where(down & far, lower * part_x, 0.0)[:, :, None]
        corner = first[:, None] + (group * per_image)[None, :] + (top * width + left)
        corner_ptr = packed_ptr + corner[:, :, None] * PADDED + lane[None, None, :]
        below_ptr = corner_ptr + width * PADDED
        a = tl.load(corner_ptr, mask=share_a != 0, other=0.0).to(tl.float32)
        b = tl.load(corner_ptr + PADDED, mask=share_b != 0, other=0.0).to(tl.float32)
        c = tl.load(below_ptr, mask=share_c != 0, other=0.0).to(tl.float32)
        d = tl.load(below_ptr + PADDED, mask=share_d != 0, other=0.0).to(tl.float32)
        above, under = a * share_a + b * share_b, c * share_c + d * share_d
        # Summed like this, the four corners do not each go to the matrix units' layout.
        value = tl.sum(tl.join(above, under), axis=3)
        lines = tl.arange(0, ROWS)
        line_group = chunk + lines // PADDED
        line_channel = lines % PADDED
        real = (line_group < GROUPS) & (line_channel < CHANNELS)
        line = tap * (GROUPS * CHANNELS) + line_group * CHANNELS + line_channel
        weight = tl.load(
            weight_ptr + line[:, None] * OUT + output[None, :],
            mask=real[:, None] & known[None, :],
            other=0.0,
        )
        if PRECISION == "tf32":
            value = round_to_tf32(value)
        columns = tl.reshape(value.to(weight.dtype), (BLOCK_PIXELS, ROWS))
        total = tl.dot(columns, weight, total, input_precision=PRECISION)
    total += tl.load(bias_ptr + output, mask=known, other=0.0).to(tl.float32)[None, :]
    slot = tl.load(slots_ptr + pair, mask=there, other=0)
    target = ((slot // 2).to(tl.int64) * per_image + inside) * out_p + HEAD + slot % 2 * OUT
    where = target[:, None] + output[None, :]
    tl.store(out_ptr + where, total, mask=there[:, None] & known[None, :])


@triton.jit
def scatter(ptr, value, mask, scale, EXACT: tl.constexpr):
    """Add to sums that others add to as well: in float32, or exactly, in whole numbers."""
    if EXACT:
        tl.atomic_add(ptr, (value * scale).to(tl.int64), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(ptr, value, mask=mask, sem="relaxed")


@triton.jit
def _convolve_backward(
    packed_ptr,
    places_ptr,
    mask_ptr,
    places_bias_ptr,
    flow_ptr,
    sources_ptr,
    slots_ptr,
    weight_ptr,
    grad_ptr,
    totals_ptr,
    weight_parts_ptr,
    grad_places_ptr,
    grad_mask_ptr,
    bias_parts_ptr,
    flow_parts_ptr,
    out_bias_parts_ptr,
    scale_ptr,
    num_pixels,
    height,
    width,
    places_n,
    places_p,
    places_c,
    mask_n,
    mask_p,
    mask_c,
    out_p,
    max_residue,
    run,
    PLACE_GROUP: tl.constexpr,
    PLACE_TAP: tl.constexpr,
    PLACE_AXIS: tl.constexpr,
    MASK_GROUP: tl.constexpr,
    MASK_TAP: tl.constexpr,
    MASK_FIRST: tl.constexpr,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    OUT: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_X: tl.constexpr,
    GUIDED: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    CHUNKS: tl.constexpr = (GROUPS + BLOCK_GROUPS - 1) // BLOCK_GROUPS
    ROWS: tl.constexpr = BLOCK_GROUPS * PADDED
    HALF_Y: tl.constexpr = TAPS // TAPS_X // 2
    HALF_X: tl.constexpr = TAPS_X // 2
    # Programs of one share of the pixels stand next to each other: what they read is the same.
    program = tl.program_id(0)
    tap = program % TAPS
    chunk = (program // TAPS) % CHUNKS
    split = program // (TAPS * CHUNKS)
    group = chunk * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    real_group = group < GROUPS
    lane = tl.arange(0, PADDED)
    output = tl.arange(0, BLOCK_OUT)
    known = output < OUT
    lines = tl.arange(0, ROWS)
    line_group = chunk * BLOCK_GROUPS + lines // PADDED
    line_channel = lines % PADDED
    real = (line_group < GROUPS) & (line_channel < CHANNELS)
    line = tap * (GROUPS * CHANNELS) + line_group * CHANNELS + line_channel
    cell = line[:, None] * OUT + output[None, :]
    cell_mask = real[:, None] & known[None, :]
    weight = tl.load(weight_ptr + cell, mask=cell_mask, other=0.0)
    per_image = height * width
    scale = tl.load(scale_ptr)
    grad_weight = tl.zeros((ROWS, BLOCK_OUT), dtype=tl.float32)
    sum_y = tl.zeros((BLOCK_PIXELS, BLOCK_GROUPS), dtype=tl.float32)
    sum_x = tl.zeros((BLOCK_PIXELS, BLOCK_GROUPS), dtype=tl.float32)
    sum_mask = tl.zeros((BLOCK_PIXELS, BLOCK_GROUPS), dtype=tl.float32)
    sum_grad = tl.zeros((BLOCK_OUT,), dtype=tl.float32)
    tiles = (num_pixels + BLOCK_PIXELS - 1) // BLOCK_PIXELS
    for tile in range(split * run, tl.minimum((split + 1) * run, tiles)):
        pixel = tile * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
        there = pixel < num_pixels
        pair = pixel // per_image
        inside = pixel % per_image
        row = inside // width
        column = inside % width
        wide_pair = pair.to(tl.int64)
        at_places = wide_pair * places_n + inside * places_p
        at_mask = wide_pair * mask_n + inside * mask_p
        at_flow = tl.where(there, wide_pair * (2 * per_image) + inside, -1)
        source = tl.load(sources_ptr + pair, mask=there, other=0).to(tl.int64)
        slot = tl.load(slots_ptr + pair, mask=there, other=0)
        target = ((slot // 2).to(tl.int64) * per_image + inside) * out_p + HEAD + slot % 2 * OUT
        grad = tl.load(
            grad_ptr + target[:, None] + output[None, :],
            mask=there[:, None] & known[None, :],
            other=0.0,
        )
        if tap + chunk == 0:
            sum_grad += tl.sum(grad.to(tl.float32), axis=0)
        here = there[:, None] & real_group[None, :]
        y, x, mask, tanh_y, tanh_x, place, mask_place = _read_taps(
            places_ptr,
            mask_ptr,
            places_bias_ptr,
            flow_ptr,
            at_places,
            at_mask,
            at_flow,
            places_c,
            mask_c,
            per_image,
            max_residue,
            group,
            tap,
            here,
            PLACE_GROUP,
            PLACE_TAP,
            PLACE_AXIS,
            MASK_GROUP,
            MASK_TAP,
            MASK_FIRST,
            GROUPS,
            GUIDED,
        )
        top, part_y = whole_part(y + (row + (tap // TAPS_X - HALF_Y))[:, None], height)
        left, part_x = whole_part(x + (column + (tap % TAPS_X - HALF_X))[:, None], width)
        up, down = here & is_inside(top, height), here & is_inside(top + 1, height)
        near, far = is_inside(left, width), is_inside(left + 1, width)
        first = source * (GROUPS * per_image)
        corner = first[:, None] + (group * per_image)[None, :] + (top * width + left)
        corner = corner[:, :, None] * PADDED + lane[None, None, :]
        below = corner + width * PADDED
        if PRECISION == "tf32":
            grad = round_to_tf32(grad)
        grad_columns = tl.dot(grad, tl.trans(weight), input_precision=PRECISION)
        grad_columns = tl.reshape(grad_columns, (BLOCK_PIXELS, BLOCK_GROUPS, PADDED))
        # Each corner: read it, take its part of the columns and of three gradients, add to it.
        share = mask * (1 - part_y) * (1 - part_x)
        valid = (up & near)[:, :, None]
        value = tl.load(packed_ptr + corner, mask=valid, other=0.0).to(tl.float32)
        columns = value * share[:, :, None]
        upper_near = tl.sum(grad_columns * value, axis=2)
        scatter(totals_ptr + corner, grad_columns * share[:, :, None], valid, scale, EXACT)
        share = mask * (1 - part_y) * part_x
        valid = (up & far)[:, :, None]
        value = tl.load(packed_ptr + corner + PADDED, mask=valid, other=0.0).to(tl.float32)
        columns += value * share[:, :, None]
        upper_far = tl.sum(grad_columns * value, axis=2)
        beside_ptr = totals_ptr + corner + PADDED
        scatter(beside_ptr, grad_columns * share[:, :, None], valid, scale, EXACT)
        share = mask * part_y * (1 - part_x)
        valid = (down & near)[:, :, None]
        value = tl.load(packed_ptr + below, mask=valid, other=0.0).to(tl.float32)
        columns += value * share[:, :, None]
        lower_near = tl.sum(grad_columns * value, axis=2)
        scatter(totals_ptr + below, grad_columns * share[:, :, None], valid, scale, EXACT)
        share = mask * part_y * part_x
        valid = (down & far)[:, :, None]
        value = tl.load(packed_ptr + below + PADDED, mask=valid, other=0.0).to(tl.float32)
        columns += value * share[:, :, None]
        lower_far = tl.sum(grad_columns * value, axis=2)
        beside_ptr = totals_ptr + below + PADDED
        scatter(beside_ptr, grad_columns * share[:, :, None], valid, scale, EXACT)

        if PRECISION == "tf32":
            columns = round_to_tf32(columns)
        columns = tl.reshape(columns.to(grad.dtype), (BLOCK_PIXELS, ROWS))
        grad_weight = tl.dot(tl.trans(columns), grad, grad_weight, input_precision=PRECISION)

        upper = upper_near * (1 - part_x) + upper_far * part_x
        lower = lower_near * (1 - part_x) + lower_far * part_x
        grad_mask = upper * (1 - part_y) + lower * part_y
        grad_y = mask * (lower - upper)
        nearer = upper_near * (1 - part_y) + lower_near * part_y
        farther = upper_far * (1 - part_y) + lower_far * part_y
        grad_x = mask * (farther - nearer)
        if GUIDED:
            part = (tap * CHUNKS + chunk).to(tl.int64) * num_pixels + pixel
            tl.store(flow_parts_ptr + 2 * part, tl.sum(grad_x, axis=1), mask=there)
            tl.store(flow_parts_ptr + 2 * part + 1, tl.sum(grad_y, axis=1), mask=there)
            grad_y *= max_residue * (1 - tanh_y * tanh_y)
            grad_x *= max_residue * (1 - tanh_x * tanh_x)
            grad_mask *= mask * (1 - mask)
            sum_y += tl.where(here, grad_y, 0.0)
            sum_x += tl.where(here, grad_x, 0.0)
            sum_mask += tl.where(here, grad_mask, 0.0)
        tl.store(grad_places_ptr + place, grad_y, mask=here)
        tl.store(grad_places_ptr + place + PLACE_AXIS * places_c, grad_x, mask=here)
        tl.store(grad_mask_ptr + mask_place, grad_mask, mask=here)
    first_cell = split.to(tl.int64) * (TAPS * GROUPS * CHANNELS * OUT)
    tl.store(weight_parts_ptr + first_cell + cell, grad_weight, mask=cell_mask)
    if tap + chunk == 0:
        tl.store(out_bias_parts_ptr + split * OUT + output, sum_grad, mask=known)
    if GUIDED:
        first_part = (split * TAPS + tap) * (3 * GROUPS) + group
        tl.store(bias_parts_ptr + first_part, tl.sum(sum_y, axis=0), mask=real_group)
        tl.store(bias_parts_ptr + first_part + GROUPS, tl.sum(sum_x, axis=0), mask=real_group)
        last_part = first_part + 2 * GROUPS
        tl.store(bias_parts_ptr + last_part, tl.sum(sum_mask, axis=0), mask=real_group)
