"""Writes what the clock saw: one append-only file of JSON lines a rank.

Step lines are arrays of numbers, everything else is an object with a "kind". The format, line by
line, is in docs/record-format.md; pitstop.records.store reads it.

Three promises:

- Killed at any byte, the file still reads up to its last whole line. Lines are written whole and
  flushed at least every half second; a writer that finds a torn last line closes it first.
- Steps take at most 200 bytes each on average. Rows carry every span while the budget allows it,
  then only the top level; what a row leaves out is still in its block's summary. Values, events and
  readings come on top, at the cadence of whoever writes them.
- Every 256 steps a block summary is written, so that a long run is summarised without its rows.
"""

import json
import math
import os
import platform
import socket
import sys
import time
from collections import Counter
from itertools import chain, repeat
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from pitstop_probe.clock import Span, Step, Timeline, UnsampledSteps, known_among, monotonic_us
from pitstop_probe.forks import keep_for_parent, notify_of_forks
from pitstop_probe.masking import mask_command, mask_text
from pitstop_probe.stderr import say

SCHEMA = 2
BLOCK_STEPS = 256
BYTES_PER_STEP = 195  # keeps the average under the promised 200, the header included
FLUSH_EVERY_US = 500_000
MOST_TIMELINE_ROWS = 200
MOST_LAYOUTS = 256  # a script that names its spans by step number must fill neither disk nor memory
FIRST_CREDIT = 4096  # lets a run of a few steps keep all its spans


# Neighbouring sketch buckets differ by 4 %, so a quantile read from them is within 2 %.
SKETCH_GROWTH = 1.04
_PER_LOG = 1.0 / math.log(SKETCH_GROWTH)


def sketch(values: List[int]) -> List[int]:
    """Count values by logarithmic bucket: ``[bucket, count, bucket, count, ...]``."""
    counts: Dict[int, int] = {}
    # Values repeat: a logarithm for each takes several times as long.
    for value, count in Counter(values).items():
        bucket = round(math.log(value + 1) * _PER_LOG)
        counts[bucket] = counts.get(bucket, 0) + count
    flat: List[int] = []
    for bucket in sorted(counts):
        flat += (bucket, counts[bucket])
    return flat


def distribution(values: List[int]) -> List[Any]:
    """Summarise values exactly (count, sum, least, most) and by sketch."""
    if not values:
        return [0, 0, 0, 0, []]
    return [len(values), sum(values), min(values), max(values), sketch(values)]


def plain(value: Any) -> Any:
    """Make a value fit for JSON: infinities and NaN become words, unknown things their text."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def describe_process() -> Dict[str, Any]:
    """Say what this process is: interpreter, torch, rank, command."""
    torch = sys.modules.get("torch")
    rank, world_size = _place_among_ranks(torch)
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "command": mask_command(sys.argv),
        "rank": rank,
        "local_rank": _from_environment("LOCAL_RANK", 0),
        "world_size": world_size,
    }


def _place_among_ranks(torch: Any) -> Tuple[int, int]:
    """Rank and number of ranks, as torch was told, else as the launcher says."""
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed is not None and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:  # noqa: BLE001, S110 - built without it, or of a kind that has no ranks
        pass
    return _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)


def _from_environment(name: str, default: int) -> int:
    """A launcher's number; the default where it is not given, empty or no such number."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else default


class _RowLayout:
    """What the numbers of a row are: a number, and the line that says so until it is written."""

    __slots__ = ("head", "number")

    def __init__(self, number: int, head: bytes) -> None:
        self.number = number
        self.head = head


class _Choice:
    """Some of a step's spans, by their places among all of them, and the layout of such rows."""

    __slots__ = ("device_places", "host_places", "layout")

    def __init__(self, host_places: List[int], device_places: List[int]) -> None:
        self.host_places = host_places
        self.device_places = device_places
        self.layout: Optional[_RowLayout] = None


class _Shape:
    """Which spans a step has; steps of one shape are written and summed up in one way.

    Steps of a loop have few shapes, so what depends on the shape is worked out once, and a step
    costs two lists and one line of text.
    """

    __slots__ = (
        "choices",
        "device_spans",
        "has_device_wall",
        "host_spans",
        "is_sampled",
        "rows",
    )

    def __init__(self, step: Step) -> None:
        self.host_spans = list(step.host_us)
        self.device_spans = list(step.device_us)
        self.has_device_wall = step.device_wall_us is not None
        self.is_sampled = step.sampled
        self.rows: List[_Row] = []
        self.choices = tuple(self._down_to(depth) for depth in (sys.maxsize, 1, 0))

    def _down_to(self, depth: int) -> _Choice:
        return _Choice(
            [place for place, span in enumerate(self.host_spans) if span.depth <= depth],
            [place for place, span in enumerate(self.device_spans) if span.depth <= depth],
        )


# What a block keeps of a step: wall, calls by span, host and device times by span, device wall.
_Row = Tuple[int, List[int], List[int], List[int], Optional[int]]


class _Block:
    """The steps since the last block summary."""

    def __init__(self) -> None:
        self.first = 0
        self.last = 0
        self.start_us = 0
        self.steps = 0
        self.unsampled_wall_us: List[int] = []
        self.samples: Optional[int] = None
        self.micro_steps: Optional[int] = None
        self.outside_us = 0
        self.broken = 0

    def add(self, step: Step) -> None:
        self._append(step.index, step.start_us, 1)
        self.outside_us += step.outside_us
        self.broken += step.broken
        self.samples = _plus(self.samples, [step.samples])
        self.micro_steps = _plus(self.micro_steps, [step.micro_steps])

    def add_unsampled(self, steps: UnsampledSteps) -> None:
        self._append(steps.first, steps.start_us, len(steps.wall_us))
        self.unsampled_wall_us += steps.wall_us
        self.samples = _plus(self.samples, steps.samples)
        self.micro_steps = _plus(self.micro_steps, steps.micro_steps)

    def _append(self, first: int, start_us: int, count: int) -> None:
        if self.steps == 0:
            self.first, self.start_us = first, start_us
        self.last = first + count - 1
        self.steps += count


def _plus(total: Optional[int], counts: List[Optional[int]]) -> Optional[int]:
    """Add what is known to what is; None where nothing is."""
    known = known_among(counts)
    return (total or 0) + sum(known) if known else total


class _Columns:
    """A block's steps column by column, whatever their shapes."""

    def __init__(self, wall: List[int]) -> None:
        self.wall = wall
        self.device_wall: List[int] = []
        self.unaccounted: List[int] = []
        self.calls: Dict[Span, int] = {}
        self.host: Dict[Span, List[int]] = {}
        self.device: Dict[Span, List[int]] = {}

    def add(self, shape: _Shape) -> None:
        walls, calls, host, device, device_walls = zip(*shape.rows)
        self.wall += walls
        if shape.has_device_wall:
            self.device_wall += device_walls
        if not shape.is_sampled:
            return
        top = shape.choices[1].host_places
        self.unaccounted += [
            wall - sum([row[place] for place in top]) for wall, row in zip(walls, host)
        ]
        for span, counts, times in zip(shape.host_spans, zip(*calls), zip(*host)):
            self.calls[span] = self.calls.get(span, 0) + sum(counts)
            self.host.setdefault(span, []).extend(times)
        for span, times in zip(shape.device_spans, zip(*device)):
            self.device.setdefault(span, []).extend(times)


class RecordWriter:
    """Appends one rank's record to a file; the sink of a `Clock`.

    Once the file is open nothing raises: where the disk is full, the record ends with one line on
    stderr, and the training goes on.

    Args:
        path: File to append to; folders are made. An existing file gets a further attempt.
        about: What the run is: name, settings, anything the header should carry.
        now_us: The host's clock; the one the steps were timed with.
        origin_us: The reading of that clock that the file calls zero; the present one unless given.
        bytes_per_step: Average size that step rows and block summaries keep to.

    Raises:
        OSError: The file cannot be made or takes no first line.
    """

    def __init__(
        self,
        path: str,
        about: Optional[Mapping[str, Any]] = None,
        now_us: Callable[[], int] = monotonic_us,
        *,
        origin_us: Optional[int] = None,
        bytes_per_step: int = BYTES_PER_STEP,
    ) -> None:
        self.path = os.fspath(path)
        folder = os.path.dirname(self.path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        self._now_us = now_us
        self._flushed_us = now_us()
        self._origin_us = self._flushed_us if origin_us is None else origin_us
        self._bytes_per_step = bytes_per_step
        self._credit = FIRST_CREDIT
        self._span_ids: Dict[Span, int] = {}
        self._layouts: Dict[Tuple[Tuple[int, ...], Optional[Tuple[int, ...]]], _RowLayout] = {}
        self._shapes: Dict[Any, _Shape] = {}
        self._block = _Block()
        self._end_us: Optional[int] = None
        self._steps = 0
        self._file: Any = self._open()
        began_s = time.time() - (self._flushed_us - self._origin_us) / 1e6
        header = {"kind": "run", "schema": SCHEMA, "unix_s": began_s, **describe_process()}
        # Said twice so that these come first and nothing in `about` replaces them.
        self.is_lost = False
        """Whether the file takes nothing more, for the disk is full, say."""
        try:
            self._file.write(_line({**header, **(about or {}), **header}))
            self._file.flush()
        except OSError:
            self._file.raw.close()  # else its buffer would be tried again, by whoever collects it
            raise
        notify_of_forks(self)

    def forked(self) -> None:
        """Take nothing more, in a process just forked: the file is its parent's."""
        # Letting go of it would write whatever is in its buffer a second time.
        keep_for_parent(self._file)
        self._file = _Nowhere()

    @property
    def origin_us(self) -> int:
        """The host clock's reading that the file calls zero."""
        return self._origin_us

    def step(self, step: Step) -> None:
        """Append a step's row, and a block summary when the block is full."""
        self._credit += self._bytes_per_step
        self._append_row(step)
        self._block.add(step)
        if step.timeline:
            self._append_timeline(step)
        self._end_steps(1)

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        """Append the rows of steps whose parts were not sampled."""
        done = 0
        while done < len(steps.wall_us):
            place = slice(done, done + BLOCK_STEPS - self._block.steps)
            piece = UnsampledSteps(
                steps.first + done,
                steps.start_us + sum(steps.wall_us[:done]),
                steps.wall_us[place],
                steps.samples[place],
                steps.micro_steps[place],
            )
            count = len(piece.wall_us)
            self._credit += self._bytes_per_step * count
            self._append_unsampled(piece)
            self._block.add_unsampled(piece)
            self._end_steps(count)
            done += count

    def _end_steps(self, count: int) -> None:
        self._steps += count
        if self._block.steps >= BLOCK_STEPS:
            self._append_block()
        self._flush_if_due()

    def event(
        self,
        name: str,
        *,
        step: int,
        start_us: int,
        wall_us: int,
        detail: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Append something that happened outside steps."""
        line: Dict[str, Any] = {
            "kind": "event",
            "name": name,
            "step": step,
            "start_us": start_us - self._origin_us,
            "wall_us": wall_us,
        }
        if detail:
            line["detail"] = detail
        self._write(line)
        self._flush_if_due()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Append values read at a step, such as loss and learning rate."""
        self._write({"kind": "scalars", "step": step, "values": values})
        self._flush_if_due()

    def reading(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append any other fact; `kind` names its record, such as "memory" or "machine"."""
        self._write({"kind": kind, "at_us": self._now_us() - self._origin_us, **values})
        self._flush_if_due()

    def close(self, status: str = "finished", reason: str = "") -> None:
        """Write the last block and how the run ended; later calls do nothing."""
        if self._file.closed:
            return
        if self._block.steps:
            self._append_block()
        self._write(
            {
                "kind": "end",
                "status": status,
                "reason": mask_text(reason),
                "steps": self._steps,
                "at_us": self._now_us() - self._origin_us,
            }
        )
        try:
            self._file.close()
        except OSError as error:
            self._lose(error)

    def flush(self) -> None:
        """Give everything written so far to the operating system."""
        try:
            self._file.flush()
        except OSError as error:
            self._lose(error)
        self._flushed_us = self._now_us()

    def _open(self) -> Any:
        torn = False
        if os.path.exists(self.path) and os.path.getsize(self.path):
            with open(self.path, "rb") as earlier:
                earlier.seek(-1, os.SEEK_END)
                torn = earlier.read(1) != b"\n"
        file = open(self.path, "ab", buffering=1 << 16)  # noqa: SIM115 - closed by close()
        if torn:
            file.write(b"\n")
        return file

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append a line that the budget of the steps does not pay for."""
        self._append(_line(line))

    def _spend(self, data: bytes) -> None:
        """Append what the steps cost."""
        self._append(data)
        self._credit -= len(data)

    def _append(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """End the record where it is; what is on the disk reads up to its last whole line."""
        file, self._file = self._file, _Nowhere()
        self.is_lost = True
        file.raw.close()  # without its buffer, which would be tried again
        say("the record {} ends here: {}".format(self.path, error.strerror or error))

    def _flush_if_due(self) -> None:
        if self._now_us() - self._flushed_us >= FLUSH_EVERY_US:
            self.flush()

    def _id(self, span: Span) -> int:
        number = self._span_ids.get(span)
        if number is None:
            parent = span.parent
            parent_id = None if parent is None or parent.depth == 0 else self._id(parent)
            number = self._span_ids[span] = len(self._span_ids)
            line = {"kind": "span", "id": number, "parent": parent_id, "name": span.name}
            self._spend(_line(line))
        return number

    def _append_row(self, step: Step) -> None:
        """Write the fullest row that the budget allows: all spans, the top level, or none."""
        shape = self._shape(step)
        entries = step.host_us.values()
        host = [entry[1] for entry in entries]
        device = list(step.device_us.values())
        row = (step.wall_us, [entry[0] for entry in entries], host, device, step.device_wall_us)
        shape.rows.append(row)
        fixed = self._fixed(step)
        for choice in shape.choices:
            layout = choice.layout
            if layout is None:
                if len(self._layouts) >= MOST_LAYOUTS and choice is not shape.choices[-1]:
                    continue
                layout = choice.layout = self._layout_of(shape, choice)
            values = [layout.number, *fixed, *[host[place] for place in choice.host_places]]
            if shape.has_device_wall:
                values.append(step.device_wall_us)
                values += [device[place] for place in choice.device_places]
            line = layout.head + ("[" + ",".join(map(str, values)) + "]\n").encode()
            if len(line) <= self._credit or choice is shape.choices[-1]:
                layout.head = b""
                self._spend(line)
                break
        self._end_us = step.start_us + step.outside_us + step.wall_us

    def _append_unsampled(self, steps: UnsampledSteps) -> None:
        """Write a row for each; in one go, for there are many."""
        layout = self._layout((), None)
        head, layout.head = layout.head, b""
        rows = zip(
            repeat(layout.number),
            range(steps.first, steps.first + len(steps.wall_us)),
            chain((self._gap_us(steps.start_us),), repeat(0)),
            steps.wall_us,
            _texts(steps.samples),
            _texts(steps.micro_steps),
        )
        lines = ["[%s,%s,%s,0,%s,%s,%s]\n" % row for row in rows]
        self._spend(head + "".join(lines).encode())
        self._end_us = steps.start_us + sum(steps.wall_us)

    def _gap_us(self, start_us: int) -> int:
        """From the end of the step before to the begin of this one."""
        return start_us - (self._origin_us if self._end_us is None else self._end_us)

    def _shape(self, step: Step) -> _Shape:
        has_device = step.device_wall_us is not None
        key = (tuple(step.host_us), tuple(step.device_us), has_device, step.sampled)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_LAYOUTS:
                self._forget_shapes()
            shape = self._shapes[key] = _Shape(step)
        return shape

    def _forget_shapes(self) -> None:
        """Begin anew with shapes: a script whose steps are all different must not fill memory."""
        self._append_block()
        self._shapes.clear()

    def _fixed(self, step: Step) -> List[Any]:
        """The numbers of a row that every layout has."""
        return [
            step.index,
            self._gap_us(step.start_us),
            step.outside_us,
            step.wall_us,
            *_texts([step.samples, step.micro_steps]),
        ]

    def _layout_of(self, shape: _Shape, choice: _Choice) -> _RowLayout:
        """Find the layout of a row with some of its shape's spans, or make it."""
        host = tuple(self._id(shape.host_spans[place]) for place in choice.host_places)
        device = None
        if shape.has_device_wall:
            device = tuple(self._id(shape.device_spans[place]) for place in choice.device_places)
        return self._layout(host, device)

    def _layout(self, host: Tuple[int, ...], device: Optional[Tuple[int, ...]]) -> _RowLayout:
        """Find the layout that says what a row's numbers are, or make it."""
        layout = self._layouts.get((host, device))
        if layout is None:
            line: Dict[str, Any] = {"kind": "layout", "id": len(self._layouts), "host": host}
            if device is not None:
                line["device"] = device
            layout = self._layouts[host, device] = _RowLayout(line["id"], _line(line))
        return layout

    def _append_timeline(self, step: Step) -> None:
        rows = [_timeline_row(self._id(row.span), row) for row in step.timeline]
        line = {
            "kind": "timeline",
            "step": step.index,
            "spans": rows[:MOST_TIMELINE_ROWS],
            "left_out": max(0, len(rows) - MOST_TIMELINE_ROWS),
        }
        self._spend(_line(line))

    def _append_block(self) -> None:
        block, self._block = self._block, _Block()
        if block.steps == 0:
            return
        columns = _Columns(block.unsampled_wall_us)
        for shape in self._shapes.values():
            if shape.rows:
                columns.add(shape)
                shape.rows = []
        line = {
            "kind": "block",
            "first": block.first,
            "last": block.last,
            "start_us": block.start_us - self._origin_us,
            "outside_us": block.outside_us,
            "samples": block.samples,
            "micro_steps": block.micro_steps,
            "broken": block.broken,
            "wall": distribution(columns.wall),
            "unaccounted": distribution(columns.unaccounted),
            "device": distribution(columns.device_wall) if columns.device_wall else None,
            "spans": [
                [
                    self._id(span),
                    columns.calls[span],
                    distribution(values),
                    distribution(columns.device[span]) if span in columns.device else None,
                ]
                for span, values in columns.host.items()
            ],
        }
        self._spend(_line(line))


class _Nowhere:
    """A file that takes nothing."""

    closed = True

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _line(line: Mapping[str, Any]) -> bytes:
    try:
        text = _ENCODER.encode(line)
    except (TypeError, ValueError):
        text = _ENCODER.encode(plain(line))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _texts(counts: List[Optional[int]]) -> List[Any]:
    """What stands in rows for counts, of which some may not be known."""
    return ["null" if count is None else count for count in counts] if None in counts else counts


def _timeline_row(number: int, row: Timeline) -> List[Optional[int]]:
    places: List[Optional[int]] = [number, row.start_us, row.end_us]
    if row.device_start_us is None:
        return places
    return [*places, row.device_start_us, row.device_end_us]
