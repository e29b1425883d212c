"""From a pixel and a depth to a cell of the ground: where every lifted point goes.

Frames and the direction of rows and columns are those of `data/batch.py`. All of it is float32,
whatever autocast says, and written without matrix products: on a GPU those may round to ten bits,
which is metres at the far end of the grid. Nothing is read back from the device, and no shape
depends on values.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pitstop.kernels.splat_columns_plan import ColumnPlan, make_column_plan

Bound: TypeAlias = tuple[float, float, float]
"""Start, stop and step, in metres."""

Frame: TypeAlias = Literal["ego", "camera"]

AXES: Final[dict[Frame, tuple[int, int, int]]] = {"ego": (0, 1, 2), "camera": (2, 0, 1)}
"""Which coordinates of the ground frame lie forward, across and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Where published code differs; the defaults are right, the rest is for comparing with it."""

    pixels: Literal["centre", "linspace"] = "centre"
    """Where a feature looks from: the centre of the pixels it covers, or evenly spread from the
    first pixel of the image to the last, which is up to a feature off."""
    rounding: Literal["floor", "trunc"] = "floor"
    """How a coordinate becomes a cell: down, or towards zero, which puts what lies up to a cell
    outside the lower edge into the first cell."""
    rows: Literal["forward", "across"] = "forward"
    """What a row of the result counts."""


RIGHT: Final = Conventions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplatGrid:
    """The cells around a car or in front of a camera."""

    forward: Bound
    across: Bound
    height: Bound
    frame: Frame

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells upwards, forward and across."""
        return num_steps(self.height), num_steps(self.forward), num_steps(self.across)

    @property
    def num_cells(self) -> int:
        """Cells of a sample."""
        up, forward, across = self.shape
        return up * forward * across


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """The points that a camera's features are lifted to."""

    image_size: tuple[int, int]
    """Height and width in pixels of the image the network sees."""
    stride: int
    """Pixels from one feature to the next."""
    depth: Bound

    @property
    def feature_size(self) -> tuple[int, int]:
        """Rows and columns of features that lie wholly in the image."""
        height, width = self.image_size
        return height // self.stride, width // self.stride

    @property
    def num_bins(self) -> int:
        """Depths of a pixel."""
        return num_steps(self.depth)

    @property
    def num_points(self) -> int:
        """Points of a camera."""
        rows, columns = self.feature_size
        return rows * columns * self.num_bins


class Cameras(NamedTuple):
    """How the cameras of a batch stand; fields as in `batch.BevBatch`."""

    intrinsics: Tensor
    cam_to_ego: Tensor
    image_transform: Tensor
    bev_transform: Tensor


class LiftedPoints(NamedTuple):
    """Where the points of a batch come from and go: what a splat needs to know.

    Points count cameras, rows, columns and depths, the depth fastest.
    """

    ranks_depth: Tensor
    ranks_feat: Tensor
    ranks_bev: Tensor
    plan: ColumnPlan | None
    num_samples: int
    num_bins: int
    rows_forward: bool
    """Whether rows of the grid count forward, not across."""


def num_steps(bound: Bound) -> int:
    """Steps that fit between start and stop."""
    start, stop, step = bound
    return round((stop - start) / step)


def ground_points(cameras: Cameras, lift: Lift, conventions: Conventions = RIGHT) -> Tensor:
    """Find the place of every lifted point in the ground frame.

    Returns:
        (B, N, rows, columns, depths, 3) float32, in metres.
    """
    cameras = Cameras(*(matrix.float() for matrix in cameras))
    to_ground = _compose(cameras.bev_transform[:, None], cameras.cam_to_ego)
    to_camera = _compose(_inverse(cameras.intrinsics), _inverse(cameras.image_transform))
    rays = _compose(to_ground[..., :3, :3], to_camera)
    u, v = _pixels(lift, conventions, device=rays.device)
    # (B, N, 1, 1, 3) matrix columns against (rows, columns) pixels.
    across, down, ahead = (rays[:, :, None, None, :, axis] for axis in range(3))
    ray = across * u[None, :, None] + down * v[:, None, None] + ahead
    start, _, step = lift.depth
    depths = start + step * torch.arange(lift.num_bins, device=ray.device, dtype=torch.float32)
    return ray[..., None, :] * depths[:, None] + to_ground[:, :, None, None, None, :3, 3]


def cells_of(points: Tensor, grid: SplatGrid, conventions: Conventions = RIGHT) -> Tensor:
    """Number the cell of every point among the cells of its batch.

    Args:
        points: (B, ..., 3) in the ground frame.
        grid: The cells.
        conventions: How coordinates become cells.

    Returns:
        (B, ...) int32; points outside the grid get the number of cells of the whole batch.
    """
    shape, forward_axis = grid.shape, AXES[grid.frame]
    bounds = (grid.forward, grid.across, grid.height)
    places, kept = [], torch.ones(points.shape[:-1], dtype=torch.bool, device=points.device)
    for axis, bound in zip(forward_axis, bounds, strict=True):
        start, _, step = bound
        place = (points[..., axis] - start) / step
        place = place.floor() if conventions.rounding == "floor" else place.trunc()
        kept = kept & (place >= 0) & (place < num_steps(bound))
        places.append(place)
    # What is no number or too large for an integer must not reach the conversion.
    forward, across, up = (torch.where(kept, place, 0).to(torch.int32) for place in places)
    sample = torch.arange(points.shape[0], device=points.device, dtype=torch.int32)
    sample = sample.view(-1, *[1] * (points.dim() - 2))
    plane = sample * shape[0] + up
    if conventions.rows == "forward":
        cell = (plane * shape[1] + forward) * shape[2] + across
    else:
        cell = (plane * shape[2] + across) * shape[1] + forward
    return torch.where(kept, cell, points.shape[0] * grid.num_cells)


def lifted_points(
    cameras: Cameras,
    lift: Lift,
    grid: SplatGrid,
    conventions: Conventions = RIGHT,
    *,
    with_plan: bool,
) -> LiftedPoints:
    """Find the weight, feature and cell of every point of a batch."""
    batch = cameras.intrinsics.shape[0]
    ranks_bev = cells_of(ground_points(cameras, lift, conventions), grid, conventions).flatten()
    numbers = torch.arange(ranks_bev.numel(), device=ranks_bev.device, dtype=torch.int32)
    ranks = (numbers, numbers // lift.num_bins, ranks_bev)
    kind = (batch, lift.num_bins, conventions.rows == "forward")
    if not with_plan:
        return LiftedPoints(*ranks, None, *kind)
    plane = grid.shape[1:] if conventions.rows == "forward" else grid.shape[:0:-1]
    plan = make_column_plan(
        ranks_bev,
        num_cells=batch * grid.num_cells,
        cell_picture=(plane[0], plane[1]),
        feature_picture=lift.feature_size,
        num_bins=lift.num_bins,
    )
    return LiftedPoints(*ranks, plan, *kind)


def _pixels(lift: Lift, conventions: Conventions, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Columns and rows of the network's image that features look from."""
    (height, width), (rows, columns) = lift.image_size, lift.feature_size
    if conventions.pixels == "linspace":
        return (
            torch.linspace(0, width - 1, columns, device=device),
            torch.linspace(0, height - 1, rows, device=device),
        )
    centre = (lift.stride - 1) / 2
    return (
        torch.arange(columns, device=device, dtype=torch.float32) * lift.stride + centre,
        torch.arange(rows, device=device, dtype=torch.float32) * lift.stride + centre,
    )


def _compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Matrix product in full precision."""
    return (outer[..., :, :, None] * inner[..., None, :, :]).sum(-2)


def _inverse(matrix: Tensor) -> Tensor:
    """Inverse of 3x3 matrices by cofactors: `torch.linalg.inv` would wait for the device."""
    first, second, third = matrix.unbind(-2)
    columns = (
        torch.linalg.cross(second, third),
        torch.linalg.cross(third, first),
        torch.linalg.cross(first, second),
    )
    determinant = (first * columns[0]).sum(-1)
    return torch.stack(columns, dim=-1) / determinant[..., None, None]
