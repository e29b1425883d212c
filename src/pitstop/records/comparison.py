"""Two runs of the same work side by side: which is faster, and in which parts."""

from dataclasses import dataclass
from typing import Literal

Change = Literal["slower", "faster", "no difference beyond noise", "not enough evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunThroughput:
    """How fast one run was after warm-up, on the rank that the others wait for."""

    source: str
    """File or folder it was read from."""
    rank: int
    steps: int
    step_s: float
    """Wall clock of a step, the mean of the medians of ten windows: what ratios are made of."""
    run_s: float
    """Mean time from step to step, time outside steps included."""
    samples_per_s: float | None
    """Over all ranks, on the wall clock, time outside steps included; None where not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Time of the second run over time of the first; above 1 is slower."""

    value: float
    low: float
    """Between low and high it lies with 99 % confidence, from how the runs' own windows vary."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """One part in both runs: mean time a step. Seconds."""

    part: str
    before_s: float | None
    """None where the run did not measure it."""
    after_s: float | None
    low_s: float | None
    """Between low and high the difference lies with 99 % confidence."""
    high_s: float | None
    beyond_noise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs of the same work."""

    change: Change
    message: str
    before: RunThroughput
    after: RunThroughput
    step: Ratio | None
    """Of `RunThroughput.step_s`; None where there are too few steps."""
    run: Ratio | None
    """Of `RunThroughput.run_s`, time outside steps included; None where there are too few steps."""
    parts: tuple[PartChange, ...]
    """Largest change first."""
    same_work: tuple[str, ...]
    """What was found equal in both."""
    not_checked: tuple[str, ...]
    """What one record or both do not tell, so that it may differ."""
    notes: tuple[str, ...] = ()
