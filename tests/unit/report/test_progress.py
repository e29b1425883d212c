"""A run's story in lines: what runs, how it goes, what went wrong, how it ended."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pitstop.measure.host.memory import read_memory
from pitstop.records.host.memory import DeviceMemory
from pitstop.records.loader import CacheReading
from pitstop.records.targets import TargetResult
from pitstop.report.progress import ProgressLines, memory_text, target_lines
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
CACHE = CacheReading(
    policy="keep",
    backing="memory without a name",
    items=10,
    used_bytes=1 << 20,
    budget_bytes=1 << 30,
    hits=0,
    misses=0,
    evictions=0,
    too_large=0,
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
        "step 20/100  loss 0.250  12.5 samples/s  data wait 5.0%  40.0 s left",
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


def test_hit_rate_and_device_memory_stand_beside_the_data_wait() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=400, highlight=False))
    lines.started(START)
    lines.cached(15, replace(CACHE, hits=82, misses=18))
    device = DeviceMemory(
        device="cuda:0",
        total_bytes=80 << 30,
        allocated_bytes=1 << 30,
        reserved_bytes=2 << 30,
        peak_allocated_bytes=3 << 30,
        peak_reserved_bytes=4 << 30,
        alloc_retries=0,
        ooms=0,
    )
    lines.memory(15, replace(read_memory(), devices=(device,)), ())
    lines.progress(20, PACE)
    assert "data wait 5.0%  hit rate 82.0%  cuda:0 peak 4.00 GiB  40.0 s left" in out.getvalue()


def test_targets_say_what_was_asked_for_and_what_came() -> None:
    def result(key: str, target: float, value: float | None, *, at_most: bool) -> TargetResult:
        return TargetResult(key=f"targets.{key}", target=target, value=value, at_most=at_most)

    assert target_lines(
        [
            result("data_wait_ms", 10.0, 3.5, at_most=True),
            result("hit_rate", 0.8, 0.41, at_most=False),
            result("gpu_busy", 0.9, None, at_most=False),
            result("samples_per_s", 20.0, 20.0, at_most=False),
        ]
    ) == [
        "target reached: targets.data_wait_ms at most 10.0 ms, measured 3.50 ms",
        "target missed: targets.hit_rate at least 80.0%, measured 41.0%",
        "target not judged: targets.gpu_busy at least 90.0%, measured nothing",
        "target reached: targets.samples_per_s at least 20.0, measured 20.0",
    ]
