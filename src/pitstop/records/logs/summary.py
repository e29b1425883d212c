"""A foreign log in a few numbers: what it is, how fast it ran, and what it does not tell.

LogExamination
├── LogSummary        format, steady state, time outside steps, what is left to do, gaps
└── Verdict           the findings over it

Every number carries its formula: where it was printed and as what, or how it was rebuilt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pitstop.records.logs.windows import ColumnNote, LineKind, Unquoted
from pitstop.records.quantity import Estimated
from pitstop.records.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A number at steady state: the median over records, and their interquartile range."""

    middle: float
    """Median in ``unit``; each record counts as often as it covers steps."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    unit: str
    windows: int
    """Records behind the three numbers."""
    steps: int | None
    """Training steps that these records cover; None where the log does not count them."""
    formula: str
    """Where the numbers come from, as text that fits "median of 40 windows; ..."."""

    def __post_init__(self) -> None:
        """Refuse quartiles that are out of order."""
        if self.windows < 1 or not self.low <= self.middle <= self.high:
            raise ValueError(
                f"not quartiles: {self.low} <= {self.middle} <= {self.high} of {self.windows}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTotal:
    """All events of one name that the log tells of."""

    count: int
    timed: int
    """Of these, how many have a known duration."""
    total_s: float
    """Of the timed ones."""
    share: float | None
    """``total_s`` over the run without its start-up (of start-up itself: over all of it); None
    where nothing is timed or the run's time is not known."""
    formula: str
    """How the durations are known; empty where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """What is left of a run, estimated from its own step times."""

    steps: int
    """Steps left."""
    seconds: Estimated
    formula: str
    trend: float | None
    """Recent step time over the first third's: above 1 the end moves away; None when too short."""
    is_least: bool = False
    """Whether no clock tells the run's time: what is not timed between steps comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """What one log says of its run. None means "not in the log"."""

    source: str
    format: str
    confidence: float
    defined_by: str
    version: str | None
    records: int | None
    """Rows read, evaluations and epoch summaries among them; None where lines are quoted."""
    attempts: int | None
    """None where nothing says how many processes wrote into the file."""
    first_step: int | None
    last_step: int | None
    total_steps: int | None
    batch_size: int | None
    batch_size_from: str | None
    world_size: int | None
    world_size_from: str | None
    step: Steady | None
    """Steady wall clock of one step."""
    rate: Steady | None
    """Steady samples/s of all ranks, or of one rank where the number of ranks is not known."""
    rate_gap: str | None
    """What to give so that samples/s become known; None where they are."""
    data_wait: Steady | None
    data_share: float | None
    """Wait for data over step time, at steady state."""
    run_s: float | None
    """Wall clock of the run so far, start-up too; the least of it where no clock tells."""
    run_formula: str
    start_up_s: float
    """Of ``run_s``, known to have gone by before the steps were steady."""
    events: Mapping[str, EventTotal]
    eta: Eta | None
    meanings: Mapping[str, ColumnNote]
    """What the numbers of each column mean, those of the log only."""
    gaps: tuple[str, ...]
    """What the log does not hold; not said of a format that no tool defines."""
    quoted: tuple[LineKind, ...] = ()
    """What lines of such a format print, as they print it."""
    unquoted: Unquoted | None = None
    """What else stands in the file under the words of a training."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExamination:
    """One log, summed up and judged."""

    summary: LogSummary
    verdict: Verdict
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the log prints at its head; values as printed."""
