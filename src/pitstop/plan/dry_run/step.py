"""One step of the engine on a GPU that is not there: the run's own model, loss and optimizer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import torch
from torch import Tensor, nn

from pitstop.config.quantities import format_bytes
from pitstop.config.sections import RunConfig
from pitstop.data.loader.fetch import Samples
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.fake_gpu import DEVICE, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.plan.dry_run.over_ranks import Buckets, Division, OverRanks
from pitstop.plan.shards import dividing_ranks
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


def trace_step(
    config: RunConfig, task: Task[Any], *, gradients_held: bool = False, ranks: int = 1
) -> StepTrace:
    """Run one optimizer step of one micro-batch on shapes alone.

    Args:
        config: What to run.
        task: Its task.
        gradients_held: Whether earlier micro-batches of the step have left gradients.
        ranks: Of the run; of several, the step is that of one.

    Raises:
        CannotFakeError: Where an operation needs numbers.
        ConfigError: Where a setting cannot be honoured.
    """
    clock = Clock(_Nobody())
    ledger = Ledger(lambda: clock.current.path)
    batch = batch_for(task, config.train.batch_size, task.train_samples)
    with fake_gpu(), ledger:
        setup = build_trainer(config, task, Ranks(), DEVICE)
        trainer = setup.trainer
        model = bare_model(trainer.model)
        over_ranks = None
        if ranks > 1:
            size = dividing_ranks(config.train, ranks=ranks)
            over_ranks = _over_ranks(ledger, trainer, ranks=size, clock=clock)
        make_lasting(ledger, trainer, model)
        if gradients_held:
            _make_gradients(model)
            ledger.own("gradients", (parameter.grad for parameter in model.parameters()))
        own_gradients(ledger, model)
        if isinstance(over_ranks, Division):
            over_ranks.begin(_lasting(trainer, model))
        ledger.counter.counts.clear()
        first_event = ledger.events
        clock.begin_step()
        with part_spans(named_parts(task, model), clock):
            trainer.train_step(repeat(batch), step=0, clock=clock)
        clock.end_step()
    places = setup.applied.get("train.recompute", {}).get("places", {})
    trace = trace_of(ledger, model, first_event, _traced(config), over_ranks=over_ranks)
    return replace(
        trace,
        recomputed_places=sum(places.values()),
        shard=config.train.shard,
        ranks=ranks,
    )


def _over_ranks(ledger: Ledger, trainer: Trainer[Any], *, ranks: int, clock: Clock) -> OverRanks:
    """Say how a rank differs from one that has everything; `ranks` hold one copy together."""
    model = bare_model(trainer.model)
    if ranks == 1:
        return Buckets(ledger, model)
    # Here, where it is needed: importing what it stands on takes half a second.
    from pitstop.train.model.shard import blocks_of

    return Division(
        ledger,
        model,
        blocks_of(model, trainer.task.regions(model)),
        ranks=ranks,
        in_backward=lambda: clock.current.path[:1] == ("backward",),
    )


def _lasting(trainer: Trainer[Any], model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Give what a rank keeps between steps, each beside the weight that it is divided like."""
    weights = dict(model.named_parameters())
    yield from ((weight, weight) for weight in weights.values())
    if trainer.average is not None:
        for name, value in trainer.average.state_dict().items():
            yield value, weights[name]
    for weight, state in trainer.optimizer.state.items():
        for value in state.values():
            if isinstance(value, Tensor):
                yield value, weight


def make_lasting(ledger: Ledger, trainer: Trainer[Any], model: nn.Module) -> None:
    """Make all that stays from step to step, and enter whose it is."""
    _own_lasting(ledger, trainer, model)
    _make_optimizer_state(trainer.optimizer, model)
    _own_state(ledger, trainer.optimizer)


def _make_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Update once, so that the state is there as it is from the second step on."""
    _make_gradients(model)
    apply_update(optimizer, torch.zeros((), device=DEVICE))
    optimizer.zero_grad(set_to_none=True)


def _make_gradients(model: nn.Module) -> None:
    """Give every parameter that is trained a gradient."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def batch_for(task: Task[Any], batch_size: int, samples_of: Callable[[], Samples]) -> Any:
    """A batch of the run's shapes: blank where the task can make one, else of its own data."""
    if isinstance(task, MakesBlankBatches):
        return task.blank_batch(batch_size)
    samples = samples_of()
    return task.collate([samples.sample(0, index) for index in range(batch_size)])


def _own_lasting(ledger: Ledger, trainer: Trainer[Any], model: nn.Module) -> None:
    """Enter whose the weights are that stay from step to step."""
    ledger.own("parameters", model.parameters())
    ledger.own("buffers", model.buffers())
    if trainer.average is not None:
        ledger.own("averaged weights", trainer.average.state_dict().values())
    if trainer.teacher is not None:
        ledger.own("teacher", trainer.teacher.model.parameters())


def _own_state(ledger: Ledger, optimizer: torch.optim.Optimizer) -> None:
    """Enter what the optimizer keeps."""
    ledger.own("optimizer state", _state_tensors(optimizer))


def _state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                yield value


def own_gradients(ledger: Ledger, model: nn.Module) -> None:
    """Enter whose the gradients are, as backward makes them."""

    def enter(parameter: Tensor) -> None:
        ledger.own("gradients", [parameter.grad])

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(enter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a step was run with; fields as in `StepTrace`."""

    batch_size: int
    precision: str
    recompute: str
    kernels: str
    optimizer: str
    momentum: float


def _traced(config: RunConfig) -> Traced:
    return Traced(
        batch_size=config.train.batch_size,
        precision=config.train.precision,
        recompute=_named(config.train.recompute),
        kernels=config.model.kernels,
        optimizer=config.optimizer.kind,
        momentum=config.optimizer.momentum,
    )


def trace_of(
    ledger: Ledger,
    model: nn.Module,
    first_event: int,
    traced: Traced,
    *,
    over_ranks: OverRanks | None = None,
) -> StepTrace:
    """Sum up what a ledger saw of a step, from an event on, as one of several ranks has it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    numbers = sum(parameter.numel() for parameter in trained)
    account = settle(ledger, first_event, None if over_ranks is None else over_ranks.pieces())
    trained = trained if over_ranks is None else over_ranks.parts(trained)
    return StepTrace(
        model=type(model).__name__,
        parameters=numbers,
        batch_size=traced.batch_size,
        precision=traced.precision,
        recompute=traced.recompute,
        kernels=traced.kernels,
        optimizer=traced.optimizer,
        owners=account.owners,
        peak_bytes=account.peak_bytes,
        peak_place=account.place,
        peak_operation=account.operation,
        saved_bytes=account.saved_bytes,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        reserved_bytes=account.reserved_bytes,
        optimizer_bytes={
            kind: planned_state_bytes(kind, trained, momentum=traced.momentum)
            for kind in OPTIMIZERS
        },
        operations=_operation_rows(ledger),
        fused_operations=_fused_names(ledger),
        fourier_bytes=ledger.fourier_bytes if traced.precision == "fp32" else 0,
        notes=ledger.notes(),
    )


def _operation_rows(ledger: Ledger) -> tuple[OperationRow, ...]:
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


def _fused_names(ledger: Ledger) -> tuple[str, ...]:
    """Name the fused kernels among the operations."""
    return tuple(sorted(ledger.counter.fused))


def _named(policy: str | int | tuple[str, ...]) -> str:
    if isinstance(policy, int):
        return format_bytes(policy)
    return policy if isinstance(policy, str) else ", ".join(policy)
