"""A value over a whole run in a few hundred numbers, however long the run is."""

import math
from typing import Final

MOST_POINTS: Final = 480


class MeansOverTime:
    """Takes values one by one; neighbours are joined by their mean where there are too many."""

    def __init__(self) -> None:
        self._means: list[tuple[int, float]] = []
        self._values_each = 1
        self._sum = 0.0
        self._count = 0
        self.last: tuple[int, float] | None = None
        """Step and value of the latest one, finite or not."""
        self.missing = 0
        """Values that were not finite; no mean holds them."""
        self.first_missing: int | None = None
        """Step of the first of those."""

    def add(self, step: int, value: float) -> None:
        """Take the next value."""
        self.last = (step, value)
        if not math.isfinite(value):
            self.missing += 1
            self.first_missing = step if self.first_missing is None else self.first_missing
            return
        self._sum += value
        self._count += 1
        if self._count == self._values_each:
            self._means.append((step, self._sum / self._count))
            self._sum, self._count = 0.0, 0
        if len(self._means) == MOST_POINTS:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(step, (one + other) / 2) for (_, one), (step, other) in pairs]
            self._values_each *= 2

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """Last step and mean of equally many values each; the last one may be of fewer."""
        if not self._count or self.last is None:
            return tuple(self._means)
        return (*self._means, (self.last[0], self._sum / self._count))
