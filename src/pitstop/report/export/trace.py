"""Steps as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process a rank. Tracks: all steps; the parts of sampled steps on the host, one inside the other;
the same on the device, a track a depth, for its clock is another one; what lies outside steps. The
format is Chrome's Trace Event Format, in which times are microseconds.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pitstop.errors import RecordError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.run import RankRecord, RunRecord, StepTable, Timeline
from pitstop.records.store import decode, write_text

MOST_STEPS: Final = 20_000
"""The last steps that are written; a viewer becomes slow with many more."""

_STEPS, _HOST, _OUTSIDE, _DEVICE = 1, 2, 3, 10
_NAMES: Final = {_STEPS: "steps", _HOST: "host, sampled steps", _OUTSIDE: "outside steps"}

Event = dict[str, Any]


def write_trace(record: RunRecord, path: Path) -> int:
    """Write the trace of a measured run; give the number of its slices.

    Raises:
        RecordError: There is no step in the record, or the file cannot be written.
    """
    events = list(trace_events(record))
    slices = sum(event["ph"] == "X" for event in events)
    if not slices:
        raise RecordError(f"{record.source} holds no measured step to make a trace of")
    whole = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"source": record.source, "made by": "pitstop"},
    }
    write_text(path, json.dumps(whole, separators=(",", ":")))
    return slices


def trace_events(record: RunRecord) -> Iterator[Event]:
    """Give the events of all ranks, names of processes and tracks first."""
    begun = [
        attempt.started_unix_s
        for rank in record.ranks
        for attempt in rank.attempts
        if attempt.started_unix_s is not None
    ]
    first_s = min(begun, default=0.0)
    for rank in record.ranks:
        offsets = [
            0 if attempt.started_unix_s is None else round(1e6 * (attempt.started_unix_s - first_s))
            for attempt in rank.attempts
        ]
        slices = list(_slices(rank, offsets))
        yield _named("process_name", rank.rank, 0, f"rank {rank.rank}")
        for track in sorted({event["tid"] for event in slices}):
            yield _named("thread_name", rank.rank, track, _track_name(track))
        yield from slices
        yield from _memory(rank, offsets)


def _track_name(track: int) -> str:
    if track in _NAMES:
        return _NAMES[track]
    depth = track - _DEVICE
    return "device, sampled steps" if depth == 1 else f"device, {depth - 1} further inside"


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slices(rank: RankRecord, offsets: list[int]) -> Iterator[Event]:
    steps = rank.steps
    if steps is not None:
        starts: dict[tuple[int, int], int] = {}
        for step in _last(steps):
            begin_us = offsets[step["attempt"]] + step["start_us"]
            starts[step["attempt"], step["index"]] = begin_us
            yield _slice((rank.rank, _STEPS), f"step {step['index']}", begin_us, step["wall_us"])
        for timeline in rank.timelines:
            begin = starts.get((timeline.attempt, timeline.step))
            if begin is not None:
                yield from _parts(rank, timeline, begin)
    for event in rank.events:
        if event.wall_us:
            start_us = offsets[event.attempt] + event.start_us
            yield _slice(
                (rank.rank, _OUTSIDE), event.name, start_us, event.wall_us, step=event.step
            )


def _last(steps: StepTable) -> Iterator[Mapping[str, int]]:
    columns = {
        name: getattr(steps, name)[-MOST_STEPS:].astype(int).tolist()
        for name in ("attempt", "index", "start_us", "wall_us")
    }
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _parts(rank: RankRecord, timeline: Timeline, begin_us: int) -> Iterator[Event]:
    for span in timeline.spans:
        path = "/".join(span.path)
        about = {"step": timeline.step, "part": path}
        length_us = span.end_us - span.start_us
        start_us = begin_us + span.start_us
        yield _slice((rank.rank, _HOST), span.path[-1], start_us, length_us, **about)
        if span.device_start_us is not None and span.device_end_us is not None:
            track = _DEVICE + len(span.path)
            length_us = span.device_end_us - span.device_start_us
            start_us = begin_us + span.device_start_us
            yield _slice((rank.rank, track), span.path[-1], start_us, length_us, **about)


def _slice(
    place: tuple[int, int], name: str, start_us: int, length_us: int, **about: object
) -> Event:
    """Give one slice; its place is the number of its rank and of its track."""
    rank, track = place
    return {
        "ph": "X",
        "name": name,
        "cat": _track_name(track),
        "pid": rank,
        "tid": track,
        "ts": start_us,
        "dur": max(0, length_us),
        "args": about,
    }


def _memory(rank: RankRecord, offsets: list[int]) -> Iterator[Event]:
    """Give host memory of the process tree as a counter."""
    for reading in rank.readings:
        if reading.kind != "memory" or reading.at_us is None:
            continue
        tree = decode(reading, MemoryReading).tree
        if tree is not None:
            yield {
                "ph": "C",
                "name": "host memory of the processes, MiB",
                "pid": rank.rank,
                "tid": 0,
                "ts": offsets[reading.attempt] + reading.at_us,
                "args": {"MiB": round(tree.tree_bytes / 2**20, 1)},
            }
