"""Who is about in a generated city, where the car that looks drives, and when each stands where."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Ints
from pitstop.workloads.bev.synthetic.world import EDGE_M, LANE_M, City, Rectangle, Road
from pitstop.workloads.draws import Draws

SAMPLE_S: Final = 0.5
"""Time from one sample to the next."""
REACH_M: Final = 62.0
"""How far from the car someone is still noted."""

_JUNCTION_M: Final = 9.0


class Kind(NamedTuple):
    """A category of nuScenes, and how large its members are."""

    name: str
    width: float
    length: float
    height: float


KINDS: Final = (
    Kind("vehicle.car", 1.9, 4.6, 1.65),
    Kind("vehicle.truck", 2.5, 7.2, 3.1),
    Kind("vehicle.bus.rigid", 2.9, 11.5, 3.5),
    Kind("vehicle.trailer", 2.8, 10.5, 3.8),
    Kind("vehicle.construction", 2.7, 6.2, 3.1),
    Kind("vehicle.motorcycle", 0.8, 2.1, 1.5),
    Kind("vehicle.bicycle", 0.6, 1.7, 1.3),
    Kind("human.pedestrian.adult", 0.65, 0.7, 1.75),
    Kind("movable_object.trafficcone", 0.42, 0.42, 1.0),
    Kind("movable_object.barrier", 2.3, 0.6, 1.0),
)
CAR, TRUCK, BUS, TRAILER, CONSTRUCTION, MOTORCYCLE, BICYCLE, PEDESTRIAN, CONE, BARRIER = range(10)

# Out of a hundred on the road.
_TRAFFIC: Final = (
    (CAR, 62),
    (TRUCK, 74),
    (BUS, 80),
    (TRAILER, 84),
    (CONSTRUCTION, 88),
    (MOTORCYCLE, 94),
    (BICYCLE, 100),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """Everybody of one scene: places and directions in the plan, in arrays of one length."""

    kind: Ints
    size: Floats
    """(N, 3), width, length and height."""
    place: Floats
    """(N, 2), at the start."""
    ahead: Floats
    """(N, 2), unit direction they face and move in."""
    speed: Floats
    """(N,), metres a second."""
    look: Ints
    """(N,), decides their colour."""

    def at(self, time_s: float) -> Floats:
        """Say where in the plan everybody is."""
        return self.place + self.ahead * (self.speed * time_s)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How the car that looks moves along its road."""

    road: Road
    way: int
    """1 along the road, -1 back."""
    right: float
    """Right of the road's middle, seen along it."""
    start: float
    speed: float
    sway: float

    def at(self, time_s: float) -> tuple[Floats, Floats]:
        """Give the place in the plan, and the direction."""
        along = self.start + self.way * self.speed * time_s
        aside = 0.35 * math.sin(0.3 * time_s + self.sway)
        slope = 0.35 * 0.3 * math.cos(0.3 * time_s + self.sway)
        place = self.road.points(along, self.right + aside)
        ahead = self.road.points(self.way * max(self.speed, 1.0), slope) - self.road.points(0, 0)
        return place, ahead / np.linalg.norm(ahead)


def make_drive(city: City, draws: Draws, samples: int) -> Drive:
    """Choose a road, a lane and a speed that keep the car away from the city's edge."""
    inner = [road for road in city.roads if 70 < road.centre < EDGE_M - 70]
    road = inner[draws.below(len(inner))]
    way = 1 if draws.chance(0.5) else -1
    lane = draws.below(road.lanes // 2)
    free_m = EDGE_M - 150
    speed = min(draws.uniform(3.5, 9.0), free_m / (samples * SAMPLE_S))
    length = speed * samples * SAMPLE_S
    start = 75 + draws.uniform(0, free_m - length)
    return Drive(
        road=road,
        way=way,
        right=way * (lane + 0.5) * LANE_M,
        start=start if way > 0 else EDGE_M - start,
        speed=speed,
        sway=draws.uniform(0, 6),
    )


def make_actors(city: City, drive: Drive, draws: Draws) -> Actors:
    """Fill the streets."""
    rows = [
        *_traffic(city, drive, draws),
        *_parked(city, draws),
        *_walkers(city, draws),
        *_works(city, draws),
    ]
    table = np.array(rows)
    return Actors(
        kind=table[:, 0].astype(np.int64),
        size=_sizes(table[:, 0].astype(np.int64), draws),
        place=table[:, 1:3],
        ahead=table[:, 3:5],
        speed=table[:, 5],
        look=np.array([draws.below(1 << 16) for _ in rows]),
    )


_Row = tuple[int, float, float, float, float, float]
"""Kind, place, direction, speed."""


def _traffic(city: City, drive: Drive, draws: Draws) -> Iterator[_Row]:
    """Let those on roads along the car's drive, and those on roads across wait before junctions."""
    for road in city.roads:
        moves = road.runs_north == drive.road.runs_north
        across = [other for other in city.roads if other.runs_north != road.runs_north]
        for way in (-1, 1):
            for lane in range(road.lanes // 2):
                right = way * (lane + 0.5) * LANE_M
                is_own = road is drive.road and right == drive.right
                speed = draws.uniform(2, 9) if moves and draws.chance(0.8) else 0.0
                speed = drive.speed if is_own else speed
                for kind, along in _queue(draws):
                    if is_own and abs(along - drive.start) < 12:
                        continue
                    if not moves and _at_junction(along, across):
                        continue
                    yield _placed(road, kind, (along, right), way=way, speed=speed)


def _at_junction(along: float, across: list[Road]) -> bool:
    return any(abs(along - road.centre) < road.half_m + _JUNCTION_M for road in across)


def _queue(draws: Draws) -> Iterator[tuple[int, float]]:
    along = draws.uniform(0, 30)
    while along < EDGE_M:
        dice = draws.below(100)
        kind = next(kind for kind, below in _TRAFFIC if dice < below)
        half = KINDS[kind].length * 0.55
        yield kind, along + half
        along += 2 * half + draws.uniform(4, 36)


def _placed(road: Road, kind: int, at: tuple[float, float], *, way: int, speed: float) -> _Row:
    p, q = road.points(*at).tolist()
    ahead = (road.points(way, 0) - road.points(0, 0)).tolist()
    return kind, p, q, ahead[0], ahead[1], speed


def _parked(city: City, draws: Draws) -> Iterator[_Row]:
    for p0, p1, q0, q1 in city.carparks:
        for bay in np.arange(q0 + 1.5, q1 - 1.5, 3.0).tolist():
            if draws.chance(0.6):
                way = 1.0 if draws.chance(0.5) else -1.0
                yield CAR, (p0 + p1) / 2 + draws.uniform(-0.5, 0.5), bay, way, 0.0, 0.0


def _walkers(city: City, draws: Draws) -> Iterator[_Row]:
    for block in city.blocks:
        for _ in range(6 + draws.below(8)):
            p, q, p_way, q_way = _on_edge(block, draws)
            yield PEDESTRIAN, p, q, p_way, q_way, draws.uniform(0, 1.2)
    for area in city.areas["ped_crossing"]:
        if draws.chance(0.35):
            p0, p1, q0, q1 = area.outer
            yield PEDESTRIAN, draws.uniform(p0, p1), draws.uniform(q0, q1), 1.0, 0.0, 0.0


def _on_edge(block: Rectangle, draws: Draws) -> tuple[float, float, float, float]:
    """Choose a place on the walkway around a block, and a direction along it."""
    p0, p1, q0, q1 = block
    way = 1.0 if draws.chance(0.5) else -1.0
    aside = draws.uniform(0.8, 2.4)
    if draws.chance(0.5):
        q = q0 + aside if draws.chance(0.5) else q1 - aside
        return draws.uniform(p0 + 12, p1 - 12), q, way, 0.0
    p = p0 + aside if draws.chance(0.5) else p1 - aside
    return p, draws.uniform(q0 + 12, q1 - 12), 0.0, way


def _works(city: City, draws: Draws) -> Iterator[_Row]:
    """Put rows of cones and barriers beside the roads."""
    for road in city.roads:
        across = [other for other in city.roads if other.runs_north != road.runs_north]
        for _ in range(14):
            kind = CONE if draws.chance(0.5) else BARRIER
            start = draws.uniform(20, EDGE_M - 40)
            way = 1 if draws.chance(0.5) else -1
            gap = 2.2 if kind == CONE else 2.6
            for place in range(4 + draws.below(4)):
                along = start + gap * place
                if _at_junction(along, across):
                    continue
                p, q = road.points(along, way * (road.half_m + 0.45)).tolist()
                aside = (road.points(0, way) - road.points(0, 0)).tolist()
                yield kind, p, q, aside[0], aside[1], 0.0


def _sizes(kinds: Ints, draws: Draws) -> Floats:
    usual = np.array([kind[1:] for kind in KINDS])[kinds]
    return np.round(usual * (0.9 + 0.2 * draws.bytes(usual.shape) / 255), 3)
