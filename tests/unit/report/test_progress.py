"""A run's story in lines: what runs, how it goes, what went wrong, how it ended."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pitstop.measure.host.memory import read_memory
from pitstop.report.progress import ProgressLines, memory_text
from pitstop.train.observers import RunStart
from pitstop.train.throughput import Throughput

START = RunStart(
    name="night",
    folder=Path("runs/night"),
    first_step=10,
    total_steps=100,
    effective_batch=32,
    world_size=1,
    messages=("lr 0.0001 x 4 = 0.0004", "going on from runs/night/checkpoints/save-000001"),
)
PACE = Throughput(steps=10, samples_per_s=12.5, data_share=0.05, step_s=0.5)


def test_a_run_in_a_pipe_is_told_in_plain_lines() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=400, highlight=False))
    lines.started(START)
    lines.values(11, {"loss": 0.25, "lr": 1e-4})
    lines.progress(20, PACE)
    lines.evaluated(20, {"psnr": 31.25})
    lines.saved(20, Path("runs/night/checkpoints"))
    lines.warned(21, "nonfinite", "the update of step 21 was left out")
    lines.ended(30, "interrupted", "SIGTERM")
    told = out.getvalue()
    assert "\x1b" not in told
    for piece in (
        "night: steps 10 to 100, effective batch 32",
        "lr 0.0001 x 4 = 0.0004",
        "step 20/100  loss 0.250  12.5 samples/s  waiting for data 5.0%  40.0 s left",
        "step 20: evaluated, psnr 31.2",
        "warning: the update of step 21 was left out",
        "interrupted at step 30: SIGTERM",
    ):
        assert piece in told


def test_several_ranks_are_told_as_what_each_of_them_does() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=400, highlight=False))
    lines.started(replace(START, world_size=4))
    lines.progress(20, PACE)
    assert "12.5 samples/s on each of 4 ranks" in out.getvalue()


def test_before_the_first_reading_nothing_is_made_up() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=400))
    lines.started(START)
    lines.progress(10, Throughput(steps=0, samples_per_s=None, data_share=None, step_s=None))
    told = out.getvalue()
    assert "loss not read yet" in told
    assert "not known samples/s" in told
    assert "not measured left" in told


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=120, force_terminal=True, highlight=False))
    lines.started(START)
    lines.progress(55, PACE)
    lines.ended(100, "finished", "")
    assert "step 55/100" in out.getvalue()
    assert "finished at step 100" in out.getvalue()


def test_memory_is_told_with_what_it_counts() -> None:
    text = memory_text(read_memory())
    assert "own processes (" in text
    assert "host " in text
