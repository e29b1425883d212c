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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.data.poses import Floats

Mask: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = tuple[int, int]
Edges: TypeAlias = tuple[Floats, Floats]
"""Where edges begin, (E, 2), and where they end."""

_NO_POINTS: Final = np.zeros((0, 2))
_ZERO: Final = np.zeros(1, np.int64)


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
        return self._places(0.5)

    def near_left_corners(self) -> tuple[Floats, Floats]:
        """Give metres forward of each row's near edge, and metres across of each column's left."""
        return self._places(0.0)

    def _places(self, inside: float) -> tuple[Floats, Floats]:
        forward, across = (
            (start + step * (np.arange(count) + inside)).astype(np.float64)
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
            points=self.points[ranges(self.starts[:-1][chosen], lengths)],
            starts=np.concatenate(([0], lengths.cumsum())),
        )

    def path(self, place: int) -> Floats:
        """Give the points of one path."""
        return self.points[self.starts[place] : self.starts[place + 1]]

    def at(self, points: Floats) -> "Paths":
        """Give the same paths with their points elsewhere."""
        return Paths(points=points, starts=self.starts)


def rings(corners: Floats) -> Paths:
    """Make rings of (P, C, 2) points."""
    count, length = corners.shape[:2]
    return Paths(
        points=corners.reshape(-1, 2), starts=np.arange(count + 1, dtype=np.int64) * length
    )


@dataclass(frozen=True, slots=True)
class Drawing:
    """Rings gathered layer by layer, and then drawn in one go: most of the time goes by the call.

    In a layer of its own, a ring can be taken away from others afterwards.
    """

    shape: Shape
    _rings: list[Paths] = field(default_factory=list)
    _layers: list[Ints] = field(default_factory=list)
    _inner: list[bool] = field(default_factory=list)

    def layer(self, *, inner: bool = False) -> int:
        """Begin a layer and give its number; an inner one leaves out cells that a ring passes."""
        self._inner.append(inner)
        return len(self._inner) - 1

    def add(self, outlines: Paths, layers: int | Ints) -> None:
        """Put rings into a layer, or each into its own."""
        self._rings.append(outlines)
        self._layers.append(np.broadcast_to(np.asarray(layers, np.int64), len(outlines)))

    def draw(self) -> Mask:
        """Mark the cells inside rings, and those that a ring passes, as (L, h, w).

        Rings of a layer may overlap.
        """
        every = join(self._rings)
        if not len(every.points):
            return np.zeros((len(self._inner), *self.shape), np.bool_)
        lengths = every.starts[1:] - every.starts[:-1]
        edges = _ring_edges(every)
        layer = np.repeat(np.concatenate(self._layers), lengths)
        masks = _inside(self.shape, edges, (layer, _turning(edges, lengths)), len(self._inner))
        passed = _passed(self.shape, edges, layer)
        counts = ~np.array(self._inner)
        masks.reshape(-1)[passed] = counts[passed // (self.shape[0] * self.shape[1])]
        return masks


def join(paths: Sequence[Paths]) -> Paths:
    """Put paths one after the other."""
    if len(paths) == 1:
        return paths[0]
    lengths = [part.starts[1:] - part.starts[:-1] for part in paths]
    return Paths(
        points=np.concatenate([_NO_POINTS, *(part.points for part in paths)]),
        starts=np.concatenate([_ZERO, *lengths]).cumsum(),
    )


def line_strips(lines: Paths, *, thickness: float) -> tuple[Paths, Floats]:
    """Give the outlines of lines that are so many cells wide, and the nodes to be rounded off."""
    begin, end = _line_edges(lines)
    along = end - begin
    length = np.hypot(along[:, 0], along[:, 1])
    kept = length > 0
    begin, end, along = begin[kept], end[kept], along[kept] / length[kept, None]
    aside = np.stack((-along[:, 1], along[:, 0]), axis=1) * (thickness / 2)
    strips = np.stack((begin - aside, begin + aside, end + aside, end - aside), axis=1)
    return rings(strips), np.concatenate((begin, end))


def mark_around(mask: Mask, nodes: Floats, *, radius: float) -> None:
    """Mark the cells around nodes that lie on cells."""
    reach = np.arange(-int(radius), int(radius) + 1)
    row, column = np.nonzero(reach[:, None] ** 2 + reach**2 <= radius * radius)
    at = nodes.astype(np.int64)
    rows, columns = at[:, :1] + reach[row], at[:, 1:] + reach[column]
    seen = (rows >= 0) & (rows < mask.shape[0]) & (columns >= 0) & (columns < mask.shape[1])
    mask[rows[seen], columns[seen]] = True


def ranges(first: Ints, lengths: Ints) -> Ints:
    """Join the ranges that begin at `first` and have these lengths."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(first - (ends - lengths), lengths)


def _ring_edges(outlines: Paths) -> Edges:
    following = np.arange(1, len(outlines.points) + 1)
    filled = outlines.starts[1:] > outlines.starts[:-1]
    following[outlines.starts[1:][filled] - 1] = outlines.starts[:-1][filled]
    return outlines.points, outlines.points[following]


def _line_edges(lines: Paths) -> Edges:
    lengths = np.maximum(lines.starts[1:] - lines.starts[:-1] - 1, 0)
    first = ranges(lines.starts[:-1], lengths)
    return lines.points[first], lines.points[first + 1]


def _turning(edges: Edges, lengths: Ints) -> Floats:
    """Say for each edge which way round its ring goes: rings must not cancel each other."""
    begin, end = edges
    ring = np.repeat(np.arange(len(lengths)), lengths)
    cross = begin[:, 0] * end[:, 1] - begin[:, 1] * end[:, 0]
    return np.sign(np.bincount(ring, cross, minlength=len(lengths)))[ring]


def _inside(shape: Shape, edges: Edges, ways: tuple[Ints, Floats], layers: int) -> Mask:
    """Count, for each cell, the edges to its left that go up and those that go down.

    `ways` are each edge's layer, and which way round its ring goes.
    """
    height, width = shape
    (begin, aside), (end, other) = (part.T for part in edges)
    first = np.ceil(np.minimum(begin, end)).clip(0, height).astype(np.int64)
    count = np.ceil(np.maximum(begin, end)).clip(0, height).astype(np.int64) - first
    rise = end - begin
    row = ranges(first, count)
    share = (row - np.repeat(begin, count)) / np.repeat(rise, count)
    column = np.repeat(aside, count) + share * np.repeat(other - aside, count)
    place = (row + np.repeat(ways[0] * height, count)) * (width + 1)
    place += np.ceil(column).clip(0, width).astype(np.int64)
    steps = np.zeros(layers * height * (width + 1), np.int32)
    np.add.at(steps, place, np.repeat((np.sign(rise) * ways[1]).astype(np.int32), count))
    # Rings are closed, so that each row ends as it began: at nothing.
    within = steps.cumsum(dtype=np.int32).reshape(layers, height, width + 1)
    return within[:, :, :-1] != 0


def _passed(shape: Shape, edges: Edges, layer: Ints) -> Ints:
    """List the cells that edges pass, one for each step along the longer axis."""
    height, width = shape
    begin, end = edges
    run = end - begin
    size = np.abs(run)
    axis = (size[:, 0] < size[:, 1]).astype(np.int64)
    every = np.arange(len(axis))
    start, stop, way = (part[every, axis] for part in (begin, end, run))
    cells = np.where(axis == 0, height, width)
    low = np.rint(np.minimum(start, stop)).clip(0, cells).astype(np.int64)
    count = (np.rint(np.maximum(start, stop)) + 1).clip(0, cells).astype(np.int64) - low
    step = ranges(low, count)
    edge = np.repeat(every, count)
    # Counted from the cell an edge begins in, as theirs: it matters for strips alone, whose
    # corners lie between cells.
    share = ((step - np.rint(start)[edge]) / np.where(way == 0, 1, way)[edge]).clip(0, 1)
    other = 1 - axis
    aside = np.rint(begin[every, other][edge] + share * run[every, other][edge]).astype(np.int64)
    seen = (aside >= 0) & (aside < np.where(axis == 0, width, height)[edge])
    edge, step, aside = edge[seen], step[seen], aside[seen]
    along, across = np.where(axis == 0, width, 1)[edge], np.where(axis == 0, 1, width)[edge]
    return layer[edge] * (height * width) + step * along + aside * across
