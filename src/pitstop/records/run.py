"""What a training run left behind: the types that every other package uses.

RunRecord
└── RankRecord                 one file, one rank
    ├── Attempt ...            one process life; a resumed run has several
    ├── StepTable              one row a step: wall clock and spans, host and device
    │   └── StepTiming         one of its rows
    ├── Block ...              the same steps summarised 256 at a time
    ├── WindowTable            instead of steps, for a foreign log: one row a logged record
    ├── Timeline ...           where spans lay inside a few sampled steps
    ├── ScalarSeries ...       loss, learning rate, ... at the steps where they were read
    ├── Event ...              evaluation, checkpoint, start-up: outside steps
    ├── Reading ...            memory, load, machine, settings applied, ...: typed by store.decode
    └── Ending                 how it ended; None while it runs or when it was killed

Times are microseconds as the clock read them: sums of whole numbers are exact. NaN in a table
means "not recorded", never zero.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pitstop.records.distribution import Distribution
from pitstop.records.logs.windows import WindowTable

SCHEMA = 2

SpanPath = tuple[str, ...]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """How the wall clock of a host compares with that of the run's first rank, at the start."""

    reference: str
    """Host of the first rank."""
    offset_s: float
    """What must be added to this host's time to get the reference's."""
    error_s: float
    """The estimate is off by at most this: half of the shortest round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process that wrote to the record."""

    schema: int
    started_unix_s: float | None
    """When the attempt began, on the wall clock of its host."""
    rank: int
    local_rank: int
    world_size: int
    host: str | None
    pid: int | None
    python: str | None
    torch: str | None
    command: tuple[str, ...]
    about: Mapping[str, Any]
    """What else the writer said of itself: name, configuration, format of a foreign log."""
    clock: HostClock | None = None
    """None where it was not compared: ranks of one host share a clock."""

    @property
    def aligned_unix_s(self) -> float | None:
        """When the attempt began, on the clock of the run's first rank as far as it is known."""
        if self.started_unix_s is None or self.clock is None:
            return self.started_unix_s
        return self.started_unix_s + self.clock.offset_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """How one optimizer step spent its time. Microseconds throughout."""

    attempt: int
    index: int
    start_us: int
    """Since the attempt began."""
    wall_us: int
    """Border to border, less what was spent outside it (evaluation, checkpoints)."""
    outside_us: int
    samples: int | None
    micro_steps: int | None
    host_us: Mapping[SpanPath, int]
    """Inclusive host time by span; spans missing here were not recorded for this step."""
    device_wall_us: int | None
    device_us: Mapping[SpanPath, int]

    @property
    def unaccounted_us(self) -> int | None:
        """Wall clock that no span saw; counts top-level spans only, for they hold the others.

        None where no span was recorded: this step was not sampled.
        """
        if not self.host_us:
            return None
        return self.wall_us - sum(us for path, us in self.host_us.items() if len(path) == 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """All steps, column by column. NaN means that the row did not record that column."""

    paths: tuple[SpanPath, ...]
    """Columns of `host_us` and `device_us`."""
    attempt: Array
    index: Array
    start_us: Array
    wall_us: Array
    outside_us: Array
    samples: Array
    micro_steps: Array
    host_us: Array
    """Steps x paths, inclusive."""
    device_wall_us: Array
    device_us: Array

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> StepTiming:
        return StepTiming(
            attempt=int(self.attempt[row]),
            index=int(self.index[row]),
            start_us=int(self.start_us[row]),
            wall_us=int(self.wall_us[row]),
            outside_us=int(self.outside_us[row]),
            samples=_whole(self.samples[row]),
            micro_steps=_whole(self.micro_steps[row]),
            host_us=self._present(self.host_us[row]),
            device_wall_us=_whole(self.device_wall_us[row]),
            device_us=self._present(self.device_us[row]),
        )

    def __iter__(self) -> Iterator[StepTiming]:
        return (self[row] for row in range(len(self)))

    def _present(self, values: Array) -> dict[SpanPath, int]:
        pairs = zip(self.paths, values.tolist(), strict=True)
        return {path: int(value) for path, value in pairs if not math.isnan(value)}


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBlock:
    """One span over the steps of a block."""

    calls: int | None
    """How often it was opened; None when only rows without call counts are left."""
    host: Distribution
    device: Distribution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of consecutive steps, summarised while the run went on."""

    attempt: int
    first: int
    last: int
    start_us: int | None
    outside_us: int
    samples: int | None
    micro_steps: int | None
    broken: int
    """Spans whose end was never seen; their time is unaccounted."""
    wall: Distribution
    unaccounted: Distribution
    device_wall: Distribution | None
    spans: Mapping[SpanPath, SpanBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """One occurrence of a span inside a sampled step; microseconds since the step began."""

    path: SpanPath
    start_us: int
    end_us: int
    device_start_us: int | None
    device_end_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Where every span lay inside one sampled step."""

    attempt: int
    step: int
    spans: tuple[TimelineSpan, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalarSeries:
    """A value such as the loss, at the steps where it was read."""

    step: Array
    value: Array

    def by_step(self) -> dict[int, float | None]:
        """Give the value of every step; None where it is not a finite number."""
        pairs = zip(self.step.tolist(), self.value.tolist(), strict=True)
        return {int(step): value if math.isfinite(value) else None for step, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something outside steps, such as an evaluation; also a moment (`wall_us` 0)."""

    attempt: int
    name: str
    step: int
    start_us: int
    wall_us: int
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Any other recorded fact; `store.decode` gives it its type."""

    attempt: int
    kind: str
    at_us: int | None
    values: Mapping[str, Any]


Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the last attempt ended."""

    status: Status
    reason: str
    steps: int
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Everything one rank recorded."""

    attempts: tuple[Attempt, ...]
    paths: tuple[SpanPath, ...]
    """Every span that was named, in the order of first appearance."""
    blocks: tuple[Block, ...]
    """Covers every step, the last ones too."""
    steps: StepTable | None
    """None when the reader was asked for the summary only."""
    timelines: tuple[Timeline, ...] = ()
    scalars: Mapping[str, ScalarSeries] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    readings: tuple[Reading, ...] = ()
    ending: Ending | None = None
    notes: tuple[str, ...] = ()
    """What could not be read, and what that means."""
    windows: WindowTable | None = None
    """Records of a foreign log; None when the run was measured."""

    @property
    def rank(self) -> int:
        """This rank's number among the run's processes."""
        return self.attempts[-1].rank if self.attempts else 0

    @property
    def losses(self) -> dict[int, float | None]:
        """The training loss by step; None where it is not a finite number."""
        series = self.scalars.get("loss")
        return {} if series is None else series.by_step()

    @property
    def is_finished(self) -> bool:
        """Whether the last attempt wrote its ending; otherwise it runs or was killed."""
        return self.ending is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One training run: a record a rank."""

    source: str
    """File or folder it was read from."""
    ranks: tuple[RankRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> RankRecord:
        """The rank with the lowest number; runs have at least one."""
        return self.ranks[0]

    @property
    def is_finished(self) -> bool:
        """Whether every rank wrote its ending."""
        return all(rank.is_finished for rank in self.ranks)
