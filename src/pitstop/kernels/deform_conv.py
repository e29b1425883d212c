"""Convolution whose taps are read from learned places and weighed by a learned mask.

Stride 1, dilation 1, output as large as the input; the kernel's sides are odd. Sampling and
products run in float32 or wider even under autocast: places need the precision, and a half
precision version must prove itself before it takes over.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, refuse_fused


def dispatch(kernels: Kernels = "auto") -> Callable[..., Tensor]:
    """Give the version that ``kernels`` asks for.

    Raises:
        ConfigError: When that version does not exist.
    """
    refuse_fused(kernels, operation="deformable convolution")
    return deform_conv_reference


def deform_conv_reference(
    x: Tensor,
    offset: Tensor,
    mask: Tensor,
    weight: Tensor,
    *,
    bias: Tensor,
) -> Tensor:
    """Sample each tap bilinearly at its own place, weigh it, and contract with the kernel.

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
    weighed = columns.unflatten(1, (weights.shape[1], -1)) * weights
    kernel = weight.reshape(groups, out_channels // groups, -1)
    out = kernel @ weighed.view(batch, groups, -1, height * width)
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


def deform_conv_flops(
    *, pixels: int, in_channels: int, out_channels: int, taps: int, groups: int
) -> int:
    """Products of the convolution, and nine operations a sampled value (blend and mask).

    Args:
        pixels: N * H * W.
        in_channels: Channels that are sampled.
        out_channels: Channels that come out.
        taps: kh * kw.
        groups: Convolution groups.
    """
    products = 2 * pixels * out_channels * (in_channels // groups) * taps
    return products + 9 * pixels * in_channels * taps


def deform_conv_bytes(
    *, pixels: int, in_channels: int, out_channels: int, taps: int, deform_groups: int
) -> int:
    """Float32 input, places, mask and result; the kernel itself is too small to count."""
    return 4 * pixels * (in_channels + 3 * deform_groups * taps + out_channels)


FORMULAS: Final[dict[str, Formula]] = {
    "deform_conv": Formula(flops=deform_conv_flops, num_bytes=deform_conv_bytes),
}
