"""On a real model, the parts of steps add up to what a stopwatch outside the clock shows."""

import time
from pathlib import Path

import pytest
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.records.store import read_run
from pitstop.records.summary import summarise
from pitstop.train.observers import Observer
from pitstop.train.run import TrainingRun
from pitstop.train.throughput import Throughput
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import make_clips

DEMO = Path(__file__).parents[2] / "configs" / "deblur" / "demo.yaml"
STEPS = 10


class Stopwatch(Observer):
    """Reads the time at the same point of every step."""

    def __init__(self) -> None:
        self.read_us: list[float] = []

    def progress(self, step: int, throughput: Throughput) -> None:
        self.read_us.append(time.perf_counter_ns() / 1e3)


@pytest.mark.slow
@pytest.mark.quiet
def test_parts_and_unaccounted_are_the_wall_clock_of_a_real_run(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    clips = tmp_path / "clips"
    make_clips(clips, clips={"train": 2, "test": 1}, frames=6, size=(48, 64), seed=0, spikes=False)
    overrides = [
        f"data.root={clips}",
        f"run.work_dir={tmp_path}",
        f"train.steps={STEPS}",
        "schedule.warmup_steps=2",
        "log.progress_every_steps=1",
        "log.every_steps=2",
        "eval.every_steps=4",
        "checkpoint.every_steps=3",
    ]
    config = load_config(DEMO, overrides).config
    watch = Stopwatch()
    TrainingRun(
        config=config, config_yaml=to_yaml(config), task=build_task(config), observers=[watch]
    ).run()

    record = read_run(tmp_path / config.run.name).first
    summary = summarise(record)
    assert summary.steps == len(watch.read_us) == STEPS
    assert summary.broken == 0
    parts_us = sum(span.host_self_us for span in summary.spans)
    assert parts_us + summary.unaccounted.total_us == summary.wall.total_us
    assert summary.unaccounted_share is not None
    assert 0 <= summary.unaccounted_share < 0.03

    # Between the first and the last reading lie all steps but one, and what happened outside them.
    assert record.steps is not None
    steps_us = sum(step.wall_us for step in list(record.steps)[1:])
    outside_us = sum(event.wall_us for event in record.events if event.step < STEPS - 1)
    by_stopwatch_us = watch.read_us[-1] - watch.read_us[0]
    assert steps_us + outside_us == pytest.approx(by_stopwatch_us, rel=0.01)
    assert {event.name for event in record.events} >= {"log", "progress", "evaluation"}
    named = {span.path[0] for span in summary.spans}
    assert {"data", "copy", "forward", "loss", "backward", "clip", "optimizer"} <= named
    assert summary.span("forward", "stage1") is not None
