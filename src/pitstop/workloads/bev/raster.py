"""Shapes on the ground drawn into cells.

A shape is drawn as the published benchmarks draw it, so that figures can be held against theirs.
Coordinates are counted in cells from the lower edge of the grid, c = (xy - lower) / step. With bx
the centre of the first cell that is the (xy - bx + step / 2) / step of their code.

    polygon   nodes go to round(c); filled are the cells inside and those its outline passes;
              a hole takes away the cells inside, and those its own outline passes where the
              whole hole lies in the grid (theirs is no hole any more once the edge cuts it)
    line      nodes go to floor(c); filled are the cells within thickness / 2 of it, and those the
              outline of this strip passes, with round ends

So a polygon reaches about half a cell further than the ground it covers, towards larger
coordinates. Nothing is clipped beforehand: what lies outside the grid costs nothing but its nodes.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.poses import Floats

Mask: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells on the ground: start, stop and step in metres forward (rows) and across (columns)."""

    forward: tuple[float, float, float]
    across: tuple[float, float, float]

    @property
    def shape(self) -> Shape:
        """Count rows and columns."""
        (top, bottom, row), (left, right, column) = self.forward, self.across
        return round((bottom - top) / row), round((right - left) / column)

    def cells(self, points: Floats) -> Floats:
        """Turn (..., 2) metres forward and across into cells from the lower edges."""
        lower = np.array([self.forward[0], self.across[0]])
        return (points - lower) / np.array([self.forward[2], self.across[2]])

    def centres(self) -> tuple[Floats, Floats]:
        """Give metres forward of each row's middle, and metres across of each column's."""
        forward, across = (
            (start + step * (np.arange(count) + 0.5)).astype(np.float64)
            for (start, _, step), count in zip((self.forward, self.across), self.shape, strict=True)
        )
        return forward, across

    @property
    def reach(self) -> Floats:
        """Give the four corners in metres as (4, 2)."""
        top, left = self.forward[0], self.across[0]
        bottom, right = self.forward[1], self.across[1]
        return np.array([[top, left], [top, right], [bottom, right], [bottom, left]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Rows of points one after the other: rings, whose end joins their start, or open lines."""

    points: Floats
    """(V, 2)."""
    starts: Ints
    """(P + 1,), place of each path's first point, and the end of the last."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, chosen: Ints) -> "Paths":
        """Give some of the paths, in the order asked for."""
        lengths = (self.starts[1:] - self.starts[:-1])[chosen]
        return Paths(
            points=self.points[_ranges(self.starts[:-1][chosen], lengths)],
            starts=np.concatenate(([0], lengths.cumsum())),
        )

    def at(self, points: Floats) -> "Paths":
        """Give the same paths with their points elsewhere."""
        return Paths(points=points, starts=self.starts)


def rings(corners: Floats) -> Paths:
    """Make rings of (P, C, 2) points."""
    count, length = corners.shape[:2]
    return Paths(
        points=corners.reshape(-1, 2), starts=np.arange(count + 1, dtype=np.int64) * length
    )


def fill(shape: Shape, outlines: Paths) -> Mask:
    """Mark the cells inside rings, and those that a ring passes; rings may overlap."""
    if not len(outlines.points):
        return np.zeros(shape, np.bool_)
    begin, end = _ring_edges(outlines)
    mask = _inside(shape, begin, end, _turning(outlines, begin, end))
    _trace(mask, begin, end)
    return mask


def fill_inner(shape: Shape, outlines: Paths) -> Mask:
    """Mark the cells inside rings, without those that a ring passes."""
    if not len(outlines.points):
        return np.zeros(shape, np.bool_)
    begin, end = _ring_edges(outlines)
    mask = _inside(shape, begin, end, _turning(outlines, begin, end))
    passed = np.zeros(shape, np.bool_)
    _trace(passed, begin, end)
    return mask & ~passed


def draw_lines(shape: Shape, lines: Paths, *, thickness: float) -> Mask:
    """Mark the cells of lines that are so many cells wide."""
    begin, end = _line_edges(lines)
    along = end - begin
    length = np.hypot(along[:, 0], along[:, 1])
    kept = length > 0
    begin, end, along = begin[kept], end[kept], along[kept] / length[kept, None]
    aside = np.stack((-along[:, 1], along[:, 0]), axis=1) * (thickness / 2)
    strips = np.stack((begin - aside, begin + aside, end + aside, end - aside), axis=1)
    mask = fill(shape, rings(strips))
    if len(begin):
        _dot(mask, np.concatenate((begin, end)), thickness / 2)
    return mask


def _ranges(first: Ints, lengths: Ints) -> Ints:
    """Join the ranges that begin at `first` and have these lengths."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(first - (ends - lengths), lengths)


def _ring_edges(outlines: Paths) -> tuple[Floats, Floats]:
    following = np.arange(1, len(outlines.points) + 1)
    filled = outlines.starts[1:] > outlines.starts[:-1]
    following[outlines.starts[1:][filled] - 1] = outlines.starts[:-1][filled]
    return outlines.points, outlines.points[following]


def _line_edges(lines: Paths) -> tuple[Floats, Floats]:
    lengths = np.maximum(lines.starts[1:] - lines.starts[:-1] - 1, 0)
    first = _ranges(lines.starts[:-1], lengths)
    return lines.points[first], lines.points[first + 1]


def _turning(outlines: Paths, begin: Floats, end: Floats) -> Floats:
    """Say for each edge which way round its ring goes: rings must not cancel each other."""
    lengths = outlines.starts[1:] - outlines.starts[:-1]
    ring = np.repeat(np.arange(len(outlines)), lengths)
    cross = begin[:, 0] * end[:, 1] - begin[:, 1] * end[:, 0]
    return np.sign(np.bincount(ring, cross, minlength=len(outlines)))[ring]


def _inside(shape: Shape, begin: Floats, end: Floats, turning: Floats) -> Mask:
    """Count, for each cell, the edges to its left that go up and those that go down."""
    height, width = shape
    first = np.ceil(np.minimum(begin[:, 0], end[:, 0])).clip(0, height).astype(np.int64)
    last = np.ceil(np.maximum(begin[:, 0], end[:, 0])).clip(0, height).astype(np.int64)
    edge = np.repeat(np.arange(len(begin)), last - first)
    row = _ranges(first, last - first)
    rise = end[edge, 0] - begin[edge, 0]
    share = (row - begin[edge, 0]) / rise
    column = begin[edge, 1] + share * (end[edge, 1] - begin[edge, 1])
    place = row * (width + 1) + np.ceil(column).clip(0, width).astype(np.int64)
    steps = np.bincount(place, np.sign(rise) * turning[edge], minlength=height * (width + 1))
    return steps.reshape(height, width + 1)[:, :-1].cumsum(axis=1) != 0


def _trace(mask: Mask, begin: Floats, end: Floats) -> None:
    """Mark the cells that edges pass, one for each step along the longer axis."""
    run = end - begin
    for axis in (0, 1):
        other = 1 - axis
        longer = np.abs(run[:, axis]) - np.abs(run[:, other])
        chosen = (longer >= 0) if axis == 0 else (longer > 0)
        start, stop, way = begin[chosen], end[chosen], run[chosen]
        size = mask.shape[axis]
        low = np.rint(np.minimum(start[:, axis], stop[:, axis])).clip(0, size).astype(np.int64)
        high = np.rint(np.maximum(start[:, axis], stop[:, axis])) + 1
        count = high.clip(0, size).astype(np.int64) - low
        edge = np.repeat(np.arange(len(start)), count)
        step = _ranges(low, count)
        span = np.where(way[edge, axis] == 0, 1, way[edge, axis])
        # Counted from the cell an edge begins in, as theirs: it matters for strips alone, whose
        # corners lie between cells.
        share = ((step - np.rint(start[edge, axis])) / span).clip(0, 1)
        aside = np.rint(start[edge, other] + share * way[edge, other]).astype(np.int64)
        seen = (aside >= 0) & (aside < mask.shape[other])
        place = (step[seen], aside[seen])
        mask[place if axis == 0 else place[::-1]] = True


def _dot(mask: Mask, nodes: Floats, radius: float) -> None:
    """Mark the cells around nodes that lie on cells."""
    reach = np.arange(-int(radius), int(radius) + 1)
    row, column = (offset.ravel() for offset in np.meshgrid(reach, reach, indexing="ij"))
    near = row * row + column * column <= radius * radius
    rows = (nodes[:, 0].astype(np.int64)[:, None] + row[near]).ravel()
    columns = (nodes[:, 1].astype(np.int64)[:, None] + column[near]).ravel()
    seen = (rows >= 0) & (rows < mask.shape[0]) & (columns >= 0) & (columns < mask.shape[1])
    mask[rows[seen], columns[seen]] = True
