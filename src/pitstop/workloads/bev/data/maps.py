"""The map expansion: polygons and lines of a city by layer, ready to be asked for a patch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pitstop.data.packed_files import read_file
from pitstop.errors import DataError
from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Ints, Paths

POLYGON_LAYERS: Final = ("drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area")
LINE_LAYERS: Final = ("road_divider", "lane_divider")
LAYERS: Final = (*POLYGON_LAYERS, *LINE_LAYERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayer:
    """Shapes of one kind, in metres of the world."""

    paths: Paths
    """Rings of polygons, or lines."""
    first_path: Ints
    """(P + 1,), place of each shape's first path; the others of a polygon are its holes."""
    bounds: Floats
    """(P, 4), least x and y, greatest x and y of each shape."""

    def near(self, low: Floats, high: Floats) -> Ints:
        """List the shapes whose bounds meet a rectangle."""
        apart = (self.bounds[:, :2] > high).any(axis=1) | (self.bounds[:, 2:] < low).any(axis=1)
        return np.flatnonzero(~apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class CityMap:
    """The layers of one place."""

    layers: Mapping[str, MapLayer]


def expansion_path(root: Path, location: str) -> Path:
    """Say where the map of a place lies."""
    return root / "maps" / "expansion" / f"{location}.json"


def read_map(path: Path) -> CityMap:
    """Read a map of version 1.x.

    Raises:
        DataError: Where it is missing or damaged.
    """
    try:
        data = json.loads(read_file(path))
    except FileNotFoundError as error:
        raise DataError(
            f"there is no {path}; the map expansion of nuScenes is a download of its own, to be "
            "unpacked into maps/"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; fetch it anew") from error
    try:
        return _city(data)
    except KeyError as error:
        raise DataError(f"{path} is no map expansion of nuScenes: it lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is no map expansion of nuScenes: {error}") from error


def _city(data: Mapping[str, Any]) -> CityMap:
    nodes = {node["token"]: (float(node["x"]), float(node["y"])) for node in data["node"]}
    if not np.isfinite(list(nodes.values())).all():
        raise ValueError("it has nodes without a place (NaN or infinite)")
    polygons = {
        polygon["token"]: (
            polygon["exterior_node_tokens"],
            *(hole["node_tokens"] for hole in polygon["holes"]),
        )
        for polygon in data["polygon"]
    }
    lines = {line["token"]: (line["node_tokens"],) for line in data["line"]}
    layers = {}
    for name in LAYERS:
        shapes = lines if name in LINE_LAYERS else polygons
        layers[name] = _layer(nodes, (shapes[token] for token in _tokens(name, data[name])))
    return CityMap(layers=layers)


def _tokens(layer: str, records: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for record in records:
        if layer == "drivable_area":
            yield from record["polygon_tokens"]
        else:
            yield record["line_token" if layer in LINE_LAYERS else "polygon_token"]


def _layer(
    nodes: Mapping[str, tuple[float, float]], shapes: Iterable[tuple[list[str], ...]]
) -> MapLayer:
    points: list[tuple[float, float]] = []
    starts, first, bounds = [0], [0], []
    for shape in shapes:
        if not shape[0]:
            # Some polygons of the published maps have no nodes at all.
            continue
        begin = len(points)
        for path in shape:
            points.extend(nodes[token] for token in path)
            starts.append(len(points))
        outline = np.array(points[begin : starts[len(starts) - len(shape)]])
        bounds.append(np.concatenate((outline.min(axis=0), outline.max(axis=0))))
        first.append(len(starts) - 1)
    return MapLayer(
        paths=Paths(points=np.array(points).reshape(-1, 2), starts=np.array(starts, np.int64)),
        first_path=np.array(first, np.int64),
        bounds=np.array(bounds).reshape(-1, 4),
    )
