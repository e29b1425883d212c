"""A model divided between ranks trains as one that each of them has whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.sections import RunConfig
from pitstop.train.optim.local_part import local_parts
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.setup import build_trainer
from pitstop.train.step import Trainer
from tests.integration.ranks import exit_codes, launch
from tests.integration.shard_runs import (
    CPU,
    InFloat64,
    compare,
    distance,
    do_steps,
    idle_weights,
    whole_state,
)
from tests.unit.train.runs import LineSamples, LineTask, line_config

pytestmark = pytest.mark.slow

STEPS = 6
CLOSE = 1e-12
"""In float64, of the largest weight."""

CASES: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "accumulated": {"train__accumulate": 3},
    "clipped": {"train__clip__kind": "fixed", "train__clip__norm": 0.05},
    "clipped by recent norms": {"train__clip__kind": "adaptive", "train__clip__window": 3},
    "averaged": {"train__ema": 0.5},
    "recomputed": {"train__recompute": "full"},
    "sgd": {"optimizer__kind": "sgd", "optimizer__lr": 0.01},
    "not fused": {"optimizer__fused": "off"},
    "batch norm over ranks": {"train__sync_norm": True},
}
IN_FLOAT32: Mapping[str, Mapping[str, object]] = {
    "bf16": {"train__precision": "bf16"},
    "fp16": {"train__precision": "fp16", "train__scaler__start": 1024.0},
}


class Block(nn.Module):
    """A block with a norm, added to what came in; no two ranks can share its rows evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(7)
        self.first = nn.Linear(7, 13)
        self.second = nn.Linear(13, 7)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.tanh(self.first(self.norm(x))))


class BlockModel(nn.Module):
    """Blocks, one of them used twice, between layers that are in none."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(3, 7)
        self.norm = nn.BatchNorm1d(7)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.end = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.start(x))
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.end(x)


class BlockTask(LineTask):
    """The line, learned by blocks."""

    def build_model(self) -> nn.Module:
        return BlockModel()

    def train_samples(self) -> LineSamples:
        return LineSamples(64)

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {}

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, BlockModel)
        return list(model.blocks)


def trained(config: RunConfig, ranks: Any, *, is_float64: bool) -> tuple[dict[str, Tensor], Any]:
    task: Any = InFloat64(BlockTask()) if is_float64 else BlockTask()
    setup = build_trainer(config, task, ranks, CPU)
    results = do_steps(setup.trainer, config, STEPS)
    norms = torch.stack([result.grad_norm.double() for result in results])  # type: ignore[union-attr]
    return {**whole_state(setup.trainer), "norms": norms}, setup


def write_distances(folder: Path, shard: str, cases: Sequence[str]) -> None:
    """Train each case whole and divided, and write how far apart they end."""
    ranks = join_ranks()
    divided = {"train__shard": shard} | ({"train__shard_ranks": 2} if shard == "hybrid" else {})
    found: dict[str, Any] = {}
    for name in cases:
        in_float64 = name in CASES
        settings = CASES[name] if in_float64 else IN_FLOAT32[name]
        whole, _ = trained(line_config(folder, **settings), ranks, is_float64=in_float64)
        parts, setup = trained(
            line_config(folder, **settings, **divided), ranks, is_float64=in_float64
        )
        found[name] = distance(whole, parts)
        found["applied"] = setup.applied["train.shard"]
        held = local_parts(setup.trainer.model.parameters())
        found["held"] = sum(part.numel() for part in held)
    if ranks.is_first:
        (folder / "distances.json").write_text(json.dumps(found))
    leave_ranks()


@pytest.mark.parametrize(
    ("world_size", "shard", "cases"),
    [
        (2, "full", [*CASES, *IN_FLOAT32]),
        (4, "hybrid", ["accumulated", "clipped by recent norms"]),
    ],
)
def test_a_divided_model_learns_what_a_whole_one_does(
    world_size: int, shard: str, cases: list[str], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    ranks = launch(write_distances, tmp_path, shard, cases, world_size=world_size, logs=logs)
    assert exit_codes(ranks) == [0] * world_size, (logs / "stderr-0").read_text()[-3000:]
    found = json.loads((tmp_path / "distances.json").read_text())
    apart = {name: found[name] for name in cases}
    assert [name for name in CASES if not apart.get(name, 0) < CLOSE] == [], apart
    # A value on the border of two numbers of low precision goes to either.
    assert [name for name in IN_FLOAT32 if not apart.get(name, 0) < 1e-2] == [], apart
    applied = found["applied"]
    in_copy = 2 if shard == "hybrid" else world_size
    assert (applied["ranks"], applied["replicas"]) == (in_copy, world_size // in_copy)
    assert applied["blocks"] == 2
    whole = sum(p.numel() for p in BlockModel().parameters())
    width = 8 if cases[-1] in CASES else 4
    assert applied["parameters_bytes"] == width * whole
    # The first rank has the larger share of what cannot be divided evenly.
    assert width * found["held"] == applied["held_bytes"]
    assert whole / in_copy <= found["held"] < whole / in_copy * 1.5


@pytest.mark.parametrize("shard", ["full", "hybrid"])
def test_one_rank_trains_as_if_nothing_were_to_divide_and_says_so(
    tmp_path: Path, shard: str
) -> None:
    plain, _ = trained(line_config(tmp_path), Ranks(), is_float64=False)
    alone, setup = trained(line_config(tmp_path, train__shard=shard), Ranks(), is_float64=False)
    assert plain.keys() == alone.keys()
    assert all(torch.equal(plain[name], alone[name]) for name in plain)
    assert setup.trainer.shards is None
    assert "train.shard" not in setup.applied
    [said] = [message for message in setup.messages if "train.shard" in message]
    assert said == f"train.shard={shard} divides nothing: there is one rank, which holds everything"


def test_a_bias_that_a_norm_takes_off_again_is_no_measure_of_who_trained(tmp_path: Path) -> None:
    state, _ = trained(line_config(tmp_path), Ranks(), is_float64=True)
    assert idle_weights(state) == {"start.bias"}
    moved = {**state, "start.bias": state["start.bias"] + 1}
    assert distance(state, moved) == 0
    assert compare(state, moved).tensor_name == "start.bias"
    wrong = {**state, "end.bias": state["end.bias"] * (1 + 1e-6)}
    assert distance(state, wrong) == pytest.approx(1e-6)


class SpoiledTrainer(Trainer[Any]):
    """Whose first rank has a part of the gradients that is not finite."""

    def _gradients(self) -> list[Tensor]:
        parts = super()._gradients()
        if self.ranks.is_first:
            parts[-1].fill_(float("inf"))
        return parts


def meet_infinity(folder: Path) -> None:
    """Do a step with a gradient that only the first rank sees to be infinite."""
    ranks = join_ranks()
    config = line_config(folder, train__shard="full", train__clip__kind="fixed")
    trainer = build_trainer(config, BlockTask(), ranks, CPU).trainer
    parts = {f.name: getattr(trainer, f.name) for f in fields(trainer) if f.init}
    before = whole_state(trainer)
    [result] = do_steps(SpoiledTrainer(**parts), config, 1)
    assert result.found_inf.item() == 1
    after = whole_state(trainer)
    weights = [name for name, _ in trainer.model.named_parameters()]
    assert all(torch.equal(before[name], after[name]) for name in weights)
    leave_ranks()


def test_a_gradient_that_one_rank_sees_to_be_infinite_leaves_out_the_update_of_all(
    tmp_path: Path,
) -> None:
    ranks = launch(meet_infinity, tmp_path, world_size=2, logs=tmp_path / "logs")
    assert exit_codes(ranks) == [0, 0], (tmp_path / "logs" / "stderr-1").read_text()[-3000:]
