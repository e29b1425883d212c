"""A whole workload small enough to train in a test, with data, metrics and a configuration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.rules import RuleSet
from pitstop.config.sections import DataSection, LossSection, ModelSection, RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.train.task import Loss

Batch = tuple[Tensor, Tensor]

LINE = WorkloadSections(
    name="line",
    data=DataSection,
    model=ModelSection,
    loss=LossSection,
    rules=RuleSet(inert=(), conflicts=(), risks=()),
)


def line_config(folder: Path, **settings: object) -> RunConfig:
    """A short run on the CPU; settings are given as ``train__steps=5``."""
    base: dict[str, Any] = {
        "model.kind": "line",
        "run.name": "run",
        "run.work_dir": str(folder),
        "train.steps": 12,
        "train.batch_size": 4,
        "loader.workers": 0,
        "log.every_steps": 1,
        "checkpoint.every_steps": 4,
        "schedule.kind": "constant",
    }
    base |= {key.replace("__", "."): value for key, value in settings.items()}
    overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in base.items()]
    return config_from({}, overrides, kinds={"line": LINE}).config


class LineSamples:
    """Points on a line, noisy by seed, epoch and index."""

    def __init__(self, count: int, *, poison: frozenset[tuple[int, int]] = frozenset()) -> None:
        self._count = count
        self._poison = poison

    def __len__(self) -> int:
        return self._count

    def sample(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([epoch, index])
        inputs = torch.from_numpy(rng.standard_normal(3).astype(np.float32))
        if (epoch, index) in self._poison:
            inputs[0] = float("nan")
        return inputs, inputs.sum(dim=0, keepdim=True)


class LineMetrics:
    """Mean square error, gathered as a sum and a count."""

    def __init__(self) -> None:
        self._state = torch.zeros(2, dtype=torch.float64)

    def update(self, output: Tensor, batch: Batch) -> None:
        error = (output - batch[1]).square()
        self._state += torch.tensor([float(error.sum()), float(error.numel())], dtype=torch.float64)

    def state(self) -> Tensor:
        return self._state

    def result(self, state: Tensor) -> dict[str, float]:
        return {"error": float(state[0] / state[1])}


class LineTask:
    """Learns to add three numbers, with dropout so that random state matters."""

    name = "line"
    loss_is_separable = True
    nominal_count = 4.0
    higher_is_better: Mapping[str, bool] = {"error": False}

    def __init__(self, *, poison: frozenset[tuple[int, int]] = frozenset()) -> None:
        self._poison = poison

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1)
        )

    def build_teacher(self, config_yaml: str) -> nn.Module:
        assert "line" in config_yaml
        return self.build_model()

    def train_samples(self) -> LineSamples:
        return LineSamples(22, poison=self._poison)

    def eval_samples(self) -> LineSamples:
        return LineSamples(7)

    def collate(self, samples: list[Any]) -> Batch:
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    def samples_in(self, batch: Batch) -> int:
        return len(batch[0])

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        return batch[0].to(device, non_blocking=True), batch[1].to(device, non_blocking=True)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0])

    def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
        error = (output.float() - batch[1]).square()
        return Loss(error.sum(), error.numel(), {"square": error.detach().mean()})

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        return (output - teacher_output).abs().mean()

    def metrics(self) -> LineMetrics:
        return LineMetrics()

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return {"first": model[0], "last": model[4]}

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, nn.Sequential)
        return [model[3]]
