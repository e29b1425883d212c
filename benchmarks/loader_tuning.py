"""Does a tuned loader keep up? Deblurring clips against a device that needs 50 ms and no processor.

    python benchmarks/loader_tuning.py [--step-ms 50] [--steps 200] [--output FILE.json]

The device is a stand-in: a forward pass that waits for a timer. Everything else is the engine: a
generated dataset of 288x512 frames, its own loader, one run with one worker (what
`loader.workers: auto` gives on two cores), one with `loader.tune: auto` and one with a cache as
well. Shares of waiting are those of the second half of the steps, after tuning; order and content
of all batches are compared.
"""

import argparse
import json
import platform
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.measure.host.limits import read_host_limits
from pitstop.records.store import read_run
from pitstop.train.run import TrainingRun
from pitstop.train.task import Loss
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.synthetic import make_clips
from progress import show


class WaitingTask:
    """The data of deblurring and a network that is a timer; keeps a fingerprint of every batch."""

    name = "deblur against a timer"
    loss_is_separable = True
    nominal_count = 1.0
    higher_is_better: Mapping[str, bool] = MappingProxyType({"psnr": True})

    def __init__(self, config: RunConfig, step_s: float) -> None:
        clips = build_task(config)
        self.train_samples = clips.train_samples
        self.eval_samples = clips.eval_samples
        self.collate = clips.collate
        self.samples_in = clips.samples_in
        self.to_device = clips.to_device
        self._step_s = step_s
        self._timer = threading.Event()  # never set: waiting for it is waiting for the clock
        self.fingerprints: list[int] = []

    def build_model(self) -> nn.Module:
        """Give the optimizer something to do."""
        return nn.Linear(1, 1)

    def build_teacher(self, config_yaml: str) -> nn.Module:
        """Give the same."""
        del config_yaml
        return self.build_model()

    def forward(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Wait for the timer."""
        if model.training:
            self._timer.wait(self._step_s)
            self.fingerprints.append(int(batch.blur.view(-1)[::997].sum(dtype=torch.int64)))
        return model(torch.ones(1, 1))

    def loss(self, output: Tensor, batch: ClipBatch, step: int) -> Loss:
        """Give a loss that depends on nothing."""
        del step
        return Loss(output.sum(), len(batch.blur))

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        """Give a distance."""
        return (output - teacher_output).abs().mean()

    def metrics(self) -> "NoMetrics":
        """Measure no quality."""
        return NoMetrics()

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """Name no parts."""
        del model
        return {}

    def regions(self, model: nn.Module) -> list[nn.Module]:
        """Repeat no blocks."""
        del model
        return []


class NoMetrics:
    """Nothing is evaluated here."""

    def update(self, output: Tensor, batch: ClipBatch) -> None:
        """Take nothing in."""

    def state(self) -> Tensor:
        """Give nothing."""
        return torch.zeros(1)

    def result(self, state: Tensor) -> dict[str, float]:
        """Say nothing."""
        del state
        return {}


def run(root: Path, work_dir: Path, args: argparse.Namespace, name: str, **settings: Any) -> Any:
    """Train with a stand-in device; give what the record says about waiting."""
    values = {
        "model.kind": "vrt",
        "run.name": name,
        "run.work_dir": str(work_dir),
        "data.root": str(root),
        "data.crop": args.crop,
        "data.clip_len": 6,
        "train.batch_size": args.batch_size,
        "train.steps": args.steps,
        "log.every_steps": 10,
        "checkpoint.every_steps": None,
        "log.memory_every_steps": None,
        **settings,
    }
    config = config_from({}, [f"{key}={json.dumps(value)}" for key, value in values.items()]).config
    task = WaitingTask(config, args.step_ms / 1e3)
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    record = read_run(work_dir / name).first
    assert record.steps is not None
    half = len(record.steps) // 2
    data = record.steps.host_us[half:, record.steps.paths.index(("data",))]
    wall = record.steps.wall_us[half:]
    of_kind = {reading.kind: reading.values for reading in record.readings}
    stages = [reading.values for reading in record.readings if reading.kind == "loader"]
    batches = sum(one["batches"] for one in stages)
    return {
        "name": name,
        "waiting_share": round(float(data.sum() / wall.sum()), 4),
        "whole_run_waiting_share": round(
            float(
                record.steps.host_us[:, record.steps.paths.index(("data",))].sum()
                / record.steps.wall_us.sum()
            ),
            4,
        ),
        "median_waiting_ms": round(float(np.median(data)) / 1e3, 2),
        "median_step_ms": round(float(np.median(wall)) / 1e3, 2),
        "workers": stages[-1]["workers"],
        "prefetch": stages[-1]["prefetch"],
        "busy_ms_a_batch": round(sum(one["busy_us"] for one in stages) / batches / 1e3, 2),
        "stages_ms_a_batch": {
            stage: round(sum(one["stages_us"].get(stage, 0) for one in stages) / batches / 1e3, 3)
            for stage in stages[-1]["stages_us"]
        },
        "batch_bytes": stages[-1]["largest_bytes"],
        "tuning": of_kind.get("loader_tuning"),
        "fingerprints": task.fingerprints,
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--height", type=int, default=288)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root, work_dir = Path(folder) / "clips", Path(folder) / "runs"
        clips = {"train": 2, "test": 1}
        size = (args.height, args.width)
        make_clips(root, clips=clips, frames=24, size=size, seed=0, spikes=False)
        rows = [
            run(root, work_dir, args, "one-worker", **{"loader.workers": 1}),
            run(root, work_dir, args, "tuned", **{"loader.tune": "auto"}),
            run(
                root,
                work_dir,
                args,
                "tuned-with-cache",
                **{"loader.tune": "auto", "cache.budget": "256MiB"},
            ),
        ]
    orders = [row.pop("fingerprints") for row in rows]
    report = {
        "cores": read_host_limits().cores,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "step_ms": args.step_ms,
        "same_batches_in_the_same_order": all(order == orders[0] for order in orders),
        "rows": rows,
    }
    show(report, args.output)


if __name__ == "__main__":
    main()
