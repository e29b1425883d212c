"""Many ranks over the run in one drawing: a row a rank, a column a window of steps.

A cell's colour is what the rank works beyond the median rank in that window. Most cells are as
usual and are not drawn: the ground is theirs. Of the others those of one colour are one path, and
neighbours in a row one piece of it, so that a thousand ranks stay a small drawing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.doctor.ranks.grid import RankGrid
from pitstop.doctor.ranks.slow import SlowGroup
from pitstop.doctor.ranks.words import group_text
from pitstop.records.run import Array
from pitstop.records.units import count_text, moment_text, share_text
from pitstop.report.page.blocks import LegendEntry
from pitstop.report.page.svg import Described, Svg, drawing, element, number, percent

LEVELS: Final = (0.02, 0.05, 0.10, 0.20, 0.40)
"""From which share of a step beyond the median rank on a cell has the next colour."""

_MISSING: Final = -1
_TOP: Final = 6.0
_AXIS: Final = 22.0
_PLOT: Final = 768.0
_LEAST_ROW: Final = 1.0
_MOST_ROW: Final = 14.0
_WIDE: Final = 1000.0
# Between two names, so that neither covers the other.
_LINE: Final = 13.0
_MOST_LETTERS: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A rank's row, by its place in the grid."""

    place: int
    host: str | None


def heat_map(key: str, grid: RankGrid, slow: Sequence[SlowGroup]) -> Svg:
    """Draw all ranks over the run, ranks of a host next to each other."""
    rows = _rows(grid)
    height = min(_MOST_ROW, max(_LEAST_ROW, _PLOT / len(rows)))
    plot = height * len(rows)
    excess = grid.excess_share[[row.place for row in rows]]
    window = {
        "x": 0,
        "y": _TOP,
        "width": "100%",
        "height": plot,
        "viewBox": f"0 0 {number(_WIDE)} {len(rows)}",
        "preserveAspectRatio": "none",
    }
    pieces = [
        element("rect", {"x": 0, "y": _TOP, "width": "100%", "height": plot, "class_": "ground"}),
        element("svg", window, *_cells(_levels(excess), _edges(grid)), *_titles(grid, rows)),
        *_borders(rows, height),
        *_names(rows, height, {group.slowest.host for group in slow}),
        *(piece for group in slow for piece in _outline(group, grid, rows, height)),
        *_axis(grid, _TOP + plot + _AXIS - 6),
    ]
    described = Described(
        key=key, title="Own work of each rank over the run", description=_text(grid, slow)
    )
    look = "drawing heat gutter-l"
    return drawing(described, _TOP + plot + _AXIS, pieces, look=look)


def legend() -> tuple[LegendEntry, ...]:
    """What the colours stand for."""
    entries = [LegendEntry(name=f"below {LEVELS[0]:.0%} of a step: as the others", colour="h0")]
    for place, least in enumerate(LEVELS, 1):
        last = place == len(LEVELS)
        name = f"from {least:.0%}" if last else f"{least:.0%} to {LEVELS[place]:.0%}"
        entries.append(LegendEntry(name=name, colour=f"h{place}"))
    return (*entries, LegendEntry(name="no record", colour="h-none"))


def _rows(grid: RankGrid) -> list[_Row]:
    """Ranks by their hosts, hosts by their first rank."""
    order = {host: place for place, host in reversed(list(enumerate(grid.hosts)))}
    places = sorted(range(len(grid.ranks)), key=lambda p: (order[grid.hosts[p]], grid.ranks[p]))
    return [_Row(place=place, host=grid.hosts[place]) for place in places]


def _edges(grid: RankGrid) -> list[float]:
    """Where windows begin and end across the plot, as long as they lasted in steps."""
    first, steps = grid.first_step[0], grid.last_step + 1 - grid.first_step[0]
    return [_WIDE * (step - first) / steps for step in (*grid.first_step, grid.last_step + 1)]


def _levels(excess: Array) -> Array:
    found = np.searchsorted(LEVELS, np.nan_to_num(excess, nan=0.0), side="right")
    return np.where(np.isnan(excess), _MISSING, found)


def _cells(levels: Array, edges: Sequence[float]) -> Iterable[Svg]:
    """One path a colour; neighbours in a row that have it are one piece."""
    for level in (_MISSING, *range(1, len(LEVELS) + 1)):
        path = []
        for row, found in enumerate(levels == level):
            flips = np.flatnonzero(np.diff(np.concatenate(([False], found, [False])).astype(int)))
            for begin, end in zip(flips[::2].tolist(), flips[1::2].tolist(), strict=True):
                width = number(edges[end] - edges[begin])
                path.append(f"M{number(edges[begin])} {row}h{width}v1h-{width}z")
        if path:
            look = "h-none" if level == _MISSING else f"h{level}"
            yield element("path", {"d": "".join(path), "class_": f"cell {look}"})


def _titles(grid: RankGrid, rows: Sequence[_Row]) -> Iterable[Svg]:
    """What a pointer over a row says."""
    with_numbers = np.where(np.isnan(grid.excess_share), 0.0, grid.excess_share)
    for place, row in enumerate(rows):
        most = float(with_numbers[row.place].max(initial=0.0))
        where = "" if row.host is None else f", host {row.host}"
        said = f"rank {grid.ranks[row.place]}{where}: up to {share_text(max(0.0, most))} of a step"
        box = {"x": 0, "y": place, "width": _WIDE, "height": 1, "class_": "over"}
        yield element("rect", box, element("title", {}, said))


def _groups(rows: Sequence[_Row]) -> Iterable[tuple[str | None, int, int]]:
    """Hosts with the first of their rows and the one after their last."""
    begin = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place].host != rows[begin].host:
            yield rows[begin].host, begin, place
            begin = place


def _borders(rows: Sequence[_Row], height: float) -> Iterable[Svg]:
    groups = list(_groups(rows))
    if height * len(rows) < 4 * len(groups):
        return  # a line for each would be all that is seen
    for _, begin, _ in groups[1:]:
        y = _TOP + begin * height
        yield element("line", {"x1": 0, "x2": "100%", "y1": y, "y2": y, "class_": "border"})


def _names(rows: Sequence[_Row], height: float, slow: set[str | None]) -> Iterable[Svg]:
    """Names of hosts left of their rows: all that fit, and those of slow ones in any case."""
    places = [(_TOP + (begin + end) / 2 * height, host) for host, begin, end in _groups(rows)]
    taken = [y for y, host in places if host in slow]
    for y, host in places:
        if host is None:
            continue
        if host not in slow:
            if any(abs(y - other) < _LINE for other in taken):
                continue
            taken.append(y)
        look = "label end strong" if host in slow else "label end"
        yield element("text", {"x": -8, "y": y + 4, "class_": look}, _short(host))


def _short(host: str) -> str:
    """The first part of a host's name, and of a long one its end, where hosts differ."""
    name = host.split(".", maxsplit=1)[0]
    return name if len(name) <= _MOST_LETTERS else f"...{name[3 - _MOST_LETTERS :]}"


def _outline(
    group: SlowGroup, grid: RankGrid, rows: Sequence[_Row], height: float
) -> Iterable[Svg]:
    """A frame around who is slow, and the name of a single rank."""
    numbers = {one.rank for one in group.ranks}
    inside = [place for place, row in enumerate(rows) if grid.ranks[row.place] in numbers]
    begin, end = min(inside), max(inside) + 1
    y = _TOP + begin * height
    box = {"x": 0, "y": y - 1.5, "width": "100%", "height": (end - begin) * height + 3}
    yield element("rect", {**box, "class_": "outline"})
    if not group.is_host:
        above = y - 5 if y > _TOP + 2 * _LINE else y + height + _LINE
        place = {"x": "100%", "y": above, "class_": "label end strong"}
        yield element("text", place, f"rank {group.slowest.rank}")


def _axis(grid: RankGrid, y: float) -> Iterable[Svg]:
    windows = len(grid.first_step)
    middle = windows // 2
    edges = _edges(grid)
    yield element("text", {"x": 0, "y": y, "class_": "label"}, f"step {_at(grid, 0)}")
    if windows > 2:
        place = {"x": percent(edges[middle] / _WIDE), "y": y, "class_": "label middle between"}
        yield element("text", place, _at(grid, middle))
    end_s = grid.end_unix_s(windows - 1)
    when = "" if end_s is None else f", {moment_text(end_s, with_date=False)}"
    last = f"{grid.last_step:,}{when}"
    yield element("text", {"x": "100%", "y": y, "class_": "label end"}, last)


def _at(grid: RankGrid, window: int) -> str:
    begin_s = grid.unix_s[window]
    when = "" if begin_s is None else f", {moment_text(begin_s, with_date=False)}"
    return f"{grid.first_step[window]:,}{when}"


def _text(grid: RankGrid, slow: Sequence[SlowGroup]) -> str:
    on = "" if None in grid.hosts else f" on {count_text(len(set(grid.hosts)), 'host')}"
    steps = f"steps {grid.first_step[0]:,} to {grid.last_step:,}"
    said = [f"{count_text(len(grid.ranks), 'rank')}{on}, {steps}"]
    said += [
        f"{group_text(group, with_host=True)}: {share_text(group.when.share)} of a step beyond "
        f"the median rank, steps {group.when.first_step:,} to {group.when.last_step:,}"
        for group in slow
    ]
    return ". ".join(said if slow else [*said, "no rank stands out"]) + "."
