"""What lies on the ground around a car: classes of the map, and vehicles, drawn into cells.

A map is flat: only the heading of the car turns it. Boxes are brought into the frame of the car in
three dimensions and then seen from above. Which boxes count is a matter of the benchmark: published
figures with and without the visibility filter differ by five points and cannot be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.workloads.bev.index import BevIndex
from pitstop.workloads.bev.maps import CityMap, MapLayer
from pitstop.workloads.bev.poses import Floats, inverse, moved, pose
from pitstop.workloads.bev.raster import (
    Grid,
    Ints,
    Mask,
    Paths,
    draw_lines,
    fill,
    fill_inner,
    rings,
)

VEHICLE: Final = "vehicle"
DIVIDER: Final = "divider"
MAP_CLASSES: Final = (
    "drivable_area",
    "ped_crossing",
    "walkway",
    "stop_line",
    "carpark_area",
    DIVIDER,
)
SURROUND_CLASSES: Final = (*MAP_CLASSES, VEHICLE)
SURROUND_GRID: Final = Grid(forward=(-50.0, 50.0, 0.5), across=(-50.0, 50.0, 0.5))
"""The field's: 100 m by 100 m around the car."""

DIVIDER_CELLS: Final = 2.0
"""How wide dividers are drawn."""

_DIVIDERS: Final = ("road_divider", "lane_divider")
# Length, width: the corners of a box as seen from above, one after the other.
_CORNERS: Final = np.array([(1, 1, -1), (1, -1, -1), (-1, -1, -1), (-1, 1, -1)]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """From the world's x and y to metres forward and across."""

    matrix: Floats
    """(2, 2)."""
    shift: Floats
    """(2,)."""

    def bring(self, points: Floats) -> Floats:
        """Bring (N, 2) points of the world there."""
        return points @ self.matrix.T + self.shift

    def take_back(self, points: Floats) -> Floats:
        """Bring (N, 2) points back to the world."""
        return (points - self.shift) @ np.linalg.inv(self.matrix).T


def ego_plane(ego_to_world: Floats, bev_transform: Floats) -> Plane:
    """Lay the ground plane around a car: forward is its x, across its y, both then transformed."""
    ahead = ego_to_world[:2, 0]
    heading = math.atan2(ahead[1], ahead[0])
    cosine, sine = math.cos(heading), math.sin(heading)
    turn = np.array([[cosine, sine], [-sine, cosine]])
    matrix = bev_transform[:2, :2] @ turn
    return Plane(matrix=matrix, shift=bev_transform[:2, 3] - matrix @ ego_to_world[:2, 3])


def map_masks(city: CityMap, plane: Plane, grid: Grid, classes: Sequence[str]) -> Mask:
    """Draw classes of the map as (K, h, w)."""
    corners = plane.take_back(grid.reach)
    reach = (corners.min(axis=0), corners.max(axis=0))
    masks = np.zeros((len(classes), *grid.shape), np.bool_)
    for place, name in enumerate(classes):
        layers = _DIVIDERS if name == DIVIDER else (name,)
        for layer in layers:
            draw = _lines if name == DIVIDER else _polygons
            masks[place] |= draw(city.layers[layer], plane, grid, reach)
    return masks


def box_corners(index: BevIndex, boxes: Ints, world_to_frame: Floats) -> Floats:
    """Give the bottom corners of boxes as (N, 4, 3) in some frame."""
    stand = world_to_frame @ pose(index.box_pose[boxes, :3], index.box_pose[boxes, 3:])
    size = index.box_size[boxes][:, None, [1, 0, 2]]
    return (_CORNERS * size) @ stand[:, :3, :3].swapaxes(1, 2) + stand[:, None, :3, 3]


def visible_boxes(
    index: BevIndex, sample: int, categories: Sequence[str], *, min_visibility: int
) -> Ints:
    """List a sample's boxes whose category begins like one of these, and that are visible enough.

    Args:
        index: Of the set.
        sample: Which sample.
        categories: Beginnings of names.
        min_visibility: 1 for all; 2, 3 and 4 for at least 40, 60 and 80 % seen by the cameras. A
            box whose visibility is not stated counts.
    """
    wanted = np.array([str(name).startswith(tuple(categories)) for name in index.categories])
    boxes = np.arange(index.first_box[sample], index.first_box[sample + 1])
    seen = index.box_visibility[boxes]
    return boxes[wanted[index.box_category[boxes]] & ((seen == 0) | (seen >= min_visibility))]


def box_mask(corners: Floats, grid: Grid) -> Mask:
    """Draw boxes whose corners (N, 4, 2) lie forward and across."""
    return fill(grid.shape, rings(np.rint(grid.cells(corners))))


def surround_targets(  # noqa: PLR0913 - what is drawn, where, and how
    index: BevIndex,
    city: CityMap,
    sample: int,
    *,
    grid: Grid = SURROUND_GRID,
    classes: Sequence[str] = SURROUND_CLASSES,
    bev_transform: Floats,
    min_visibility: int = 1,
) -> Mask:
    """Draw map classes and vehicles around a car as (K, h, w)."""
    ego_to_world = index.ego_to_world(sample)
    plane = ego_plane(ego_to_world, bev_transform)
    masks = np.zeros((len(classes), *grid.shape), np.bool_)
    on_map = [place for place, name in enumerate(classes) if name != VEHICLE]
    masks[on_map] = map_masks(city, plane, grid, [classes[place] for place in on_map])
    if VEHICLE in classes:
        boxes = visible_boxes(index, sample, (VEHICLE,), min_visibility=min_visibility)
        corners = box_corners(index, boxes, bev_transform @ inverse(ego_to_world))
        masks[classes.index(VEHICLE)] = box_mask(corners[..., :2], grid)
    return masks


def lidar_points(index: BevIndex, sample: int, points: Floats) -> Floats:
    """Bring points (N, 3) of a sample's lidar into the world."""
    to_ego = index.sensor_to_ego[index.calibration[sample, -1]]
    return moved(index.ego_to_world(sample) @ to_ego, points)


def _polygons(layer: MapLayer, plane: Plane, grid: Grid, reach: tuple[Floats, Floats]) -> Mask:
    chosen = layer.near(*reach)
    paths = layer.first_path[chosen + 1] - layer.first_path[chosen]
    outlines = layer.paths.take(layer.first_path[chosen[paths == 1]])
    mask = fill(grid.shape, _cells(outlines, plane, grid))
    for shape in chosen[paths > 1].tolist():
        first, last = layer.first_path[[shape, shape + 1]].tolist()
        outline = fill(grid.shape, _cells(layer.paths.take(np.array([first])), plane, grid))
        for hole in range(first + 1, last):
            ring = _cells(layer.paths.take(np.array([hole])), plane, grid)
            is_whole = bool((ring.points >= 0).all() and (ring.points <= grid.shape).all())
            outline &= ~(fill if is_whole else fill_inner)(grid.shape, ring)
        mask |= outline
    return mask


def _lines(layer: MapLayer, plane: Plane, grid: Grid, reach: tuple[Floats, Floats]) -> Mask:
    lines = layer.paths.take(layer.first_path[layer.near(*reach)])
    cells = np.floor(grid.cells(plane.bring(lines.points)))
    return draw_lines(grid.shape, lines.at(cells), thickness=DIVIDER_CELLS)


def _cells(paths: Paths, plane: Plane, grid: Grid) -> Paths:
    return paths.at(np.rint(grid.cells(plane.bring(paths.points))))
