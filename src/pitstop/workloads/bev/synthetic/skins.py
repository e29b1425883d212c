"""Colours of ground, sky and boxes: classes differ, and no two things are quite alike.

A network has nothing but these colours to tell a class by: `benchmarks/bev_quality.py` trains on
this city, and its scores are far above what the frequency of each cell gives.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.synthetic.actors import (
    BARRIER,
    BICYCLE,
    BUS,
    CONE,
    CONSTRUCTION,
    MOTORCYCLE,
    PEDESTRIAN,
    TRAILER,
    TRUCK,
)
from pitstop.workloads.bev.synthetic.world import Bytes, Singles

Flags = npt.NDArray[np.bool_]

# By kind of ground, from GRASS to BAY in `world`.
_GROUND: Final = np.array(
    [
        (92, 112, 66),
        (84, 84, 88),
        (158, 148, 136),
        (214, 214, 210),
        (232, 226, 220),
        (112, 104, 116),
        (206, 168, 48),
        (222, 222, 220),
        (190, 190, 192),
    ],
    np.float32,
)
_PAINTS: Final = np.array(
    [
        (170, 30, 34),
        (36, 62, 140),
        (225, 225, 228),
        (40, 42, 46),
        (150, 154, 160),
        (38, 98, 62),
        (196, 150, 40),
        (96, 60, 44),
    ],
    np.float32,
)
_GLASS: Final = np.array((38, 48, 60), np.float32)
_TYRE: Final = np.array((22, 22, 24), np.float32)
_RED_LIGHT: Final = np.array((230, 36, 30), np.float32)
_WHITE_LIGHT: Final = np.array((250, 246, 214), np.float32)
_SKIN: Final = np.array((206, 160, 130), np.float32)
_ORANGE: Final = np.array((240, 104, 24), np.float32)
_WHITE: Final = np.array((236, 236, 232), np.float32)
_WARNING: Final = np.array((212, 44, 36), np.float32)
_DIGGER: Final = np.array((226, 170, 22), np.float32)
_CARGO: Final = np.array((196, 200, 204), np.float32)
_BUS_BODIES: Final = np.array([(214, 190, 60), (60, 130, 170), (180, 60, 60)], np.float32)


def paint_ground(
    kinds: Bytes, cells: npt.NDArray[np.int64], gain: float, clear: Singles
) -> Singles:
    """Colour ground of some kinds: grain by cell, patches by larger squares, air by distance."""
    # Two multiplications and a shift spread neighbouring cells over all levels.
    grain = ((cells * 2_654_435_761) >> 16 & 255).astype(np.float32)
    patch = (((cells >> 5) * 2_246_822_519) >> 13 & 255).astype(np.float32)
    level = np.float32(0.84) + grain * np.float32(0.2 / 255) + patch * np.float32(0.12 / 255)
    colours = _GROUND[kinds] * (level * np.float32(gain))[:, None]
    through = clear[:, None]
    return (colours * through + np.float32(178 * gain) * (1 - through)).astype(np.float32)


def paint_sky(lift: Floats, gain: float) -> Singles:
    """Colour the sky by how steeply a ray rises; below the horizon it is haze."""
    high = np.clip(lift, 0, 0.35)[..., None].astype(np.float32) / np.float32(0.35)
    haze, zenith = np.float32(178), np.array((96, 136, 190), np.float32)
    return ((haze + (zenith - haze) * high) * np.float32(gain)).astype(np.float32)


def paint_box(
    who: tuple[int, int],
    places: Sequence[Singles],
    axis: npt.NDArray[np.int8],
    light: tuple[float, float],
) -> Singles:
    """Colour points on the faces of a box.

    Args:
        who: Kind and look of the box.
        places: Length, width and height of each point, from -1 to 1.
        axis: Which pair of faces a point lies on.
        light: Strength of the light, and the sun's bearing as the box sees it.
    """
    kind, look = who
    along, aside, up = places
    if kind == -1:
        colours = _building(look, places, axis)
    elif kind == PEDESTRIAN:
        colours = _pedestrian(look, up)
    elif kind == CONE:
        colours = np.where((np.abs(up) < 0.25)[:, None], _WHITE, _ORANGE)
    elif kind == BARRIER:
        colours = np.where((np.floor(aside * np.float32(2.98)) % 2 == 0)[:, None], _WARNING, _WHITE)
    else:
        colours = _vehicle(kind, look, places, axis)
    gain, sun = light
    facing = np.where(
        axis == 0,
        np.sign(along) * np.float32(np.cos(sun)),
        np.where(axis == 1, np.sign(aside) * np.float32(np.sin(sun)), 1),
    )
    shade = np.float32(0.66) + np.float32(0.34) * np.clip(facing, 0, 1)
    return (colours * (shade * np.float32(gain))[:, None]).astype(np.float32)


def _vehicle(
    kind: int, look: int, places: Sequence[Singles], axis: npt.NDArray[np.int8]
) -> Singles:
    along, aside, up = places
    colours = np.empty((len(up), 3), np.float32)
    colours[:] = _body(kind, look)
    is_end, is_side = axis == 0, axis == 1
    _lay(colours, is_side & (up < -0.55) & (np.abs(np.abs(along) - 0.62) < 0.2), _TYRE)
    _lay(colours, (is_end | is_side) & _windows(kind, along, up), _GLASS)
    lamps = is_end & (np.abs(aside) > 0.6) & (up > -0.45) & (up < -0.1)
    _lay(colours, lamps & (along > 0), _WHITE_LIGHT)
    _lay(colours, lamps & (along < 0), _RED_LIGHT)
    return colours


def _body(kind: int, look: int) -> Singles:
    if kind == BUS:
        return _BUS_BODIES[look % len(_BUS_BODIES)]
    if kind == CONSTRUCTION:
        return _DIGGER
    if kind in {TRAILER, TRUCK}:
        return _CARGO * np.float32(0.8 + (look % 5) * 0.06)
    if kind in {MOTORCYCLE, BICYCLE}:
        return _PAINTS[look % len(_PAINTS)] * np.float32(0.6)
    return _PAINTS[look % len(_PAINTS)] * np.float32(0.85 + (look // 8 % 4) * 0.08)


def _windows(kind: int, along: Singles, up: Singles) -> Flags:
    if kind == BUS:
        return (up > 0.0) & (up < 0.7) & (np.floor(along * 6) % 3 != 0)
    if kind in {TRUCK, CONSTRUCTION}:
        return (up > 0.1) & (up < 0.7) & (along > 0.6)
    if kind == TRAILER:
        return np.zeros(len(up), np.bool_)
    if kind in {MOTORCYCLE, BICYCLE}:
        return up > 0.35
    return (up > 0.15) & (up < 0.85)


def _pedestrian(look: int, up: Singles) -> Singles:
    colours = np.empty((len(up), 3), np.float32)
    colours[:] = _PAINTS[look % len(_PAINTS)]
    _lay(colours, up > 0.7, _SKIN)
    _lay(colours, up < -0.1, _PAINTS[look // 8 % len(_PAINTS)] * np.float32(0.5))
    return colours


def _building(look: int, places: Sequence[Singles], axis: npt.NDArray[np.int8]) -> Singles:
    along, aside, up = places
    colours = np.empty((len(up), 3), np.float32)
    colours[:] = 110 + look % 90, 100 + look // 90 % 80, 90 + look // 7200 % 70
    beside = np.where(axis == 0, aside, along)
    is_window = (np.floor(beside * 8) % 2 == 0) & (np.floor(up * 7) % 2 == 0) & (axis != 2)
    _lay(colours, is_window, _GLASS * np.float32(1.5))
    return colours


def _lay(colours: Singles, where: Flags, colour: Singles) -> None:
    colours[where] = colour
