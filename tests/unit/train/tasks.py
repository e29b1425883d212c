"""Small tasks for the engine's tests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pitstop.config.sections import ClipSection, ScalerSection
from pitstop.train.model.distill import Teacher
from pitstop.train.optim.ema import WeightAverage
from pitstop.train.optim.gradients import Clipper
from pitstop.train.optim.precision import Precision, PrecisionKind
from pitstop.train.ranks import Ranks
from pitstop.train.step import StepResult, Trainer
from pitstop.train.task import Loss, Metrics
from pitstop_probe import Clock
from tests.fakes import ListSink

Batch = tuple[Tensor, Tensor]


class SquareTask:
    """Fits targets by squares; every sample counts by a weight of its own."""

    name = "square"
    loss_is_separable = True
    higher_is_better: Mapping[str, bool] = {}

    def __init__(self, *, nominal_count: float = 1.0, weighted: bool = True) -> None:
        self.nominal_count = nominal_count
        self.weighted = weighted
        self.seen_dtypes: list[torch.dtype] = []

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def build_teacher(self, config_yaml: str) -> nn.Module:
        return self.build_model()

    def train_samples(self) -> Any:
        raise AssertionError("not asked for here")

    eval_samples = train_samples

    def collate(self, samples: list[Any]) -> Batch:
        inputs, weights = zip(*samples, strict=True)
        return torch.stack(inputs), torch.stack(weights)

    def samples_in(self, batch: Batch) -> int:
        return len(batch[0])

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        inputs, weights = batch
        return inputs.to(device, non_blocking=True), weights.to(device, non_blocking=True)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        output = model(batch[0])
        self.seen_dtypes.append(output.dtype)
        return output

    def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
        inputs, weights = batch
        error = (output.to(inputs.dtype) - inputs.sum(dim=1, keepdim=True)).square().squeeze(1)
        if not self.weighted:
            return Loss(error.sum(), len(inputs), {"square": error.detach().mean()})
        return Loss((error * weights).sum(), weights.sum())

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        return (output - teacher_output).abs().mean()

    def metrics(self) -> Metrics:
        raise AssertionError("not asked for here")

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {}

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        return ()


def make_trainer(
    task: SquareTask | None = None,
    *,
    accumulate: int = 1,
    precision: PrecisionKind = "fp32",
    scaler: ScalerSection | None = None,
    clip: ClipSection | None = None,
    dtype: torch.dtype = torch.float32,
    optimizer: type[torch.optim.Optimizer] | None = None,
    ema: float | None = None,
    teacher: Teacher | None = None,
    device: str = "cpu",
) -> Trainer[Batch]:
    """Build a trainer whose weights are the same every time."""
    torch.manual_seed(0)
    task = task or SquareTask()
    place = torch.device(device)
    model = task.build_model().to(place, dtype)
    made = (
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        if optimizer is None
        else optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    )
    return Trainer(
        task=task,
        model=model,
        optimizer=made,
        precision=Precision(precision, place, scaler),
        clipper=Clipper(clip or ClipSection(kind="none"), place),
        average=None if ema is None else WeightAverage(model, ema),
        teacher=teacher,
        ranks=Ranks(),
        device=place,
        accumulate=accumulate,
    )


def one_step(trainer: Trainer[Batch], batches: list[Batch], **options: Any) -> StepResult:
    """Run one step without keeping its timing."""
    clock = Clock(ListSink())
    clock.begin_step()
    source: Iterator[Batch] = iter(batches)
    return trainer.train_step(source, step=0, clock=clock, **options)


def weights_of(trainer: Trainer[Batch]) -> list[Tensor]:
    """Copy the weights."""
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]
