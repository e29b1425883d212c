"""From the steps that were looked at to all of them: an estimate of a part's time, with its error.

Of short steps only some are looked at, but of all it is known how long they took. So a part that
makes some steps longer (a log written every fifth step) is estimated by how it goes with the
length of the step, which tells far more than the few steps alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.records.run import Array

Rows = np.ndarray[tuple[int], np.dtype[np.intp]]

# Where steps get longer or shorter, so does the share of them that is looked at; over so many steps
# it is one share, and those that were looked at stand for all.
_STRETCH: Final = 64

# Fewer steps than this tell no slope.
_FEWEST_FOR_A_SLOPE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a part took in all steps together."""

    total_us: float
    error_us: float
    """One standard error, where the steps are taken for a sample of a longer run."""


def stretch_weights(looked: Rows, steps: int) -> Array:
    """Let the looked-at steps of each stretch stand for all steps of it."""
    stretch = looked // _STRETCH
    there = np.bincount(np.arange(steps) // _STRETCH)
    found = np.bincount(stretch, minlength=len(there))
    return there[stretch] / np.maximum(1, found[stretch])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Steps of which some were looked at."""

    looked: Rows
    """Which of all steps these are."""
    weights: Array
    """For how many steps each of them stands."""
    in_proportion: bool = False
    """Whether parts are taken to be the same share of any step, however long."""


def estimate(times_us: Array, sample: Sample, wall_us: Array) -> Estimate:
    """Estimate a part's time over all steps from those that were looked at.

    Where all were it is their sum. Else the part is taken to grow with the length of its step:
    along a line where there are enough steps to draw one, else in proportion. Either is linear in
    the part, so that estimates of parts that add up to the wall clock do so, too.

    Args:
        times_us: Time of the part in each step that was looked at.
        sample: Which these are.
        wall_us: Wall clock of every step.
    """
    looked, weights = sample.looked, sample.weights
    steps, count, walls = len(wall_us), len(looked), wall_us[looked]
    base = float((weights * walls).sum())
    if not base:
        return Estimate(total_us=0.0, error_us=0.0)
    ratio = float((weights * times_us).sum()) / base
    uneven = _variance(times_us - ratio * walls, spent=1) / steps
    if count == steps:
        return Estimate(total_us=float(times_us.sum()), error_us=steps * float(np.sqrt(uneven)))
    middle, whole = base / float(weights.sum()), float(wall_us.mean())
    spread = float((weights * (walls - middle) ** 2).sum())
    if sample.in_proportion or count < _FEWEST_FOR_A_SLOPE or not spread:
        missed = _variance(times_us - ratio * walls, spent=1) / count
        total_us = ratio * float(wall_us.sum())
    else:
        mean = ratio * middle
        slope = float((weights * (walls - middle) * (times_us - mean)).sum()) / spread
        rest = _variance(times_us - mean - slope * (walls - middle), spent=2)
        reach = (whole - middle) ** 2 * float(weights.mean()) / spread
        missed = rest * (1 / count + reach)
        total_us = steps * (mean + slope * (whole - middle))
    error_us = steps * float(np.sqrt(missed * (1 - count / steps) + uneven))
    return Estimate(
        total_us=total_us, error_us=float(np.hypot(error_us, _doubt_us(walls, wall_us)))
    )


def _doubt_us(walls: Array, wall_us: Array) -> float:
    """Error for steps longer than any that was looked at.

    By how much they are may be all the part's or none of it: of what lies anywhere between, with
    the same chance, the standard deviation is this.
    """
    beyond_us = np.maximum(0.0, wall_us - walls.max()).sum()
    return float(beyond_us) / float(np.sqrt(12))


def _variance(rest: Array, *, spent: int) -> float:
    """Variance of what a fit with so many numbers left over; 0 where nothing can be left."""
    return float(np.sum(rest**2)) / (len(rest) - spent) if len(rest) > spent else 0.0
