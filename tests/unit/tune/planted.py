"""A workload from outside whose trials go wrong in the way that the batch size names."""

import ctypes
import os
import threading
from pathlib import Path

import torch
from torch import Tensor

from pitstop.config.sections import RunConfig
from pitstop.train.task import Loss
from pitstop.workloads.catalogue import Workload
from tests.unit.train.runs import LINE, Batch, LineSamples, LineTask

NOT_FINITE = 7
ENDS = {3: "timed out", 5: "crashed", 6: "crashed", NOT_FINITE: "not finite", 9: "out of memory"}
"""How a trial ends, by batch size; every other trains."""


class PlantedTask(LineTask):
    """The line, with trouble."""

    def __init__(self, trouble: int) -> None:
        super().__init__()
        self._trouble = trouble

    def train_samples(self) -> LineSamples:
        return LineSamples(4000)

    def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
        match self._trouble:
            case 3:
                threading.Event().wait()
            case 5:
                ctypes.string_at(0)
            case 6:
                os.write(1, bytes(range(256)) * 40)
                raise ValueError("\x1b[2J garbage \x00")
            case 9:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB")
            case _:
                pass
        return super().loss(output, batch, step)


class NotFiniteTask(PlantedTask):
    """Every sample of its first epoch is no number."""

    def train_samples(self) -> LineSamples:
        return LineSamples(4000, poison=frozenset((0, index) for index in range(4000)))


def _build(config: RunConfig) -> PlantedTask:
    trouble = config.train.batch_size
    return NotFiniteTask(trouble) if trouble == NOT_FINITE else PlantedTask(trouble)


WORKLOAD = Workload(kinds={"line": LINE}, build=_build)

CONFIG = """\
run: {name: run}
model: {kind: line}
train: {steps: 1000000, batch_size: 4}
loader: {workers: 0, tune: "off"}
schedule: {kind: constant}
checkpoint: {every_steps: null}
eval: {every_steps: null}
"""


def install(folder: Path) -> None:
    """Lay out the workload where commands of a process with this folder on its path find it."""
    info = folder / "planted-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[pitstop.workloads]\nline = tests.unit.tune.planted:WORKLOAD\n"
    )


def path_of(folder: Path) -> str:
    """PYTHONPATH of commands that know the workload."""
    root = Path(__file__).parents[3]
    return os.pathsep.join([str(folder), str(root / "src"), str(root)])
