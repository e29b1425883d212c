"""Saving is a checkpoint whoever does it, and once however much is called inside it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.hooks.torch_hooks import hook_functions
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink

torch.set_num_threads(1)


class PreTrainedModel:
    """Saves as that of transformers does: with somebody else's function."""

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({"weight": torch.ones(3)}, folder / "model.safetensors")


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[StepTracker]:
    transformers: Any = ModuleType("transformers.modeling_utils")
    transformers.PreTrainedModel = PreTrainedModel
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", transformers)
    tracker = StepTracker(ListSink())
    patches = hook_functions(tracker, torch)
    tracker.stepped(1)
    yield tracker
    for patch in patches:
        patch.off()


def noted(tracker: StepTracker) -> list[str]:
    assert tracker.raw is not None
    return [kind for kind, *_ in tracker.raw.regions]


@pytest.mark.parametrize("sampled", [True, False])
def test_safetensors(tracker: StepTracker, tmp_path: Path, sampled: bool) -> None:
    import safetensors.torch

    tracker.is_sampling = sampled
    safetensors.torch.save_file({"weight": torch.ones(3)}, tmp_path / "file")
    safetensors.torch.save_model(nn.Linear(3, 3), str(tmp_path / "model"))
    assert noted(tracker) == ["checkpoint"] * 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints(tracker: StepTracker, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    weights = {str(place): torch.ones(3) for place in range(4)}
    save(weights, checkpoint_id=tmp_path)
    assert noted(tracker) == ["checkpoint"]


def test_pretrained_models(tracker: StepTracker, tmp_path: Path) -> None:
    PreTrainedModel().save_pretrained(tmp_path)
    assert noted(tracker) == ["checkpoint"]


def test_nothing_stays_when_the_hooks_come_off() -> None:
    import safetensors.torch

    before = safetensors.torch.save_file
    patches = hook_functions(StepTracker(ListSink()), torch)
    assert safetensors.torch.save_file is not before
    for patch in patches:
        patch.off()
    assert safetensors.torch.save_file is before
