"""A run's data: readings in the record, tuning that changes nothing else, damaged samples named."""

import dataclasses
import io
import multiprocessing
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.config.sections import CacheSection, RunConfig
from pitstop.data.cache.cached_samples import coming_keys
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.stages import stage
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.errors import ConfigError
from pitstop.records.loader import CacheReading, LoaderReading, SkippedReading, TuningReading
from pitstop.records.run import RankRecord, Reading
from pitstop.records.store import decode, read_run
from pitstop.report.progress import ProgressLines
from pitstop.train.host_cache import open_cache
from pitstop.train.observers import Observer
from pitstop.train.ranks import Ranks
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import find_newest_whole
from tests.unit.train.runs import LINE, LineSamples, LineTask, line_config

torch.set_num_threads(1)

SAMPLES = 44


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


class SlowSamples(LineSamples):
    """Points that storage takes its time with; nothing is computed meanwhile."""

    def __init__(self, wait_s: float, broken: frozenset[int] = frozenset()) -> None:
        super().__init__(SAMPLES)
        self._wait_s = wait_s
        self._broken = broken

    def name_of(self, index: int) -> str:
        return f"point_{index}"

    def sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        if index in self._broken:
            raise OSError(5, "Input/output error", f"point_{index}.bin")
        with stage("read"):
            # An event of this process alone: one made before a fork may be held by its parent.
            threading.Event().wait(self._wait_s)
        return super().sample(epoch, index)


class SlowTask(LineTask):
    def __init__(self, wait_s: float = 0.0, broken: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._samples = SlowSamples(wait_s, broken)

    def train_samples(self) -> LineSamples:
        return self._samples


class TimedTask(SlowTask):
    """A device that needs its time for a step, and no processor."""

    def __init__(self, *, wait_s: float, step_s: float) -> None:
        super().__init__(wait_s)
        self._step_s = step_s

    def forward(self, model: Any, batch: Any) -> Tensor:
        threading.Event().wait(self._step_s)
        return super().forward(model, batch)


def train(config: RunConfig, task: Any, *observers: Observer, **options: Any) -> RankRecord:
    TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=task,
        observers=observers,
        **options,
    ).run()
    return read_run(config.run.work_dir / "run").first


def of_kind(record: RankRecord, kind: str) -> list[Reading]:
    return [reading for reading in record.readings if reading.kind == kind]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_record_says_how_batches_came_about(tmp_path: Path, workers: int) -> None:
    config = line_config(tmp_path, loader__workers=workers, log__every_steps=5, train__steps=12)
    readings = of_kind(train(config, SlowTask()), "loader")
    assert [reading.values["step"] for reading in readings] == [4, 9, 12]
    decoded = [decode(reading, LoaderReading) for reading in readings]
    assert [one.batches for one in decoded] == [5, 5, 2]
    for one in decoded:
        assert set(one.stages_us) == {"read", "sample", "collate", "send"}
        assert 0 < sum(one.stages_us.values()) <= one.busy_us
        assert one.workers == workers
        assert one.largest_bytes == 4 * (3 + 1) * 4
        assert (one.prefetch is None) == (workers == 0)


def test_samples_passed_over_are_in_the_record_and_in_the_users_last_lines(tmp_path: Path) -> None:
    output = io.StringIO()
    lines = ProgressLines(Console(file=output, width=400))
    config = line_config(tmp_path, loader__corrupt="skip", train__steps=22, log__every_steps=4)
    task = SlowTask(broken=frozenset({7, 9}))
    record = train(config, task, lines)
    decoded = [decode(reading, SkippedReading) for reading in of_kind(record, "skipped")]
    met: dict[str, int] = {}
    for one in decoded:
        for name, times in one.samples.items():
            met[name] = met.get(name, 0) + times
    # Two epochs of eleven batches: each damaged sample is met once in each.
    assert sorted(name.split(" cannot")[0] for name in met) == [
        "sample 7 (point_7)",
        "sample 9 (point_9)",
    ]
    assert set(met.values()) == {2}
    assert decoded[-1].total == 4
    *_, summary, ended = [line for line in output.getvalue().splitlines() if line]
    assert ended == "finished at step 22"
    assert summary.startswith("warning: 2 damaged samples skipped, 4 times in all: sample")
    assert "point_7.bin" in summary
    assert output.getvalue().count("another sample replaces it") == 2


def final_weights(folder: Path) -> dict[str, Tensor]:
    checkpoint, _ = find_newest_whole(folder / "run" / "checkpoints")
    assert checkpoint is not None
    return checkpoint.common()["model"]


def losses(record: RankRecord) -> list[float]:
    return record.scalars["loss"].value.tolist()


@pytest.mark.slow
def test_tuning_finds_enough_workers_and_changes_nothing_else(tmp_path: Path) -> None:
    """A batch takes 80 ms to read and 50 ms to train on: one worker starves the loop, two do not.

    Neither needs a processor. How small the wait becomes on a machine with nothing else to do is
    a matter of benchmarks/loader_tuning.py.
    """
    steps = 120
    settings: dict[str, Any] = {"train__steps": steps, "checkpoint__every_steps": None}
    output = io.StringIO()
    lines = ProgressLines(Console(file=output, width=400))
    task = TimedTask(wait_s=0.020, step_s=0.050)
    tuned = train(
        line_config(tmp_path / "a", loader__workers="auto", loader__tune="auto", **settings),
        task,
        lines,
    )
    plain = train(line_config(tmp_path / "b", loader__workers=1, **settings), task)
    assert losses(tuned) == losses(plain)
    one, other = final_weights(tmp_path / "a"), final_weights(tmp_path / "b")
    assert all(torch.equal(one[name], other[name]) for name in one)

    [reading] = of_kind(tuned, "loader_tuning")
    tuning = decode(reading, TuningReading)
    assert tuning.tries[0].workers == 1
    assert tuning.tries[0].wait_share > 0.2
    assert tuning.workers in {2, 3, 4}
    [line] = [line for line in output.getvalue().splitlines() if "loader tuned" in line]
    assert f"loader tuned to {tuning.workers} workers with" in line

    def settled_wait(record: RankRecord) -> float:
        assert record.steps is not None
        column = record.steps.paths.index(("data",))
        return float(np.median(record.steps.host_us[steps // 2 :, column]))

    assert settled_wait(plain) > 20_000
    assert settled_wait(tuned) < settled_wait(plain) / 4, tuning
    assert not of_kind(plain, "loader_tuning")


class Interrupts(Observer):
    """Ends a run at a step, as a crash would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def saved(self, step: int, path: Path) -> None:
        if step == self._step:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_ended_while_it_is_tuned_goes_on_exactly(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "train__steps": 60,
        "checkpoint__every_steps": 5,
        "loader__workers": "auto",
        "loader__tune": "auto",
    }
    task = TimedTask(wait_s=0.002, step_s=0.001)
    whole = train(line_config(tmp_path / "a", **settings), task)
    config = line_config(tmp_path / "b", **settings)
    with pytest.raises(KeyboardInterrupt):
        train(config, task, Interrupts(15))
    resumed = train(config, task, resume="auto")
    assert losses(resumed)[-45:] == losses(whole)[-45:]
    one, other = final_weights(tmp_path / "a"), final_weights(tmp_path / "b")
    assert all(torch.equal(one[name], other[name]) for name in one)


@dataclasses.dataclass(frozen=True)
class Kept:
    """Points that are looked up in a cache before they are made."""

    cache: SharedCache | None = None

    def __len__(self) -> int:
        return 16

    def with_cache(self, cache: SharedCache) -> "Kept":
        return Kept(cache)

    def cache_keys(self, index: int) -> Iterable[str]:
        return (f"point {index}",)

    def sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        assert self.cache is not None
        [key] = self.cache_keys(index)
        found = self.cache.get(key)
        if found is None:
            found = np.random.default_rng(index).standard_normal(3).astype(np.float32)
            self.cache.put(key, found)
        inputs = torch.from_numpy(found.copy()) + epoch
        return inputs, inputs.sum(dim=0, keepdim=True)


class CachedTask(LineTask):
    def train_samples(self) -> Any:
        return Kept()


@pytest.mark.parametrize("policy", ["keep", "lru", "epoch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_come_out_of_the_cache_from_the_second_epoch_on(
    tmp_path: Path, workers: int, policy: str
) -> None:
    output = io.StringIO()
    lines = ProgressLines(Console(file=output, width=400))
    config = line_config(
        tmp_path,
        cache__budget="1MiB",
        cache__policy=policy,
        loader__workers=workers,
        train__steps=16,
        log__every_steps=8,
    )
    record = train(config, CachedTask(), lines)
    readings = [decode(reading, CacheReading) for reading in of_kind(record, "cache")]
    assert len(readings) == 3  # at steps 8 and 16, and at the end
    last = readings[-1]
    assert (last.policy, last.items) == (policy, 16)
    # A worker may ask for a sample of the next epoch while another one still reads it for this.
    asked_twice = last.misses - 16
    assert 0 <= asked_twice <= (8 if workers else 0)
    assert last.hits >= 3 * 16 - asked_twice
    assert last.budget_bytes <= 1 << 20
    assert f"cache ({policy}): 16 items in" in output.getvalue()


def test_a_cache_for_which_there_is_no_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache\.budget is .* this host lets its processes"):
        train(line_config(tmp_path, cache__budget="900TiB"), CachedTask())
    with pytest.raises(ConfigError, match="index of a cache alone takes"):
        open_cache(CacheSection(budget=5), Ranks())


def test_what_is_coming_is_what_workers_of_all_ranks_will_ask_for() -> None:
    """Against the ranks' own orders, walked side by side."""

    def order(rank: int, epoch: int) -> list[list[int]]:
        batches = ShuffledBatches(23, 3, seed=1, rank=rank, world_size=2, drop_last=False)
        batches.set_epoch(epoch)
        return list(batches.rest())

    own = ShuffledBatches(23, 3, seed=1, rank=0, world_size=2, drop_last=False)
    own.set_epoch(5)
    own.consumed = 1
    coming = list(coming_keys(Kept(), own, ranks=range(2), in_flight=2))
    lanes = [(order(rank, 5) + order(rank, 6))[3:] for rank in (0, 1)]
    wanted = [
        f"point {index}" for pair in zip(*lanes, strict=True) for batch in pair for index in batch
    ]
    assert coming == wanted
    assert (own.epoch, own.consumed, own.rank) == (5, 1, 0)
