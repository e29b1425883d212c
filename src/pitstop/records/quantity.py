"""The two kinds of number: measured, with its spread, and estimated, with its error."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number that was measured: the middle of the repeats, and how far they spread.

    A single reading has ``samples == 1`` and ``low == value == high``: no spread is known then.
    """

    value: float
    """Median of the repeats, in ``unit``."""
    unit: str
    """What one means, for instance ``"B/s"``, ``"FLOP/s"``, ``"image/s"``; never with a prefix."""
    low: float
    """Smallest repeat, in ``unit``."""
    high: float
    """Largest repeat, in ``unit``."""
    samples: int
    """How many repeats stand behind the three numbers."""

    def __post_init__(self) -> None:
        """Refuse a spread that does not contain its own middle."""
        if self.samples < 1 or not self.low <= self.value <= self.high:
            raise ValueError(
                f"not a measurement: {self.low} <= {self.value} <= {self.high} "
                f"of {self.samples} samples"
            )

    @property
    def spread(self) -> float | None:
        """Distance from lowest to highest as a share of the value; None for a single reading."""
        if self.samples < 2 or self.value == 0:
            return None
        return (self.high - self.low) / abs(self.value)


def measured(repeats: Sequence[float], unit: str) -> Measured | None:
    """Sum up repeats of one measurement; None when there are none or one is not a finite number."""
    if not repeats or not all(math.isfinite(repeat) for repeat in repeats):
        return None
    return Measured(
        value=statistics.median(repeats),
        unit=unit,
        low=min(repeats),
        high=max(repeats),
        samples=len(repeats),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A number that was reasoned out rather than measured; never shown without its error."""

    value: float
    """Best guess, in ``unit``."""
    unit: str
    """What one means, spelt as in :class:`Measured`."""
    error: float
    """Half width of the interval the truth is believed to lie in, in ``unit``."""

    def __post_init__(self) -> None:
        """Refuse an estimate that hides its error."""
        if not (math.isfinite(self.error) and self.error >= 0):
            raise ValueError(f"an estimate needs an error of zero or more, not {self.error}")
