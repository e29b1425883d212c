"""From the sampled steps to all of them: an estimate of a part's time, with its error.

Of short steps only some are sampled, but the duration of all is known. So a part that
makes some steps longer (a log written every fifth step) is estimated by how it goes with the
length of the step, which says far more than the few steps alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.records.run import Array

Rows = np.ndarray[tuple[int], np.dtype[np.intp]]

# Where steps get longer or shorter, so does the share of them that is sampled; over so many steps
# it is one share, and the sampled ones stand for all.
_WINDOW: Final = 64

# Fewer steps than this give no slope.
_FEWEST_FOR_A_SLOPE: Final = 10

# Held by a single step to this degree, 1 being wholly, a line can be drawn but not be tried: what
# it would be without that step cannot be computed.
_HANGS_ON_ONE: Final = 1 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a part took in all steps together."""

    total_us: float
    error_us: float
    """One standard error, where the steps are taken for a sample of a longer run."""


def window_weights(sampled: Rows, steps: int) -> Array:
    """Let the sampled steps of each window stand for all steps of it."""
    window = sampled // _WINDOW
    there = np.bincount(np.arange(steps) // _WINDOW)
    found = np.bincount(window, minlength=len(there))
    return there[window] / np.maximum(1, found[window])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Steps of which some were sampled."""

    rows: Rows
    """Which of all steps these are."""
    weights: Array
    """For how many steps each of them stands."""
    in_proportion: bool = False
    """Whether parts are taken to be the same share of any step, however long."""


def estimate(times_us: Array, sample: Sample, wall_us: Array) -> Estimate:
    """Estimate a part's time over all steps from the sampled ones.

    Where all were it is their sum. Else the part is taken to grow with the length of its step:
    along a line where there are enough steps to draw one, else in proportion. Either is linear in
    the part, so that estimates of parts that add up to the wall clock do so, too.

    Args:
        times_us: Time of the part in each sampled step.
        sample: Which these are.
        wall_us: Wall clock of every step.
    """
    sampled, weights = sample.rows, sample.weights
    steps, count, walls = len(wall_us), len(sampled), wall_us[sampled]
    base = float((weights * walls).sum())
    if not base:
        return Estimate(total_us=0.0, error_us=0.0)
    ratio = float((weights * times_us).sum()) / base
    uneven = steps * _variance(times_us - ratio * walls)
    if count == steps:
        return Estimate(total_us=float(times_us.sum()), error_us=float(np.sqrt(uneven)))
    longer = walls - base / float(weights.sum())
    if not sample.in_proportion and _has_a_slope(longer, weights):
        shape = np.column_stack((np.ones(count), longer))
        reach = np.array((steps, float(wall_us.sum()) - steps * base / float(weights.sum())))
        total_us, pulls_us = _fitted(times_us, shape, weights, reach)
    else:
        even = weights / np.maximum(1.0, walls)
        reach = wall_us.sum(keepdims=True)
        total_us, pulls_us = _fitted(times_us, walls[:, None], even, reach)
    # The jackknife: what a fit leaves over is nothing at a step that alone draws it to itself.
    missed = (count - 1) * float(pulls_us.var())
    error_us = float(np.sqrt(missed * (1 - count / steps) + uneven))
    return Estimate(
        total_us=total_us, error_us=float(np.hypot(error_us, _doubt_us(walls, wall_us)))
    )


def _has_a_slope(longer: Array, weights: Array) -> bool:
    """Whether there are enough steps for a line, and it would not hang on a single one."""
    if len(longer) < _FEWEST_FOR_A_SLOPE or not np.ptp(longer):
        return False
    squares = weights * longer**2
    return float((weights / weights.sum() + squares / squares.sum()).max()) < _HANGS_ON_ONE


def _fitted(times_us: Array, shape: Array, weights: Array, reach: Array) -> tuple[float, Array]:
    """Fit a part's times by least squares, and sum the fit over all steps.

    Args:
        times_us: Time of the part in each sampled step.
        shape: What it is taken to be made of, in each of these steps.
        weights: Of these steps.
        reach: Of what it is taken to be made of, the sum over all steps.

    Returns:
        The sum, and by how much each sampled step moved it.
    """
    weighted = weights[:, None] * shape
    solved = np.linalg.solve(shape.T @ weighted, weighted.T)
    rest_us = times_us - shape @ (solved @ times_us)
    free = np.maximum(1 - (shape * solved.T).sum(axis=1), 1 - _HANGS_ON_ONE)
    return float(reach @ solved @ times_us), (reach @ solved) * rest_us / free


def _doubt_us(walls: Array, wall_us: Array) -> float:
    """Error for steps longer than any that was sampled.

    By how much they are may be all the part's or none of it: of what lies anywhere between, with
    the same chance, the standard deviation is this.
    """
    beyond_us = np.maximum(0.0, wall_us - walls.max()).sum()
    return float(beyond_us) / float(np.sqrt(12))


def _variance(rest: Array) -> float:
    """Variance of what one ratio left over; 0 where nothing can be left."""
    return float(np.sum(rest**2)) / (len(rest) - 1) if len(rest) > 1 else 0.0
