"""Filling polygons the way OpenCV fills convex ones, and cutting them to a rectangle.

The one-camera benchmark drew its labels with that routine, and not only convex shapes: a dent comes
out partly filled. Figures on its labels need the same cells, so the routine is followed here: the
outline by Bresenham's lines, the inside row by row between two chains of edges that go down from
the topmost corner, in fixed point with 16 bits.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Mask

Corners = npt.NDArray[np.int64]
"""(N, 2): column and row."""

_BITS: Final = 16
_HALF: Final = 1 << (_BITS - 1)
_SAME_M: Final = 1e-6
"""Corners this near to an edge lie on it."""


def fill_convex(mask: Mask, corners: Corners, *, value: bool = True) -> None:
    """Set the cells of a polygon; what lies outside of the mask is left out."""
    points = [(int(x), int(y)) for x, y in corners]
    for (x0, y0), (x1, y1) in zip([points[-1], *points], points, strict=False):
        _draw_line(mask, (x0, y0), (x1, y1), value=value)
    height, width = mask.shape
    columns, rows = zip(*points, strict=True)
    if len(points) < 3 or max(columns) < 0 or max(rows) < 0:
        return
    if min(columns) >= width or min(rows) >= height:
        return
    for row, left, right in _spans(points, last=min(max(rows), height - 1)):
        if row >= 0 and right >= 0 and left < width:
            mask[row, max(left, 0) : right + 1] = value


class _Chain:
    """One of the two chains of edges, and where it is in the present row."""

    def __init__(self, start: int, step: int, row: int) -> None:
        self.corner = start
        self.step = step
        self.end_row = row
        self.x = -(1 << _BITS)
        self.dx = 0


def _spans(points: list[tuple[int, int]], *, last: int) -> Iterator[tuple[int, int, int]]:
    """Give row, first and last column of each row from the topmost corner on."""
    count = len(points)
    top = min(range(count), key=lambda place: points[place][1])
    row = points[top][1]
    chains = (_Chain(top, 1, row), _Chain(top, count - 1, row))
    edges = count
    while True:
        for chain in chains:
            if row >= chain.end_row:
                edges = _follow(chain, points, row, edges)
        if edges < 0:  # all are used up, where dents are: the rest stays empty
            return
        left, right = sorted(chain.x for chain in chains)
        yield row, (left + _HALF) >> _BITS, (right + _HALF) >> _BITS
        for chain in chains:
            chain.x += chain.dx
        row += 1
        if row > last:
            return


def _follow(chain: _Chain, points: list[tuple[int, int]], row: int, edges: int) -> int:
    """Go to the next edge that leads down; gives how many edges are left for both chains."""
    before = chain.corner
    after = (before + chain.step) % len(points)
    while edges > 0:
        edges -= 1
        end = points[after][1]
        if end > row:
            fall = end - row
            start_x, end_x = points[before][0] << _BITS, points[after][0] << _BITS
            chain.end_row = end
            chain.dx = _truncated((end_x - start_x) * 2 + fall, 2 * fall)
            chain.x = start_x
            chain.corner = after
            return edges
        before, after = after, (after + chain.step) % len(points)
    return edges - 1


def _truncated(value: int, by: int) -> int:
    """Divide towards zero, as C does."""
    return -(-value // by) if value < 0 else value // by


def _draw_line(mask: Mask, one: tuple[int, int], other: tuple[int, int], *, value: bool) -> None:
    clipped = _clip(mask.shape, one, other)
    if clipped is None:
        return
    (x0, y0), (x1, y1) = clipped
    if x1 < x0:  # from left to right
        x0, y0, x1, y1 = x1, y1, x0, y0
    across, down = x1 - x0, abs(y1 - y0)
    way = 1 if y1 >= y0 else -1
    major, minor = max(across, down), min(across, down)
    error = major - 2 * minor
    x, y = x0, y0
    for _ in range(major + 1):
        mask[y, x] = value
        turned = error < 0
        error += 2 * major * turned - 2 * minor
        if down > across:
            x, y = x + turned, y + way
        else:
            x, y = x + 1, y + way * turned


def _clip(
    shape: tuple[int, ...], one: tuple[int, int], other: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Cut a line to the mask, at whole cells; None where nothing is left."""
    bottom, right = shape[0] - 1, shape[1] - 1
    ends = [list(one), list(other)]

    def beyond(end: list[int], axis: int, most: int) -> int:
        return -1 if end[axis] < 0 else int(end[axis] > most)

    for axis, most in ((1, bottom), (0, right)):
        sides = [beyond(end, axis, most) for end in ends]
        if sides[0] == sides[1] != 0:
            return None
        for place, side in enumerate(sides):
            if side == 0:
                continue
            end = ends[place]
            edge = 0 if side < 0 else most
            slope = (ends[1][1 - axis] - ends[0][1 - axis]) / (ends[1][axis] - ends[0][axis])
            end[1 - axis] += int((edge - end[axis]) * slope)
            end[axis] = edge
    if any(beyond(end, axis, most) for end in ends for axis, most in ((1, bottom), (0, right))):
        return None
    return (ends[0][0], ends[0][1]), (ends[1][0], ends[1][1])


def cut_to_rectangle(rings: list[Floats], low: Floats, high: Floats) -> list[Floats]:
    """Cut a polygon, an outline and its holes, to a rectangle.

    Returns:
        Rings of what is left: outlines turn to the left, holes to the right. A polygon that falls
        into pieces is several outlines, and a hole at the edge becomes part of an outline.
    """
    left = [_turned(rings[0], leftward=True)]
    left += [_turned(hole, leftward=False) for hole in rings[1:]]
    for axis in (0, 1):
        left = _cut(left, axis, float(low[axis]), keep_above=True)
        left = _cut(left, axis, float(high[axis]), keep_above=False)
    return left


def begun_as_published(ring: Floats, rings: list[Floats]) -> Floats:
    """Turn a ring that was cut from others, and let it begin, as GEOS does after cutting.

    Where an outline has dents, its first corner decides which of several topmost ones the filling
    goes down from. GEOS turns outlines to the right and holes to the left, and begins with the
    second corner of the first piece of the first ring, as it was given; a piece goes from where the
    ring comes in, or begins, to where it goes out. The first corner stands at the end once more.
    """
    ring = ring[::-1]
    pieces = [_followed(ring, whole) for whole in rings]
    number = next((number for number, found in enumerate(pieces) if found), None)
    if number is None:
        return np.concatenate((ring, ring[:1]))
    ahead = (signed_area(rings[number]) < 0) == (number == 0)
    begun = np.roll(ring, -_second_corner(pieces[number], len(ring), ahead=ahead), axis=0)
    return np.concatenate((begun, begun[:1]))


def _followed(ring: Floats, whole: Floats) -> dict[int, float]:
    """Say which steps of a cut ring follow a ring that it was cut from, and from where on."""
    following = np.roll(whole, -1, axis=0) - whole
    lengths = np.maximum((following**2).sum(axis=1), 1e-18)
    offset = ring[:, None] - whole
    share = np.clip((offset * following).sum(axis=2) / lengths, 0, 1)
    apart = ((offset - share[..., None] * following) ** 2).sum(axis=2)
    lies = apart < _SAME_M**2
    found: dict[int, float] = {}
    for place in range(len(ring)):
        after = (place + 1) % len(ring)
        edges = np.flatnonzero(lies[place] & lies[after])
        if len(edges):
            edge = int(edges[0])
            found[place] = edge + float(min(share[place, edge], share[after, edge]))
    return found


def _second_corner(steps: dict[int, float], count: int, *, ahead: bool) -> int:
    """Give the place of the corner to begin with; steps are known by their first corner."""
    place = min(steps, key=lambda one: steps[one])
    if ahead:
        return (place + 1) % count
    # Against the ring's own way: its piece goes on towards lower places.
    while (place - 1) % count in steps and steps[(place - 1) % count] > steps[place]:
        place = (place - 1) % count
    return (place + 1) % count


def signed_area(ring: Floats) -> float:
    """Give the area of a ring, negative where it turns to the right."""
    following = np.roll(ring, -1, axis=0)
    return float((ring[:, 0] * following[:, 1] - ring[:, 1] * following[:, 0]).sum() / 2)


def _turned(ring: Floats, *, leftward: bool) -> Floats:
    return ring if (signed_area(ring) > 0) == leftward else ring[::-1]


def _cut(rings: list[Floats], axis: int, bound: float, *, keep_above: bool) -> list[Floats]:
    """Keep what lies on one side of a line; where it is cut, neighbours along the line join."""
    whole: list[Floats] = []
    chains: list[Floats] = []
    for ring in rings:
        depth = ring[:, axis] - bound if keep_above else bound - ring[:, axis]
        if (depth > 0).all():
            whole.append(ring)
        elif (depth > 0).any():
            chains += _chains(ring, depth, axis, bound)
    return whole + _joined(chains, 1 - axis)


def _chains(ring: Floats, depth: Floats, axis: int, bound: float) -> list[Floats]:
    """Give the runs of a ring that are kept, each from the line to the line."""
    inside = depth > 0
    starts = np.flatnonzero(inside & ~np.roll(inside, 1))
    count = len(ring)
    found = []
    for start in starts.tolist():
        length = 1
        while inside[(start + length) % count]:
            length += 1
        places = (start + np.arange(-1, length + 1)) % count
        run = ring[places].copy()
        for end, inner in ((0, 1), (-1, -2)):
            share = depth[places[inner]] / (depth[places[inner]] - depth[places[end]])
            run[end] = run[inner] + share * (run[end] - run[inner])
            run[end, axis] = bound
        found.append(run)
    return found


def _joined(chains: list[Floats], along: int) -> list[Floats]:
    """Join the ends of chains to the neighbours that they share a piece of the line with."""
    ends = [
        (chain[place, along], number, place)
        for number, chain in enumerate(chains)
        for place in (0, -1)
    ]
    order = sorted(range(len(ends)), key=lambda one: ends[one][0])
    partner: dict[tuple[int, int], tuple[int, int]] = {}
    for one, other in zip(order[::2], order[1::2], strict=True):
        first, second = ends[one][1:], ends[other][1:]
        partner[first], partner[second] = second, first
    rings: list[Floats] = []
    free = set(range(len(chains)))
    while free:
        number = min(free)
        parts = []
        while number in free:
            free.remove(number)
            parts.append(chains[number])
            number = partner[number, -1][0]
        rings.append(np.concatenate(parts))
    return rings
