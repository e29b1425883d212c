"""Which changes of a table of gains are faster beyond the noise of its turns."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

Change = tuple[int, int]
"""The place of a knob and that of its choice."""

_SURE: Final = 1.3
"""Standard errors by which a change must be faster. In made studies without any gain something is
kept in 4 of 100, as often as where each change had to be faster in every turn; of gains of 1.5, 1.2
and 1.1 three quarters stay at a noise of 15 % a trial, where 59 % did."""


@dataclass(slots=True)
class Evidence:
    """What all turns so far said of each change, as logarithms of its gain."""

    _gains: dict[Change, list[float]] = field(default_factory=dict)

    def add(self, change: Change, ratios: Sequence[float]) -> None:
        """Keep how much faster a change was, turn by turn; 0 where it could not be run."""
        logarithms = [math.log(ratio) if ratio > 0 else -math.inf for ratio in ratios]
        self._gains.setdefault(change, []).extend(logarithms)

    def unsure(self, changes: Sequence[Change], together: Sequence[float]) -> list[Change]:
        """Name the changes of a table that are not faster beyond noise.

        Where each of them is, all of them together must be faster in every turn, or the one that is
        least sure is named: nobody is asked to edit code for noise.
        """
        error = self._error_of_one(changes)
        sureness = {change: self._sureness(change, error) for change in changes}
        unsure = [change for change in changes if sureness[change] <= _SURE]
        if unsure or not changes or min(together) > 1:
            return unsure
        return [min(changes, key=lambda change: sureness[change])]

    def _error_of_one(self, changes: Sequence[Change]) -> float:
        """Give the standard deviation of one turn of one change, taken over all."""
        known = [self._gains[change] for change in changes if -math.inf not in self._gains[change]]
        squares = [(gain - statistics.fmean(gains)) ** 2 for gains in known for gain in gains]
        freedom = len(squares) - len(known)
        return math.sqrt(sum(squares) / freedom) if freedom else 0.0

    def _sureness(self, change: Change, error: float) -> float:
        """Give the mean gain of a change in standard errors."""
        gains = self._gains[change]
        mean = statistics.fmean(gains)
        if error == 0 or math.isinf(mean):
            return math.copysign(math.inf, mean) if mean else 0.0
        return mean / (error / math.sqrt(len(gains)))
