"""What a training log tells of its run: one row a logged record, not one a step.

RankRecord.windows
└── WindowTable                one row a record; NaN means that the log does not tell
    ├── columns: ColumnNote    what the numbers of a column mean, and where they come from
    └── log: LogSource         format and confidence, files, batch size, totals, ...
        └── Disagreement ...   where a printed number is not what its name says

A log prints means, smoothed rates and totals under the same few names. So every column says which
of these it holds, and a number that was not printed says by which formula it was rebuilt.

What lies outside steps is in ``RankRecord.events``: start-up, epoch boundary, evaluation,
checkpoint, resume. There ``detail["formula"]`` says how the duration is known, and is missing when
it is not (then ``wall_us`` is 0). ``start_us`` counts from the log's first timestamp, and is 0
without a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

Kind = Literal[
    "train", "first", "epoch start", "after eval", "after checkpoint", "epoch", "eval", "doubtful"
]
"""What a row covers.

train             training steps and nothing else, as far as the log tells
first             the first record of an attempt: start-up is in it
epoch start       the first record of an epoch: the loader's start is in it
after eval        training steps whose time may hold an evaluation
after checkpoint  training steps whose time may hold a checkpoint
epoch             a summary of a whole epoch, whose steps other rows may cover as well
eval              an evaluation
doubtful          training steps whose times contradict themselves; the log's notes say how
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

TRAINING: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in {"epoch", "eval"})
"""Kinds of rows that cover training steps, each step once."""

Meaning = Literal[
    "window mean", "running mean of the epoch", "running mean of the run", "last step",
    "per epoch", "median of the window", "total", "not known",
]  # fmt: skip
"""What a printed number sums up. ``total`` is a sum or a state at that moment (peak memory)."""

Origin = Literal["printed", "rebuilt", "not in the log"]

CLOCK = "h:m:s"
"""Unit of a quoted duration that is printed with colons; its value is in seconds."""

APART = "losses come without the bar between them: their steps and number are not known"
"""Note of a log whose bar stands elsewhere in the file."""

THINNED = "very many values: "
"""Begins the note that not every point of a curve was kept."""

COLUMNS = (
    "attempt",
    "epoch",
    "first_step",
    "last_step",
    "at_s",
    "step_s",
    "printed_step_s",
    "data_s",
    "samples_per_s",
    "lr",
    "memory_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNote:
    """What the numbers of one column mean, and where they come from."""

    meaning: Meaning
    source: Origin
    formula: str = ""
    """How it was rebuilt, or the name under which it was printed."""


NOT_IN_THE_LOG = ColumnNote(meaning="not known", source="not in the log")

DisagreementCode = Literal[
    "start-up in the mean",
    "epoch named batch",
    "mean hides spikes",
    "fewer steps than announced",
    "clock went back",
    "steps went back",
    "printed differs from clock",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A printed number that is not what its name says, beside what the log itself shows."""

    code: DisagreementCode
    message: str
    """What was printed, what it is, and by which formula; for people."""
    printed: float | None = None
    rebuilt: float | None = None
    unit: str = ""
    """Of both numbers, for instance ``"s"`` or ``"step/s"``."""
    extra_s: float | None = None
    """Time that the printed number hides or holds in excess, such as loader start-up."""
    attempt: int = 0
    step: int | None = None
    """Where it shows first, as the log counts steps."""
    times: int = 1
    """In how many records; the numbers above are of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldQuote:
    """One number that lines print, quoted: nothing is worked out from it."""

    name: str
    role: str
    """What its name and unit say it is: ``"step"``, ``"loss"``, ``"time"``, ..."""
    unit: str
    """As printed behind it; empty without one."""
    lines: int
    """On how many lines it stands."""
    first: float | None
    """None where no finite number is printed."""
    last: float | None
    middle: float | None = None
    """Median of a time; None of other numbers."""
    falls: int | None = None
    """Of a count: how often it is lower than on the line before; None of other numbers."""
    most: float | None = None
    """Of a count: the highest; None of other numbers."""
    total: float | None = None
    """Behind its slash, where that is the same on every line."""


def finite_or_none(value: float) -> float | None:
    """Give a number that a record can hold: no NaN, nothing endless."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineKind:
    """Lines that differ in their numbers, or in a field more or less."""

    example: str
    lines: int
    phase: str
    """``"evaluation"`` where their words say so."""
    fields: tuple[FieldQuote, ...]
    others: tuple[str, ...] = ()
    """Names of further fields."""
    apart_s: tuple[float, float, float] | None = None
    """Quartiles of the time from one of them to the next, by their timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unquoted:
    """Lines that print something of a training and are not quoted."""

    lines: int
    is_least: bool
    """Whether there may be more, of forms that came once."""
    names: tuple[str, ...]
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """What is known of a foreign log as a whole. None means that the log does not tell."""

    format: str
    """Name of the reader, such as ``"mmcv text"``; several are joined by `` + ``."""
    confidence: float
    """0 to 1: how sure it is that this is the format; 1 when the caller named it."""
    defined_by: str
    """Repository and file whose source defines the format."""
    version: str | None = None
    """Which variant of the format, where the text tells."""
    is_count_defined: bool = True
    """Whether the tool that wrote the log counts steps itself, or the caller said what does; a
    bar, an event file and an author's own lines count whatever their author likes."""
    mentions: tuple[str, ...] = ()
    """What the file speaks of anywhere, in words or times, whether it was understood or not."""
    files: tuple[str, ...] = ()
    batch_size: int | None = None
    """Samples of one optimizer step on one rank."""
    batch_size_from: str | None = None
    """``"given"``, or where the log says it."""
    world_size: int | None = None
    world_size_from: str | None = None
    workers: int | None = None
    """Loader workers of one rank, where the log says it."""
    steps_per_epoch: int | None = None
    """As the records show, not as announced, where both are known."""
    total_steps: int | None = None
    total_epochs: int | None = None
    started: str | None = None
    """First timestamp, as printed. Logs give local time, some without a year."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings found in a configuration dump at the head of the log; values as printed."""
    disagreements: tuple[Disagreement, ...] = ()
    quoted: tuple[LineKind, ...] = ()
    """Lines of a format that no tool defines."""
    unquoted: Unquoted | None = None
    """What else is in the file under the words of a training."""
    notes: tuple[str, ...] = ()
    """What could not be read or is not known, and what that means."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTable:
    """All records of a log, column by column; NaN means "the log does not tell".

    Steps are counted as the log counts them. Rows stand in the order in which they were written.
    """

    log: LogSource
    kind: npt.NDArray[np.str_]
    """One of `KINDS` a row."""
    attempt: Array
    epoch: Array
    first_step: Array
    """First and last step covered, counted over the whole run."""
    last_step: Array
    at_s: Array
    """Seconds since the log's first timestamp, when the record was written."""
    step_s: Array
    """Mean wall clock of one step: printed where the print is a window mean, else rebuilt."""
    printed_step_s: Array
    """What the log prints as time of a step, whatever it means; see its `ColumnNote`."""
    data_s: Array
    """Mean wait for data in one step."""
    samples_per_s: Array
    """As printed; never computed from `step_s`."""
    lr: Array
    memory_bytes: Array
    columns: Mapping[str, ColumnNote] = field(default_factory=dict)
    """By column name; a column that is missing here is not in the log."""

    def __len__(self) -> int:
        return len(self.kind)

    def note(self, column: str) -> ColumnNote:
        """Say what a column's numbers mean and where they come from."""
        return self.columns.get(column, NOT_IN_THE_LOG)

    @property
    def steps(self) -> Array:
        """Steps that each row covers."""
        return self.last_step - self.first_step + 1

    @property
    def is_steady(self) -> npt.NDArray[np.bool_]:
        """Rows that cover training steps alone and know their time: what to take medians of."""
        return (self.kind == "train") & np.isfinite(self.step_s)

    def of_kind(self, *kinds: Kind) -> npt.NDArray[np.bool_]:
        """Mark the rows of some kinds."""
        return np.isin(self.kind, kinds)
