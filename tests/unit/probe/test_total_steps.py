"""How long the whole training is, asked of the trainer that runs it."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from pitstop_probe.inventory import describe_setup


class Trainer:
    """Has what a trainer of Lightning has."""

    __module__ = "lightning.pytorch.trainer.trainer"

    def __init__(self, **values: Any) -> None:
        self.max_steps = values.get("max_steps", -1)
        self.max_epochs = values.get("max_epochs")
        self.num_training_batches = values.get("batches", float("inf"))
        self.accumulate_grad_batches = values.get("accumulate", 1)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({"max_steps": 5_000, "batches": 200}, 5_000),
        ({"max_epochs": 3, "batches": 201, "accumulate": 2}, 303),
        ({"max_epochs": 3, "batches": 100, "max_steps": 50}, 50),
        ({"max_epochs": 3, "batches": 100, "max_steps": 500}, 300),
        ({"max_epochs": 3}, None),
        ({"max_epochs": -1, "batches": 100}, None),
    ],
)
def test_a_trainer_of_lightning_tells_its_steps(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], steps: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", ModuleType("lightning.pytorch"))
    trainer = Trainer(**values)
    assert describe_setup(torch, [], [], [])["total_steps"] == steps
    assert trainer.max_steps  # alive until here
