"""Checkpoints of a model that ranks divide: saved by some number of them, read by any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.errors import CheckpointError
from pitstop.records.store import read_run
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.run import TrainingRun
from pitstop.train.setup import build_trainer
from pitstop.train.state.checkpoint import (
    CheckpointWriter,
    find_newest_whole,
    join_writers,
    open_checkpoint,
)
from pitstop.train.state.training_state import LastGood, restore_trainer, trainer_state
from pitstop.train.state.weights import load_weights, read_weights
from pitstop.train.step import Trainer
from tests.integration.ranks import exit_codes, launch
from tests.integration.shard_runs import CPU, do_steps, whole_state
from tests.integration.test_shards import BlockTask
from tests.unit.train.runs import LINE, line_config

pytestmark = pytest.mark.slow

SETTINGS: dict[str, object] = {"train__ema": 0.9, "train__clip__kind": "adaptive"}


def make_trainer(folder: Path, ranks: Ranks, shard: str) -> Trainer[Any]:
    # Other weights each time: what is equal afterwards came from the checkpoint.
    config = line_config(folder, **SETTINGS, train__shard=shard, run__seed=ranks.world_size)
    return build_trainer(config, BlockTask(), ranks, CPU).trainer


def save(trainer: Trainer[Any], folder: Path, step: int) -> None:
    ranks = trainer.ranks
    writers = join_writers(rank=ranks.rank, world_size=ranks.world_size)
    with CheckpointWriter(folder, keep_last=9, ranks=writers) as writer:
        writer.save({**trainer_state(trainer), "step": step, "config": ""}, {}, step=step, epoch=0)


def train_and_save(folder: Path) -> None:
    """Train a few steps and save them; go back to an earlier state and again to this one."""
    ranks = join_ranks()
    trainer = make_trainer(folder, ranks, "full")
    config = line_config(folder)
    do_steps(trainer, config, 3)
    kept, before = LastGood(trainer, 3), whole_state(trainer)
    do_steps(trainer, config, 2)
    changed = whole_state(trainer)
    assert not all(torch.equal(before[name], changed[name]) for name in before)
    kept.restore(trainer)
    after = whole_state(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    save(trainer, folder / "4", 3)
    leave_ranks()


def pass_on(folder: Path, *way: tuple[str, str, str]) -> None:
    """Put what is saved in one place into a new trainer, and save that in the next."""
    ranks = join_ranks()
    for source, target, shard in way:
        trainer = make_trainer(folder, ranks, shard)
        found, _ = find_newest_whole(folder / source)
        assert found is not None
        assert restore_trainer(trainer, found) == 3
        save(trainer, folder / target, 3)
        # What was loaded can be trained on.
        do_steps(trainer, line_config(folder), 1)
    leave_ranks()


def run(folder: Path, world_size: int, target: Any, *args: Any) -> None:
    logs = folder / "logs"
    ranks = launch(target, folder, *args, world_size=world_size, logs=logs)
    assert exit_codes(ranks) == [0] * world_size, (logs / "stderr-0").read_text()[-3000:]


def saved(folder: Path) -> dict[str, Any]:
    found, _ = find_newest_whole(folder)
    assert found is not None
    return found.common()


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def test_a_state_passes_through_any_number_of_ranks_and_stays_the_same(tmp_path: Path) -> None:
    run(tmp_path, 4, train_and_save)
    run(tmp_path, 2, pass_on, ("4", "2", "full"))
    run(tmp_path, 1, pass_on, ("2", "1", "full"), ("1", "plain", "none"))
    run(tmp_path, 4, pass_on, ("plain", "again", "full"))
    first = saved(tmp_path / "4")
    for name in ("2", "1", "plain", "again"):
        assert same(first, saved(tmp_path / name)), name
    names = sorted(path.name for path in (tmp_path / "4").glob("save-*/*"))
    assert names[-4:] == [f"shard-0000{rank}.pt" for rank in range(4)]
    assert not list((tmp_path / "plain").glob("save-*/shard-*"))
    # For inference it is a file of weights like any other.
    weights = read_weights(tmp_path / "4")
    model = BlockTask().build_model()
    load_weights(model, weights)
    assert weights.averaged
    assert torch.equal(model.state_dict()["start.weight"], first["average"]["start.weight"])
    [shard] = (tmp_path / "4").glob("save-*/shard-00002.pt")
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"shard-00002\.pt is damaged"):
        open_checkpoint(shard.parent)


def train_run(folder: Path, steps: int, shard: str) -> None:
    settings = {**SETTINGS, "train__shard": shard, "train__steps": steps, "eval__every_steps": 4}
    config = line_config(folder, **settings, run__name=shard)
    TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=BlockTask(),
        resume="auto",
    ).run()


def error_of(folder: Path) -> float:
    """Evaluate what a run saved, in one process."""
    task = BlockTask()
    model = task.build_model().eval()
    load_weights(model, read_weights(folder))
    samples = task.eval_samples()
    inputs, targets = task.collate([samples.sample(0, index) for index in range(len(samples))])
    with torch.no_grad():
        return float((model(inputs) - targets).square().mean())


def test_a_run_that_goes_on_ends_like_one_left_alone_and_like_one_that_is_whole(
    tmp_path: Path,
) -> None:
    run(tmp_path, 2, train_run, 12, "full")
    run(tmp_path / "cut", 2, train_run, 6, "full")
    run(tmp_path / "cut", 2, train_run, 12, "full")
    run(tmp_path, 2, train_run, 12, "none")
    alone, cut, whole = (
        saved(tmp_path / name / "checkpoints") for name in ("full", "cut/full", "none")
    )
    del alone["config"], cut["config"]
    assert same(alone, cut)
    # A bias that the norm behind it takes off again is nothing but rounding.
    del whole["average"]["start.bias"]
    for name, value in whole["average"].items():
        torch.testing.assert_close(alone["average"][name], value, rtol=1e-5, atol=1e-7)
    records = [read_run(tmp_path / name) for name in ("full", "none")]
    measured = records[0].first.scalars["eval/error"].value.tolist()
    assert len(measured) == 3
    assert measured[-1] == pytest.approx(error_of(tmp_path / "full"), rel=1e-5)
    # Every collective blocks the host here, so that all of it is waited for.
    timed = [each.values for each in records[0].first.readings if each.kind == "communication"]
    assert timed[-1]["gather_us"] > 0
    assert timed[-1]["reduce_us"] > 0
    assert timed[-1]["exposed_us"] == pytest.approx(timed[-1]["gather_us"] + timed[-1]["reduce_us"])
    # Runs that differ in this alone do the same work.
    engines = [
        [each.values for each in record.first.readings if each.kind == "engine"]
        for record in records
    ]
    assert engines[0] == engines[1]
