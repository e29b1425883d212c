"""Long series made short for drawing: a few hundred windows, each with its extremes."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from pitstop.records.run import Array

MOST_POINTS: Final = 240
# A scale needs space beyond its ends, which the largest numbers leave none for.
_MOST: Final = 1e307


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Values over steps or seconds; every value lies between its window's low and high."""

    x: Array
    """Middle of each window."""
    low: Array
    middle: Array
    """Median of each window."""
    high: Array
    values: int
    """Finite values behind it."""
    missing: int
    """Values that were not finite, or too large for any scale, and are in no window."""
    first_x: float
    """Where the first value lies, which is not the middle of its window."""
    last_x: float

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_shortened(self) -> bool:
        """Whether windows hold more than one value each."""
        return self.values > len(self.x)


def shortened(x: Array, values: Array, *, most: int = MOST_POINTS) -> Series:
    """Cut a series into at most `most` windows of equally many values, in the order of `x`."""
    # A damaged record may hold whole numbers that no 64 bits can.
    x, values = np.asarray(x, dtype=float), np.asarray(values, dtype=float)
    known = (np.abs(values) <= _MOST) & (np.abs(x) <= _MOST)
    order = np.argsort(x[known], kind="stable")
    x_known, y_known = x[known][order], values[known][order]
    count = len(y_known)
    pairs = _windows(count, most)
    return Series(
        x=np.array([(x_known[a] + x_known[b - 1]) / 2 for a, b in pairs]),
        low=np.array([y_known[a:b].min() for a, b in pairs]),
        middle=np.array([np.median(y_known[a:b]) for a, b in pairs]),
        high=np.array([y_known[a:b].max() for a, b in pairs]),
        values=count,
        missing=int(len(values) - count),
        first_x=float(x_known[0]) if count else 0.0,
        last_x=float(x_known[-1]) if count else 0.0,
    )


def _windows(count: int, most: int) -> list[tuple[int, int]]:
    """Cut so many values into at most `most` windows: the first of each, and the one behind it."""
    borders = np.linspace(0, count, min(most, count) + 1).astype(int).tolist()
    return list(pairwise(borders))


def rates(x: Array, amounts: Array, times: Array, *, most: int = MOST_POINTS) -> Series:
    """Amount over time in each window, each window's sums taken first: a mean on the clock."""
    known = np.isfinite(amounts) & np.isfinite(times)
    x_known, amount, time = x[known], amounts[known], times[known]
    count = len(amount)
    pairs = _windows(count, most)
    spent = np.array([time[a:b].sum() for a, b in pairs])
    made = np.array([amount[a:b].sum() for a, b in pairs])
    rate = np.divide(made, spent, out=np.full(len(pairs), np.nan), where=spent > 0)
    middles = np.array([(x_known[a] + x_known[b - 1]) / 2 for a, b in pairs])
    kept = np.isfinite(rate)
    return Series(
        x=middles[kept],
        low=rate[kept],
        middle=rate[kept],
        high=rate[kept],
        values=count,
        missing=int(len(amounts) - count),
        first_x=float(x_known[0]) if count else 0.0,
        last_x=float(x_known[-1]) if count else 0.0,
    )
