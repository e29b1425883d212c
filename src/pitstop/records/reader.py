"""Builds a rank's record from lines, in one pass, with bounded memory for the summary.

Feed it bytes in any portions; a line counts once its end was seen. Whatever cannot be understood
is counted and noted, never raised: the file of a killed run must always read.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from pitstop.records.distribution import Distribution
from pitstop.records.rows import RowLayout, Rows, block_of_rows, parse_rows, step_table
from pitstop.records.run import (
    SCHEMA,
    Attempt,
    Block,
    Ending,
    Event,
    HostClock,
    RankRecord,
    Reading,
    ScalarSeries,
    SpanBlock,
    SpanPath,
    Timeline,
    TimelineSpan,
)

Line = dict[str, Any]
Upgrade = Callable[[Any], Any]

# One entry a past schema: turns one of its decoded lines into that of the next schema. Nothing
# was released with schema 1, so there is nothing to upgrade from.
UPGRADES: Final[Mapping[int, Upgrade]] = {}

_HEAD = b'{"kind":"run"'
_ROWS_AT_ONCE = 8192
# Beyond these a line is damage, or was written to fill memory.
_MOST_BUCKET = 2000  # 1.04 ** 2000 us is beyond any time
_MOST_DEPTH = 512  # of spans
_MOST_SPANS = 2000
_MOST_NAME = 1000  # letters
MOST_LINE_BYTES = 64 << 20
_MOST_CELLS = 60_000_000  # steps times spans
_MOST_US = 10**15  # thirty years
_MOST_COUNT = 10**9  # of steps in a block, of calls, of samples in a step
DAMAGE: Final = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading raises where a file says something that it cannot mean."""


class RankReader:
    """Reads one rank's file portion by portion.

    Args:
        with_steps: Whether to keep every step, or block summaries only.
        upgrades: Functions that turn lines of past schemas into lines of the next.
    """

    def __init__(self, *, with_steps: bool, upgrades: Mapping[int, Upgrade] = UPGRADES) -> None:
        self._with_steps = with_steps
        self._upgrades = upgrades
        self._torn = b""
        self._seen_line = False
        self._uncovered: list[bytes] = []  # rows that no block summary covers yet
        self._unparsed: list[bytes] = []  # rows to be laid into the step table
        self._rows: list[Rows] = []
        self._row_count = 0
        self._attempts: list[Attempt] = []
        self._paths: dict[SpanPath, None] = {}
        self._span_paths: dict[int, SpanPath] = {}
        self._layouts: dict[int, RowLayout] = {}
        self._blocks: list[Block] = []
        self._timelines: list[Timeline] = []
        self._scalars: dict[str, tuple[list[float], list[float]]] = {}
        self._events: list[Event] = []
        self._readings: list[Reading] = []
        self._ending: Ending | None = None
        self._damaged = 0
        self._too_many = 0
        self._schema_notes: list[str] = []
        self._upgrade_from: int | None = SCHEMA  # None: lines of this attempt cannot be read
        self._handlers: Mapping[str, Callable[[Line], None]] = {
            "run": self._on_run,
            "span": self._on_span,
            "layout": self._on_layout,
            "block": self._on_block,
            "timeline": self._on_timeline,
            "scalars": self._on_scalars,
            "event": self._on_event,
            "end": self._on_end,
        }

    @property
    def is_record(self) -> bool:
        """Whether this can be a record: it has a run line, or was cut off before its end."""
        cut_off = not self._seen_line and self._torn.startswith(_HEAD[: len(self._torn)])
        return bool(self._attempts) or cut_off

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the file."""
        lines = (self._torn + data).split(b"\n")
        self._torn = lines.pop()
        if len(self._torn) > MOST_LINE_BYTES:
            self._torn, self._damaged = b"", self._damaged + 1
        self._seen_line = self._seen_line or bool(lines)
        for line in lines:
            if line.startswith(b"["):
                self._take_row(line)
            elif line:
                self._take_object(line)

    def record(self) -> RankRecord:
        """Give everything read so far; reading may go on afterwards."""
        self._lay_rows()
        tail, tail_damaged = self._tail()
        paths = tuple(self._paths)
        return RankRecord(
            attempts=tuple(self._attempts),
            paths=paths,
            blocks=tuple(self._blocks) if tail is None else (*self._blocks, tail),
            steps=step_table(self._rows, paths) if self._with_steps else None,
            timelines=tuple(self._timelines),
            scalars={
                name: ScalarSeries(step=np.array(steps), value=np.array(values))
                for name, (steps, values) in self._scalars.items()
            },
            events=tuple(self._events),
            readings=tuple(self._readings),
            ending=self._ending,
            notes=self._notes(self._damaged + (0 if self._with_steps else tail_damaged)),
        )

    @property
    def _attempt(self) -> int:
        return len(self._attempts) - 1

    def _notes(self, damaged: int) -> tuple[str, ...]:
        notes = list(self._schema_notes)
        if damaged:
            notes.append(f"{damaged} damaged {'line' if damaged == 1 else 'lines'} left out")
        if self._too_many:
            notes.append(f"{self._too_many} further steps are more than can be shown one by one")
        if self._torn:
            notes.append("the last line is incomplete: killed while writing, or writing now")
        return tuple(notes)

    def _take_row(self, line: bytes) -> None:
        if self._upgrade_from != SCHEMA:
            upgraded = self._upgraded(line)
            if upgraded is None:
                return
            line = upgraded
        self._uncovered.append(line)
        if self._with_steps:
            self._keep_row(line)
        if len(self._uncovered) >= _ROWS_AT_ONCE:
            self._cover_rows()

    def _keep_row(self, line: bytes) -> None:
        """Keep a row for the step table, as long as that stays of a size that memory holds."""
        if self._row_count * len(self._paths) > _MOST_CELLS:
            self._too_many += 1
            return
        self._unparsed.append(line)
        if len(self._unparsed) >= _ROWS_AT_ONCE:
            self._lay_rows()

    def _take_object(self, line: bytes) -> None:
        try:
            values = json.loads(line, parse_int=_whole if _ENDLESS.search(line) else None)
            if values.get("kind") != "run" and self._upgrade_from != SCHEMA:
                upgraded = self._upgraded(line)
                if upgraded is None:
                    return
                values = json.loads(upgraded)
            self._handlers.get(values["kind"], self._on_reading)(values)
        except DAMAGE:
            self._damaged += 1

    def _upgraded(self, line: bytes) -> bytes | None:
        """Lead a past schema's line up to the present one; None when there is no way."""
        if self._upgrade_from is None:
            return None
        try:
            value = json.loads(line)
            for schema in range(self._upgrade_from, SCHEMA):
                value = self._upgrades[schema](value)
        except DAMAGE:
            self._damaged += 1
            return None
        return json.dumps(value).encode()

    def _lay_rows(self) -> None:
        """Parse the rows that wait for the step table."""
        groups, damaged = parse_rows(
            self._unparsed, self._layouts, attempt=self._attempt, first_place=self._row_count
        )
        self._row_count += len(self._unparsed)
        self._unparsed = []
        self._rows += groups
        self._damaged += damaged

    def _tail(self) -> tuple[Block | None, int]:
        """Summarise the rows that no block covers; also count the damaged ones among them."""
        groups, damaged = parse_rows(
            self._uncovered, self._layouts, attempt=self._attempt, first_place=0
        )
        return block_of_rows(groups, attempt=self._attempt, start_us=None), damaged

    def _cover_rows(self) -> None:
        block, damaged = self._tail()
        if block is not None:
            self._blocks.append(block)
        if not self._with_steps:
            self._damaged += damaged  # with steps, the step table counts them
        self._uncovered = []

    def _on_run(self, line: Line) -> None:
        if self._attempts:
            self._lay_rows()
            self._cover_rows()
        schema = int(line["schema"])
        about = {key: value for key, value in line.items() if key not in _ATTEMPT_KEYS}
        self._attempts.append(
            Attempt(
                schema=schema,
                started_unix_s=_maybe(float, line.get("unix_s")),
                rank=int(line.get("rank", 0)),
                local_rank=int(line.get("local_rank", 0)),
                world_size=int(line.get("world_size", 1)),
                host=_maybe(str, line.get("host")),
                pid=_maybe(int, line.get("pid")),
                python=_maybe(str, line.get("python")),
                torch=_maybe(str, line.get("torch")),
                command=tuple(map(str, line.get("command", ()))),
                about=about,
                clock=_clock(line.get("clock")),
            )
        )
        self._span_paths = {}
        self._layouts = {}
        self._ending = None
        self._upgrade_from = self._readable(schema)

    def _readable(self, schema: int) -> int | None:
        """Tell from which schema to upgrade, or note why the attempt cannot be read."""
        if schema > SCHEMA:
            self._schema_notes.append(
                f"written with schema {schema}, newer than this pitstop's {SCHEMA}: "
                "its steps are left out; upgrade pitstop to read them"
            )
            return None
        if any(past not in self._upgrades for past in range(schema, SCHEMA)):
            self._schema_notes.append(
                f"written with schema {schema}, which this pitstop no longer reads: its steps are "
                "left out; measure the run again, or read it with the pitstop that wrote it"
            )
            return None
        return schema

    def _on_span(self, line: Line) -> None:
        parent = line["parent"]
        above = () if parent is None else self._span_paths[parent]
        path = (*above, str(line["name"])[:_MOST_NAME])
        if len(path) > _MOST_DEPTH or len(self._paths) >= _MOST_SPANS:
            raise ValueError(path[0])
        self._span_paths[int(line["id"])] = path
        self._paths.setdefault(path)

    def _on_layout(self, line: Line) -> None:
        device = line.get("device")
        self._layouts[int(line["id"])] = RowLayout(
            host=tuple(self._span_paths[number] for number in line["host"]),
            device=None if device is None else tuple(self._span_paths[n] for n in device),
        )

    def _on_block(self, line: Line) -> None:
        spans = {
            self._span_paths[number]: SpanBlock(
                calls=_bounded(calls, _MOST_COUNT * _MOST_COUNT),
                host=_distribution(host),
                device=None if device is None else _distribution(device),
            )
            for number, calls, host, device in line["spans"]
        }
        device_wall = line["device"]
        wall = _distribution(line["wall"])
        steps = wall.count
        block = Block(
            attempt=self._attempt,
            first=int(line["first"]),
            last=int(line["last"]),
            start_us=int(line["start_us"]),
            outside_us=_bounded(line["outside_us"], _MOST_US),
            samples=_maybe(_within(steps * _MOST_COUNT), line["samples"]),
            micro_steps=_maybe(_within(steps * _MOST_COUNT), line["micro_steps"]),
            broken=int(line["broken"]),
            wall=wall,
            unaccounted=_distribution(line["unaccounted"]),
            device_wall=None if device_wall is None else _distribution(device_wall),
            spans=spans,
        )
        self._blocks.append(block)
        self._uncovered = []

    def _on_timeline(self, line: Line) -> None:
        spans = []
        for number, start, end, *device in line["spans"]:
            device_start, device_end = (int(device[0]), int(device[1])) if device else (None, None)
            spans.append(
                TimelineSpan(
                    path=self._span_paths[number],
                    start_us=int(start),
                    end_us=int(end),
                    device_start_us=device_start,
                    device_end_us=device_end,
                )
            )
        self._timelines.append(
            Timeline(
                attempt=self._attempt,
                step=int(line["step"]),
                spans=tuple(spans),
                left_out=int(line["left_out"]),
            )
        )

    def _on_scalars(self, line: Line) -> None:
        step = int(line["step"])
        for name, value in line["values"].items():
            number = float("nan") if value is None else float(value)
            steps, values = self._scalars.setdefault(str(name), ([], []))
            steps.append(step)
            values.append(number)

    def _on_event(self, line: Line) -> None:
        self._events.append(
            Event(
                attempt=self._attempt,
                name=str(line["name"]),
                step=int(line["step"]),
                start_us=int(line["start_us"]),
                wall_us=int(line["wall_us"]),
                detail=dict(line.get("detail", {})),
            )
        )

    def _on_end(self, line: Line) -> None:
        status = line["status"]
        if status not in ("finished", "failed", "interrupted"):
            raise ValueError(status)
        self._ending = Ending(
            status=status,
            reason=str(line["reason"]),
            steps=int(line["steps"]),
            at_us=int(line["at_us"]),
        )

    def _on_reading(self, line: Line) -> None:
        values = {key: value for key, value in line.items() if key not in ("kind", "at_us")}
        self._readings.append(
            Reading(
                attempt=self._attempt,
                kind=str(line["kind"]),
                at_us=_maybe(int, line.get("at_us")),
                values=values,
            )
        )


_ENDLESS = re.compile(rb"\d{309}")
_ATTEMPT_KEYS = frozenset(
    {
        "kind",
        "schema",
        "unix_s",
        "rank",
        "local_rank",
        "world_size",
        "host",
        "clock",
        "pid",
        "python",
        "torch",
        "command",
    }
)


def _whole(digits: str) -> int:
    """Take a whole number, unless it is larger than any float: nothing that is measured is."""
    if math.isinf(float(digits)):
        raise ValueError(digits[:20])
    return int(digits)


def _maybe(kind: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else kind(value)


def _clock(value: Any) -> HostClock | None:
    """Read how a host's clock was compared; what cannot be is no comparison."""
    try:
        clock = HostClock(
            reference=str(value["reference"])[:_MOST_NAME],
            offset_s=float(value["offset_s"]),
            error_s=float(value["error_s"]),
        )
    except DAMAGE:
        return None
    is_possible = abs(clock.offset_s) < _MOST_US / 1e6 and 0 <= clock.error_s < _MOST_US / 1e6
    return clock if is_possible else None


def _distribution(values: list[Any]) -> Distribution:
    count, total, least, most, flat = values
    buckets = dict(zip(map(int, flat[::2]), map(int, flat[1::2]), strict=True))
    found = Distribution(
        count=_bounded(count, _MOST_COUNT),
        total_us=int(total),
        least_us=int(least),
        most_us=_bounded(most, _MOST_US),
        buckets=buckets,
    )
    if not _adds_up(found):
        raise ValueError(found)
    return found


def _adds_up(found: Distribution) -> bool:
    """Whether what a block says of its times can be said of any times."""
    buckets = found.buckets
    return (
        0 <= found.least_us <= found.most_us
        and found.count * found.least_us <= found.total_us <= found.count * found.most_us
        and all(0 <= bucket <= _MOST_BUCKET and count >= 0 for bucket, count in buckets.items())
        and sum(buckets.values()) == found.count
    )


def _bounded(value: Any, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError(number)
    return number


def _within(most: int) -> Callable[[Any], int]:
    return lambda value: _bounded(value, most)
