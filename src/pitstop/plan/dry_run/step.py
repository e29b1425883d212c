"""One step of the engine on a GPU that is not there: the run's own model, loss and optimizer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any, Final

import torch
from torch import Tensor, nn

from pitstop.config.quantities import format_bytes
from pitstop.config.sections import RunConfig
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.fake_gpu import DEVICE, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.records.plans.plan import OperationRow, StepTrace
from pitstop.train.model.part_spans import named_parts, part_spans
from pitstop.train.optim.build import planned_state_bytes
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.state.training_state import bare_model
from pitstop.train.step import Trainer, apply_update
from pitstop.train.task import MakesBlankBatches, Task
from pitstop_probe import Clock, Step

OPTIMIZERS: Final = ("adamw", "adamw_bf16", "adamw8bit", "sgd")


class _Nobody:
    """Takes no steps: nothing is timed in a dry run."""

    def step(self, step: Step) -> None:
        """Take none."""

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        """Take none."""


def trace_step(config: RunConfig, task: Task[Any], *, gradients_held: bool = False) -> StepTrace:
    """Run one optimizer step of one micro-batch on shapes alone.

    Args:
        config: What to run.
        task: Its task.
        gradients_held: Whether earlier micro-batches of the step have left gradients.

    Raises:
        CannotFakeError: Where an operation needs numbers.
        ConfigError: Where a setting cannot be honoured.
    """
    clock = Clock(_Nobody())
    ledger = Ledger(lambda: clock.current.path)
    batch = _batch(task, config.train.batch_size)
    with fake_gpu(), ledger:
        setup = build_trainer(config, task, Ranks(), DEVICE)
        trainer = setup.trainer
        model = bare_model(trainer.model)
        own_lasting(ledger, trainer, model)
        make_optimizer_state(trainer.optimizer, model)
        own_state(ledger, trainer.optimizer)
        if gradients_held:
            _make_gradients(model)
            ledger.own("gradients", (parameter.grad for parameter in model.parameters()))
        _own_gradients(ledger, model)
        ledger.counter.counts.clear()
        first_event = ledger.events
        clock.begin_step()
        with part_spans(named_parts(task, model), clock):
            trainer.train_step(repeat(batch), step=0, clock=clock)
        clock.end_step()
    places = setup.applied.get("train.recompute", {}).get("places", {})
    trace = _trace(config, ledger, model, first_event)
    blocks = [sum(p.nbytes for p in block.parameters()) for block in task.regions(model)]
    return replace(
        trace,
        recomputed_places=sum(places.values()),
        shard=config.train.shard,
        shard_ranks=config.train.shard_ranks,
        largest_block_bytes=max(blocks, default=0),
        outside_blocks_bytes=max(0, sum(p.nbytes for p in model.parameters()) - sum(blocks)),
    )


def make_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Update once, so that the state is there as it is from the second step on."""
    _make_gradients(model)
    apply_update(optimizer, torch.zeros((), device=DEVICE))
    optimizer.zero_grad(set_to_none=True)


def _make_gradients(model: nn.Module) -> None:
    """Give every parameter that is trained a gradient."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def _batch(task: Task[Any], batch_size: int) -> Any:
    """A batch of the run's shapes: blank where the task can make one, else of its own data."""
    if isinstance(task, MakesBlankBatches):
        return task.blank_batch(batch_size)
    samples = task.train_samples()
    return task.collate([samples.sample(0, index) for index in range(batch_size)])


def own_lasting(ledger: Ledger, trainer: Trainer[Any], model: nn.Module) -> None:
    """Enter whose the weights are that stay from step to step."""
    ledger.own("parameters", model.parameters())
    ledger.own("buffers", model.buffers())
    if trainer.average is not None:
        ledger.own("averaged weights", trainer.average.state_dict().values())
    if trainer.teacher is not None:
        ledger.own("teacher", trainer.teacher.model.parameters())


def own_state(ledger: Ledger, optimizer: torch.optim.Optimizer) -> None:
    """Enter what the optimizer keeps."""
    ledger.own("optimizer state", _state_tensors(optimizer))


def _state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                yield value


def _own_gradients(ledger: Ledger, model: nn.Module) -> None:
    def enter(parameter: Tensor) -> None:
        ledger.own("gradients", [parameter.grad])

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(enter)


def _trace(config: RunConfig, ledger: Ledger, model: nn.Module, first_event: int) -> StepTrace:
    account = settle(ledger, first_event)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = operation_rows(ledger)
    momentum = config.optimizer.momentum
    return StepTrace(
        model=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in trained),
        batch_size=config.train.batch_size,
        precision=config.train.precision,
        recompute=_named(config.train.recompute),
        kernels=config.model.kernels,
        optimizer=config.optimizer.kind,
        owners=account.owners,
        peak_bytes=account.peak_bytes,
        peak_place=account.place,
        peak_operation=account.operation,
        saved_bytes=account.saved_bytes,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        reserved_bytes=account.reserved_bytes,
        optimizer_bytes={
            kind: planned_state_bytes(kind, trained, momentum=momentum) for kind in OPTIMIZERS
        },
        operations=rows,
        fused_operations=fused_names(ledger),
        fourier_bytes=ledger.fourier_bytes if config.train.precision == "fp32" else 0,
        notes=ledger.notes(),
    )


def operation_rows(ledger: Ledger) -> tuple[OperationRow, ...]:
    """List the operations of a step, the most frequent first."""
    return tuple(
        OperationRow(
            part=one.part,
            name=one.name,
            flops=one.flops,
            num_bytes=one.num_bytes,
            dtype=one.dtype,
            count=count,
        )
        for one, count in ledger.counter.counts.most_common()
    )


def fused_names(ledger: Ledger) -> tuple[str, ...]:
    """Name the fused kernels among the operations."""
    return tuple(sorted(ledger.counter.fused))


def _named(policy: str | int | tuple[str, ...]) -> str:
    if isinstance(policy, int):
        return format_bytes(policy)
    return policy if isinstance(policy, str) else ", ".join(policy)
