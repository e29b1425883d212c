"""How ranks share a model, as far as one process can tell."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn

from pitstop.config.sections import OptimizerSection, TrainSection
from pitstop.errors import ConfigError
from pitstop.train.model.shard import ranks_of_copy, shard_model
from pitstop.train.optim.build import build_optimizer, optimizer_facts
from pitstop.train.ranks import Ranks, leave_ranks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def groups_end_here() -> Iterator[None]:
    """A divided model keeps its group alive in a cycle.

    Destroyed in a process that a later test forks, the group would wait for threads that the fork
    did not copy.
    """
    yield
    gc.collect()


@pytest.mark.parametrize(
    ("section", "world", "local", "expected"),
    [
        (TrainSection(shard="full"), 8, 4, 8),
        (TrainSection(shard="full"), 1, 1, 1),
        (TrainSection(shard="hybrid"), 8, 4, 4),
        (TrainSection(shard="hybrid", shard_ranks=2), 8, 8, 2),
    ],
)
def test_a_copy_is_held_by_all_ranks_by_those_of_a_host_or_as_many_as_said(
    section: TrainSection, world: int, local: int, expected: int
) -> None:
    assert ranks_of_copy(section, world_size=world, local_world_size=local) == expected


@pytest.mark.parametrize(
    ("section", "world", "local"),
    [
        (TrainSection(shard="hybrid"), 8, 8),
        (TrainSection(shard="hybrid"), 1, 1),
        (TrainSection(shard="hybrid", shard_ranks=3), 8, 4),
        (TrainSection(shard="hybrid", shard_ranks=16), 8, 4),
    ],
)
def test_a_hybrid_that_would_be_one_copy_or_uneven_ones_is_refused(
    section: TrainSection, world: int, local: int
) -> None:
    with pytest.raises(ConfigError, match=r"train\.shard_ranks"):
        ranks_of_copy(section, world_size=world, local_world_size=local)


class OddModel(nn.Module):
    """Has two blocks that share a weight, and a parameter that cannot be divided."""

    def __init__(self, *, scalar: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.blocks[1].weight = self.blocks[0].weight
        self.scale = nn.Parameter(torch.ones(() if scalar else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


def divide(model: OddModel) -> int:
    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        section = TrainSection(shard="full")
        shards = shard_model(model, section, list(model.blocks), ranks=Ranks(), device=CPU)
        model(torch.ones(2, 4)).sum().backward()
        return shards.facts.blocks
    finally:
        leave_ranks()


def test_blocks_that_share_a_weight_are_gathered_with_the_rest() -> None:
    assert divide(OddModel(scalar=False)) == 1


def test_a_parameter_that_cannot_be_divided_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="cannot divide scale, which is a single number"):
        divide(OddModel(scalar=True))


def test_sgd_is_fused_only_where_weights_are_whole() -> None:
    model = OddModel(scalar=False)
    divide(model)
    section = OptimizerSection(kind="sgd")
    assert not optimizer_facts(build_optimizer(model, section)).fused
    with pytest.raises(ConfigError, match="divided between ranks"):
        build_optimizer(model, section.model_copy(update={"fused": "on"}))
