"""What was judged: findings with evidence and a bound, and one verdict over them.

Gains are bounded by Amdahl's law on measured shares of the wall clock: removing a part that takes
the share s of the time makes the run at most 1 / (1 - s) times as fast. Shares of disjoint parts
add; speed-ups never multiply.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "warning", "critical"]
Outcome = Literal["bottleneck", "healthy", "not enough evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that mending one thing can give."""

    part: str
    """Span whose time would go; bounds of the same part overlap, those of others add."""
    share: float
    """Share of the wall clock that would go at most, 0 to 1; measured."""

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if not 0 <= self.share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not at {self.share}")

    @property
    def speedup(self) -> float | None:
        """How many times as fast the run becomes at most; None when nothing would remain."""
        return None if self.share >= 1 else 1 / (1 - self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that holds a run back, or that a reader must know of."""

    code: str
    """Stable name such as ``DATA001``."""
    severity: Severity
    summary: str
    """One sentence, in lower case, without a full stop."""
    evidence: tuple[str, ...]
    """The numbers behind it, with spread."""
    bound: Bound | None
    """None when mending it gains no time, or when the gain is not known."""
    remedy: tuple[str, ...]
    """What to change, most effective first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement over a run."""

    outcome: Outcome
    sentence: str
    """The verdict in one sentence."""
    findings: tuple[Finding, ...]
    """Largest bound first."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the wall clock by top-level part, ``unaccounted`` among them; adds up to 1."""
    combined_bound: Bound | None = None
    """What mending every finding could give at most."""
    steps: int = 0
    """Steps the verdict rests on, warm-up left out."""
    rank: int = 0
    """Rank the verdict rests on: the slowest, for the others wait for it."""
    notes: tuple[str, ...] = ()
    """What the record does not hold."""
