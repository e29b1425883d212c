"""Samples of a step: known from the loader or the model's batch, or not known."""

from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.clock import Step
from pitstop_probe.steps.parts import Rounds
from pitstop_probe.steps.samples import Counts, batch_size, first_dimension, puts_time_first

PICTURES = torch.zeros(8, 3, 4, 4)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        pytest.param((PICTURES,), {}, 8, id="a tensor"),
        pytest.param((PICTURES, torch.zeros(8)), {}, 8, id="with times"),
        pytest.param((), {"ids": torch.zeros(8, 5), "mask": torch.zeros(8, 5)}, 8, id="by name"),
        pytest.param(({"ids": torch.zeros(8, 5)},), {}, 8, id="a dictionary"),
        pytest.param(((torch.zeros(8, 5), torch.zeros(8, 2)),), {}, 8, id="a tuple"),
        pytest.param(([torch.zeros(3, 9, 9)] * 8,), {}, None, id="a list of pictures"),
        pytest.param((torch.zeros(4),), {}, None, id="one observation"),
        pytest.param((torch.zeros(99, 5), torch.zeros(2, 300)), {}, None, id="nodes and edges"),
        pytest.param((torch.zeros(7, 8), torch.zeros(7, 7)), {}, 7, id="a square mask"),
        pytest.param((object(), 3), {}, None, id="no tensor"),
    ],
)
def test_the_batch_of_a_call(args: Any, kwargs: Any, expected: int | None) -> None:
    assert batch_size(args, kwargs) == expected


def test_where_time_comes_first_the_first_dimension_is_no_batch() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    assert puts_time_first(model)
    assert batch_size((torch.zeros(35, 20, 4),), {}, may_be_sequences=True) is None
    # A picture is no sequence, whatever the model makes of it.
    assert batch_size((PICTURES,), {}, may_be_sequences=True) == 8
    assert not puts_time_first(nn.LSTM(4, 4, batch_first=True))


def test_the_first_tensor_of_a_batch_gives_its_first_dimension() -> None:
    assert first_dimension({"name": "a", "x": [torch.zeros(6, 2)]}) == 6
    assert first_dimension(["a", 3]) is None


def counted(counts: Counts, sizes: list[int | None], rounds: Rounds | None) -> int | None:
    step = Step(0, 0)
    counts.add(step, [(1, size) for size in sizes], rounds)
    return step.samples


FETCHED = Rounds(1, batches=1, fetched=64)


@pytest.mark.parametrize(
    ("sizes", "rounds", "expected"),
    [
        pytest.param([64], FETCHED, 64, id="both agree"),
        pytest.param([35], FETCHED, 64, id="time first: the loader knows"),
        pytest.param([None], FETCHED, 64, id="a list: the loader knows"),
        pytest.param([640] * 10, FETCHED, 64, id="many crops of each"),
        pytest.param([32, 32], FETCHED._replace(made=2, is_known=False), None, id="in pieces"),
        pytest.param([64], FETCHED._replace(batches=2, fetched=128), 64, id="one ahead"),
        pytest.param([8], Rounds(1), 8, id="no loader"),
        pytest.param([8, 8, 8], Rounds(1), 8, id="three views"),
        pytest.param([1] * 50, Rounds(1), None, id="an episode"),
        pytest.param([8] * 50, Rounds(1, is_closure=True), 8, id="a closure"),
    ],
)
def test_the_loader_knows_best(
    sizes: list[int | None], rounds: Rounds, expected: int | None
) -> None:
    assert counted(Counts(), sizes, rounds) == expected


def test_a_step_that_is_not_sampled_is_as_the_last_one_that_was() -> None:
    counts = Counts()
    counted(counts, [35], FETCHED)
    assert counts.add_run([[(1, 35)], [(1, 35)]]) == ([64, 64], [1, 1])
    counted(counts, [64], FETCHED)
    # The last batch of a pass is smaller, and the calls tell.
    assert counts.add_run([[(1, 64)], [(1, 17)]]) == ([64, 17], [1, 1])


def test_sizes_that_change_from_step_to_step_without_a_loader_are_not_known() -> None:
    counts = Counts()
    assert counted(counts, [8], Rounds(1)) == 8
    assert counted(counts, [5], Rounds(1)) == 5
    assert counted(counts, [11], Rounds(1)) is None
    assert counted(counts, [8], Rounds(1)) is None
    assert counts.samples_per_step is None
    assert counts.add_run([[(1, 8)]]) == ([None], [1])
