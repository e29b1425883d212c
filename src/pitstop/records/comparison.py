"""Two runs of the same work side by side: which is faster, and in which parts."""

from dataclasses import dataclass
from statistics import median, median_low
from typing import Literal

from pitstop.records.units import speedup_text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedGain:
    """Two ways to do the same work, measured in turns. Seconds a step, what lies between included.

    Terminal and page take their sentence from here, so that they cannot disagree.
    """

    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    """In the order of `before_s`: those of one place make a pair."""
    steps: int
    """Steps of each run that were counted."""

    @property
    def speedups(self) -> tuple[float, ...]:
        """How many times as fast the second is, pair by pair."""
        return tuple(old / new for old, new in zip(self.before_s, self.after_s, strict=True))

    @property
    def middle(self) -> int:
        """Place of the pair that is shown: the one with the median speed-up."""
        return self.speedups.index(median_low(self.speedups))

    @property
    def change(self) -> Change:
        """A gain, or a loss, is one that every pair shows."""
        if min(self.speedups) > 1:
            return "faster"
        return "slower" if max(self.speedups) < 1 else "no difference beyond noise"

    @property
    def message(self) -> str:
        """The median with the range of all pairs; the range alone where pairs disagree."""
        found = self.speedups
        spread = f"{speedup_text(min(found))} to {speedup_text(max(found))} in {len(found)} pairs"
        if self.change == "no difference beyond noise":
            return f"no gain beyond noise: {spread}"
        if self.change == "slower":
            return f"{speedup_text(median(found))} as fast as before ({spread}; measured)"
        return f"{speedup_text(median(found))} faster ({spread}; measured)"
