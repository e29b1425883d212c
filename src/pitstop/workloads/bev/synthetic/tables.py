"""A generated city as nuScenes writes one down: thirteen tables, and a map expansion of its own."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.tables import TABLES
from pitstop.workloads.bev.synthetic.actors import KINDS
from pitstop.workloads.bev.synthetic.render import Sensor
from pitstop.workloads.bev.synthetic.world import EDGE_M, MARGIN_M, City

Row = dict[str, Any]

_VISIBILITIES: Final = ("v0-40", "v40-60", "v60-80", "v80-100")
# Of no use to targets, but the readers of a map ask for them.
_OTHER_LAYERS: Final = ("road_segment", "road_block", "lane", "lane_connector", "traffic_light")


class Tokens:
    """Names of rows, which follow from what a row is."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, *what: object) -> str:
        """Make the 32 letters that stand for something."""
        said = "/".join(map(str, (self._seed, *what)))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


class TableWriter:
    """Gathers the rows of all tables."""

    def __init__(self, seed: int) -> None:
        self.token = Tokens(seed)
        self.rows: dict[str, list[Row]] = {table: [] for table in TABLES}
        for kind in KINDS:
            token = self.token("category", kind.name)
            self.add("category", token=token, name=kind.name, description="generated")
        for number, level in enumerate(_VISIBILITIES, start=1):
            says = f"visibility of whole object is between {level[1:].replace('-', ' and ')}%"
            self.add("visibility", token=str(number), level=level, description=says)
        for name in ("vehicle.moving", "vehicle.parked"):
            self.add("attribute", token=self.token(name), name=name, description="generated")

    def add(self, table: str, **fields: object) -> None:
        """Take in a row."""
        self.rows[table].append(fields)

    def add_sensor_channels(self, sensors: Iterable[Sensor]) -> None:
        """Take in the kinds of sensors."""
        for sensor in sensors:
            modality = "lidar" if sensor.intrinsics is None else "camera"
            token = self.token("sensor", sensor.channel)
            self.add("sensor", token=token, channel=sensor.channel, modality=modality)

    def add_calibration(self, scene: str, sensor: Sensor) -> None:
        """Take in how a sensor is mounted in a scene."""
        self.add(
            "calibrated_sensor",
            token=self.token("calibrated_sensor", scene, sensor.channel),
            sensor_token=self.token("sensor", sensor.channel),
            translation=list(sensor.translation),
            rotation=list(sensor.turn),
            camera_intrinsic=[] if sensor.intrinsics is None else sensor.intrinsics.tolist(),
        )

    def add_instances(self) -> None:
        """Take in everybody who has annotations, and chain these in the order of time."""
        chains: dict[str, list[Row]] = {}
        for row in self.rows["sample_annotation"]:
            chains.setdefault(row["instance_token"], []).append(row)
        for token, chain in chains.items():
            link(chain)
            self.add(
                "instance",
                token=token,
                category_token=chain[0].pop("category_token"),
                nbr_annotations=len(chain),
                first_annotation_token=chain[0]["token"],
                last_annotation_token=chain[-1]["token"],
            )
            for row in chain[1:]:
                del row["category_token"]

    def write(self, folder: Path) -> None:
        """Write all tables."""
        folder.mkdir(parents=True)
        for table, rows in self.rows.items():
            (folder / f"{table}.json").write_text(json.dumps(rows, indent=0), encoding="utf-8")


def link(rows: list[Row]) -> None:
    """Let rows name those before and after them."""
    for place, row in enumerate(rows):
        row["prev"] = rows[place - 1]["token"] if place else ""
        row["next"] = rows[place + 1]["token"] if place + 1 < len(rows) else ""


def visibility_token(shown: int, whole: int) -> str:
    """Say how much of something all cameras together show."""
    share = shown / whole if whole else 0.0
    return str(1 + int(np.searchsorted((0.4, 0.6, 0.8), share, side="right")))


def expansion(city: City, token: Tokens) -> Mapping[str, Any]:
    """Write a city down as a map of version 1.3."""
    paths = _Paths(token)
    data: dict[str, Any] = {"version": "1.3", "canvas_edge": [EDGE_M + 2 * MARGIN_M] * 2}
    data.update({layer: [] for layer in _OTHER_LAYERS})
    data.update(arcline_path_3={}, connectivity={})
    for layer, areas in city.areas.items():
        polygons = [
            paths.polygon(
                city.outline(area.outer), [] if area.hole is None else [city.outline(area.hole)]
            )
            for area in areas
        ]
        data[layer] = [_area(layer, token(layer, name), name) for name in polygons]
    for layer, lines in city.lines.items():
        names = [paths.line(city.course(line)) for line in lines]
        data[layer] = [{"token": token(layer, name), "line_token": name} for name in names]
    data.update(polygon=paths.polygons, line=paths.lines, node=paths.nodes)
    return data


def _area(layer: str, token: str, polygon: str) -> Row:
    if layer == "drivable_area":
        return {"token": token, "polygon_tokens": [polygon]}
    row: Row = {"token": token, "polygon_token": polygon}
    if layer == "stop_line":
        cues = ("ped_crossing_tokens", "traffic_light_tokens", "road_block_token")
        row.update({"stop_line_type": "STOP_SIGN"}, **{cue: [] for cue in cues})
    elif layer == "ped_crossing":
        row["road_segment_token"] = ""
    elif layer == "carpark_area":
        row.update(orientation=0.0, road_block_token="")
    return row


class _Paths:
    """Nodes, and the polygons and lines made of them."""

    def __init__(self, token: Tokens) -> None:
        self._token = token
        self.nodes: list[Row] = []
        self.polygons: list[Row] = []
        self.lines: list[Row] = []

    def polygon(self, outline: Floats, holes: list[Floats]) -> str:
        name = self._token("polygon", len(self.polygons))
        inside = [{"node_tokens": self._add(hole)} for hole in holes]
        outside = self._add(outline)
        self.polygons.append({"token": name, "exterior_node_tokens": outside, "holes": inside})
        return name

    def line(self, points: Floats) -> str:
        name = self._token("line", len(self.lines))
        self.lines.append({"token": name, "node_tokens": self._add(points)})
        return name

    def _add(self, points: Floats) -> list[str]:
        names = [self._token("node", len(self.nodes) + place) for place in range(len(points))]
        self.nodes.extend(
            {"token": name, "x": x, "y": y}
            for name, (x, y) in zip(names, points.round(6).tolist(), strict=True)
        )
        return names
