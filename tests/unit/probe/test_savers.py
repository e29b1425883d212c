"""Saving is a checkpoint whoever does it, and once however much is called inside it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.torch_hooks import hook_functions
from pitstop_probe.watch import Watch
from tests.fakes import ListSink

torch.set_num_threads(1)


class PreTrainedModel:
    """Saves as that of transformers does: with somebody else's function."""

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({"weight": torch.ones(3)}, folder / "model.safetensors")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    transformers: Any = ModuleType("transformers.modeling_utils")
    transformers.PreTrainedModel = PreTrainedModel
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", transformers)
    watch = Watch(ListSink())
    patches = hook_functions(watch, torch)
    watch.stepped(1)
    yield watch
    for patch in patches:
        patch.off()


def noted(watch: Watch) -> list[str]:
    assert watch.raw is not None
    return [kind for kind, *_ in watch.raw.regions]


@pytest.mark.parametrize("looked", [True, False])
def test_safetensors(watch: Watch, tmp_path: Path, looked: bool) -> None:
    import safetensors.torch

    watch.looking = looked
    safetensors.torch.save_file({"weight": torch.ones(3)}, tmp_path / "file")
    safetensors.torch.save_model(nn.Linear(3, 3), str(tmp_path / "model"))
    assert noted(watch) == ["checkpoint"] * 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints(watch: Watch, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    weights = {str(place): torch.ones(3) for place in range(4)}
    save(weights, checkpoint_id=tmp_path)
    assert noted(watch) == ["checkpoint"]


def test_pretrained_models(watch: Watch, tmp_path: Path) -> None:
    PreTrainedModel().save_pretrained(tmp_path)
    assert noted(watch) == ["checkpoint"]


def test_nothing_stays_when_the_hooks_come_off() -> None:
    import safetensors.torch

    before = safetensors.torch.save_file
    patches = hook_functions(Watch(ListSink()), torch)
    assert safetensors.torch.save_file is not before
    for patch in patches:
        patch.off()
    assert safetensors.torch.save_file is before
