"""Steps as a trace, by the rules of the Trace Event Format, checked by what they say alone."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pitstop.errors import RecordError
from pitstop.records.store import read_run
from pitstop.report.export.trace import write_trace
from tests.browser.records import ranks, write_run
from tests.unit.doctor.records import rank, run_of

NEEDED = {
    "X": {"name": str, "cat": str, "ts": int, "dur": int, "pid": int, "tid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": int, "pid": int, "tid": int, "args": dict},
}


def traced(folder: Path, path: Path) -> list[dict[str, Any]]:
    write_trace(read_run(folder), path)
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def test_every_event_has_what_its_kind_needs(tmp_path: Path) -> None:
    events = traced(write_run(tmp_path / "run"), tmp_path / "trace.json")
    assert {event["ph"] for event in events} == set(NEEDED)
    for event in events:
        for name, kind in NEEDED[event["ph"]].items():
            assert isinstance(event[name], kind), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == named


def test_slices_of_a_track_lie_one_inside_the_other_or_apart(tmp_path: Path) -> None:
    events = traced(write_run(tmp_path / "run"), tmp_path / "trace.json")
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) > 3, "steps, host, outside and device"
    for slices in tracks.values():
        open_ends: list[int] = []
        for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


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


def test_a_record_without_steps_makes_no_empty_trace(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no measured step"):
        write_trace(run_of(rank({}, steps=0)), tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()
