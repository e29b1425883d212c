"""Cells of one ring, edge by edge and cell by cell: what many rings at once are held against."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

Point = tuple[float, float]


def star(points: Sequence[Point]) -> np.ndarray:
    """Order points around their middle: a polygon that does not cross itself."""
    middle = np.mean(points, axis=0) if points else (0.0, 0.0)
    around = sorted(points, key=lambda p: math.atan2(p[1] - middle[1], p[0] - middle[0]))
    return np.array(around, float).reshape(-1, 2)


def edges_of(ring: np.ndarray) -> Iterator[tuple[Point, Point]]:
    points = [tuple(point) for point in ring.tolist()]
    yield from zip(points, points[1:] + points[:1], strict=True)


def inside(shape: tuple[int, int], ring: np.ndarray) -> np.ndarray:
    """Mark the cells around which a ring goes."""
    area = sum(b[0] * e[1] - b[1] * e[0] for b, e in edges_of(ring))
    winding = np.zeros(shape, np.int64)
    if area == 0:
        return winding != 0
    for begin, end in edges_of(ring):
        rise = end[0] - begin[0]
        low, high = sorted((begin[0], end[0]))
        for row in range(max(math.ceil(low), 0), min(math.ceil(high), shape[0])):
            column = math.ceil(begin[1] + (row - begin[0]) / rise * (end[1] - begin[1]))
            winding[row, max(column, 0) :] += 1 if rise > 0 else -1
    return winding != 0


def passed(shape: tuple[int, int], ring: np.ndarray) -> np.ndarray:
    """Mark the cells that a ring passes."""
    mask = np.zeros(shape, np.bool_)
    for begin, end in edges_of(ring):
        run = (end[0] - begin[0], end[1] - begin[1])
        axis = 0 if abs(run[0]) >= abs(run[1]) else 1
        low, high = sorted((round(begin[axis]), round(end[axis])))
        for step in range(max(low, 0), min(high, shape[axis] - 1) + 1):
            share = 0.0 if run[axis] == 0 else (step - round(begin[axis])) / run[axis]
            aside = round(begin[1 - axis] + min(max(share, 0.0), 1.0) * run[1 - axis])
            if 0 <= aside < shape[1 - axis]:
                mask[(step, aside) if axis == 0 else (aside, step)] = True
    return mask


def filled(shape: tuple[int, int], ring: np.ndarray) -> np.ndarray:
    return inside(shape, ring) | passed(shape, ring)


def filled_inner(shape: tuple[int, int], ring: np.ndarray) -> np.ndarray:
    return inside(shape, ring) & ~passed(shape, ring)
