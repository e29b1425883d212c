"""Steps as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process a rank. Tracks: all steps; the parts of sampled steps on the host, one inside the other;
the same on the device; what lies outside steps; host and device of a profiled step, transfers and
communication apart. Memory and load are counters. The format is
Chrome's Trace Event Format, in which times are microseconds and the slices of a track lie one
inside the other or apart: a slice that would reach over another one's end goes to a further track
of the same name.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pitstop.errors import RecordError
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.run import RankRecord, RunRecord, StepTable, Timeline
from pitstop.records.script import DeviceTrack, Kernels
from pitstop.records.store import decode, write_text

MOST_STEPS: Final = 20_000
"""The last steps that are written; a viewer becomes slow with many more."""

_TRACKS: Final = (
    "steps",
    "host, sampled steps",
    "device, sampled steps",
    "outside steps",
    "host, profiled step",
    "kernels, profiled step",
    "transfers, profiled step",
    "communication, profiled step",
)
_STEPS, _HOST, _DEVICE, _OUTSIDE, _PROFILED_HOST, _KERNELS, _TRANSFERS, _COMMUNICATION = _TRACKS
_BESIDE: Final = {"transfers": _TRANSFERS, "communication": _COMMUNICATION}
_SLOWED: Final = "pitstop"
"""What a step that was slowed down for a profile is called among events."""
# Numbers between two tracks, for slices that do not fit into the first of a name.
_LANES: Final = 1_000
_MIB: Final = 2**20

Event = dict[str, Any]
ReadingT = TypeVar("ReadingT")


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
    write_text(path, json.dumps(whole, separators=(",", ":"), allow_nan=False))
    return slices


def trace_events(record: RunRecord) -> Iterator[Event]:
    """Give the events of all ranks: names of a process and its tracks first, then by their time."""
    begun = [
        attempt.aligned_unix_s
        for rank in record.ranks
        for attempt in rank.attempts
        if attempt.aligned_unix_s is not None
    ]
    first_s = min(begun, default=0.0)
    hosts = {attempt.host for rank in record.ranks for attempt in rank.attempts[-1:]}
    for rank in record.ranks:
        offsets = [
            0 if attempt.aligned_unix_s is None else round(1e6 * (attempt.aligned_unix_s - first_s))
            for attempt in rank.attempts
        ]
        slices = list(_laid_out(_slices(rank, offsets)))
        place = f" ({rank.attempts[-1].host})" if len(hosts) > 1 and rank.attempts else ""
        yield _named("process_name", rank.rank, 0, name=f"rank {rank.rank}{place}")
        yield _named("process_sort_index", rank.rank, 0, sort_index=rank.rank)
        for track, name in sorted({(event["tid"], event["cat"]) for event in slices}):
            yield _named("thread_name", rank.rank, track, name=name)
            yield _named("thread_sort_index", rank.rank, track, sort_index=track)
        yield from sorted([*slices, *_counters(rank, offsets)], key=lambda event: event["ts"])


def _named(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _laid_out(slices: Iterable[Event]) -> Iterator[Event]:
    """Give each slice the number of a track in which it lies inside others or apart from them."""
    tracks: dict[str, list[list[int]]] = defaultdict(list)
    # Of slices that begin together the longest is around the others; else the order given counts.
    for event in sorted(slices, key=lambda each: (each["ts"], -each["dur"])):
        lanes = tracks[event["cat"]]
        end_us = event["ts"] + event["dur"]
        for ends in lanes:
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
        lane = next((n for n, ends in enumerate(lanes) if not ends or end_us <= ends[-1]), None)
        if lane is None:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(end_us)
        yield event | {"tid": (1 + _TRACKS.index(event["cat"])) * _LANES + lane}


def _slices(rank: RankRecord, offsets: list[int]) -> Iterator[Event]:
    steps = rank.steps
    if steps is not None:
        starts: dict[tuple[int, int], int] = {}
        for step in _last(steps):
            begin_us = offsets[step["attempt"]] + step["start_us"]
            starts[step["attempt"], step["index"]] = begin_us
            yield _slice(rank, _STEPS, f"step {step['index']}", (begin_us, step["wall_us"]))
        for timeline in rank.timelines:
            begin = starts.get((timeline.attempt, timeline.step))
            if begin is not None:
                yield from _parts(rank, timeline, begin)
    for event in rank.events:
        if event.wall_us:
            start_us = offsets[event.attempt] + event.start_us
            yield _slice(rank, _OUTSIDE, event.name, (start_us, event.wall_us), step=event.step)
    yield from _profiled(rank, offsets)


def _profiled(rank: RankRecord, offsets: list[int]) -> Iterator[Event]:
    """Give host and device of profiled steps, each where its event lies."""
    slowed = [event for event in rank.events if event.name == _SLOWED]
    # What is written between steps has the same name and may have the same number: it is shorter.
    begun = {
        (event.attempt, event.step): offsets[event.attempt] + event.start_us
        for event in sorted(slowed, key=lambda event: event.wall_us)
    }
    for reading in rank.readings:
        if reading.kind != "kernels":
            continue
        try:
            track = decode(reading, Kernels).track
        except RecordError:
            continue  # counted in the verdict's notes
        begin_us = None if track is None else begun.get((reading.attempt, track.step))
        if track is not None and begin_us is not None:
            yield from _track(rank, track, begin_us)


def _track(rank: RankRecord, track: DeviceTrack, begin_us: int) -> Iterator[Event]:
    for part, start, end in track.host:
        yield _slice(rank, _PROFILED_HOST, part, _place_us(begin_us, start, end), step=track.step)
    for start, end, place, count in track.pieces:
        name = track.classes[place]
        where = _place_us(begin_us, start, end)
        row = _BESIDE.get(name, _KERNELS)
        yield _slice(rank, row, name, where, step=track.step, kernels=count)


def _place_us(begin_us: int, start: float, end: float) -> tuple[int, int]:
    """Give start and length in whole microseconds; two that follow each other still do."""
    return begin_us + round(start), round(end) - round(start)


def _last(steps: StepTable) -> Iterator[Mapping[str, int]]:
    columns = {
        name: getattr(steps, name)[-MOST_STEPS:].astype(int).tolist()
        for name in ("attempt", "index", "start_us", "wall_us")
    }
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _parts(rank: RankRecord, timeline: Timeline, begin_us: int) -> Iterator[Event]:
    # Outer parts first: of two that begin and end together, the inner one lies below.
    for span in sorted(timeline.spans, key=lambda each: len(each.path)):
        about = {"step": timeline.step, "part": "/".join(span.path)}
        host = (begin_us + span.start_us, span.end_us - span.start_us)
        yield _slice(rank, _HOST, span.path[-1], host, **about)
        if span.device_start_us is not None and span.device_end_us is not None:
            device = (begin_us + span.device_start_us, span.device_end_us - span.device_start_us)
            yield _slice(rank, _DEVICE, span.path[-1], device, **about)


def _slice(
    rank: RankRecord, track: str, name: str, place_us: tuple[int, int], **about: object
) -> Event:
    """Give one slice, which has no track yet; its place is where it begins and its length."""
    start_us, length_us = place_us
    return {
        "ph": "X",
        "name": name,
        "cat": track,
        "pid": rank.rank,
        "ts": start_us,
        "dur": max(0, length_us),
        "args": about,
    }


def _counters(rank: RankRecord, offsets: list[int]) -> Iterator[Event]:
    """Give memory and load over time, as far as they were read."""
    for at_us, memory in _readings(rank, offsets, "memory", MemoryReading):
        if memory.tree is not None:
            name = "host memory of the processes"
            yield _counter(rank, name, at_us, MiB=memory.tree.tree_bytes / _MIB)
        for device in memory.devices:
            name = f"memory of {device.device}, MiB"
            yield _counter(
                rank, name, at_us,
                allocated=device.allocated_bytes / _MIB, reserved=device.reserved_bytes / _MIB,
            )  # fmt: skip
    for at_us, load in _readings(rank, offsets, "load", HostLoad):
        for gpu in load.gpus:
            if gpu.memory_used_bytes is not None:
                name = f"memory in use on GPU {gpu.index}"
                yield _counter(rank, name, at_us, MiB=gpu.memory_used_bytes / _MIB)
            if gpu.busy_share is not None:
                busy = {"%": 100 * gpu.busy_share}
                yield _counter(rank, f"GPU {gpu.index} busy", at_us, **busy)


def _readings(
    rank: RankRecord, offsets: list[int], kind: str, record_type: type[ReadingT]
) -> Iterator[tuple[int, ReadingT]]:
    for reading in rank.readings:
        if reading.kind == kind and reading.at_us is not None:
            try:
                sound = decode(reading, record_type)
            except RecordError:
                continue  # counted in the verdict's notes
            yield offsets[reading.attempt] + reading.at_us, sound


def _counter(rank: RankRecord, name: str, at_us: int, **values: float) -> Event:
    """Give one reading of a counter; viewers show its name with a series' name behind it."""
    rounded = {series: round(value, 1) for series, value in values.items()}
    return {"ph": "C", "name": name, "pid": rank.rank, "tid": 0, "ts": at_us, "args": rounded}
