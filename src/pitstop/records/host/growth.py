"""Whether a size grows steadily: one line through its readings, for the doctor and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

# The first readings, in which buffers and caches still fill, as they do in every run.
WARM_UP_READINGS: Final = 3
# Fewer leave the error of the slope to chance: with ten degrees of freedom it is known to a third.
FEWEST_READINGS: Final = 12
# Less than an allocator keeps for itself: a run of hours would not feel it.
LEAST_GROWTH_BYTES: Final = 64 << 20
# Standard errors that the slope must lie above zero. Readings come by the hundred and each is a
# chance of a false warning, so the usual two would not do.
_SURE_OF_SLOPE: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A rise that noise does not explain. Rates are per unit of the readings' places."""

    rate: float
    error: float
    """Standard error of the rate."""
    total: float
    """From the first reading to the last."""


def steady_growth(
    at: Sequence[float] | np.ndarray, sizes: Sequence[int] | np.ndarray
) -> Growth | None:
    """Give how a size grows; None with too few readings, too little growth or too much noise."""
    if len(at) < FEWEST_READINGS:
        return None
    rate, error = line_slope(at, sizes)
    total = rate * float(at[-1] - at[0])
    if total < LEAST_GROWTH_BYTES or rate < _SURE_OF_SLOPE * error:
        return None
    return Growth(rate=rate, error=error, total=total)


def line_slope(
    at: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray
) -> tuple[float, float]:
    """Slope of the least-squares line, and its standard error."""
    xs, ys = np.asarray(at, dtype=float), np.asarray(values, dtype=float)
    # About their means: the sums of large numbers would lose the digits that the slope is made of.
    xs, ys = xs - xs.mean(), ys - ys.mean()
    spread = float(np.sum(xs**2))
    if not spread:
        return 0.0, float("inf")
    slope = float(np.sum(xs * ys)) / spread
    rest = ys - slope * xs
    return slope, float(np.sqrt(np.sum(rest**2) / max(1, len(xs) - 2) / spread))
