"""A task that trains in seconds and whose quality depends on all that a change can break.

Noisy signals are restored by two convolutions. There are few training signals, so that fresh noise
in every epoch (the augmentation) matters; the rate stays high, so that averaged weights matter; the
filter is as long as the model's window.

`HARMS` break the engine from outside, in the process that trains. Nothing in src knows of them.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from pitstop.config.rules import RuleSet
from pitstop.config.sections import DataSection, LossSection, ModelSection, RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.train.optim.precision import LossScale
from pitstop.train.step import Trainer
from pitstop.train.task import Loss
from pitstop.workloads.catalogue import Workload

Batch = tuple[Tensor, Tensor]

LENGTH: Final = 32
NOISE: Final = 0.5


class SignalModel(ModelSection):
    """Settings of the model."""

    window: int = 9
    """Length of a filter."""


SIGNAL = WorkloadSections(
    name="signal",
    data=DataSection,
    model=SignalModel,
    loss=LossSection,
    rules=RuleSet(inert=(), conflicts=(), risks=()),
)


class Signals:
    """Sums of three waves with noise: the wave by index, its noise by epoch as well."""

    def __init__(self, count: int, *, seed: int, fresh: bool = True) -> None:
        self._count = count
        self._seed = seed
        self._fresh = fresh

    def __len__(self) -> int:
        return self._count

    def sample(self, epoch: int, index: int) -> Batch:
        rng = np.random.default_rng([self._seed, index])
        at = np.arange(LENGTH)[None] * rng.uniform(0.1, 0.5, (3, 1)) + rng.uniform(0, 6, (3, 1))
        clean = np.sin(at).sum(axis=0) / 2
        rng = np.random.default_rng([self._seed, index, epoch if self._fresh else 0])
        noisy = clean + NOISE * rng.standard_normal(LENGTH)
        return torch.from_numpy(noisy[None]).float(), torch.from_numpy(clean[None]).float()


class SignalQuality:
    """PSNR over all signals, for a peak of 2."""

    def __init__(self) -> None:
        self._state = torch.zeros(2, dtype=torch.float64)

    def update(self, output: Tensor, batch: Batch) -> None:
        error = (output.float() - batch[1]).square()
        self._state += torch.tensor([float(error.sum()), float(error.numel())], dtype=torch.float64)

    def state(self) -> Tensor:
        return self._state

    def result(self, state: Tensor) -> dict[str, float]:
        return {"psnr": 10 * math.log10(4 / float(state[0] / state[1]))}


class SignalTask:
    """Restores signals."""

    name = "signal"
    loss_is_separable = True
    higher_is_better: Mapping[str, bool] = {"psnr": True}

    def __init__(self, config: RunConfig, *, fresh: bool = True) -> None:
        assert isinstance(config.model, SignalModel)
        self._window = config.model.window
        self._fresh = fresh
        self.nominal_count = float(config.train.batch_size * LENGTH)

    def build_model(self) -> nn.Module:
        pad = self._window // 2
        return nn.Sequential(
            nn.Conv1d(1, 12, self._window, padding=pad),
            nn.Tanh(),
            nn.Conv1d(12, 1, self._window, padding=pad),
        )

    def build_teacher(self, config_yaml: str) -> nn.Module:
        raise NotImplementedError(config_yaml)

    def train_samples(self) -> Signals:
        return Signals(48, seed=1, fresh=self._fresh)

    def eval_samples(self) -> Signals:
        return Signals(64, seed=2)

    def collate(self, samples: list[Any]) -> Batch:
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    def samples_in(self, batch: Batch) -> int:
        return len(batch[0])

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        return batch[0].to(device), batch[1].to(device)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0])

    def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
        error = (output.float() - batch[1]).square()
        return Loss(error.sum(), error.numel(), {})

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        return (output - teacher_output).abs().mean()

    def metrics(self) -> SignalQuality:
        return SignalQuality()

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {}

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        return []


SETTINGS: Final = {
    "run": {"name": "run"},
    "model": {"kind": "signal"},
    "train": {"steps": 120, "batch_size": 16, "ema": 0.95, "clip": {"kind": "fixed", "norm": 1.0}},
    "optimizer": {"kind": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.0},
    "schedule": {"kind": "constant"},
    "loader": {"workers": 0},
    "eval": {"batch_size": 64},
    "checkpoint": {"every_steps": None},
    "log": {"every_steps": 1, "memory_every_steps": None},
}
"""The baseline."""


@contextmanager
def _wrong_accumulation() -> Iterator[None]:
    """Micro-batches are summed and divided by the size of one, as a forgotten ``/ accumulate``."""
    real = vars(Trainer)["_over_ranks"]

    def over_ranks(self: Trainer[Any], *args: Any, **options: Any) -> Any:
        count, bad, left = real(self, *args, **options)
        return count / self.accumulate, bad, left

    with patch.object(Trainer, "_over_ranks", over_ranks):
        yield


@contextmanager
def _fp16_without_scaler() -> Iterator[None]:
    """The loss scale stays 1, and gradients are those of a mean over a whole frame: tiny."""
    real = LossScale.__init__

    def without(self: LossScale, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self.scale.fill_(1.0)

    with ExitStack() as stack:
        stack.enter_context(patch.object(LossScale, "__init__", without))
        stack.enter_context(patch.object(LossScale, "update", lambda *_: None))
        init = SignalTask.__init__

        def whole_frame(self: SignalTask, config: RunConfig, *, fresh: bool = True) -> None:
            init(self, config, fresh=fresh)
            self.nominal_count *= 100_000

        stack.enter_context(patch.object(SignalTask, "__init__", whole_frame))
        yield


@contextmanager
def _dropped_average() -> Iterator[None]:
    """Evaluations use the last weights, though the configuration asks for averaged ones."""
    from pitstop.train.optim.ema import WeightAverage

    with patch.object(WeightAverage, "in_place", lambda _: nullcontext()):
        yield


@contextmanager
def _clipped_twice() -> Iterator[None]:
    """Gradients are clipped as configured, and again to a fifth of that norm."""
    real = vars(Trainer)["_clip"]

    def clip(self: Trainer[Any], **options: Any) -> Any:
        norm = real(self, **options)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.2)
        return norm

    with patch.object(Trainer, "_clip", clip):
        yield


@contextmanager
def _augmentation_lost() -> Iterator[None]:
    """The noise of the first epoch comes in every epoch, as from a cache of finished samples."""
    init = SignalTask.__init__

    def stale(self: SignalTask, config: RunConfig, *, fresh: bool = True) -> None:
        init(self, config, fresh=False)

    with patch.object(SignalTask, "__init__", stale):
        yield


Harm = Callable[[], AbstractContextManager[None]]

HARMS: Final[Mapping[str, tuple[Harm, tuple[str, ...]]]] = {
    "wrong accumulation scaling": (
        _wrong_accumulation,
        ("train.batch_size=4", "train.accumulate=4"),
    ),
    "fp16 without scaler": (_fp16_without_scaler, ("train.precision=fp16",)),
    "dropped EMA": (_dropped_average, ("log.progress_every_steps=50",)),
    "clipped twice": (_clipped_twice, ('optimizer.fused="on"',)),
    "augmentation lost": (_augmentation_lost, ("loader.pin=false",)),
    "window changed": (nullcontext, ("model.window=3",)),
}
"""What is broken, and the settings of the change that breaks it: they say what it claims."""

HARMLESS: Final[Mapping[str, tuple[str, ...]]] = {
    "more workers": ("loader.workers=2",),
    "other log and prefetch cadence": ("log.progress_every_steps=50", "loader.pin=false"),
    "accumulation over four micro-batches": ("train.batch_size=4", "train.accumulate=4"),
    "bf16": ("train.precision=bf16",),
}


def _build(config: RunConfig) -> SignalTask:
    return SignalTask(config)


WORKLOAD = Workload(kinds={"signal": SIGNAL}, build=_build)


def install(folder: Path) -> None:
    """Make the workload known to this process; children need the folder in PYTHONPATH."""
    info = folder / "signal-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: signal\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[pitstop.workloads]\nsignal = tests.unit.verify.workload:WORKLOAD\n"
    )
    sys.path.insert(0, str(folder))
