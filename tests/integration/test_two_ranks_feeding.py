"""Two ranks of one host: one cache between them, and one decision about their loaders."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pitstop.config.dump import to_yaml
from pitstop.records.loader import CacheReading, TuningReading
from pitstop.records.run import RankRecord
from pitstop.records.store import decode, read_run
from pitstop.train.run import TrainingRun
from tests.integration.ranks import exit_codes, launch
from tests.unit.train.monitor.test_loader_supervisor import CachedTask, TimedTask
from tests.unit.train.runs import LINE, LineTask, line_config

pytestmark = pytest.mark.slow


def train(folder: Path, settings: Mapping[str, object], task: LineTask) -> None:
    config = line_config(folder, **settings)
    yaml = to_yaml(config, kinds={"line": LINE})
    TrainingRun(config=config, config_yaml=yaml, task=task).run()


def train_cached(folder: Path, settings: Mapping[str, object]) -> None:
    train(folder, settings, CachedTask())


def train_slow(folder: Path, settings: Mapping[str, object]) -> None:
    # The second rank's samples take longer, as those of another disk would.
    rank = int(os.environ["RANK"])  # noqa: TID251 - torchrun's own contract
    train(folder, settings, TimedTask(wait_s=(0.002, 0.015)[rank], step_s=0.030))


def readings(rank: RankRecord, kind: str) -> list[object]:
    return [reading for reading in rank.readings if reading.kind == kind]


@pytest.mark.parametrize("policy", ["keep", "epoch"])
def test_ranks_of_a_host_fill_one_cache(tmp_path: Path, policy: str) -> None:
    settings = {
        "cache__budget": "1MiB",
        "cache__policy": policy,
        "loader__workers": 2,
        "train__steps": 8,
        "train__batch_size": 2,
        "log__every_steps": 4,
    }
    ranks = launch(train_cached, tmp_path, settings, world_size=2, logs=tmp_path / "logs")
    codes = exit_codes(ranks)
    assert codes == [0, 0], (tmp_path / "logs" / "stderr-0").read_text()
    first, second = read_run(tmp_path / "run").ranks
    last = [decode(one, CacheReading) for one in first.readings if one.kind == "cache"][-1]
    # Sixteen samples, eight to a rank and epoch: each is made once, whoever meets it first, but
    # for one that two workers meet at the same moment.
    assert last.items == 16
    assert 16 <= last.misses < 24
    assert last.hits >= 16
    assert not readings(second, "cache"), "the first rank speaks for the host"


def test_a_cache_that_cannot_be_had_stops_all_ranks_alike(tmp_path: Path) -> None:
    settings = {"cache__budget": "900TiB", "loader__workers": 2}
    ranks = launch(train_cached, tmp_path, settings, world_size=2, logs=tmp_path / "logs")
    assert exit_codes(ranks) == [1, 1]
    for rank in (0, 1):
        assert "cache.budget is" in (tmp_path / "logs" / f"stderr-{rank}").read_text()


def test_ranks_are_tuned_alike_by_the_slower_of_them(tmp_path: Path) -> None:
    settings = {
        "loader__workers": "auto",
        "loader__tune": "auto",
        "train__steps": 60,
        "checkpoint__every_steps": None,
    }
    ranks = launch(train_slow, tmp_path, settings, world_size=2, logs=tmp_path / "logs")
    assert exit_codes(ranks) == [0, 0], (tmp_path / "logs" / "stderr-0").read_text()
    tunings = []
    for rank in read_run(tmp_path / "run").ranks:
        [reading] = [one for one in rank.readings if one.kind == "loader_tuning"]
        tunings.append(decode(reading, TuningReading))
    first, second = tunings
    settings_of = [[(one.workers, one.prefetch) for one in each.tries] for each in tunings]
    assert settings_of[0] == settings_of[1]
    assert (first.workers, first.prefetch) == (second.workers, second.prefetch)
    assert first.tries[0].busy_us == second.tries[0].busy_us >= 60_000, "the slower rank's"
