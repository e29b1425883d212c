"""A generated city: roads that bend, crossings, walkways, places to park, and what is built there.

Everything is laid out in plan coordinates, in which roads are straight and meet at right angles.
Two shears bend the plan into the world; they can be undone exactly. So what lies under a point of
the world is looked up in a raster of the plan, and what a map says of it are the bent outlines of
the same rectangles: two ways to the same ground that share no code.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.draws import Draws

EDGE_M: Final = 480.0
"""Side of the plan."""
MARGIN_M: Final = 24.0
"""Free ground around the plan, so that no coordinate of the world is negative."""
LANE_M: Final = 3.5
CELL_M: Final = 0.125
"""Side of a cell of the plan's raster."""

GRASS, ASPHALT, WALKWAY, ZEBRA, STOP, CARPARK, DOUBLE, DASH, BAY = range(9)
"""What the ground can look like."""

_WALKWAY_M: Final = 3.0
_NODE_M: Final = 4.0

Bytes = npt.NDArray[np.uint8]
Singles = npt.NDArray[np.float32]
Rectangle = tuple[float, float, float, float]
"""Least and greatest p, least and greatest q."""
Line = tuple[float, float, float, float]
"""p and q of the start, p and q of the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """A straight road of the plan."""

    runs_north: bool
    """Along q; else along p."""
    centre: float
    lanes: int
    """In both directions together; traffic keeps to the right."""

    @property
    def half_m(self) -> float:
        """Half of its width."""
        return self.lanes * LANE_M / 2

    def points(self, along: npt.ArrayLike, right: npt.ArrayLike) -> Floats:
        """Give plan points so far along it and so far right of its middle, seen along it."""
        s, r = np.broadcast_arrays(np.asarray(along, float), np.asarray(right, float))
        if self.runs_north:
            return np.stack((self.centre + r, s), axis=-1)
        return np.stack((s, self.centre - r), axis=-1)

    def strip(self, along: tuple[float, float], right: tuple[float, float]) -> Rectangle:
        """Give the rectangle between two distances along it and two beside it."""
        (p0, q0), (p1, q1) = self.points(along, right).tolist()
        return min(p0, p1), max(p0, p1), min(q0, q1), max(q0, q1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A polygon of the map: a rectangle of the plan, perhaps with another one cut out."""

    outer: Rectangle
    hole: Rectangle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """A box that stands on no map."""

    centre: tuple[float, float]
    size: tuple[float, float, float]
    """Width, length and height."""


class City:
    """One place; its number and the seed decide everything."""

    def __init__(self, seed: int, number: int) -> None:
        draws = Draws(seed, 0xC171, number)
        self._bend = [
            (draws.uniform(4, 8), draws.uniform(36, 56), draws.uniform(0, 2 * math.pi))
            for _ in range(2)
        ]
        self.roads = [*_roads(draws, runs_north=True), *_roads(draws, runs_north=False)]
        self.areas: dict[str, list[Area]] = {
            name: []
            for name in ("drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area")
        }
        self.lines: dict[str, list[Line]] = {"road_divider": [], "lane_divider": []}
        self.buildings: list[Building] = []
        self.blocks: list[Rectangle] = []
        self.carparks: list[Rectangle] = []
        cells = int(EDGE_M / CELL_M)
        self.ground: Bytes = np.full((cells, cells), GRASS, np.uint8)
        """What the plan looks like, by p and q."""
        self._lay_roads()
        self._lay_blocks(draws)
        self._lay_junctions(draws)
        self._lay_dividers()

    def to_world(self, plan: Floats) -> Floats:
        """Bend plan points (..., 2) into the world."""
        (a, long_a, phase_a), (b, long_b, phase_b) = self._bend
        x = plan[..., 0] + a * np.sin(plan[..., 1] / long_a + phase_a)
        y = plan[..., 1] + b * np.sin(x / long_b + phase_b)
        return np.stack((x, y), axis=-1) + MARGIN_M

    def to_plan(self, x: Singles, y: Singles) -> tuple[Singles, Singles]:
        """Undo `to_world`."""
        (a, long_a, phase_a), (b, long_b, phase_b) = self._bend
        x = x - np.float32(MARGIN_M)
        q = (
            y
            - np.float32(MARGIN_M)
            - np.float32(b) * np.sin(x / np.float32(long_b) + np.float32(phase_b))
        )
        return x - np.float32(a) * np.sin(q / np.float32(long_a) + np.float32(phase_a)), q

    def look(self, x: Singles, y: Singles) -> tuple[Bytes, npt.NDArray[np.int64]]:
        """Say what the ground of the world looks like, and which cell of the plan it is."""
        p, q = self.to_plan(x, y)
        cells = len(self.ground)
        row = np.floor(p * np.float32(1 / CELL_M)).astype(np.int64).clip(0, cells - 1)
        column = np.floor(q * np.float32(1 / CELL_M)).astype(np.int64).clip(0, cells - 1)
        place = row * cells + column
        return self.ground.reshape(-1).take(place), place

    def outline(self, rectangle: Rectangle) -> Floats:
        """Give a rectangle of the plan as a ring of world points."""
        p0, p1, q0, q1 = rectangle
        corners = [(p0, q0), (p1, q0), (p1, q1), (p0, q1), (p0, q0)]
        sides = [_nodes(start, end)[:-1] for start, end in pairwise(corners)]
        return self.to_world(np.concatenate(sides))

    def course(self, line: Line) -> Floats:
        """Give a line of the plan as world points."""
        return self.to_world(_nodes(line[:2], line[2:]))

    def stands(self, plan: Floats, ahead: Floats) -> tuple[Floats, Floats]:
        """Give world places (N, 2) and headings (N,) of plan points that face plan directions."""
        step = 0.05 * ahead
        way = self.to_world(plan + step) - self.to_world(plan - step)
        return self.to_world(plan), np.arctan2(way[:, 1], way[:, 0])

    def _paint(self, rectangle: Rectangle, kind: int) -> None:
        p0, p1, q0, q1 = (max(0, round(edge / CELL_M)) for edge in rectangle)
        self.ground[p0:p1, q0:q1] = kind

    def _lay_roads(self) -> None:
        for road in self.roads:
            strip = road.strip((0, EDGE_M), (-road.half_m, road.half_m))
            self.areas["drivable_area"].append(Area(outer=strip))
            self._paint(strip, ASPHALT)

    def _lay_blocks(self, draws: Draws) -> None:
        gaps = [
            _gaps([road for road in self.roads if road.runs_north == north]) for north in (1, 0)
        ]
        for p0, p1 in gaps[0]:
            for q0, q1 in gaps[1]:
                block = (p0, p1, q0, q1)
                inner = (p0 + _WALKWAY_M, p1 - _WALKWAY_M, q0 + _WALKWAY_M, q1 - _WALKWAY_M)
                self.blocks.append(block)
                self.areas["walkway"].append(Area(outer=block, hole=inner))
                self._paint(block, WALKWAY)
                self._paint(inner, GRASS)
                self._lay_carparks(draws, inner)
                self._build(draws, inner)

    def _lay_carparks(self, draws: Draws, inner: Rectangle) -> None:
        p0, p1, q0, q1 = inner
        for at_end in (False, True):
            if not draws.chance(0.7):
                continue
            length, width = draws.uniform(14, 26), draws.uniform(8, 11)
            start = draws.uniform(q0 + 1, max(q0 + 1, q1 - length - 1))
            edge = (p1 - width, p1) if at_end else (p0, p0 + width)
            lot = (*edge, start, min(start + length, q1))
            self.areas["carpark_area"].append(Area(outer=lot))
            self.carparks.append(lot)
            self._paint(lot, CARPARK)
            for bay in np.arange(start + 3, lot[3], 3.0):
                self._paint((lot[0], lot[1], bay, bay + 0.15), BAY)

    def _build(self, draws: Draws, inner: Rectangle) -> None:
        p0, p1, q0, q1 = inner
        for _ in range(3):
            size = (draws.uniform(8, 14), draws.uniform(8, 16), draws.uniform(5, 18))
            p = draws.uniform(p0 + 20, max(p0 + 20, p1 - 20))
            q = draws.uniform(q0 + 12, max(q0 + 12, q1 - 12))
            self.buildings.append(Building(centre=(p, q), size=size))

    def _lay_junctions(self, draws: Draws) -> None:
        for road in self.roads:
            for other in self.roads:
                if other.runs_north != road.runs_north:
                    for way in (-1, 1):
                        self._lay_arm(draws, road, other, way)

    def _lay_arm(self, draws: Draws, road: Road, other: Road, way: int) -> None:
        """Lay a crossing and a stop line where a road leaves a junction, seen along it or back."""
        start = other.centre + way * (other.half_m + 2.0)
        end = start + way * 3.5
        if not (0 < start < EDGE_M and 0 < end + way * 3 < EDGE_M) or not draws.chance(0.75):
            return
        crossing = road.strip((start, end), (-road.half_m, road.half_m))
        self.areas["ped_crossing"].append(Area(outer=crossing))
        for stripe in np.arange(-road.half_m, road.half_m, 1.0):
            self._paint(road.strip((start, end), (stripe + 0.25, stripe + 0.75)), ZEBRA)
        # Those who come towards the junction stop; going along the road they keep to its right.
        half = (-road.half_m, 0.0) if way > 0 else (0.0, road.half_m)
        stop = road.strip((end + way * 0.75, end + way * 2.0), half)
        self.areas["stop_line"].append(Area(outer=stop))
        self._paint(stop, STOP)

    def _lay_dividers(self) -> None:
        for road in self.roads:
            crossing = [other for other in self.roads if other.runs_north != road.runs_north]
            for start, end in _gaps(crossing):
                segment = (start + 9, end - 9)
                self._lay_line("road_divider", road, segment, 0.0)
                for lane in range(1, road.lanes // 2):
                    for way in (-1, 1):
                        self._lay_line("lane_divider", road, segment, way * lane * LANE_M)

    def _lay_line(self, layer: str, road: Road, segment: tuple[float, float], right: float) -> None:
        (p0, q0), (p1, q1) = road.points(segment, right).tolist()
        self.lines[layer].append((p0, q0, p1, q1))
        if layer == "road_divider":
            for side in (-0.25, 0.25):
                self._paint(road.strip(segment, (side - 0.0625, side + 0.0625)), DOUBLE)
            return
        for start in np.arange(*segment, 6.0):
            dash = (start, min(start + 3, segment[1]))
            self._paint(road.strip(dash, (right - 0.125, right + 0.125)), DASH)


def _roads(draws: Draws, *, runs_north: bool) -> list[Road]:
    roads = []
    centre = draws.uniform(18, 34)
    while centre < EDGE_M - 12:
        lanes = 4 if draws.chance(0.4) else 2
        roads.append(Road(runs_north=runs_north, centre=round(centre * 8) / 8, lanes=lanes))
        centre += draws.uniform(62, 92)
    return roads


def _gaps(roads: list[Road]) -> list[tuple[float, float]]:
    """List the segments between parallel roads."""
    return [
        (before.centre + before.half_m, after.centre - after.half_m)
        for before, after in pairwise(roads)
    ]


def _nodes(start: tuple[float, float], end: tuple[float, float]) -> Floats:
    steps = max(1, math.ceil(math.dist(start, end) / _NODE_M))
    return np.linspace(start, end, steps + 1)
