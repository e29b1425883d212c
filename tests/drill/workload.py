"""A workload from outside, small enough that one life of a training takes about a second."""

import sys
from pathlib import Path

from pitstop.config.sections import RunConfig
from pitstop.workloads.catalogue import Workload
from tests.unit.train.runs import LINE, LineSamples, LineTask

SAMPLES = 90


class DrillTask(LineTask):
    """The line, with a few more samples: an epoch is 22 steps."""

    def train_samples(self) -> LineSamples:
        """Points of the line."""
        return LineSamples(SAMPLES, poison=self._poison)


def _build(config: RunConfig) -> DrillTask:
    del config
    return DrillTask()


WORKLOAD = Workload(kinds={"line": LINE}, build=_build)


def install(folder: Path) -> None:
    """Make the workload known to commands of this process and those that it forks."""
    info = folder / "drill-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: drill\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[pitstop.workloads]\nline = tests.drill.workload:WORKLOAD\n"
    )
    sys.path.insert(0, str(folder))


CONFIG = """\
run: {name: run}
model: {kind: line}
train: {steps: %(steps)d, batch_size: 4, ema: 0.99, clip: {kind: adaptive}}
loader: {workers: 2, eval_workers: 0, tune: "off"}
schedule: {kind: cosine, warmup_steps: 10}
eval: {every_steps: 90}
checkpoint: {every_steps: 3}
log: {every_steps: 5}
"""
