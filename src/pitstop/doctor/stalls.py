"""One odd step makes no verdict: what came once, and took long, is separated from what recurs.

A stall (a file system that hung, a sleep, a laptop that was closed) may be longer than all other
steps together. In a sum it would decide everything, and a longer run would not show it again. So it
is taken out of its step before any share is formed, and reported as a finding of its own.

Trimming a fixed share of the longest steps would do that, too, and would also eat what comes every
fiftieth step: an evaluation, a log, a loader that starts anew. Medians of windows would not: but a
cost that falls into a minority of the windows is gone from them as well. So what is long is not
taken for odd by its length but by its company:

- Long is what takes several times as long as usual for its part, and two usual steps or a fiftieth
  of the run longer. Less than that decides nothing.
- What is long and has others like it, in the same part, recurs if these are more than three, or if
  they come at even distances over the whole run; of two alone, if counting from the first step of
  the run gives the same distance. It keeps its full share, however unevenly it falls.
- What is left, three at most in one part, are stalls. Of each only what exceeds the usual goes.

What recurs and was met once in the counted steps looks like a stall: as of a single
evaluation, it is not known when it comes again. docs/how-the-doctor-judges.md has the simulations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pitstop.doctor.outside_steps import OutsideStep
from pitstop.doctor.sampled import Rows
from pitstop.records.run import Array, StepTable

# What is usual is a median; of fewer steps a few odd ones could be it.
_FEWEST_STEPS: Final = 20
_MOST_STALLS: Final = 3

# All three as above: several times the part's usual, and two usual steps or a fiftieth of the run.
_TIMES_USUAL: Final = 3.0
_USUAL_STEPS: Final = 2.0
_OF_THE_RUN: Final = 0.02

# Two that differ by more are not the same thing again.
_ALIKE: Final = 4.0

# More than this many are no oddities, whatever their distances are.
_MANY: Final = 40
# By how much distances may differ, in steps or as a share of the distance.
_EVEN_STEPS: Final = 2
_EVEN_SHARE: Final = 0.02

# It has a rule of its own, and no two compiles need be alike.
_JUDGED_ELSEWHERE: Final = ("compile",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Time that one step took beyond the usual, once."""

    step: int
    """Its number in the record."""
    part: str | None
    """Where it lay: a part of the step, or something outside it; None where it was not sampled."""
    us: float
    """Beyond the usual."""
    usual_us: float
    """Of that part; of a whole step where the part is not known."""
    is_outside: bool = False
    """Whether it lay outside the step, such as in an evaluation."""


@dataclass(frozen=True, slots=True)
class _Long:
    """Something that took long in one step."""

    place: int
    step: int
    us: float


@dataclass(frozen=True, slots=True)
class _Run:
    """Numbers of the counted steps, and from which excess on something is long."""

    steps: Array
    least_us: float

    def least(self, usual_us: float) -> "_Run":
        """Ask for more where what is usual is itself long."""
        return replace(self, least_us=max(self.least_us, (_TIMES_USUAL - 1) * usual_us))


def settled_steps(
    table: StepTable, rows: Rows, sampled: Rows, top: Sequence[int]
) -> tuple[StepTable, tuple[Stall, ...]]:
    """Take stalls out of the steps.

    Args:
        table: All steps.
        rows: Those that count.
        sampled: Which of these have parts.
        top: Columns of the parts of a step.

    Returns:
        The table with the usual time in their place, and the stalls.
    """
    walls, steps = table.wall_us[rows], table.index[rows]
    if len(rows) < _FEWEST_STEPS or not np.median(walls):
        return table, ()
    run = _run(walls, steps)
    host = np.nan_to_num(table.host_us[rows[sampled]][:, list(top)], nan=0.0)
    rest = walls[sampled] - host.sum(axis=1)
    # The last column is what no part saw.
    columns = np.column_stack((host, rest))
    unseen = np.setdiff1d(np.arange(len(rows)), sampled)
    usual = np.median(columns, axis=0) if len(sampled) else np.zeros(columns.shape[1])
    usual_wall = float(np.median(walls))
    # A step that is no longer than others has one part instead of another, and no stall.
    longer = walls - usual_wall
    found = [
        _long(np.minimum(columns[:, number] - usual[number], longer[sampled]), sampled, run)
        for number in range(columns.shape[1])
    ]
    hidden = _long(longer[unseen], unseen, run)
    settled, stalls = _Settled(table), []
    for number, long in enumerate(found):
        column = top[number] if number < len(top) else None
        for odd in _odd(long, hidden, run.least(float(usual[number]))):
            settled.shorten(int(rows[odd.place]), column, odd.us)
            part = "unaccounted" if column is None else table.paths[column][0]
            us = float(usual[number])
            stalls.append(Stall(step=odd.step, part=part, us=odd.us, usual_us=us))
    for odd in _odd(hidden, [one for long in found for one in long], run.least(usual_wall)):
        settled.shorten(int(rows[odd.place]), None, odd.us)
        stalls.append(Stall(step=odd.step, part=None, us=odd.us, usual_us=usual_wall))
    return settled.table, tuple(stalls)


def settled_outside(
    outside: Mapping[str, OutsideStep], walls_us: Array, steps: Array
) -> tuple[dict[str, OutsideStep], tuple[Stall, ...]]:
    """Take stalls out of the time outside the counted steps: one evaluation among many."""
    if len(walls_us) < _FEWEST_STEPS or not np.median(walls_us):
        return dict(outside), ()
    run, settled, stalls = _run(walls_us, steps), dict(outside), []
    for name, times in outside.items():
        us, places = np.array(times.times_us), np.array(times.places, dtype=np.intp)
        if name in _JUDGED_ELSEWHERE or len(places) != len(us):
            continue
        # The lower of two in the middle: of two events the shorter one is the usual one.
        usual = float(np.sort(us)[(len(us) - 1) // 2])
        for odd in _odd(_long(us - usual, places, run), (), run.least(usual)):
            us[places == odd.place] -= odd.us
            stalls.append(
                Stall(step=odd.step, part=name, us=odd.us, usual_us=usual, is_outside=True)
            )
        settled[name] = replace(times, times_us=tuple(us.tolist()))
    return settled, tuple(stalls)


class _Settled:
    """A table of steps, copied before the first change."""

    def __init__(self, table: StepTable) -> None:
        self.table = table
        self._is_copied = False

    def shorten(self, row: int, column: int | None, us: float) -> None:
        """Take some time out of a step: of one of its parts, or of what lies in none."""
        if not self._is_copied:
            self._copy()
        table = self.table
        table.wall_us[row] -= us
        # Between its marks the device waited as well: what it took without is not known.
        table.device_wall_us[row] = np.nan
        table.device_us[row] = np.nan
        if column is None:
            return
        kept = max(0.0, 1 - us / float(table.host_us[row, column]))
        name = table.paths[column]
        inside = [number for number, path in enumerate(table.paths) if path[:1] == name]
        table.host_us[row, inside] *= kept

    def _copy(self) -> None:
        table = self.table
        self.table = replace(
            table,
            wall_us=table.wall_us.copy(),
            host_us=table.host_us.copy(),
            device_wall_us=table.device_wall_us.copy(),
            device_us=table.device_us.copy(),
        )
        self._is_copied = True


def _run(walls_us: Array, steps: Array) -> _Run:
    usual_us = float(np.median(walls_us))
    # By usual steps, not by their sum: that holds the stalls.
    least_us = usual_us * max(_USUAL_STEPS, _OF_THE_RUN * len(walls_us))
    return _Run(steps=steps, least_us=least_us)


def _long(excess: Array, places: Rows, run: _Run) -> list[_Long]:
    """Find what took long and what is like it, by what it took beyond the usual."""
    is_long = excess >= run.least_us / _ALIKE
    return [
        _Long(int(places[number]), int(run.steps[places[number]]), float(excess[number]))
        for number in np.flatnonzero(is_long)
    ]


def _odd(own: Sequence[_Long], others: Sequence[_Long], run: _Run) -> list[_Long]:
    """Find those that do not recur.

    Args:
        own: What took long in one part.
        others: What may be the same thing, in steps where nobody saw the part.
        run: Where these steps begin and end.
    """
    left = sorted((*own, *others), key=lambda one: -one.us)
    odd: list[_Long] = []
    recurring: list[_Long] = []
    while left and left[0].us >= run.least_us and len(odd) < _MOST_STALLS:
        longest_us = left[0].us
        alike = [one for one in left if one.us * _ALIKE >= longest_us]
        left = left[len(alike) :]
        # The shortest of what recurs is not alone for being shorter than a quarter of the longest.
        alike += [one for one in recurring if one.us <= _ALIKE * longest_us]
        uneven = [] if len(alike) > _MANY else _without_rhythm(alike, run)
        if len(uneven) > _MOST_STALLS:
            uneven = []
        recurring += [one for one in alike if one not in uneven]
        odd += [one for one in uneven if one in own and one.us >= run.least_us]
    return odd[:_MOST_STALLS]


def _without_rhythm(alike: Sequence[_Long], run: _Run) -> list[_Long]:
    """Leave out those that come at even distances from one end of the run to the other."""
    steps = sorted({one.step for one in alike})
    best: frozenset[int] = frozenset()
    for number, step in enumerate(steps):
        for later in steps[number + 1 :]:
            best = max(best, _rhythm(steps, step, later - step, run), key=len)
    uneven = [one for one in alike if one.step not in best]
    # Every second of many, with those between them left over, is no rhythm of its own.
    return list(alike) if 2 * len(uneven) > len(best) else uneven


def _rhythm(steps: Sequence[int], through: int, distance: int, run: _Run) -> frozenset[int]:
    """Give the steps at a distance from each other, if none is missing in the whole run."""
    give = max(_EVEN_STEPS, round(_EVEN_SHARE * distance))
    if distance <= 2 * give:
        return frozenset()
    # What lies within the give of an end may lie outside.
    first, last = int(run.steps[0]), int(run.steps[-1])
    before, after = (through - first) // distance + 1, (last - through) // distance + 1
    met: set[int] = set()
    for number in range(-before, after + 1):
        wanted = through + number * distance
        near = min(steps, key=lambda step, at=wanted: abs(step - at))
        if abs(near - wanted) <= give:
            met.add(near)
        elif first + give <= wanted <= last - give:
            return frozenset()
    # Two are always at one distance; counted from the run's beginning it must fit as well.
    fits = min(through % distance, -through % distance) <= give
    return frozenset(met) if len(met) > 2 or (len(met) == 2 and fits) else frozenset()
