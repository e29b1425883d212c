"""Logs side by side, on samples per second at steady state, or the reason why they cannot be.

Iterations per second say nothing while their batches differ: 7.45 it/s of 4 samples and 3.64 it/s
of 8 are 29.8 and 29.1 samples/s.
"""

from dataclasses import dataclass
from typing import Literal

from pitstop.records.logs.summary import LogExamination, Steady

Result = Literal["faster", "slower", "no difference beyond noise", "not comparable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPair:
    """One log against the first of the list."""

    source: str
    result: Result
    """Of this log against the first; a difference within noise is none."""
    message: str
    """The result with its numbers, or why there is none and what to do."""
    basis: str
    """What the compared numbers are, such as samples/s of all ranks; empty without any."""
    reference: Steady | None
    """The first log's number."""
    rate: Steady | None
    """This log's number."""
    ratio: float | None
    """``rate`` over ``reference``, of the medians."""
    low: float | None
    """Least and largest ratio that the interquartile ranges of both allow."""
    high: float | None
    step_ratio: float | None
    """Its steps/s over the first's: what a bar shows, and no speed while batches differ."""
    notes: tuple[str, ...] = ()
    """What else differs between the two and may be the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """Several logs, each examined, and each but the first compared with the first."""

    logs: tuple[LogExamination, ...]
    pairs: tuple[LogPair, ...]
