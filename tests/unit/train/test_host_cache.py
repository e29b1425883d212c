"""What a run's own record tells the doctor about its cache."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.data.cache.cached_samples import demand_of
from pitstop.data.cache.shared import SharedCache
from pitstop.data.sampling.grouped import SequenceBatches
from pitstop.data.sampling.samplers import Batches, Deal, ShuffledBatches
from pitstop.doctor.examine import examine
from pitstop.doctor.readings import CacheUse
from pitstop.records.loader import CacheReading
from pitstop.records.store import read_run
from pitstop.records.verdict import Finding
from pitstop.train.run import TrainingRun
from tests.unit.train.runs import LINE, LineTask, line_config

torch.set_num_threads(1)

FRAMES = 96
CLIP = 16
ITEM_BYTES = 4096
READ_S = 0.0005


@dataclasses.dataclass(frozen=True)
class Frames:
    """Windows over clips of frames that storage takes its time with."""

    window: int = 1
    cache: SharedCache | None = None

    def __len__(self) -> int:
        return FRAMES

    def with_cache(self, cache: SharedCache) -> "Frames":
        return dataclasses.replace(self, cache=cache)

    def cache_keys(self, index: int) -> Iterator[int]:
        clip, first = divmod(index, CLIP)
        for frame in range(first, first + self.window):
            yield clip * CLIP + frame % CLIP

    def sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        assert self.cache is not None
        for key in self.cache_keys(index):
            if self.cache.get(key) is None:
                threading.Event().wait(READ_S)
                self.cache.put(key, np.zeros(ITEM_BYTES - 64, np.uint8))
        inputs = torch.full((3,), float(index + epoch))
        return inputs, inputs.sum(dim=0, keepdim=True)


class FrameTask(LineTask):
    def __init__(self, window: int, *, grouped: bool) -> None:
        super().__init__()
        self._window = window
        self._grouped = grouped

    def train_samples(self) -> Any:
        return Frames(self._window)

    def train_batches(self, samples: Frames, deal: Deal) -> Batches:
        return order_of(deal.batch_size, grouped=self._grouped)


def order_of(batch_size: int, *, grouped: bool) -> Batches:
    if not grouped:
        return ShuffledBatches(FRAMES, batch_size, seed=0, drop_last=False)
    clips = np.arange(FRAMES) // CLIP
    return SequenceBatches(FRAMES, batch_size, seed=0, drop_last=False, sequences=clips)


def finding_of(folder: Path, task: FrameTask, policy: str, items: int) -> Finding | None:
    """Train with space for so many items; judge what the record says of the cache."""
    config = line_config(
        folder,
        cache__budget=f"{128 + items * ITEM_BYTES // 1024}KiB",
        cache__policy=policy,
        train__steps=120,
        log__every_steps=4,
        checkpoint__every_steps=120,
    )
    run = TrainingRun(config=config, config_yaml=to_yaml(config, kinds={"line": LINE}), task=task)
    run.run()
    found = examine(read_run(run.folder)).findings
    return next((finding for finding in found if finding.code == "DATA003"), None)


@pytest.mark.parametrize(
    ("policy", "window", "grouped", "cause", "remedy"),
    [
        ("keep", 1, False, "budget", "raise cache.budget"),
        ("lru", 1, False, "policy", "cache.policy: keep"),
        ("keep", 4, True, "policy", "cache.policy: lru"),
        ("lru", 4, False, "sampler", "read neighbours together"),
        ("keep", 4, False, "sampler", "read neighbours together"),
        ("lru", 4, True, "budget", "raise cache.budget"),
    ],
)
def test_the_cause_of_a_low_hit_rate_is_named_from_a_real_record(
    tmp_path: Path, policy: str, window: int, *, grouped: bool, cause: str, remedy: str
) -> None:
    found = finding_of(tmp_path, FrameTask(window, grouped=grouped), policy, FRAMES // 3)
    assert found is not None
    assert found.summary.endswith(f"because of its {cause}")
    assert found.remedy[0].startswith(remedy)
    assert found.bound is not None
    assert found.bound.share > 0.1


def test_a_cache_that_holds_everything_is_not_accused(tmp_path: Path) -> None:
    assert finding_of(tmp_path, FrameTask(1, grouped=False), "keep", 2 * FRAMES) is None


def test_the_record_tells_everything_that_the_rules_ask_of_a_cache() -> None:
    written = {field.name for field in dataclasses.fields(CacheReading)}
    assert {field.name for field in dataclasses.fields(CacheUse)} <= written


@pytest.mark.parametrize("grouped", [False, True])
def test_items_that_samples_share_are_counted_once(grouped: bool) -> None:
    demand = demand_of(Frames(window=4), order_of(4, grouped=grouped))
    assert demand is not None
    assert (demand.dataset_items, demand.item_uses) == (FRAMES, 4.0)
    assert demand.order == ("by sequence" if grouped else "shuffled")
