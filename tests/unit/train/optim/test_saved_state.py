"""States of optimizers, whole and forged: taken back, or refused before the first update."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pitstop.train.optim.adamw_bf16 import AdamWBf16
from pitstop.train.optim.saved_state import load_optimizer_state

Build = Callable[[nn.Module], Optimizer]

BUILD: dict[str, Build] = {
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-3),
    "adam, foreach": lambda model: Adam(model.parameters(), lr=1e-3, foreach=True),
    "amsgrad": lambda model: AdamW(model.parameters(), lr=1e-3, amsgrad=True),
    "sgd": lambda model: SGD(model.parameters(), lr=1e-3, momentum=0.9),
    "bf16": lambda model: AdamWBf16(model.parameters(), lr=1e-3),
}
JUNK: tuple[Any, ...] = (
    None, True, 3, 0.5, "text", b"", [], [1, "x"], (0.9,), {}, torch.zeros(2, 2), torch.zeros(0),
    torch.zeros(()), torch.zeros(3, dtype=torch.int64),
)  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def update(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def saved(build: Build) -> dict[str, Any]:
    model = network()
    optimizer = build(model)
    update(model, optimizer)
    return optimizer.state_dict()


def forged(state: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """A copy in which one value is junk, or missing."""
    state = deepcopy(state)
    where = dice.choice([*state["state"].values(), *state["param_groups"]])
    name = dice.choice(sorted(where))
    if dice.random() < 0.2:
        del where[name]
    else:
        where[name] = dice.choice(JUNK)
    return state


@pytest.mark.parametrize("name", BUILD)
def test_a_state_goes_on_where_it_was_saved(name: str) -> None:
    def weights(*, interrupted: bool) -> list[Tensor]:
        model = network()
        optimizer = BUILD[name](model)
        update(model, optimizer)
        if interrupted:
            state = deepcopy(optimizer.state_dict())
            optimizer = BUILD[name](model)
            load_optimizer_state(optimizer, state)
        update(model, optimizer)
        return list(model.parameters())

    both = zip(weights(interrupted=False), weights(interrupted=True), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


@pytest.mark.parametrize("name", BUILD)
def test_a_forged_state_is_refused_or_trains(name: str) -> None:
    dice = random.Random(name)
    state, refused = saved(BUILD[name]), 0
    for _ in range(150):
        model = network()
        optimizer = BUILD[name](model)
        try:
            load_optimizer_state(optimizer, forged(state, dice))
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError):
            refused += 1
            continue
        update(model, optimizer)
    assert 75 < refused < 150
