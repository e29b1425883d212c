"""A workload from outside, small enough that one life of a training takes about a second."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from pitstop import SharedCache
from pitstop.config.sections import RunConfig
from pitstop.train.task import Loss
from pitstop.workloads.catalogue import Workload
from tests.unit.train.runs import LINE, LineSamples, LineTask

SAMPLES = 90
NOTED_SAMPLES = 1000
NOTED = "noted line"
"""The kind that notes which samples each step of each rank was made of."""
PACED = "paced line"
"""The kind whose samples take as long as a disk and are kept in a cache."""

_READ_S = 0.01
_SAMPLE_BYTES = 1 << 16


class DrillTask(LineTask):
    """The line, with a few more samples: an epoch is 22 steps."""

    def train_samples(self) -> LineSamples:
        """Points of the line."""
        return LineSamples(SAMPLES, poison=self._poison)


@dataclass(frozen=True, slots=True)
class PacedSamples:
    """Points of the line, each read from what takes a while, through a cache where there is one."""

    cache: SharedCache | None = None

    def __len__(self) -> int:
        return SAMPLES

    def sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Read a sample; what comes of it is the same with a cache and without."""
        time.sleep(_READ_S)
        if self.cache is not None and self.cache.get(index) is None:
            self.cache.put(index, np.full(_SAMPLE_BYTES, index, dtype=np.uint8))
        return LineSamples(SAMPLES).sample(epoch, index)

    def with_cache(self, cache: SharedCache) -> "PacedSamples":
        """Give the same samples, read through a cache."""
        return PacedSamples(cache)

    def cache_keys(self, index: int) -> Iterator[int]:
        """List what a sample asks the cache for."""
        yield index


class PacedTask(LineTask):
    """The line at the pace of a disk: for hours, beside others, on few cores."""

    def train_samples(self) -> PacedSamples:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Points of the line."""
        return PacedSamples()


class NotedSamples:
    """Points of the line that say which they are."""

    def __len__(self) -> int:
        return NOTED_SAMPLES

    def sample(self, epoch: int, index: int) -> tuple[Tensor, ...]:
        """Read a sample, and where it stands."""
        time.sleep(_READ_S)
        place = torch.tensor([epoch, index])
        return (*LineSamples(NOTED_SAMPLES).sample(epoch, index), place)


class NotedTask(LineTask):
    """The line, with a file for each process of what its steps were made of."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def train_samples(self) -> NotedSamples:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Points of the line."""
        return NotedSamples()

    def collate(self, samples: list[Any]) -> Any:
        """Keep the places beside the points; an evaluation has none."""
        parts = [torch.stack(part) for part in zip(*samples, strict=True)]
        return tuple(parts)

    def to_device(self, batch: Any, device: torch.device) -> Any:
        """Keep the places where they are."""
        return (*super().to_device(batch[:2], device), *batch[2:])

    def loss(self, output: Tensor, batch: Any, step: int) -> Loss:
        """Note what a step is made of."""
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        world_size = distributed.get_world_size() if distributed.is_initialized() else 1
        line = {"step": step, "rank": rank, "world_size": world_size, "at": time.monotonic_ns()}
        with (self._folder / f"notes-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({**line, "places": batch[2].tolist()}) + "\n")
        return super().loss(output, batch[:2], step)


def _build(config: RunConfig) -> LineTask:
    if config.model.kind == NOTED:
        return NotedTask(config.run.work_dir)
    return PacedTask() if config.model.kind == PACED else DrillTask()


WORKLOAD = Workload(kinds={"line": LINE, PACED: LINE, NOTED: LINE}, build=_build)


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
