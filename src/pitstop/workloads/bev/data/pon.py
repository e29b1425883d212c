"""Labels of the one-camera benchmark: fourteen classes and what can be seen, in the camera's frame.

Cells lie 1 to 50 m ahead of the camera and 25 m to either side. Labels are kept as PNG files named
after the image's token, one number a cell: bit k is class k, bit 14 says that a cell is not seen.
The first row is the nearest, the first column the leftmost.

Where there is no such file, labels are made of boxes and the map. A cell is then seen when its
middle lies in the camera's field of view and, where there are lidar points, one of them lies at
least as deep in the same bearing. Without lidar points only the field of view decides.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from pitstop.data.images import DAMAGED, open_image
from pitstop.data.packed_files import read_file
from pitstop.errors import DataError, os_errors_as
from pitstop.workloads.bev.data.index import BevIndex
from pitstop.workloads.bev.data.maps import CityMap
from pitstop.workloads.bev.data.poses import Floats, inverse, moved
from pitstop.workloads.bev.data.raster import Grid, Ints, Mask
from pitstop.workloads.bev.data.targets import (
    GroundDrawing,
    Plane,
    box_corners,
    lidar_points,
    visible_boxes,
)

PON_GRID: Final = Grid(forward=(1.0, 50.0, 0.25), across=(-25.0, 25.0, 0.25))

_ON_MAP: Final[Mapping[str, str]] = {
    "drivable_area": "drivable_area",
    "ped_crossing": "ped_crossing",
    "walkway": "walkway",
    "carpark": "carpark_area",
}
_STANDING: Final[Mapping[str, str]] = {
    "car": "vehicle.car",
    "truck": "vehicle.truck",
    "bus": "vehicle.bus",
    "trailer": "vehicle.trailer",
    "construction_vehicle": "vehicle.construction",
    "pedestrian": "human.pedestrian",
    "motorcycle": "vehicle.motorcycle",
    "bicycle": "vehicle.bicycle",
    "traffic_cone": "movable_object.trafficcone",
    "barrier": "movable_object.barrier",
}
PON_CLASSES: Final = (*_ON_MAP, *_STANDING)

_UNSEEN_BIT: Final = len(PON_CLASSES)
_BEARING_RAD: Final = math.radians(0.75)
_LIDAR_FIELDS: Final = 5

Labels = tuple[Mask, Mask]
"""(14, h, w) classes and (h, w) of what is seen."""


def read_labels(path: Path, grid: Grid = PON_GRID) -> Labels:
    """Read the labels of one image.

    Raises:
        DataError: Where the file is missing or damaged, or has another size.
    """
    try:
        with open_image(path) as image:
            bits = np.asarray(image).astype(np.int64)
    except FileNotFoundError as error:
        raise DataError(f"there are no labels at {path}") from error
    except DAMAGED as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if bits.shape != grid.shape:
        found, wanted = ("x".join(map(str, shape)) for shape in (bits.shape, grid.shape))
        raise DataError(f"{path} has {found} cells; labels must have {wanted}")
    if bits.min() < 0 or bits.max() >= 1 << (_UNSEEN_BIT + 1):
        raise DataError(f"{path} has numbers above 15 bits; it holds no labels of 14 classes")
    flags = bits[None] >> np.arange(_UNSEEN_BIT + 1)[:, None, None] & 1
    return flags[:-1] == 1, flags[-1] == 0


def write_labels(path: Path, labels: Labels) -> None:
    """Write the labels of one image."""
    classes, seen = labels
    flags = np.concatenate((classes, ~seen[None])).astype(np.uint16)
    bits = (flags << np.arange(_UNSEEN_BIT + 1, dtype=np.uint16)[:, None, None]).sum(axis=0)
    Image.fromarray(bits.astype(np.uint16)).save(path)


def make_labels(
    index: BevIndex,
    city: CityMap,
    sample: int,
    slot: int,
    *,
    points: Floats | None,
    grid: Grid = PON_GRID,
) -> Labels:
    """Make the labels of one image of boxes, the map and lidar points.

    Args:
        index: Of the set.
        city: The map that the sample lies on.
        sample: Which sample.
        slot: Which camera.
        points: (N, 3) in the lidar's frame, or None where there are none.
        grid: Cells ahead of the camera.
    """
    to_world = index.sensor_to_world(sample, slot)
    drawing = GroundDrawing.of(camera_plane(to_world), grid, len(PON_CLASSES))
    for place, name in enumerate(_ON_MAP.values()):
        drawing.add_map(city, name, place)
    boxes = visible_boxes(index, sample, tuple(_STANDING.values()), min_visibility=1)
    corners = box_corners(index, boxes, inverse(to_world))
    drawing.add_boxes(corners[..., [2, 0]], _standing(index)[index.box_category[boxes]])
    seen = in_view(index.intrinsics_of(sample, slot), int(index.image_sizes[sample, slot, 1]), grid)
    if points is not None:
        world = lidar_points(index, sample, points)
        seen &= reached(moved(inverse(to_world), world), grid)
    return drawing.draw(), seen


def _standing(index: BevIndex) -> Ints:
    """Give the class of each category; -1 where it has none."""
    begins = list(_STANDING.values())
    return np.array(
        [
            next((begins.index(one) + len(_ON_MAP) for one in begins if name.startswith(one)), -1)
            for name in index.categories.tolist()
        ]
    )


def camera_plane(camera_to_world: Floats) -> Plane:
    """Lay the ground plane ahead of a camera: forward is where it looks, across is to the right."""
    x, y = camera_to_world[:2, 2] / np.linalg.norm(camera_to_world[:2, 2])
    matrix = np.array([[x, y], [y, -x]])
    return Plane(matrix=matrix, shift=-matrix @ camera_to_world[:2, 3])


def in_view(intrinsics: Floats, width: int, grid: Grid) -> Mask:
    """Mark the cells whose middle falls between the left and the right edge of the image."""
    forward, across = grid.centres()
    column = image_columns(intrinsics, forward, across)
    return (column >= -0.5) & (column < width - 0.5)


def image_columns(intrinsics: Floats, forward: Floats, across: Floats) -> Floats:
    """Say in which column of the image places on the ground fall, by forward and across."""
    return intrinsics[0, 0] * across[None] / forward[:, None] + intrinsics[0, 2]


def reached(points: Floats, grid: Grid) -> Mask:
    """Mark the cells that lie no deeper than the deepest of the points (N, 3) in their bearing."""
    ahead = points[points[:, 2] > 0]
    half_turn = math.ceil(math.pi / 2 / _BEARING_RAD)
    deepest = np.zeros(2 * half_turn + 1)
    np.maximum.at(deepest, _bearing(ahead[:, 0], ahead[:, 2]) + half_turn, ahead[:, 2])
    forward, across = grid.centres()
    bearing = _bearing(across[None], forward[:, None]) + half_turn
    return deepest[bearing] >= forward[:, None]


def read_points(path: Path) -> Floats:
    """Read lidar points as (N, 3).

    Raises:
        DataError: Where the file is missing or damaged.
    """
    with os_errors_as(DataError, f"cannot read {path}"):
        data = read_file(path)
    if len(data) % (_LIDAR_FIELDS * 4):
        raise DataError(f"{path} is damaged: it does not hold points of five numbers")
    return np.frombuffer(data, "<f4").reshape(-1, _LIDAR_FIELDS)[:, :3].astype(np.float64)


def _bearing(across: Floats, forward: Floats) -> npt.NDArray[np.int64]:
    return np.rint(np.arctan2(across, forward) / _BEARING_RAD).astype(np.int64)
