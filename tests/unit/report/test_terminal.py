"""Runs and verdicts as terminal text: what is said, and that a record cannot speak for itself."""

import io
from pathlib import Path

import pytest
from rich.console import RenderableType

from pitstop.records.store import read_run
from pitstop.records.summary import RunSummary, summarise
from pitstop.records.verdict import Bound, CumulativeGain, Finding, Verdict
from pitstop.report.terminal import make_console, run_report, verdict_report
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock, FakeDevice

ESCAPE = "\x1b"


def rendered(what: RenderableType) -> list[str]:
    stream = io.StringIO()
    make_console(stream).print(what)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def summary_of(
    path: Path, *, name: str = "forward", device: bool = False, finished: bool = True
) -> RunSummary:
    """Two steps of 1 s: half in a span with one child, and an evaluation beside them."""
    time = FakeClock()
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, FakeDevice(time) if device else None, now_us=time.now_us)
    for _ in range(2):
        clock.begin_step()
        with clock.span(name):
            time.advance(100_000)
            with clock.span("stage1"):
                time.advance(400_000)
        time.advance(500_000)
        clock.count(samples=3)
    with clock.outside_step(f"{name} check"):
        time.advance(7_000_000)
    clock.close()
    writer.close()
    if not finished:
        path.write_bytes(path.read_bytes().rpartition(b'{"kind":"end"')[0])
    return summarise(read_run(path).first)


def test_parts_are_a_tree_that_adds_up_to_the_wall(tmp_path: Path) -> None:
    lines = rendered(run_report(summary_of(tmp_path / "rank-0.jsonl")))
    rows = {line.split()[0]: line.split() for line in lines[2:6]}
    assert lines[2].startswith("forward ")
    assert lines[3].startswith("  stage1 ")
    assert list(rows) == ["forward", "stage1", "unaccounted", "wall"]
    assert rows["forward"][1:] == ["1.00", "s", "50.0%", "200", "ms", "500", "ms"]
    assert rows["stage1"][1:] == ["800", "ms", "40.0%", "800", "ms", "400", "ms"]
    assert rows["unaccounted"][1:] == ["1.00", "s", "50.0%"]
    assert rows["wall"][1:] == ["2.00", "s", "100.0%"]
    assert "forward check: 1 time, 7.00 s, outside steps" in lines


def test_the_first_line_says_how_fast_the_run_was(tmp_path: Path) -> None:
    first = rendered(run_report(summary_of(tmp_path / "rank-0.jsonl")))[0]
    assert first == "2 steps, median 1.00 s, p90 1.00 s, 3.00 samples/s"


def test_a_run_without_an_ending_is_called_unfinished(tmp_path: Path) -> None:
    finished = rendered(run_report(summary_of(tmp_path / "a.jsonl")))[0]
    killed = rendered(run_report(summary_of(tmp_path / "b.jsonl", finished=False)))[0]
    assert "unfinished" not in finished
    assert killed.endswith(", unfinished")


def test_device_times_are_shown_only_where_there_was_a_device(tmp_path: Path) -> None:
    without = rendered(run_report(summary_of(tmp_path / "a.jsonl")))
    with_device = rendered(run_report(summary_of(tmp_path / "b.jsonl", device=True)))
    assert not any("on the device" in line for line in without)
    assert with_device[1].endswith("on the device")
    assert with_device[3].split()[-2:] == ["800", "ms"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[red]forward[/red]", "[red]forward[/red]"),
        ("[link=https://example.org]x[/link]", "[link=https://example.org]x[/link]"),
        (":warning: loss", ":warning: loss"),
        (f"{ESCAPE}[31mred", "\\x1b[31mred"),
        (f"{ESCAPE}]0;title\x07", "\\x1b]0;title\\x07"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("half \ud800", "half \\ud800"),
        ("模糊", "模糊"),
    ],
)
def test_names_in_a_record_are_shown_as_they_are_written(
    tmp_path: Path, name: str, shown: str
) -> None:
    report = rendered(run_report(summary_of(tmp_path / "rank-0.jsonl", name=name)))
    finding = Finding(
        code="X001", severity="info", summary=name, evidence=(name,), bound=None, remedy=(name,)
    )
    verdict = Verdict(outcome="bottleneck", message=name, findings=(finding,), notes=(name,))
    text = rendered(verdict_report(verdict))
    assert report[2].startswith(f"{shown} ")
    assert report[-1].startswith(f"{shown} check: ")
    assert text == [
        f"bottleneck: {shown}",
        "",
        f"X001 {shown}",
        f"  {shown}",
        f"  try: {shown}",
        f"note: {shown}",
    ]
    assert ESCAPE not in "".join(report + text)
    "\n".join(report + text).encode()


def finding(part: str, share: float) -> Finding:
    return Finding(
        code=f"{part.upper()}001",
        severity="critical",
        summary=f"{part} is slow",
        evidence=(f"{share:.0%} of it",),
        bound=Bound(part=part, share=share),
        remedy=(f"mend {part}",),
    )


def test_a_verdict_says_result_then_evidence_then_remedy() -> None:
    verdict = Verdict(
        outcome="bottleneck",
        message="data is slow",
        findings=(finding("data", 0.5), finding("log", 0.25)),
        combined_bound=Bound(part="data + log", share=0.75),
        notes=("one rank left no record",),
    )
    assert rendered(verdict_report(verdict)) == [
        "bottleneck: data is slow",
        "",
        "DATA001 data is slow",
        "  50% of it",
        "  up to 2.00x faster (from measured shares)",
        "  try: mend data",
        "",
        "LOG001 log is slow",
        "  25% of it",
        "  up to 1.33x faster (from measured shares)",
        "  try: mend log",
        "",
        "all fixed: up to 4.00x faster",
        "note: one rank left no record",
    ]


def test_a_part_that_is_the_whole_step_promises_no_number() -> None:
    verdict = Verdict(outcome="bottleneck", message="all", findings=(finding("data", 1.0),))
    lines = rendered(verdict_report(verdict))
    assert not any("up to" in line for line in lines)
    assert any("it is the whole step" in line for line in lines)


def test_a_row_stays_one_line_where_no_terminal_sets_a_width(tmp_path: Path) -> None:
    name = "a name that is much longer than a terminal of eighty letters is wide " * 2
    lines = rendered(run_report(summary_of(tmp_path / "rank-0.jsonl", name=name)))
    assert lines[2].startswith(name)
    assert lines[2].endswith("500 ms")


def test_several_fixes_are_shown_one_after_the_other_with_hours() -> None:
    first, second = finding("data", 0.5), finding("log", 0.25)
    verdict = Verdict(
        outcome="bottleneck",
        message="data is slow",
        findings=(first, second),
        combined_bound=Bound(part="data + log", share=0.75),
        cumulative_gains=(
            CumulativeGain(code="DATA001", bound=Bound(part="data", share=0.5), hours_saved=10.0),
            CumulativeGain(
                code="LOG001", bound=Bound(part="data + log", share=0.75), hours_saved=15.0
            ),
        ),
        whole_run_hours=20.0,
        start_up_s=12.0,
    )
    lines = rendered(verdict_report(verdict))
    assert lines[-6:] == [
        "cumulative gains, fixed in this order:",
        "  DATA001: up to 2.00x faster, up to 10.0 h saved",
        "  LOG001: up to 4.00x faster, up to 15.0 h saved",
        "all fixed: up to 4.00x faster",
        "the whole training takes 20.0 h at this rate; up to 15.0 h can be saved",
        "start-up 12.0 s (not included above)",
    ]
