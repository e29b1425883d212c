"""What a run computes, apart from how fast: what must agree for two runs to be compared."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from pitstop.config.dump import flat_settings
from pitstop.config.sections import RunConfig
from pitstop.records.engine import EngineSetup
from pitstop.records.host.held import HeldMemory
from pitstop.train.optim.build import predicted_state_bytes
from pitstop.train.optim.local_part import local_part
from pitstop.train.state.training_state import bare_model
from pitstop.train.step import Trainer

_FORMATS: Final = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}

_OF_TRAINING: Final = ("batch_size", "accumulate", "ema", "crop_schedule", "sync_norm")
# How the same work is done, or evaluations, which are timed apart.
_NOT_OF_THE_WORK: Final = (
    "model.kernels",
    "model.spike.chunk",
    "model.fusion.chunk",
    "data.order",
    "data.spikes",
    "data.eval_",
    "data.tiles.",
    "data.lpips.",
    "data.flip_test",
    "data.rerank",
    "model.weights_key",
)


def describe_engine(config: RunConfig, trainer: Trainer[Any]) -> EngineSetup:
    """Describe what a trainer works on."""
    model, device = bare_model(trainer.model), trainer.device
    return EngineSetup(
        model=_class_name(trainer),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        number_format=_FORMATS[config.train.precision],
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        settings=work_settings(config),
    )


def describe_held(trainer: Trainer[Any]) -> HeldMemory:
    """Count what a trainer keeps on its device from step to step."""
    model = bare_model(trainer.model)
    average, teacher = trainer.average, trainer.teacher
    return HeldMemory(
        parameters_bytes=_bytes(model.parameters()),
        gradients_bytes=_bytes(p for p in model.parameters() if p.requires_grad),
        optimizer_bytes=predicted_state_bytes(trainer.optimizer),
        averaged_bytes=0 if average is None else _bytes(average.state_dict().values()),
        teacher_bytes=0 if teacher is None else _bytes(teacher.model.parameters()),
    )


def _class_name(trainer: Trainer[Any]) -> str:
    # Dividing a model puts a class before its own: runs would seem to train different models.
    shards = trainer.shards
    return type(bare_model(trainer.model)).__name__ if shards is None else shards.model_name


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Count what this rank holds."""
    return sum(local_part(tensor.detach()).nbytes for tensor in tensors)


def work_settings(config: RunConfig) -> dict[str, Any]:
    """Give the settings that decide what is computed; where files lie does not."""
    chosen = {
        "model": config.model.model_dump(),
        "data": config.data.model_dump(),
        "loss": config.loss.model_dump(),
        "train": config.train.model_dump(include=set(_OF_TRAINING)),
    }
    settings = {
        name: value
        for name, value in flat_settings(chosen)
        if not isinstance(value, Path) and not name.startswith(_NOT_OF_THE_WORK)
    }
    return {**settings, "train.distill": config.train.distill.teacher is not None}


def settings_of_all_hosts(config: RunConfig) -> dict[str, Any]:
    """Give the settings that all hosts of a run must share.

    Folders may lie elsewhere on each of them, and hosts may differ in cores and memory.
    """
    own = {"loader", "cache", "targets"}
    settings = {
        name: value
        for name, value in flat_settings(config.model_dump(exclude=own))
        if not isinstance(value, Path)
    }
    return {**settings, "loader.drop_last": config.loader.drop_last}
