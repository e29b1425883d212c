"""Fetching pixels from where an optical flow points.

``flow[:, 0]`` is the step in x and ``flow[:, 1]`` the step in y, in pixels of the image being
warped: the result at (x, y) is read at (x + flow_x, y + flow_y). Places are computed in float32
or wider whatever the image's type, because half precision cannot tell neighbouring pixels of a
large image apart.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, refuse_fused

Padding: TypeAlias = Literal["zeros", "border"]
"""What lies outside the image: nothing, or its outermost pixels repeated."""


class FlowWarp(NamedTuple):
    """The two operations of this file in the version that was asked for."""

    bilinear: Callable[..., Tensor]
    nearest4: Callable[..., Tensor]


def dispatch(kernels: Kernels = "auto") -> FlowWarp:
    """Give the versions that ``kernels`` asks for.

    Raises:
        ConfigError: When that version does not exist.
    """
    refuse_fused(kernels, operation="flow warping")
    return FlowWarp(bilinear_reference, nearest4_reference)


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


def nearest4_flops(*, batch: int, channels: int, height: int, width: int) -> int:
    """None: pixels are copied."""
    return 0 * batch * channels * height * width


def nearest4_bytes(*, batch: int, channels: int, height: int, width: int, itemsize: int) -> int:
    """Image in, four times its size out, and a float32 flow."""
    return batch * height * width * (5 * channels * itemsize + 2 * 4)


FORMULAS: Final[dict[str, Formula]] = {
    "bilinear": Formula(flops=bilinear_flops, num_bytes=bilinear_bytes),
    "nearest4": Formula(flops=nearest4_flops, num_bytes=nearest4_bytes),
}
