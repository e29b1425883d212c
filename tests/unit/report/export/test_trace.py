"""Steps as a trace that Perfetto loads, held against a checker of the format of its own."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import RecordError
from pitstop.records.run import (
    Event,
    RankRecord,
    Reading,
    RunRecord,
    Timeline,
    TimelineSpan,
)
from pitstop.records.script import DeviceTrack, Kernels
from pitstop.records.store import decode, read_run
from pitstop.report.export.trace import trace_events, write_trace
from tests.browser.gpu_record import on_gpu
from tests.browser.records import ranks, write_run
from tests.unit.doctor.records import KERNELS, rank, raw, run_of
from tests.unit.report.export.trace_rules import violations


def traced(folder: Path, path: Path) -> list[dict[str, Any]]:
    write_trace(read_run(folder), path)
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def text_of(events: list[dict[str, Any]]) -> str:
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


@pytest.mark.parametrize("make", [write_run, ranks, on_gpu])
def test_whole_files_break_no_rule_of_the_format(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "run")
    events = traced(tmp_path / "run", tmp_path / "trace.json")
    assert {event["ph"] for event in events} >= {"X", "M"}
    assert violations((tmp_path / "trace.json").read_text(encoding="utf-8")) == []


X = {"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 1, "ts": 0, "dur": 10, "args": {}}
NAMES = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "t"}},
]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([*NAMES, X, X | {"ts": 5}], "overlap"),
        ([*NAMES, X | {"ts": 5}, X | {"ts": 1, "dur": 1}], "goes back"),
        ([*NAMES, X | {"dur": -1}], "negative"),
        ([*NAMES, X | {"ts": "0"}], "another type"),
        ([*NAMES, X | {"tid": True}], "tid missing or of another type"),
        ([NAMES[0], X], "no name"),
        ([X, *NAMES], "no name before"),
        ([*NAMES, NAMES[1]], "named twice"),
        ([*NAMES, {"ph": "Q"}], "unknown kind"),
        ([*NAMES, {"ph": "C", "name": "m", "pid": 0, "tid": 0, "ts": 1, "args": {"v": "1"}}],
         "counts numbers"),
        ([*NAMES, {"ph": "C", "name": "m, MiB", "pid": 0, "tid": 0, "ts": 1, "args": {"MiB": 1}}],
         "said twice"),
    ],
)  # fmt: skip
def test_the_checker_sees_what_breaks_a_rule(events: list[dict[str, Any]], said: str) -> None:
    assert violations(text_of([*NAMES, X, X | {"ts": 2, "dur": 8}, X | {"ts": 10}])) == []
    assert said in " ".join(violations(text_of(events)))


TIMES = st.integers(min_value=0, max_value=3_000)
PLACES = st.tuples(TIMES, TIMES).map(lambda ends: (min(ends), max(ends)))
PATHS = st.lists(st.sampled_from(["forward", "loss", "a"]), min_size=1, max_size=3).map(tuple)


@st.composite
def spans(draw: st.DrawFn) -> TimelineSpan:
    """A span anywhere, on a device whose clock has nothing to do with the host's."""
    start, end = draw(PLACES)
    device = draw(st.none() | PLACES)
    device_start, device_end = (None, None) if device is None else device
    return TimelineSpan(path=draw(PATHS), start_us=start, end_us=end,
                        device_start_us=device_start, device_end_us=device_end)  # fmt: skip


EVENTS = st.builds(
    Event, attempt=st.just(0), name=st.sampled_from(["evaluation", "compile", "checkpoint"]),
    step=st.integers(0, 5), start_us=TIMES, wall_us=TIMES, detail=st.just({}),
)  # fmt: skip


def a_rank(number: int, placed: list[list[TimelineSpan]], outside: list[Event]) -> RankRecord:
    timelines = tuple(
        Timeline(attempt=0, step=step, spans=tuple(found), left_out=0)
        for step, found in enumerate(placed)
    )
    made = rank({"forward": 700}, steps=6, number=number, world=2)
    return replace(made, timelines=timelines, events=tuple(outside))


@given(
    placed=st.lists(st.lists(spans(), max_size=6), max_size=6),
    outside=st.lists(EVENTS, max_size=6),
)
def test_no_record_makes_a_trace_that_breaks_a_rule(
    placed: list[list[TimelineSpan]], outside: list[Event]
) -> None:
    record = RunRecord(
        source="run", ranks=(a_rank(0, placed, outside), a_rank(1, placed[::-1], outside))
    )
    events = list(trace_events(record))
    assert violations(text_of(events)) == []
    # Nothing is lost to the rules: a slice a step, a span on each clock, and what lies outside.
    found = [span for timeline in placed for span in timeline]
    expected = {
        "steps": 6,
        "host, sampled steps": len(found),
        "device, sampled steps": sum(span.device_start_us is not None for span in found),
        "outside steps": sum(event.wall_us > 0 for event in outside),
    }
    for pid in (0, 1):
        for track, count in expected.items():
            here = [e for e in events if e.get("cat") == track and e["pid"] == pid]
            assert len(here) == count


def test_parts_that_begin_and_end_together_lie_outermost_first() -> None:
    both = [
        TimelineSpan(path=path, start_us=5, end_us=50, device_start_us=7, device_end_us=70)
        for path in (("forward", "a"), ("forward",))
    ]
    events = trace_events(run_of(a_rank(0, [both], [])))
    names = [event["name"] for event in events if event.get("cat") == "device, sampled steps"]
    assert names == ["forward", "a"]


def test_a_slice_for_every_step_and_every_span_that_was_placed(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run"))
    events = traced(tmp_path / "run", tmp_path / "trace.json")
    steps = [event for event in events if event.get("cat") == "steps"]
    assert record.first.steps is not None
    assert len(steps) == len(record.first.steps)
    placed = sum(len(timeline.spans) for timeline in record.first.timelines)
    assert sum(event.get("cat") == "host, sampled steps" for event in events) == placed > 0


def test_each_rank_is_a_process(tmp_path: Path) -> None:
    events = traced(ranks(tmp_path / "run"), tmp_path / "trace.json")
    assert {event["pid"] for event in events} == {0, 1, 2, 3}


def counters(events: list[dict[str, Any]]) -> Mapping[str, dict[str, float]]:
    """The last values of each counter, by its name."""
    return {event["name"]: event["args"] for event in events if event["ph"] == "C"}


def test_memory_and_load_of_a_gpu_are_counters(tmp_path: Path) -> None:
    found = counters(traced(on_gpu(tmp_path / "run"), tmp_path / "trace.json"))
    assert found["memory in use on GPU 0"] == {"MiB": 43 * 1024}
    assert 90 < found["GPU 0 busy"]["%"] <= 100
    own = counters(traced(write_run(tmp_path / "own").parent, tmp_path / "own.json"))
    assert own["memory of cuda:0, MiB"]["reserved"] == 34 * 1024


def test_a_reading_that_is_damaged_costs_itself_alone(tmp_path: Path) -> None:
    damaged = replace(raw("memory", at_s="soon"), at_us=5)
    record = run_of(rank({"forward": 700}, steps=3, readings=[damaged]))
    assert write_trace(record, tmp_path / "trace.json") == 3


def test_a_record_without_steps_makes_no_empty_trace(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no measured step"):
        write_trace(run_of(rank({}, steps=0)), tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


TRACK = DeviceTrack(
    step=2,
    wall_us=5_000,
    host=(("forward", 0.0, 2_000.0), ("backward", 2_000.0, 4_000.5)),
    classes=("communication", "matrix products", "transfers"),
    pieces=(
        (10.4, 60.2, 2, 1),
        (1_000.0, 1_500.0, 1, 3),
        (1_200.0, 1_800.0, 0, 1),
        (1_500.0, 1_900.0, 1, 1),
    ),
)


def test_a_profiled_step_has_host_and_device_where_it_lay(tmp_path: Path) -> None:
    kernels = replace(KERNELS, step=3, track=TRACK)
    record = rank({"forward": 900}, apart={"pitstop": {2: 5_000}}, readings=[kernels])
    begun = next(event for event in record.events if event.name == "pitstop").start_us
    write_trace(run_of(record), tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text(encoding="utf-8")
    assert violations(text) == []
    rows: dict[str, list[tuple[str, int, int]]] = {}
    for event in json.loads(text)["traceEvents"]:
        if event["ph"] == "X" and "profiled" in event["cat"]:
            place = (event["name"], event["ts"] - begun, event["dur"])
            rows.setdefault(event["cat"].partition(",")[0], []).append(place)
    assert rows == {
        "host": [("forward", 0, 2_000), ("backward", 2_000, 2_000)],
        "kernels": [("matrix products", 1_000, 500), ("matrix products", 1_500, 400)],
        "transfers": [("transfers", 10, 50)],
        "communication": [("communication", 1_200, 600)],
    }


def test_a_profiled_step_is_not_laid_where_its_record_was_written() -> None:
    """Writing between steps is an event of the same name, and may have the same number."""
    kernels = replace(KERNELS, step=3, track=TRACK)
    record = rank({"forward": 900}, apart={"pitstop": {2: 5_000}}, readings=[kernels])
    [slowed] = [event for event in record.events if event.name == "pitstop"]
    later = replace(slowed, start_us=slowed.start_us + 50_000, wall_us=20)
    events = trace_events(run_of(replace(record, events=(*record.events, later))))
    starts = [one["ts"] for one in events if one.get("cat") == "host, profiled step"]
    assert min(starts) == slowed.start_us


@pytest.mark.parametrize(
    "changed",
    [
        {"pieces": ((5.0, 1.0, 0, 1),)},
        {"pieces": ((0.0, float("inf"), 0, 1),)},
        {"pieces": ((0.0, float("nan"), 0, 1),)},
        {"pieces": ((0.0, 1.0, 3, 1),)},
        {"host": (("forward", -1.0, 1.0),)},
    ],
)
def test_a_damaged_track_is_a_damaged_reading(changed: dict[str, Any]) -> None:
    values = asdict(replace(KERNELS, track=TRACK))
    values["track"].update(changed)
    damaged = Reading(attempt=0, kind="kernels", at_us=0, values=values)
    with pytest.raises(RecordError):
        decode(damaged, Kernels)
    record = replace(rank({"forward": 900}), readings=(damaged,))
    assert not [one for one in trace_events(run_of(record)) if "profiled" in one.get("cat", "")]
