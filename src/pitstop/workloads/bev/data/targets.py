"""What lies on the ground around a car: classes of the map, and vehicles, drawn into cells.

A map is flat: only the heading of the car turns it. Boxes are brought into the frame of the car in
three dimensions and then seen from above. Which boxes count is a matter of the benchmark: published
figures with and without the visibility filter differ by five points and cannot be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pitstop.workloads.bev.data.index import BevIndex
from pitstop.workloads.bev.data.maps import CityMap, MapLayer
from pitstop.workloads.bev.data.poses import Floats, inverse, moved, pose
from pitstop.workloads.bev.data.raster import (
    Drawing,
    Grid,
    Ints,
    Mask,
    line_strips,
    mark_around,
    ranges,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundDrawing:
    """What lies on a patch of ground, gathered class by class and drawn in one go."""

    plane: Plane
    grid: Grid
    classes: int
    reach: tuple[Floats, Floats]
    """Least and greatest x and y of the patch in the world."""
    _rings: Drawing
    _holed: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """The class of a polygon with holes, the layer of its outline and those of its holes."""
    _nodes: list[tuple[int, Floats]] = field(default_factory=list)
    """The class of lines, and their nodes."""

    @classmethod
    def of(cls, plane: Plane, grid: Grid, classes: int) -> "GroundDrawing":
        """Begin a drawing, with a layer for each class."""
        corners = plane.take_back(grid.reach)
        return cls(
            plane=plane,
            grid=grid,
            classes=classes,
            reach=(corners.min(axis=0), corners.max(axis=0)),
            _rings=Drawing(grid.shape, _inner=[False] * classes),
        )

    def add_map(self, city: CityMap, name: str, place: int) -> None:
        """Put a class of the map into a layer."""
        if name == DIVIDER:
            for layer in _DIVIDERS:
                self._add_lines(city.layers[layer], place)
        else:
            self._add_polygons(city.layers[name], place)

    def add_boxes(self, corners: Floats, places: int | Ints) -> None:
        """Put boxes whose corners (N, 4, 2) lie forward and across into layers."""
        self._rings.add(rings(np.rint(self.grid.cells(corners))), places)

    def draw(self) -> Mask:
        """Draw all as (K, h, w)."""
        layers = self._rings.draw()
        for place, outline, holes in self._holed:
            layers[place] |= layers[outline] & ~layers[holes].any(axis=0)
        for place, nodes in self._nodes:
            mark_around(layers[place], nodes, radius=DIVIDER_CELLS / 2)
        return layers[: self.classes]

    def _add_polygons(self, layer: MapLayer, place: int) -> None:
        chosen = layer.near(*self.reach)
        first = layer.first_path[chosen]
        count = layer.first_path[chosen + 1] - first
        paths = layer.paths.take(ranges(first, count))
        outlines = paths.at(np.rint(self.grid.cells(self.plane.bring(paths.points))))
        layers = np.full(len(outlines), place)
        ends = count.cumsum()
        for shape in np.flatnonzero(count > 1).tolist():
            begin, end = int(ends[shape] - count[shape]), int(ends[shape])
            layers[begin:end] = own = [self._rings.layer()] + [
                self._rings.layer(inner=not self._is_whole(outlines.path(hole)))
                for hole in range(begin + 1, end)
            ]
            self._holed.append((place, own[0], own[1:]))
        self._rings.add(outlines, layers)

    def _add_lines(self, layer: MapLayer, place: int) -> None:
        lines = layer.paths.take(layer.first_path[layer.near(*self.reach)])
        cells = np.floor(self.grid.cells(self.plane.bring(lines.points)))
        strips, nodes = line_strips(lines.at(cells), thickness=DIVIDER_CELLS)
        self._rings.add(strips, place)
        self._nodes.append((place, nodes))

    def _is_whole(self, ring: Floats) -> bool:
        return bool((ring >= 0).all() and (ring <= self.grid.shape).all())


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
    boxes = index.boxes(sample)
    seen = index.box_visibility[boxes]
    return boxes[wanted[index.box_category[boxes]] & ((seen == 0) | (seen >= min_visibility))]


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
    drawing = GroundDrawing.of(ego_plane(ego_to_world, bev_transform), grid, len(classes))
    for place, name in enumerate(classes):
        if name == VEHICLE:
            boxes = visible_boxes(index, sample, (VEHICLE,), min_visibility=min_visibility)
            corners = box_corners(index, boxes, bev_transform @ inverse(ego_to_world))
            drawing.add_boxes(corners[..., :2], place)
        else:
            drawing.add_map(city, name, place)
    return drawing.draw()


def lidar_points(index: BevIndex, sample: int, points: Floats) -> Floats:
    """Bring points (N, 3) of a sample's lidar into the world."""
    return moved(index.sensor_to_world(sample), points)
