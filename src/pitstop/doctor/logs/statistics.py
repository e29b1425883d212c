"""Robust numbers over records of a log: medians with weights, change points, slopes.

Times in logs have long tails and jump, so nothing here squares a deviation.
"""

import math
from dataclasses import dataclass

import numpy as np

from pitstop.records.run import Array

USUAL = 1.5
"""A record this many times as slow as usual is not steady state, whatever its kind."""

_MOST_SLOPE_POINTS = 256
_FEWEST_ON_A_GRID = 12
_FINE, _WIDE = 0.005, 0.10


def quantile(values: Array, weights: Array, share: float) -> float:
    """Find the smallest value that `share` of the weight does not exceed.

    The result is always one of the values, so a median of printed numbers was itself printed.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12)))
    return float(values[order][min(place, len(values) - 1)])


def quartiles(values: Array, weights: Array) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    low, middle, high = (quantile(values, weights, share) for share in (0.25, 0.5, 0.75))
    return low, middle, high


def is_coarse(values: Array) -> bool:
    """Whether values repeat on a grid that is half a percent to a tenth of them wide.

    Times from a clock that counts whole seconds are like that, and their median is off by as much.
    """
    distinct = np.unique(values)
    if len(values) < _FEWEST_ON_A_GRID or len(distinct) > len(values) / 2 or len(distinct) < 2:
        return False
    # Quotients of the same two numbers may differ in their last digit.
    gaps = np.diff(distinct)[np.diff(distinct) > 1e-9 * distinct[-1]]
    middle = float(np.median(values))
    return len(gaps) > 0 and _FINE * middle < float(gaps.min()) < _WIDE * middle


def middle_of(values: Array, weights: Array) -> tuple[float, int | None]:
    """Median; of coarse values the mean of those near it, and how many these are (else None).

    Rounding of neighbours cancels in a mean, which it does not in a median; spikes stay out.
    """
    middle = quantile(values, weights, 0.5)
    if not is_coarse(values):
        return middle, None
    usual = (values <= USUAL * middle) & (values >= middle / USUAL)
    return float(np.average(values[usual], weights=weights[usual])), int(usual.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """Where a series is most likely to have changed its level."""

    row: int
    """First row of the later part."""
    chance: float
    """How likely such a split is in a series that never changed (Pettitt's approximation)."""


def change_point(values: Array) -> ChangePoint | None:
    """Split a series in two parts whose levels differ most; None when nothing can differ.

    The chance is that of Pettitt's test: with mid-ranks r the statistic after row t is
    2 sum(r) - t (n + 1), and its largest absolute value K has the chance of about
    2 exp(-6 K^2 / (n^3 + n^2)). Ranks date a change badly, though: noise on either side pulls it
    towards the middle. So the row is the one that leaves the least squares around both means, with
    the outermost twentieth on both ends of the values drawn in.
    """
    n = len(values)
    if n < 2 or np.ptp(values) == 0:
        return None
    before = np.arange(1, n)
    statistic = np.abs(2 * np.cumsum(_mid_ranks(values))[:-1] - before * (n + 1))
    chance = 2 * math.exp(-6 * float(statistic.max()) ** 2 / (n**3 + n**2))
    tamed = np.clip(values, *np.quantile(values, (0.05, 0.95)))
    left = np.cumsum(tamed)[:-1]
    # The squares around both means are least where the means explain most.
    explained = left**2 / before + (tamed.sum() - left) ** 2 / (n - before)
    return ChangePoint(row=int(np.argmax(explained)) + 1, chance=min(1.0, chance))


def _mid_ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


def slope(at: Array, values: Array) -> float | None:
    """Median of the slopes between all pairs (Theil and Sen); None when no two places differ.

    A long series is thinned to medians of blocks first: the pairs of a million rows are too many.
    """
    if len(values) > _MOST_SLOPE_POINTS:
        blocks = np.array_split(np.arange(len(values)), _MOST_SLOPE_POINTS)
        at = np.array([np.median(at[rows]) for rows in blocks])
        values = np.array([np.median(values[rows]) for rows in blocks])
    first, second = np.triu_indices(len(values), k=1)
    distance = at[second] - at[first]
    differs = distance != 0
    if not differs.any():
        return None
    return float(np.median((values[second] - values[first])[differs] / distance[differs]))
