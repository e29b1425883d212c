"""The closing summary of a training: its record, judged by the targets of its configuration."""

import io
from pathlib import Path

from rich.console import Console

from pitstop.cli.targets import ClosingTargets
from pitstop.config.sections import TargetsSection
from pitstop.train.observers import RunStart, Status
from pitstop_probe import Clock, RecordWriter


def summary(folder: Path, targets: TargetsSection, status: Status = "finished") -> str:
    out = io.StringIO()
    closing = ClosingTargets(targets, Console(file=out, width=200, highlight=False))
    closing.started(
        RunStart(
            name="run",
            folder=folder,
            first_step=0,
            total_steps=40,
            effective_batch=4,
            world_size=1,
            messages=(),
        )
    )
    writer = RecordWriter(str(folder / "rank-0.jsonl"), {"name": "run", "total_steps": 40})
    clock = Clock(writer)
    for step in range(40):
        clock.begin_step(step)
        with clock.span("data"):
            pass
    clock.close()
    writer.close(status)
    closing.ended(40, status, "")
    return out.getvalue()


def test_each_target_has_a_line(tmp_path: Path) -> None:
    said = summary(tmp_path, TargetsSection(data_wait_ms=1e6, hit_rate=0.5))
    assert "target reached: targets.data_wait_ms at most" in said
    assert "target not judged: targets.hit_rate at least 50.0%, measured nothing" in said


def test_a_speed_that_was_aimed_at_is_none_that_was_reached(tmp_path: Path) -> None:
    # 8 iterations a second of 8 samples, of a run whose samples nobody counted.
    said = summary(tmp_path, TargetsSection(samples_per_s=64))
    assert "target not judged: targets.samples_per_s at least 64" in said
    assert "measured nothing" in said
    assert "reached:" not in said


def test_without_targets_or_after_a_failure_nothing_is_said(tmp_path: Path) -> None:
    assert summary(tmp_path / "none", TargetsSection()) == ""
    assert summary(tmp_path / "failed", TargetsSection(data_wait_ms=1e6), "failed") == ""
