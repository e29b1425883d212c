"""Labels of the one-camera benchmark cell by cell as its own script makes them.

Where `pon.make_labels` asks for the middle of a cell and the true shape of polygons, the benchmark
looks at a cell's near left corner, rounds corners of shapes to cells and fills them as if they were
convex; bins rays by the ratio of across to forward, as wide as a cell at the far end; takes from
boxes only the categories of nuScenes' detection task, and counts the cells of all other boxes as
not seen. Figures that are called PON's are on these labels.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pitstop.workloads.bev.data.convex_fill import (
    Corners,
    begun_as_published,
    cut_to_rectangle,
    fill_convex,
    signed_area,
)
from pitstop.workloads.bev.data.index import BevIndex
from pitstop.workloads.bev.data.maps import CityMap, MapLayer
from pitstop.workloads.bev.data.pon import PON_CLASSES, PON_GRID, Labels, image_columns
from pitstop.workloads.bev.data.poses import Floats, inverse, moved
from pitstop.workloads.bev.data.raster import Grid, Mask
from pitstop.workloads.bev.data.targets import box_corners, lidar_points

_LAYERS: Final = ("drivable_area", "ped_crossing", "walkway", "carpark_area")
DETECTED: Final[Mapping[str, str]] = {
    "movable_object.barrier": "barrier",
    "vehicle.bicycle": "bicycle",
    "vehicle.bus.bendy": "bus",
    "vehicle.bus.rigid": "bus",
    "vehicle.car": "car",
    "vehicle.construction": "construction_vehicle",
    "vehicle.motorcycle": "motorcycle",
    "human.pedestrian.adult": "pedestrian",
    "human.pedestrian.child": "pedestrian",
    "human.pedestrian.construction_worker": "pedestrian",
    "human.pedestrian.police_officer": "pedestrian",
    "movable_object.trafficcone": "traffic_cone",
    "vehicle.trailer": "trailer",
    "vehicle.truck": "truck",
}
"""Class of each category; boxes of any other hide what lies under them."""


def benchmark_labels(
    index: BevIndex,
    city: CityMap,
    sample: int,
    slot: int,
    *,
    points: Floats | None,
    grid: Grid = PON_GRID,
) -> Labels:
    """Make the labels of one image; arguments are those of `pon.make_labels`."""
    to_world = index.sensor_to_world(sample, slot)
    # Across and forward of the camera as if the world's plane were spanned by them.
    flat = to_world[np.ix_([0, 1, 3], [0, 2, 3])]
    to_ground = np.linalg.inv(flat).astype(np.float64)
    classes = np.zeros((len(PON_CLASSES), *grid.shape), np.bool_)
    hidden = np.zeros(grid.shape, np.bool_)
    for place, name in enumerate(_LAYERS):
        _draw_layer(classes[place], city.layers[name], to_ground, grid)
    boxes = index.boxes(sample)
    corners = box_corners(index, boxes, np.eye(4))[..., :2]
    for box, outline in zip(boxes, corners, strict=True):
        name = DETECTED.get(str(index.categories[index.box_category[box]]))
        mask = hidden if name is None else classes[PON_CLASSES.index(name)]
        fill_convex(mask, _cells(_apply(to_ground, outline), grid))
    width = int(index.image_sizes[sample, slot, 1])
    hidden |= ~corner_in_view(index.intrinsics_of(sample, slot), width, grid)
    if points is not None:
        world = lidar_points(index, sample, points)
        hidden |= beyond_rays(moved(inverse(to_world), world), grid)
    return classes, ~hidden


def corner_in_view(intrinsics: Floats, width: int, grid: Grid) -> Mask:
    """Mark the cells whose near left corner falls into the image."""
    forward, across = grid.near_left_corners()
    column = image_columns(intrinsics, forward, across)
    return (column >= 0) & (column < width)


def beyond_rays(points: Floats, grid: Grid) -> Mask:
    """Mark the cells deeper than every point (N, 3) of their ray; rays without points hide all."""
    _, far, step = grid.forward
    left, right, _ = grid.across
    ray_width = step / far
    rays = int((right - left) / ray_width)
    ahead = points[points[:, 2] > 0]
    ray = np.round(ahead[:, 0] / ahead[:, 2] / ray_width - left / ray_width)
    valid = (ray > 0) & (ray < rays)
    deepest = np.zeros(rays)
    np.maximum.at(deepest, ray[valid].astype(np.int64), ahead[valid, 2])
    forward, across = grid.near_left_corners()
    cell = np.round(across[None] / forward[:, None] / ray_width - left / ray_width)
    return deepest[cell.astype(np.int64)] < forward[:, None]


def _draw_layer(mask: Mask, layer: MapLayer, to_ground: Floats, grid: Grid) -> None:
    low = np.array([grid.across[0], grid.forward[0]])
    high = np.array([grid.across[1], grid.forward[1]])
    patch = _apply(
        np.linalg.inv(to_ground).astype(np.float64),
        np.array([low, [high[0], low[1]], high, [low[0], high[1]]]),
    )
    for shape in layer.near(patch.min(axis=0), patch.max(axis=0)):
        first, end = layer.first_path[shape : shape + 2]
        rings = [_apply(to_ground, layer.paths.path(place)) for place in range(first, end)]
        _draw_pieces(mask, cut_to_rectangle(rings, low, high), rings, grid)


def _draw_pieces(mask: Mask, pieces: list[Floats], rings: list[Floats], grid: Grid) -> None:
    """Draw outlines, and take the holes out again; both were cut from rings."""
    for ring in sorted(pieces, key=lambda ring: signed_area(ring) < 0):
        corners = _cells(begun_as_published(ring, rings), grid)
        fill_convex(mask, corners, value=signed_area(ring) > 0)


def _cells(points: Floats, grid: Grid) -> Corners:
    """Round points (across, forward) to cells (column, row)."""
    start = np.array([grid.across[0], grid.forward[0]])
    return np.round((points - start) / grid.across[2]).astype(np.int64)


def _apply(matrix: Floats, points: Floats) -> Floats:
    return points @ matrix[:2, :2].T + matrix[:2, 2]
