"""The level of a run's step time as it goes on: constant, with one jump, or on a slope."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pitstop.doctor.logs.facts import LogFacts
from pitstop.doctor.logs.statistics import change_point, quantile, quartiles, slope
from pitstop.records.run import Array

Shape = Literal["constant", "jump", "slope"]

_FEWEST_WINDOWS = 12
_CHANCE = 0.01
_LEAST_CHANGE = 0.10
_ANEW = 0.5
"""An attempt that begins below this share of the steps before it is another run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Step time over the steady rows, without the single rows that stick out."""

    shape: Shape
    step_s: Array
    """Level at each steady row."""
    early: tuple[float, float, float]
    """Quartiles of the earlier part; of the first third where the level is a slope."""
    late: tuple[float, float, float]
    row: int
    """Steady row at which the later part begins; 0 where the level is constant."""
    early_rows: int
    late_rows: int

    @property
    def ratio(self) -> float:
        """Later median over earlier median."""
        return self.late[1] / self.early[1]


def level_of(facts: LogFacts) -> Level | None:
    """Find the level; None without steady rows.

    A change counts when a series without one would hardly show it, when the medians of both sides
    differ by a tenth, and when the interquartile ranges of both sides do not touch.
    """
    values, weights = facts.windows.step_s[facts.steady], facts.weights
    if not len(values):
        return None
    is_one = facts.is_one_run and not begins_anew(facts)
    split = change_point(values) if is_one and len(values) >= _FEWEST_WINDOWS else None
    if split is None or split.chance >= _CHANCE:
        return _constant(values, weights)
    jump = _jump(values, weights, split.row)
    if not _counts(jump):
        return _constant(values, weights)
    sloped = _slope(values, weights, split.row)
    return min((jump, sloped), key=lambda level: float(np.abs(values - level.step_s).sum()))


def begins_anew(facts: LogFacts) -> bool:
    """Whether a later attempt trains from the beginning: another run, not the same one slower."""
    attempt, step = facts.windows.attempt[facts.steady], facts.windows.last_step[facts.steady]
    turns = np.flatnonzero(np.diff(attempt) > 0)
    return bool((step[turns + 1] < _ANEW * step[turns]).any())


def _constant(values: Array, weights: Array) -> Level:
    whole = quartiles(values, weights)
    return Level(
        shape="constant",
        step_s=np.full(len(values), whole[1]),
        early=whole,
        late=whole,
        row=0,
        early_rows=len(values),
        late_rows=len(values),
    )


def _jump(values: Array, weights: Array, row: int) -> Level:
    early = quartiles(values[:row], weights[:row])
    late = quartiles(values[row:], weights[row:])
    return Level(
        shape="jump",
        step_s=np.where(np.arange(len(values)) < row, early[1], late[1]),
        early=early,
        late=late,
        row=row,
        early_rows=row,
        late_rows=len(values) - row,
    )


def _slope(values: Array, weights: Array, row: int) -> Level:
    at = np.arange(len(values), dtype=np.float64)
    steepness = slope(at, values) or 0.0
    start_s = quantile(values - steepness * at, weights, 0.5)
    third = len(values) // 3
    return Level(
        shape="slope",
        step_s=start_s + steepness * at,
        early=quartiles(values[:third], weights[:third]),
        late=quartiles(values[-third:], weights[-third:]),
        row=row,
        early_rows=third,
        late_rows=third,
    )


def _counts(jump: Level) -> bool:
    (low_1, early_s, high_1), (low_2, late_s, high_2) = jump.early, jump.late
    separate = low_2 > high_1 if late_s > early_s else high_2 < low_1
    # Very short steps may be printed as zero, of which nothing is a multiple.
    return (
        separate
        and min(early_s, late_s) > 0
        and abs(late_s - early_s) >= _LEAST_CHANGE * min(early_s, late_s)
    )
