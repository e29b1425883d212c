"""Collects what a format's reader understood, in columns whose size does not follow the file's.

A reader says what it saw (a training record, an evaluation, a checkpoint, ...); what follows from
that (which steps a record covers, what its time holds, where the run was restarted) is worked out
once for all formats in `pitstop.logs.finish`.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isnan
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pitstop.logs.clock import Clock
from pitstop.logs.numbers import convert, floats

if TYPE_CHECKING:
    from pitstop.records.logs.windows import Disagreement

NAN = math.nan
Array = npt.NDArray[np.float64]

TRAIN, EVAL, EPOCH = 0, 1, 2
AFTER_EVAL, AFTER_CHECKPOINT, NEW_EPOCH, NEW_ATTEMPT = 1, 2, 4, 8

RAW = (
    "attempt", "epoch", "step", "inside", "at", "total", "error", "data_total", "since", "span",
    "printed", "data", "rate", "lr", "memory",
)  # fmt: skip
# Packing a row and copying it is several times as fast as handing its numbers over one by one.
_ROW = Struct(f"{len(RAW)}d")
_pack, _ROW_BYTES = _ROW.pack, _ROW.size
_MOST_STEP = float(1 << 53)
_MOST_ROWS = 1 << 17
_MOST_HELD = 1 << 12
_MOST_VALUE = 1e18
_AGAIN_S = 10.0
_NEVER_NEGATIVE = {
    "printed": "step times of zero or less, or endless,",
    "data": "negative or endless waits for data",
    "rate": "negative or endless rates",
    "memory": "negative or endless sizes of memory",
}
_MOST_POINTS = 1 << 16
_MOST_NAMES = 512
_MOST_EVENTS = 1 << 14


@dataclass(slots=True)
class RawEvent:
    """Something outside steps; `wall_s` NaN when its duration is not known yet."""

    name: str
    attempt: int
    step: float
    at: float
    wall_s: float
    formula: str
    detail: dict[str, float] = field(default_factory=dict)
    row: int = -1
    """Row of the evaluation in the table, to find the training record after it."""


class Series:
    """One named value, thinned to every second, fourth, ... point when there are too many."""

    __slots__ = ("last", "skip", "step", "stride", "text", "value")

    def __init__(self) -> None:
        self.step = array("d")
        self.value = array("d")
        self.stride = 1
        self.skip = 0
        """Points to leave out before the next that is kept."""
        self.text = b""
        """Text of the value converted last: many values are printed again and again."""
        self.last = NAN

    def add(self, step: float, value: float) -> None:
        """Take the next point."""
        if self.skip:
            self.skip -= 1
        else:
            self.take(step, value)

    def take(self, step: float, value: float) -> None:
        """Keep a point whose turn it is: `skip` is 0."""
        steps = self.step
        steps.append(step)
        self.value.append(value)
        self.skip = self.stride - 1
        if len(steps) > _MOST_POINTS:
            self._thin()

    def extend(self, steps: Array, values: Sequence[bytes] | Array) -> None:
        """Take many points: numbers, or texts that are all finite ones."""
        place, count = self.skip, len(values)
        while place < count:
            stride, free = self.stride, _MOST_POINTS + 1 - len(self.step)
            end = min(place + free * stride, count)
            self.step.frombytes(steps[place:end:stride].tobytes())
            kept = values[place:end:stride]
            numbers = kept if isinstance(kept, np.ndarray) else floats(kept)
            self.value.frombytes(numbers.tobytes())
            place += -(-(end - place) // stride) * stride
            if len(self.step) > _MOST_POINTS:
                self._thin()
        self.skip = place - count

    def _thin(self) -> None:
        self.step, self.value = self.step[::2], self.value[::2]
        self.stride *= 2


def _nothing() -> None:
    """Do nothing: most readers hold nothing back."""


class LogBuilder:
    """What one reader understood of one log.

    Args:
        is_rebuilt: Whether step times come from totals (then records may be dropped without loss
            where there are too many) or from printed means (then they are averaged).
    """

    version: str | None = None
    steps_per_epoch: int | None = None
    total_steps: int | None = None
    total_epochs: int | None = None
    batch_size: int | None = None
    batch_size_from: str | None = None
    world_size: int | None = None
    world_size_from: str | None = None
    workers: int | None = None

    def __init__(self, *, is_rebuilt: bool) -> None:
        self.clock = Clock()
        self.flat = array("d")
        """Row after row, in the order of RAW; rows held back come later."""
        self._held: list[bytes] = []
        """Plain training rows, packed: many are copied in one go."""
        self.code = bytearray()
        self.flags = bytearray()
        self.series: dict[str, Series] = {}
        self._known: dict[str, dict[bytes, Series]] = {}
        self.events: list[RawEvent] = []
        self.settings: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.attempt = 0
        self.last_step = -math.inf
        self.last_epoch = NAN
        self.restarts: list[str] = []
        self.found: list[Disagreement] = []
        self.repeated = 0
        self.went_back = 0
        self.damaged = 0
        self.impossible: Counter[str] = Counter()
        """Values that were left out because nothing can have them, by what they are."""
        self.joined = False
        self.is_steps_known = True
        self.close: Callable[[], None] = _nothing
        """Called once after the last line; a reader that holds lines back sets it."""
        self._is_rebuilt = is_rebuilt
        self._pending = NEW_ATTEMPT
        self._mark_s = NAN
        self._evaluated = (NAN, NAN)

    def __len__(self) -> int:
        return len(self.code) + len(self._held)

    def columns(self) -> dict[str, npt.NDArray[np.float64]]:
        """Give the rows column by column, without times and sizes that cannot be."""
        self._settle()
        table = self._table() if self.flat else np.empty((0, len(RAW)))
        return {name: table[:, place].copy() for place, name in enumerate(RAW)}

    def _table(self) -> npt.NDArray[np.float64]:
        """Look at the rows as they lie; while somebody looks, no row can be added."""
        table = np.frombuffer(memoryview(self.flat)).reshape(-1, len(RAW))
        for name, what in _NEVER_NEGATIVE.items():
            column = table[:, RAW.index(name)]
            bad = (column <= 0 if name == "printed" else column < 0) | (column > _MOST_VALUE)
            if bad.any():
                column[bad] = NAN
                self.impossible[what] += int(bad.sum())
        return table

    def train(  # noqa: PLR0913 - one argument a column; keywords throughout
        self,
        step: float,
        *,
        epoch: float = NAN,
        inside: float = NAN,
        at: float = NAN,
        total: float = NAN,
        error: float = 0.0,
        data_total: float = NAN,
        since: float = NAN,
        printed: float = NAN,
        data: float = NAN,
        rate: float = NAN,
        lr: float = NAN,
        memory: float = NAN,
    ) -> None:
        """Take a training record.

        Args:
            step: Step over the whole run.
            epoch: As printed.
            inside: Step within the epoch, counted from one.
            at: Moment, from the clock.
            total: Seconds spent up to here since some moment; differences give step times.
            error: Largest error of `total`.
            data_total: The same for waits for data.
            since: What `total` was when the epoch began.
            printed: Time of a step as printed.
            data: Wait for data in a step as printed.
            rate: Samples per second as printed.
            lr: Learning rate.
            memory: Bytes.

        Raises:
            ValueError: The step is no number that a count can reach.
            struct.error: A number is larger than a float can be.
        """
        if not -_MOST_STEP < step < _MOST_STEP:
            raise ValueError(f"{step} is no step")
        if epoch != self.last_epoch and not isnan(epoch):
            self._turn_epoch(epoch)
        if step <= self.last_step and self._comes_again(step, epoch, printed, at):
            return
        self.last_step = step
        begins = self._pending
        since, span = self._count_from(since, inside) if begins else (NAN, NAN)
        row = _pack(
            self.attempt, epoch, step, inside, at, total, error, data_total, since, span,
            printed, data, rate, lr, memory,
        )  # fmt: skip
        self._mark_s = NAN
        if begins:
            self._add_marked(row)
            return
        self._held.append(row)
        if len(self._held) >= _MOST_HELD:
            self._settle()

    def brief(
        self,
        step: float,
        *,
        epoch: float = NAN,
        at: float = NAN,
        error: float = 0.0,
        printed: float = NAN,
        lr: float = NAN,
    ) -> None:
        """Take a training record of which no more is known: as `train`, in half the time.

        The total of `train` is the moment here.
        """
        if (
            self._pending
            or not self.last_step < step < _MOST_STEP
            or (epoch != self.last_epoch and not isnan(epoch))
        ):
            self.train(
                step, epoch=epoch, at=at, total=at, error=error, printed=printed, lr=lr
            )  # fmt: skip
            return
        self.last_step = step
        self._mark_s = NAN
        self._held.append(
            _pack(
                self.attempt, epoch, step, NAN, at, at, error, NAN, NAN, NAN, printed, NAN, NAN, lr,
                NAN,
            )
        )  # fmt: skip
        if len(self._held) >= _MOST_HELD:
            self._settle()

    def many(self, step: Array, *, epoch: Array, printed: Array, lr: Array, error: float) -> None:
        """Take many records as `brief` takes one; counts and epochs are whole or NaN."""
        count = len(step)
        place = 0
        is_plain = bool((np.diff(step) > 0).all())
        while place < count and (not is_plain or not place or self._pending):
            self.brief(
                float(step[place]),
                epoch=float(epoch[place]),
                error=error,
                printed=float(printed[place]),
                lr=float(lr[place]),
            )
            place += 1
        if place == count:
            return
        self._settle()
        rows = np.full((count - place, len(RAW)), NAN)
        for name, values in (("epoch", epoch), ("step", step), ("printed", printed), ("lr", lr)):
            rows[:, RAW.index(name)] = values[place:]
        rows[:, RAW.index("attempt")] = self.attempt
        rows[:, RAW.index("error")] = error
        turns = np.diff(epoch[place - 1 :]) != 0
        turns &= np.isfinite(epoch[place:])
        self.last_step, self._mark_s = float(step[-1]), NAN
        if np.isfinite(epoch[-1]):
            self.last_epoch = float(epoch[-1])
        self._add_rows(rows.tobytes(), (turns * np.uint8(NEW_EPOCH)).tobytes())

    def _count_from(self, since: float, inside: float) -> tuple[float, float]:
        """Say from which total the time of a marked record counts, and how many steps it spans."""
        if isnan(since):
            since = self._mark_s
        begins = self._pending & (NEW_EPOCH | NEW_ATTEMPT)
        if not begins or isnan(since) or isnan(inside):
            return since, NAN
        # Time counts from the beginning of the epoch, which lies after the evaluation.
        self._pending &= ~AFTER_EVAL
        return since, inside

    def _add_marked(self, row: bytes) -> None:
        self._settle()
        self._add_rows(row, bytes((self._pending,)))
        self._pending = 0

    def _settle(self) -> None:
        """Put the rows held back where they belong."""
        if self._held:
            held, self._held = self._held, []
            self._add_rows(b"".join(held), bytes(len(held)))

    def _add_rows(self, rows: bytes, flags: bytes) -> None:
        """Add packed training rows; join rows as soon as there are too many."""
        place, count = 0, len(flags)
        while place < count:
            end = min(place + max(_MOST_ROWS + 1 - len(self.code), 1), count)
            self.flat.frombytes(rows[place * _ROW_BYTES : end * _ROW_BYTES])
            self.code.extend(bytes(end - place))
            self.flags.extend(flags[place:end])
            place = end
            if len(self.code) > _MOST_ROWS:
                self._join()

    def _turn_epoch(self, epoch: float) -> None:
        if not isnan(self.last_epoch):
            self._pending |= NEW_EPOCH
        self.last_epoch = epoch

    def _comes_again(self, step: float, epoch: float, printed: float, at: float) -> bool:
        """Tell a record printed twice from a run that went on from an earlier step."""
        if step == self.last_step:
            self._settle()
            # NaN differs from nothing: only what both records tell can differ.
            before = dict(zip(RAW, self.flat[-len(RAW) :], strict=True))
            if step <= 1 and at - before["at"] > _AGAIN_S:
                self.restart(f"step {step:.0f} comes again")
                return False
            differs = abs(printed - before["printed"]) > 0 or abs(at - before["at"]) > 1
            self.repeated += differs
            return True
        self.went_back += 1
        self.restart(f"the step went back from {self.last_step:.0f} to {step:.0f}")
        self.last_epoch = epoch
        return False

    def summary(  # noqa: PLR0913 - one argument a column; keywords throughout
        self,
        code: int,
        *,
        step: float = NAN,
        epoch: float = NAN,
        at: float = NAN,
        printed: float = NAN,
        rate: float = NAN,
        lr: float = NAN,
    ) -> None:
        """Take a record of an evaluation or of a whole epoch."""
        self._settle()
        row = dict.fromkeys(RAW, NAN)
        row |= {"attempt": self.attempt, "step": step, "epoch": epoch, "at": at, "error": 0.0}
        row |= {"printed": printed, "rate": rate, "lr": lr}
        self.flat.extend([row[name] for name in RAW])
        self.code.append(code)
        self.flags.append(0)

    def evaluation(
        self,
        *,
        step: float = NAN,
        epoch: float = NAN,
        at: float = NAN,
        wall_s: float = NAN,
        formula: str = "",
        is_part: bool = False,
    ) -> None:
        """Take an evaluation, or a part of one; the next training record may hold its time."""
        if wall_s < 0:
            self.impossible["negative evaluation times"] += 1
            wall_s = NAN
        before, of_epoch = self._evaluated
        is_same = self._pending & AFTER_EVAL and (isnan(step) or step == before)
        if not is_same or not (isnan(epoch) or epoch == of_epoch):
            self._evaluated = step, epoch
            if isnan(step) and self.last_step > 0:
                step = self.last_step
            self._event(RawEvent("evaluation", self.attempt, step, at, wall_s, formula))
            self.summary(EVAL, step=step, epoch=epoch, at=at)
        elif self.events and (is_part or isnan(self.events[-1].wall_s)):
            before_s = 0.0 if isnan(self.events[-1].wall_s) else self.events[-1].wall_s
            self.events[-1].wall_s, self.events[-1].formula = before_s + wall_s, formula
        self._pending |= AFTER_EVAL
        self._mark_s = at

    def checkpoint(self, *, at: float = NAN) -> None:
        """Take the saving of a checkpoint; the next training record may hold its time."""
        self._event(RawEvent("checkpoint", self.attempt, self.last_step, at, NAN, ""))
        self._pending |= AFTER_CHECKPOINT

    def forget(self) -> None:
        """Forget all records and events."""
        self._settle()
        self.flat, self.code, self.flags = array("d"), bytearray(), bytearray()
        self.events = []

    def count_epochs_if(self, why: Callable[[Array, Array, int], str]) -> None:
        """Turn all training records into records of epochs where somebody says why.

        Args:
            why: Takes their steps and moments and the number of evaluations; empty text for no.
        """
        self._settle()
        codes = np.frombuffer(bytes(self.code), np.uint8)
        table = np.array(self.flat).reshape(-1, len(RAW))[codes == TRAIN]
        found = sum(event.name == "evaluation" for event in self.events)
        text = why(table[:, RAW.index("step")], table[:, RAW.index("at")], found)
        if text:
            self.code = bytearray(np.where(codes == TRAIN, EPOCH, codes).astype(np.uint8).tobytes())
            self.is_steps_known = False
            self.note(text)

    def mark(self, at: float) -> None:
        """Say that the next training record's time counts from here (an epoch or the run began)."""
        self._mark_s = at

    def restart(self, why: str) -> None:
        """Say that another process went on with the run; nothing before the first record counts."""
        if not self.code:
            return
        if self._pending & NEW_ATTEMPT:
            return
        self.attempt += 1
        self.last_step = -math.inf
        self.last_epoch = NAN
        self._pending = NEW_ATTEMPT
        if len(self.restarts) < 64:
            self.restarts.append(why)

    def scalars(self, step: float, pairs: Iterable[tuple[bytes, bytes]], prefix: str = "") -> None:
        """Take named values as printed."""
        known = self._known.get(prefix)
        if known is None:
            known = self._known[prefix] = {}
        for name, text in pairs:
            found = known.get(name)
            if found is None:
                found = self._named(prefix + name.decode("utf-8", "replace"))
                if found is None:
                    continue
                known[name] = found
            if found.skip:
                found.skip -= 1
                continue
            if text != found.text:
                found.last = convert(text)
                found.text = text
            found.take(step, found.last)

    def curve(self, name: str, steps: Array, values: Sequence[bytes] | Array) -> None:
        """Take many values of one name: numbers, or finite ones as printed."""
        found = self._named(name)
        if found is not None:
            found.extend(steps, values)

    def scalar(self, name: str, step: float, value: float) -> None:
        """Take one named value."""
        found = self.series.get(name) or self._named(name)
        if found is not None:
            found.add(step, value)

    def _named(self, name: str) -> Series | None:
        if name not in self.series:
            if len(self.series) >= _MOST_NAMES:
                self.note(f"more than {_MOST_NAMES} named values; the others are left out")
                return None
            self.series[name] = Series()
        return self.series[name]

    def note(self, text: str) -> None:
        """Remember what could not be read or is not known, once."""
        if len(self.notes) < 64:
            self.notes[text] = None

    def _event(self, event: RawEvent) -> None:
        if len(self.events) >= _MOST_EVENTS:
            self.note(f"more than {_MOST_EVENTS} events; the others are left out")
            return
        event.step = event.step if math.isfinite(event.step) else 0.0
        self._settle()
        event.row = len(self.code)
        self.events.append(event)

    def _join(self) -> None:
        """Halve the records: join each plain one with the plain one after it."""
        table = self._table()
        plain = (np.frombuffer(self.code, np.uint8) == TRAIN) & (
            np.frombuffer(self.flags, np.uint8) == 0
        )
        places = np.arange(len(plain))
        begins = plain & ~np.concatenate(([False], plain[:-1]))
        begun = np.maximum.accumulate(np.where(begins, places, 0))
        rows = np.flatnonzero(plain & ((places - begun) % 2 == 1))
        if not self._is_rebuilt:
            self._average(table, rows)
        keep = np.ones(len(plain), dtype=bool)
        keep[rows - 1] = False
        place = np.cumsum(keep) - 1
        for event in self.events:
            event.row = int(place[event.row]) if event.row < len(place) else int(keep.sum())
        kept = table[keep]
        table[: len(kept)] = kept
        del table
        del self.flat[kept.size :]
        self.code = bytearray(np.frombuffer(self.code, np.uint8)[keep].tobytes())
        self.flags = bytearray(np.frombuffer(self.flags, np.uint8)[keep].tobytes())
        self.joined = True

    @staticmethod
    def _average(table: npt.NDArray[np.float64], rows: npt.NDArray[np.intp]) -> None:
        """Give the later record of each pair the mean of both, weighted by the steps they cover."""
        step = table[:, RAW.index("step")]
        before = np.maximum(rows - 2, 0)
        first = np.maximum(step[rows - 1] - step[before], 1.0)
        second = np.maximum(step[rows] - step[rows - 1], 1.0)
        for name in ("printed", "data", "rate"):
            values = table[:, RAW.index(name)]
            values[rows] = (values[rows - 1] * first + values[rows] * second) / (first + second)
