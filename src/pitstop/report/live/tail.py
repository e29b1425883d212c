"""A run's files while they grow: only what is new is read, and only what is shown is kept.

RunTail                    a folder, or one file
└── FileTail               one rank's file: opens it to read, closes it again, takes no lock
    └── RankTail           what its lines said: totals of the past, the last steps, the latest facts

What `RankTail` keeps has a bounded size, so the millionth step costs as much as the first. Its
lines are understood by `pitstop.records.reader`; here only their beginning is read.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from pitstop.errors import RecordError
from pitstop.records.distribution import EMPTY, Distribution, merge
from pitstop.records.files import open_regular
from pitstop.records.host.nodes import RANK_FILES
from pitstop.records.reader import MOST_LINE_BYTES
from pitstop.records.run import Attempt, Block, Ending, Event, RankRecord, Reading, StepTable
from pitstop.records.store import OUTSIDE
from pitstop.report.live.over_time import MeansOverTime
from pitstop.report.live.steps import StepWindow, read_lines

_CHUNK_BYTES: Final = 1 << 22
_HEAD_BYTES: Final = 512
_MOST_EVENTS: Final = 512
_MOST_READINGS: Final = 128
# More are not what a training writes.
_MOST_NAMES: Final = 512  # of readings, events and metrics, each
MOST_NAMING_LINES: Final = 4096
_EVALUATED: Final = "eval/"

_RUN: Final = b'{"kind":"run"'
_NAMES: Final = (b'{"kind":"span"', b'{"kind":"layout"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Blocks of the present attempt, added up from the second on: the first holds warm-up."""

    blocks: int = 0
    """All of them."""
    steps: int = 0
    wall: Distribution = EMPTY
    outside_us: int = 0
    samples: int | None = 0
    """None where some block did not count them."""
    last: Block | None = None

    def with_block(self, block: Block) -> "Past":
        """Add a block."""
        if not self.blocks:
            return Past(blocks=1, last=block)
        samples = None
        if self.samples is not None and block.samples is not None:
            samples = self.samples + block.samples
        return Past(
            blocks=self.blocks + 1,
            steps=self.steps + block.wall.count,
            wall=merge((self.wall, block.wall)),
            outside_us=self.outside_us + block.outside_us,
            samples=samples,
            last=block,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that was taken."""

    step: int
    path: str


class RankTail:
    """What the lines of one rank's file have said so far."""

    def __init__(self) -> None:
        self._torn = b""
        self._seen_line = False
        self._names: list[bytes] = []  # run, span and layout lines of the present attempt
        self._steps = StepWindow()
        self._new: list[bytes] = []
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.notes: tuple[str, ...] = ()
        self.ending: Ending | None = None
        self.past = Past()
        self.loss = MeansOverTime()
        self.metrics: dict[str, tuple[int, float]] = {}
        """Latest value and its step of whatever an evaluation measured."""
        self.latest: dict[str, Event] = {}
        """Latest event of each name, of any attempt."""
        self.saved: Saved | None = None
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._readings: dict[str, deque[Reading]] = {}

    @property
    def is_record(self) -> bool:
        """Whether this can be a record: it has a run line, or its first line is not whole yet."""
        cut_off = not self._seen_line and self._torn.startswith(_RUN[: len(self._torn)])
        return self.attempt is not None or cut_off

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the file, in any portions."""
        lines = (self._torn + data).split(b"\n")
        self._torn = lines.pop()
        if len(self._torn) > MOST_LINE_BYTES:
            self._torn = b""
        self._seen_line = self._seen_line or bool(lines)
        for line in lines:
            self._take(line)
        self._fold()

    def _take(self, line: bytes) -> None:
        if line.startswith(b"["):
            self._steps.add(line)
        elif line.startswith(_RUN):
            self._begin_attempt(line)
        elif line.startswith(_NAMES):
            if len(self._names) < MOST_NAMING_LINES:
                self._names.append(line)
        elif line:
            self._new.append(line)

    def readings(self, kind: str) -> tuple[Reading, ...]:
        """The latest readings of a kind, in the order in which they were written."""
        return tuple(self._readings.get(kind, ()))

    def steps(self) -> StepTable:
        """The last steps of the present attempt."""
        return self._steps.table(self._names, self.past.last)

    def window(self) -> RankRecord:
        """The last steps of the present attempt, with its latest events and readings."""
        return replace(
            read_lines((*self._names, *self._steps.rows), with_steps=True),
            steps=self.steps(),
            events=tuple(self._events),
            readings=tuple(reading for kept in self._readings.values() for reading in kept),
            ending=self.ending,
        )

    def _begin_attempt(self, line: bytes) -> None:
        self._fold()
        record = read_lines((line,), with_steps=False)
        if not record.attempts:
            return
        self._names = [line]
        self._steps = StepWindow()
        self.attempts += 1
        self.attempt = record.attempts[0]
        self.notes = record.notes
        self.ending = None
        self.past = Past()
        self._events.clear()
        self._readings = {}

    def _fold(self) -> None:
        """Add up what the lines since the last time say; they are not kept."""
        if not self._new:
            return
        record = read_lines((*self._names, *self._new), with_steps=False)
        self._new = []
        for block in record.blocks:
            self.past = self.past.with_block(block)
        for name, series in record.scalars.items():
            pairs = zip(series.step.tolist(), series.value.tolist(), strict=True)
            self._take_values(name, pairs)
        for event in record.events:
            self._events.append(event)
            if _has_place(self.latest, event.name):
                self.latest[event.name] = event
        for reading in record.readings:
            self._take_reading(reading)
        self.ending = record.ending or self.ending

    def _take_values(self, name: str, pairs: Iterable[tuple[float, float]]) -> None:
        for step, value in pairs:
            if name == "loss":
                self.loss.add(int(step), value)
            elif name.startswith(_EVALUATED):
                metric = name.removeprefix(_EVALUATED)
                if _has_place(self.metrics, metric):
                    self.metrics[metric] = (int(step), value)

    def _take_reading(self, reading: Reading) -> None:
        if not _has_place(self._readings, reading.kind):
            return
        kept = self._readings.setdefault(reading.kind, deque(maxlen=_MOST_READINGS))
        kept.append(reading)
        step, path = reading.values.get("step"), reading.values.get("path")
        if reading.kind == "saved" and isinstance(step, int) and isinstance(path, str):
            self.saved = Saved(step=step, path=path)


def _has_place(kept: Mapping[str, object], name: str) -> bool:
    return name in kept or len(kept) < _MOST_NAMES


class FileTail:
    """Follows one file by its size and time of change, which every kind of folder has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail = RankTail()
        self.changed_at_s: float | None = None
        """When it last grew, on the clock that `poll` is given; None before it was seen."""
        self.trouble: str | None = None
        """Why it could not be read the last time."""
        self._offset = 0
        self._head = b""
        self._seen: tuple[int, int] | None = None

    def poll(self, now_s: float) -> bool:
        """Take in what is new; tell whether anything is.

        Raises:
            RecordError: The file is something else than a record.
        """
        try:
            # Opened each time: over a network that is what brings the present size.
            with open_regular(self.path) as file:
                return self._read_on(file, now_s)
        except OSError as error:
            self.trouble = f"cannot read {self.path.name}: {error.strerror}"
            return False

    def _read_on(self, file: BinaryIO, now_s: float) -> bool:
        self.trouble = None
        status = os.fstat(file.fileno())
        size, changed_ns = status.st_size, status.st_mtime_ns
        if self._seen == (size, changed_ns):
            return False
        if self._seen is None:
            written_s = changed_ns / 1e9
            self.changed_at_s = now_s - max(0.0, datetime.now(UTC).timestamp() - written_s)
        else:
            self.changed_at_s = now_s
        self._seen = (size, changed_ns)
        # No further than its size: a file of the system that never ends says to be empty.
        head = file.read(min(_HEAD_BYTES, size))
        if size < self._offset or not head.startswith(self._head):
            self._offset, self._head, self.tail = 0, b"", RankTail()
        file.seek(self._offset)
        while chunk := file.read(min(_CHUNK_BYTES, max(0, size - self._offset))):
            self._offset += len(chunk)
            self.tail.feed(chunk)
        self._head = head[: self._offset]
        if not self.tail.is_record:
            raise RecordError(f"{self.path} is not a run record: it does not begin with a run line")
        return True


class RunTail:
    """Follows a run: every rank's file, those that appear late too, and what was read outside."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.outside: FileTail | None = None
        self._files: dict[Path, FileTail] = {}

    @property
    def ranks(self) -> tuple[FileTail, ...]:
        """Files that have a run line, by the number of their rank."""
        begun = [(file.tail.attempt, file) for file in self._files.values()]
        known = [(attempt.rank, str(file.path), file) for attempt, file in begun if attempt]
        return tuple(file for _, _, file in sorted(known, key=lambda one: one[:2]))

    @property
    def trouble(self) -> tuple[str, ...]:
        """What could not be read the last time; it is tried again."""
        return tuple(file.trouble for file in self._files.values() if file.trouble is not None)

    def poll(self, now_s: float) -> bool:
        """Take in what is new in any file; tell whether anything is.

        Raises:
            RecordError: A file is something else than a record.
        """
        for path in self._found():
            self._files.setdefault(path, FileTail(path))
        outside = self.source / OUTSIDE
        if self.outside is None and outside.is_file():
            self.outside = FileTail(outside)
        files = [*self._files.values(), *((self.outside,) if self.outside else ())]
        grew = [file.poll(now_s) for file in files]  # all of them, not up to the first
        return any(grew)

    def _found(self) -> list[Path]:
        try:
            if self.source.is_dir():
                return sorted(self.source.glob(RANK_FILES))
            return [self.source] if self.source.exists() else []
        except OSError:
            return []  # a folder on a network that is out of reach for a moment
