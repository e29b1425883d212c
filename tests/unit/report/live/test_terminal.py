"""A view as text: one voice in a pipe and on a terminal, and nothing that steers the terminal."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pitstop.doctor.examine import examine
from pitstop.report.live.tail import RunTail
from pitstop.report.live.terminal import live_report, shown_on, spark
from pitstop.report.live.text import age_text, plain_line
from pitstop.report.live.view import LiveView, recent_run
from tests.browser.records import ranks, write_run
from tests.unit.report.live_records import GrowingRun, look


def view_of(folder: Path) -> LiveView:
    tail = RunTail(folder)
    view = look(tail)
    recent = recent_run(tail)
    return replace(view, verdict=None if recent is None else examine(recent))


def shown(view: LiveView, *, terminal: bool, width: int = 120, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    console = Console(
        file=out, force_terminal=terminal, width=width, highlight=False, color_system=None
    )
    console.print(live_report(view))
    return raw.getvalue().decode(encoding)


@pytest.fixture
def slow(tmp_path: Path) -> LiveView:
    write_run(tmp_path / "run")
    return view_of(tmp_path / "run")


def test_a_pipe_gets_words_without_drawings(slow: LiveView) -> None:
    text = shown(slow, terminal=False, width=400)
    assert "\x1b" not in text
    for piece in (
        "street-clips  finished  ",
        "step               300 of 150,000, 0.2%  ran 19.9 s\n",
        "speed              123 samples/s now (last 128 steps, pauses included); 179 samples/s by "
        "the median step (44 steps, within 2%)\n",
        "waiting for data   39.2% of the step; a step takes 45.2 ms (median)\n",
        "parts of the step  data 39.2%  copy 1.5%  forward 21.2%  loss 2.0%  backward 30.9%",
        "memory             device peak 36.0 GiB of 80.0 GiB (cuda:0); host processes 7.30 GiB of",
        "loss               0.0733 at step 299\n",
        "evaluation         step 299: psnr 28.983, ssim 0.90000 (took 1.20 s)\n",
        "checkpoint         step 299 (took 120 ms)\n",
        "doctor             bottleneck: the training loop waits for data; fixing it",
    ):
        assert piece in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_terminal_gets_bars_and_a_line_of_the_loss(slow: LiveView) -> None:
    running = replace(slow, state="running", step=90, total_steps=180)
    text = shown(running, terminal=True)
    assert "━" * 20 + "─" * 20 + "  90 of 180, 50.0%" in text
    assert "█" * 16 in text
    assert "█▇" in text
    assert "data 39.2%  copy 1.5%" in text


def test_a_terminal_without_such_letters_gets_plain_ones(slow: LiveView) -> None:
    running = replace(slow, state="running", step=90, total_steps=180)
    text = shown(running, terminal=True, encoding="ascii")
    assert "=" * 20 + "-" * 20 in text


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_narrow_terminal_is_not_overrun(slow: LiveView, width: int) -> None:
    assert all(len(line) <= width for line in shown(slow, terminal=True, width=width).splitlines())


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    text = shown(look(RunTail(tmp_path)), terminal=False, width=400)
    assert "step               no step yet" in text
    for name in ("speed", "waiting for data", "parts of the step", "memory", "loss"):
        assert f"{name:<19}not measured\n" in text
    assert "doctor             not examined yet" in text
    assert run.path.exists()


def test_nothing_in_a_record_steers_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07evil\r\n"
    run = GrowingRun(tmp_path, about={"name": evil})
    with run.clock.span(evil):
        pass
    run.step(30)
    run.writer.scalars(3, {f"eval/{evil}": 1.0})
    run.writer.reading("saved", {"step": 3, "path": evil})
    run.end("failed", evil)
    view = view_of(tmp_path)
    for text in (shown(view, terminal=False, width=400), plain_line(view)):
        assert not {"\x1b", "\x07", "\r"} & set(text)
        assert "evil" in text
        assert "[2J\\x07evil" in text


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    ranks(tmp_path, missing=2)
    text = shown(view_of(tmp_path), terminal=False, width=400)
    assert "over 3 of 4 ranks" in text
    assert "rank 0  finished  step 120  " in text
    assert "rank 3  finished  step 120  " in text
    assert "note: 1 of 4 ranks have no record yet" in text


def test_many_ranks_are_cut_and_counted(tmp_path: Path) -> None:
    ranks(tmp_path, world=1)
    view = view_of(tmp_path)
    first = view.ranks[0]
    many = replace(view, world_size=40, ranks=tuple(replace(first, rank=n) for n in range(40)))
    assert "and 24 more ranks" in shown(many, terminal=False, width=400)


def test_a_pipe_gets_a_line_when_there_is_something_new(slow: LiveView) -> None:
    out = io.StringIO()
    console = Console(file=out, width=400, highlight=False)
    running = replace(slow, state="running")
    with shown_on(console) as show:
        show(replace(slow, state="waiting", reason="there is no record yet"))
        show(running)
        show(replace(running, age_s=3.0))
        show(replace(running, step=301))
        assert out.getvalue().count("\n") == 3
        show(slow)
    lines = out.getvalue().splitlines()
    assert lines[0] == "street-clips: waiting, there is no record yet"
    assert lines[1] == (
        "street-clips: running  step 300/150000  123 samples/s  waiting for data 39.2%  "
        "loss 0.0733  input-bound"
    )
    assert lines[3].startswith("street-clips  finished"), "the whole view at the end"
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_the_view_in_one_place(slow: LiveView) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40)
    with shown_on(console) as show:
        show(replace(slow, state="running", step=10))
        show(slow)
    assert "\x1b[1A" in out.getvalue(), "the cursor goes back up over the view before"
    assert "finished" in out.getvalue()


@pytest.mark.parametrize(
    ("values", "drawn"),
    [((), ""), ((2.0,), "a"), ((2.0, 2.0), "aa"), ((0.0, 1.0), "ad"), ((3, 2, 1, 0), "dcba"),
     ((0.0, 1e308, -1e308), "aaa")],
)  # fmt: skip
def test_a_spark_line_rises_with_its_values(values: tuple[float, ...], drawn: str) -> None:
    assert spark(values, "abcd") == drawn


def test_a_spark_line_is_as_long_as_there_is_room() -> None:
    assert len(spark([float(n) for n in range(480)], "abcd", cells=40)) == 40


def test_an_age_below_a_second_is_now() -> None:
    assert age_text(0.4) == "just now"
    assert age_text(75.0) == "75.0 s ago"
