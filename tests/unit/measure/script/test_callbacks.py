"""Callbacks of two trainers: each training has its record, and none is ended by ours."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pitstop
from pitstop.records.store import read_run
from pitstop.records.summary import summarise

torch.set_num_threads(1)


@pytest.fixture(params=["lightning", "transformers"])
def trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer that calls back as its namesake does, and the maker of its callback."""
    name, base = {
        "lightning": ("lightning.pytorch", "Callback"),
        "transformers": ("transformers", "TrainerCallback"),
    }[request.param]
    module = ModuleType(name)
    setattr(module, base, object)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], module)
    monkeypatch.setitem(sys.modules, name, module)
    if request.param == "lightning":
        return pitstop.lightning_callback, ("on_fit_start", "on_fit_end")
    return pitstop.trainer_callback, ("on_train_begin", "on_train_end")


def train(callback: Any, hooks: tuple[str, str], steps: int) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    getattr(callback, hooks[0])()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    getattr(callback, hooks[1])()


def test_every_training_of_one_callback_has_its_record(trainer: Any, tmp_path: Path) -> None:
    make, hooks = trainer
    callback = make(tmp_path / "run")
    for steps in (30, 40, 50):
        train(callback, hooks, steps)
    places = [tmp_path / "run", tmp_path / "run/2", tmp_path / "run/3"]
    counts = [summarise(read_run(place).first).steps for place in places]
    # Steps that were slowed down to look closer are left out, as many of each.
    assert [counts[0] + 10, counts[0] + 20] == counts[1:]


def test_a_folder_that_is_taken_gets_a_numbered_neighbour(trainer: Any, tmp_path: Path) -> None:
    make, hooks = trainer
    train(make(tmp_path / "run"), hooks, 30)
    callback = make(tmp_path / "run")
    for _ in range(2):
        train(callback, hooks, 30)
    for place in ("run", "run-2", "run-2/2"):
        assert read_run(tmp_path / place).first.is_finished


def test_a_training_that_cannot_be_measured_is_told_of_and_goes_on(
    trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, hooks = trainer
    callback = make(tmp_path / "run")
    train(callback, hooks, 30)
    (tmp_path / "run/2").touch()
    train(callback, hooks, 30)
    said = capsys.readouterr().err
    assert said.startswith("pitstop: this training is not measured: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("make", [pitstop.lightning_callback, pitstop.trainer_callback])
def test_without_its_package_a_callback_does_nothing_and_says_so(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert make(tmp_path / "run") is not None
    said = capsys.readouterr().err
    assert "cannot be imported: its trainings are not measured" in said
    assert said.count("\n") == 1
