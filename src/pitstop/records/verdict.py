"""What was judged: findings with evidence and a bound, and one verdict over them.

Gains are bounded by Amdahl's law on measured shares of the wall clock: removing a part that takes
the share s of the time makes the run at most 1 / (1 - s) times as fast, or 1 / (1 - s - q) where
what remains may get shorter by the share q. Shares of disjoint parts add; speed-ups never multiply.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pitstop.records.headroom import Headroom
from pitstop.records.module_table import ModuleTable

Severity = Literal["info", "warning", "critical"]
Confidence = Literal["high", "low"]
Outcome = Literal["bottleneck", "healthy", "not enough evidence"]

WALL_CLOCK: Final = "wall clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that fixing one thing can give."""

    part: str
    """What would go; bounds of the same part overlap, those of others add."""
    share: float
    """Share of the wall clock that would go at most, 0 to 1; measured."""
    error: float = 0.0
    """One standard error of the share; 0 where it is not known."""
    cpu_headroom_share: float = 0.0
    """Share of the wall clock by which what remains may get shorter besides; measured as well."""
    pool: str = WALL_CLOCK
    """Time it is taken from: the host may waste what the device idles, and no more than that."""
    pool_share: float = 1.0
    """All of the pool, as a share of the wall clock: what its bounds give together at most."""
    speedup: float | None = None
    """How many times as fast the run becomes at most; None when nothing would remain. It follows
    from the shares, whatever is given here."""

    def __post_init__(self) -> None:
        """Refuse a share that is none; work out the speed-up."""
        for share in (self.share, self.cpu_headroom_share, self.saved_share, self.pool_share):
            if not 0 <= share <= 1:
                raise ValueError(f"a share lies between 0 and 1, not at {share}")
        speedup = None if self.saved_share >= 1 else 1 / (1 - self.saved_share)
        object.__setattr__(self, "speedup", speedup)

    @property
    def saved_share(self) -> float:
        """Share of the wall clock that the run gets shorter by, at most."""
        return self.share + self.cpu_headroom_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that holds a run back, or that a reader must know of."""

    code: str
    """Stable name such as ``DATA001``; docs/findings has a page of that name."""
    severity: Severity
    summary: str
    """One message, in lower case, without a full stop."""
    evidence: tuple[str, ...]
    """The numbers behind it, with spread."""
    bound: Bound | None
    """None when fixing it gains no time, or when the gain is not known."""
    remedy: tuple[str, ...]
    """What to change, most effective first."""
    doubts: tuple[str, ...] = ()
    """Measurements of the same thing that disagree with it, and what it needs and nobody took."""
    confidence: Confidence = "high"
    """Low where there are doubts, whatever is given here."""

    def __post_init__(self) -> None:
        """Trust a finding less that something contradicts."""
        object.__setattr__(self, "confidence", "low" if self.doubts else "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class CumulativeGain:
    """What fixing the first findings gives together."""

    code: str
    """The finding that this gain adds to those before it."""
    bound: Bound
    """Of this one and all before it: shares of the time that is left, never a product."""
    hours_saved: float | None
    """Over the whole training; None where its length is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """What leaving a part out of the script really gave."""

    part: str
    """What was left out: ``"data"``, ``"sync"`` or ``"log"``."""
    predicted: float | None
    """How many times as fast the run was said to become at most; None where nothing was said."""
    measured: float | None = None
    """How many times as fast it was, all counted time taken; None where too little was seen."""
    low: float | None = None
    """Between low and high it lies with 99 % confidence; no upper end where none is known."""
    high: float | None = None
    steps: int = 0
    """Counted steps without the part."""
    left: tuple[str, ...] = ()
    """What of the part was there all the same, by the finding that the second run gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement over a run."""

    outcome: Outcome
    message: str
    """The verdict in one message."""
    findings: tuple[Finding, ...]
    """The primary one first, then by the size of their bounds."""
    verdict: str = ""
    """Name of the primary bottleneck, such as ``input-bound``; else the outcome."""
    primary: str | None = None
    """Code of the finding that decided it."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the wall clock after warm-up: parts of the step, time outside steps, and
    ``unaccounted``; adds up to 1."""
    combined_bound: Bound | None = None
    """The most that fixing every warning and every critical finding could give."""
    cumulative_gains: tuple[CumulativeGain, ...] = ()
    """Fixing one of these after the other, in the order given."""
    whole_run_hours: float | None = None
    """The whole training at the measured throughput; None where its length is not known."""
    steps: int = 0
    """Steps the verdict rests on, warm-up left out."""
    rank: int = 0
    """Rank the verdict rests on: the slowest, for the others wait for it."""
    start_up_s: float | None = None
    """Spent before the first step, as far as the record tells; no part of the shares."""
    start_up_parts_s: Mapping[str, float] = field(default_factory=dict)
    """What start-up went into, as far as that is known; adds up to all of it."""
    headroom: Headroom | None = None
    """The step against its device; None where too little was measured."""
    modules: ModuleTable | None = None
    """Parts of the model; None where they were not timed."""
    not_sampled: tuple[str, ...] = ()
    """What was to be sampled and was not, each with the reason."""
    notes: tuple[str, ...] = ()
    """What the record does not hold."""
    ablation: Ablation | None = None
    """A bound put to the test; None where nobody asked for it."""

    def __post_init__(self) -> None:
        """Call a verdict without a name by its outcome."""
        if not self.verdict:
            object.__setattr__(self, "verdict", self.outcome)
