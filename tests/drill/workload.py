"""A workload from outside, small enough that one life of a training takes about a second."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from pitstop import SharedCache
from pitstop.config.sections import RunConfig
from pitstop.workloads.catalogue import Workload
from tests.unit.train.runs import LINE, LineSamples, LineTask

SAMPLES = 90
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


def _build(config: RunConfig) -> LineTask:
    return PacedTask() if config.model.kind == PACED else DrillTask()


WORKLOAD = Workload(kinds={"line": LINE, PACED: LINE}, build=_build)


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
