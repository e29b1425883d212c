"""How fast a rank goes: over its last steps, over the whole attempt, and until its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.records.distribution import Distribution, merge
from pitstop.records.run import StepTable
from pitstop.report.live.tail import RankTail
from pitstop.report.page.palette import UNACCOUNTED

NOW_STEPS: Final = 128
"""Steps that count as now."""

_STRETCHES: Final = 8
_FEWEST_TO_ESTIMATE: Final = 16
_DATA: Final = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShare:
    """One part of the step, over the steps that count as now."""

    name: str
    share: float
    """Of the wall clock of those steps; with ``unaccounted`` they add up to 1."""
    mean_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """An estimate of what is left to do."""

    seconds: float
    low_s: float
    """At the rate of the fastest window of the last steps."""
    high_s: float
    """At the rate of the slowest one."""
    steps: int
    """Steps that the rate was taken from."""


def last_rows(table: StepTable) -> range:
    """The rows that count as now."""
    return range(max(0, len(table) - NOW_STEPS), len(table))


def steps_done(tail: RankTail) -> int | None:
    """Number of the last step, counted from one; None before the first."""
    table = tail.steps()
    if len(table):
        return int(table.index[-1]) + 1
    return None if tail.past.last is None else tail.past.last.last + 1


def rate_now(table: StepTable, rows: range) -> float | None:
    """Samples over the clock from the first of some steps to the last."""
    samples = table.samples[rows]
    if not len(rows) or np.isnan(samples).any():
        return None
    end_us = table.start_us[rows] + table.wall_us[rows] + table.outside_us[rows]
    clock_us = float(end_us[-1] - table.start_us[rows][0])
    return float(samples.sum()) / (clock_us / 1e6) if clock_us > 0 else None


def steady_rate(tail: RankTail) -> tuple[float | None, int]:
    """Samples a step over the median step, and how many steps that rests on."""
    table, past = tail.steps(), tail.past
    rows = _not_in_the_past(tail, table)
    walls = Distribution.of(table.wall_us[rows].astype(np.int64).tolist())
    wall = merge((past.wall, walls))
    middle_us = wall.quantile_us(0.5)
    samples = table.samples[rows]
    if past.samples is None or np.isnan(samples).any() or not middle_us:
        return None, wall.count
    return (past.samples + float(samples.sum())) / wall.count / (middle_us / 1e6), wall.count


def _not_in_the_past(tail: RankTail, table: StepTable) -> npt.NDArray[np.bool_]:
    """Rows whose block is not among those added up; before the second block that is all of them."""
    last = tail.past.last
    if last is None or tail.past.blocks < 2:
        return np.ones(len(table), dtype=np.bool_)
    return table.index > last.last


def parts_of(table: StepTable, rows: range) -> tuple[PartShare, ...]:
    """Shares of the top-level parts, in the order in which they were first seen: it never changes.

    Rows that kept no parts to save space are left out.
    """
    top = [place for place, path in enumerate(table.paths) if len(path) == 1]
    times = table.host_us[rows][:, top]
    kept = ~np.isnan(times).all(axis=1)
    wall_us = float(table.wall_us[rows][kept].sum())
    if not top or wall_us <= 0:
        return ()
    sums = np.nansum(times[kept], axis=0)
    steps = int(kept.sum())
    named = [
        PartShare(name=table.paths[place][0], share=us / wall_us, mean_s=us / steps / 1e6)
        for place, us in zip(top, sums.tolist(), strict=True)
    ]
    rest_us = wall_us - float(sums.sum())
    rest = PartShare(name=UNACCOUNTED, share=rest_us / wall_us, mean_s=rest_us / steps / 1e6)
    return (*named, rest)


def data_share_of(parts: Sequence[PartShare]) -> float | None:
    """Share of the step that went into waiting for data; None where that is no part of it."""
    return next((part.share for part in parts if part.name == _DATA), None)


def time_left(tail: RankTail, step: int, total: int) -> TimeLeft | None:
    """Steps at their present rate, and what lies between steps as in the whole attempt."""
    table = tail.steps()
    rows = last_rows(table)
    if step >= total or len(rows) < _FEWEST_TO_ESTIMATE:
        return None
    each_s = (table.wall_us[rows] + _gaps_us(table)[rows]) / 1e6
    outside_s = _outside_a_step_s(tail, table)
    means = [float(part.mean()) for part in np.array_split(each_s, _STRETCHES)]
    to_do = total - step
    return TimeLeft(
        seconds=to_do * (float(each_s.mean()) + outside_s),
        low_s=to_do * (min(means) + outside_s),
        high_s=to_do * (max(means) + outside_s),
        steps=len(rows),
    )


def _gaps_us(table: StepTable) -> npt.NDArray[np.float64]:
    """Time before each step that belongs to no step; before the first one it is not known."""
    ends = table.start_us + table.wall_us + table.outside_us
    return np.concatenate([[0.0], np.maximum(table.start_us[1:] - ends[:-1], 0.0)])


def _outside_a_step_s(tail: RankTail, table: StepTable) -> float:
    past, rows = tail.past, _not_in_the_past(tail, table)
    if past.blocks < 2:
        rows[:1] = False  # start-up lies outside steps, in the first step
    steps = past.steps + int(rows.sum())
    outside_us = past.outside_us + float(table.outside_us[rows].sum())
    return outside_us / steps / 1e6 if steps else 0.0
