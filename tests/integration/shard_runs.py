"""Steps of a workload on several ranks, divided or not, whose end can be held side by side."""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.data.loader.batches import build_loader
from pitstop.data.sampling.samplers import Deal, train_order
from pitstop.train import setup as engine_setup
from pitstop.train.optim.build import predicted_state_bytes, state_bytes
from pitstop.train.optim.local_part import local_parts
from pitstop.train.optim.schedule import Schedule
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.step import StepResult, Trainer
from pitstop.train.task import Loss, Task
from pitstop.workloads.catalogue import build_task
from pitstop_probe import Clock
from tests.fakes import ListSink

CPU = torch.device("cpu")
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a configuration with its changes, and how ranks share the work."""

    config: Path
    overrides: tuple[str, ...]
    steps: int
    is_float64: bool = False
    bucket_mb: float | None = None
    """Of DDP; None for its own."""
    is_nudged: bool = False
    """Whether each weight starts one rounding up or down from where it would."""
    nudged_weight: int | None = None
    """One number of the model that starts one rounding up, drawn by this seed."""
    read_after: tuple[int, ...] = ()
    """Counts of steps after which weights are written, too."""


class InFloat64:
    """A task whose model and loss compute in float64; everything else is the task's own."""

    def __init__(self, task: Task[Any]) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def build_model(self) -> nn.Module:
        model = self._task.build_model().double()
        model.register_forward_pre_hook(self._cast, with_kwargs=True)
        return model

    def forward(self, model: nn.Module, batch: Any) -> Any:
        with _no_float32():
            return self._task.forward(model, batch)

    def loss(self, output: Any, batch: Any, step: int) -> Loss:
        with _no_float32():
            return self._task.loss(output, batch, step)

    def _cast(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(self._one, args)), {k: self._one(v) for k, v in kwargs.items()}

    def _one(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.double() if value.is_floating_point() else value
        if isinstance(value, Mapping):
            return {name: self._one(each) for name, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: self._one(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **parts)
        return value


def run_cases(cases: Mapping[str, Case], folder: Path) -> None:
    """Do the steps of each case in this rank; the first writes what they came to."""
    ranks = join_ranks()
    for name, case in cases.items():
        config = load_config(case.config, case.overrides).config
        task: Any = build_task(config)
        if case.is_float64:
            task = InFloat64(task)
        with _buckets(case.bucket_mb):
            setup = engine_setup.build_trainer(config, task, ranks, CPU)
        if case.is_nudged:
            nudge(setup.trainer.model)
        if case.nudged_weight is not None:
            nudge_one(setup.trainer.model, case.nudged_weight)
        after = partial(_write_weights, setup.trainer, case, folder / name)
        do_steps(setup.trainer, config, case.steps, after=after)
        found = whole_state(setup.trainer)
        if ranks.is_first:
            torch.save(found, folder / f"{name}.pt")
            told = {"applied": setup.applied.get("train.shard"), "held": _held(setup.trainer)}
            (folder / f"{name}.json").write_text(json.dumps(told))
    leave_ranks()


@torch.no_grad()
def nudge(model: nn.Module) -> None:
    """Move each weight by one rounding of its own, up or down, alike in all ranks."""
    dice = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        signs = torch.randint(0, 2, weight.shape, generator=dice, dtype=weight.dtype) * 2 - 1
        weight.mul_(1 + signs * torch.finfo(weight.dtype).eps)


@torch.no_grad()
def nudge_one(model: nn.Module, seed: int) -> None:
    """Move a single number of all weights up to the next one there is, alike in all ranks."""
    dice = torch.Generator().manual_seed(seed)
    weights = [weight.view(-1) for weight in model.parameters()]
    ends = list(accumulate(weight.numel() for weight in weights))
    moved = False
    while not moved:  # a bias that is still zero has no place to round
        place = int(torch.randint(ends[-1], (), generator=dice))
        index = bisect_right(ends, place)
        number = weights[index][place - ends[index]]
        moved = bool(number)
        if moved:
            number.copy_(torch.nextafter(number, torch.full_like(number, math.inf)))


def _write_weights(trainer: Trainer[Any], case: Case, path: Path, steps: int) -> None:
    """Write what can be compared after some steps of a run; all ranks must come by here."""
    if steps not in case.read_after:
        return
    state = whole_state(trainer)
    weights = {name: value for name, value in state.items() if not name.startswith("optimizer.")}
    if trainer.ranks.is_first:
        torch.save(weights, path.with_name(f"{path.name} after {steps}.pt"))


def _held(trainer: Trainer[Any]) -> dict[str, int]:
    """Count the bytes that this rank has of weights and of the optimizer's state."""
    return {
        "parameters_bytes": sum(part.nbytes for part in local_parts(trainer.model.parameters())),
        "optimizer_bytes": state_bytes(trainer.optimizer),
        "planned_optimizer_bytes": predicted_state_bytes(trainer.optimizer),
    }


def do_steps(
    trainer: Trainer[Any],
    config: RunConfig,
    steps: int,
    *,
    after: Callable[[int], None] | None = None,
) -> list[StepResult]:
    """Train for some steps on the task's own data; `after` is given the steps done after each."""
    total = config.train.steps or steps
    schedule = Schedule(trainer.optimizer, config.schedule, total_steps=total)
    clock = Clock(ListSink())
    results = []
    batches = batches_of(config, trainer.task, trainer.ranks)
    for step in range(steps):
        clock.begin_step(step)
        schedule.apply(step)
        result = trainer.train_step(batches, step=step, clock=clock, wants_norm=True)
        results.append(result)
        if after is not None:
            after(step + 1)
    return results


def whole_state(trainer: Trainer[Any]) -> dict[str, Tensor]:
    """Give weights, buffers, averages and the optimizer's tensors, whole; all ranks must ask."""
    model = trainer.model
    model = model.module if isinstance(model, DistributedDataParallel) else model
    buffers = {name for name, _ in model.named_buffers()}
    found = {
        f"buffer.{name}" if name in buffers else name: value
        for name, value in model.state_dict().items()
    }
    if trainer.average is not None:
        found |= {f"average.{name}": v for name, v in trainer.average.state_dict().items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = trainer.optimizer.param_groups
    order = [names[each] for group in groups for each in group["params"]]
    for index, values in trainer.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{order[index]}.{name}": value for name, value in values.items()}
    return {name: _whole(value) for name, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far apart two runs ended: all weights as one, and the tensor that is furthest."""

    whole: float
    """Length of the difference of all weights, as a share of their length."""
    tensor: float
    """Largest difference in a tensor, as a share of its largest number; of the worst tensor."""
    tensor_name: str


def idle_weights(state: Mapping[str, Tensor]) -> set[str]:
    """Name weights that the loss does not depend on, by what Adam remembers of their gradients.

    A norm takes off again what a bias before it adds. The gradient of such a bias is zero on paper
    and rounding in fact, of which Adam makes steps: where it ends says nothing about who computed
    it. Rounding is 1e-16 of the model's gradients in float64; of a weight that matters a gradient
    is above 1e-12 of them. Ask a run in float64.
    """
    squares = {
        name.removeprefix("optimizer.").removesuffix(".exp_avg_sq"): float(value.max())
        for name, value in state.items()
        if name.endswith(".exp_avg_sq")
    }
    least = 1e-12**2 * max(squares.values(), default=0.0)
    return {name for name, square in squares.items() if square <= least}


def compare(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], *, idle: Collection[str] = ()
) -> Distances:
    """Compare the ends of two runs, weights that nothing depends on left out of single tensors."""
    assert first.keys() == second.keys()
    names = [
        name
        for name, value in first.items()
        if not name.startswith("optimizer.") and value.is_floating_point() and value.numel()
    ]
    apart = {name: _apart(first[name], second[name]) for name in names if not _is_of(name, idle)}
    worst = max(apart, key=lambda name: apart[name])
    weights = [name for name in names if not name.startswith(("average.", "buffer."))]
    difference = _length(first[name] - second[name] for name in weights)
    whole = difference / _length(first[name] for name in weights)
    return Distances(whole=whole, tensor=apart[worst], tensor_name=worst)


def distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """The largest difference of weights, as a share of the largest number of the tensor."""
    return compare(first, second, idle=idle_weights(first)).tensor


def _length(parts: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def _is_of(name: str, weights: Collection[str]) -> bool:
    return name.removeprefix("average.") in weights


def _apart(first: Tensor, second: Tensor) -> float:
    assert first.dtype == second.dtype
    difference = float((first - second).abs().max())
    return difference and difference / max(float(first.abs().max()), TINY)


def _whole(value: Tensor) -> Tensor:
    full = getattr(value, "full_tensor", None)
    return (value if full is None else full()).detach().clone()


def _no_float32() -> AbstractContextManager[Any]:
    """Have what asks for float32, where low precision would not do, stay in float64."""
    return mock.patch.object(Tensor, "float", Tensor.double)


@contextmanager
def _buckets(size_mb: float | None) -> Iterator[None]:
    if size_mb is None:
        yield
        return
    sized = partial(DistributedDataParallel, bucket_cap_mb=size_mb)
    with mock.patch.object(engine_setup, "DistributedDataParallel", sized):
        yield


def batches_of(config: RunConfig, task: Task[Any], ranks: Ranks) -> Iterator[Any]:
    samples = task.train_samples()
    deal = Deal(
        batch_size=config.train.batch_size,
        seed=config.run.seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        drop_last=True,
    )
    order = train_order(task, samples, deal)
    loader = build_loader(
        samples, order, task.collate, config.loader, world_size_on_host=ranks.local_world_size
    )
    while True:
        for batch, _ in loader:
            yield batch
        loader.set_epoch(loader.epoch + 1)
