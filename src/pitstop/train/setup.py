"""From a configuration to a trainer: device, randomness, model, optimizer, in that order."""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.config.sections import RunConfig, TrainSection
from pitstop.errors import ConfigError
from pitstop.train.model.compiling import apply_compile, records_cuda_graphs
from pitstop.train.model.distill import Teacher
from pitstop.train.model.memory_format import use_channels_last
from pitstop.train.model.recompute import apply_recompute
from pitstop.train.model.recompute_budget import fit_recompute
from pitstop.train.model.sync_norm import describe_batches, synchronise_norms
from pitstop.train.optim.build import build_optimizer, optimizer_facts
from pitstop.train.optim.ema import WeightAverage
from pitstop.train.optim.gradients import Clipper
from pitstop.train.optim.precision import Precision
from pitstop.train.optim.schedule import scaled_lr
from pitstop.train.ranks import Ranks
from pitstop.train.state.checkpoint import open_checkpoint
from pitstop.train.step import Trainer
from pitstop.train.task import BatchT, MakesBlankBatches, ReportsStart, Task

if TYPE_CHECKING:
    from pitstop.train.model.shard import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup(Generic[BatchT]):
    """A trainer, and what was decided while it was built."""

    trainer: Trainer[BatchT]
    messages: tuple[str, ...]
    """Decisions that should be said aloud."""
    applied: dict[str, dict[str, Any]]
    """What each switch really did, by setting."""


def choose_device(ranks: Ranks) -> torch.device:
    """This rank's own GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", ranks.local_rank)


def seed_everything(seed: int, rank: int, *more: int) -> None:
    """Start every generator; ranks draw different numbers."""
    mixed = int(np.random.SeedSequence([seed, rank, *more]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002 - other people's code draws from it
    torch.manual_seed(mixed)


def build_trainer(
    config: RunConfig, task: Task[BatchT], ranks: Ranks, device: torch.device
) -> TrainerSetup[BatchT]:
    """Build everything a step works with.

    Raises:
        ConfigError: Where a setting cannot be honoured or would do nothing.
    """
    train = config.train
    precision = Precision(train.precision, device, train.scaler)
    precision.apply_to_process()
    torch.use_deterministic_algorithms(config.run.deterministic)

    # Every rank builds the same weights, then draws numbers of its own.
    seed_everything(config.run.seed, 0)
    model = task.build_model()
    applied, regions = _shape_model(model, task, train)
    # A rank alone has nobody to divide with, and FSDP2 would cost it time for nothing.
    is_sharded = train.shard != "none" and ranks.world_size > 1
    # A model that is divided may not fit: its blocks go to the device one by one. Where activations
    # are measured first, all of it must be there.
    if not is_sharded or isinstance(train.recompute, int):
        model.to(device)
    if train.sync_norm:
        model, norms = synchronise_norms(model, ranks=ranks.world_size, device=device)
        applied["train.sync_norm"] = asdict(norms)
    if isinstance(train.recompute, int):
        forward = _forward(task, model, precision, train.batch_size)
        facts = fit_recompute(model, train.recompute, forward, units=regions)
        applied["train.recompute"] = asdict(facts)
    seed_everything(config.run.seed, ranks.rank)
    apply_compile(model, train.compile, regions)
    shards = None
    if is_sharded:
        shards = _divide(model, train, regions, ranks=ranks, device=device)
        applied["train.shard"] = asdict(shards.facts)
    rate = scaled_lr(
        config.optimizer,
        batch_size=train.batch_size,
        accumulate=train.accumulate,
        devices=ranks.world_size,
    )
    optimizer = build_optimizer(model, config.optimizer, lr=rate.lr)
    applied["optimizer.kind"] = asdict(optimizer_facts(optimizer))
    trainer = Trainer(
        task=task,
        model=model
        if is_sharded
        else _over_ranks(model, ranks, device, keeps_order=config.run.deterministic),
        optimizer=optimizer,
        precision=precision,
        clipper=Clipper(train.clip, device),
        average=None if train.ema is None else WeightAverage(model, train.ema),
        teacher=_teacher(task, train, device),
        ranks=ranks,
        device=device,
        accumulate=train.accumulate,
        shards=shards,
        records_graphs=records_cuda_graphs(train.compile),
    )
    started = task.start_notes() if isinstance(task, ReportsStart) else ()
    return TrainerSetup(
        trainer=trainer,
        messages=(
            rate.message,
            *started,
            *_accumulation(task, train),
            *_undivided(train, ranks),
            *describe_batches(
                model,
                batch_size=train.batch_size,
                accumulate=train.accumulate,
                ranks=ranks.world_size,
                synchronised=train.sync_norm,
            ),
        ),
        applied=applied,
    )


def _shape_model(
    model: nn.Module, task: Task[BatchT], train: TrainSection
) -> tuple[dict[str, dict[str, Any]], list[nn.Module]]:
    """Apply what changes how the model computes, not what."""
    regions = list(task.regions(model))
    applied: dict[str, dict[str, Any]] = {}
    if train.recompute != "none" and not isinstance(train.recompute, int):
        facts = apply_recompute(model, train.recompute, units=regions)
        applied["train.recompute"] = asdict(facts)
    if train.channels_last:
        applied["train.channels_last"] = asdict(use_channels_last(model))
    return applied, regions


def _forward(
    task: Task[BatchT], model: nn.Module, precision: Precision, batch_size: int
) -> Callable[[], Any]:
    """A pass over a blank batch, with its loss.

    Raises:
        ConfigError: Where the task cannot make one.
    """
    if not isinstance(task, MakesBlankBatches):
        raise ConfigError(
            f"train.recompute is a size, but {task.name} cannot make the batch that activations "
            "are measured with; set it to full, attention, ffn or selective"
        )

    def forward() -> Any:
        device = next(model.parameters()).device
        batch = task.to_device(task.blank_batch(batch_size), device)
        with precision.autocast():
            output = task.forward(model, batch)
        return task.loss(output, batch, 0)

    return forward


def _over_ranks(
    model: nn.Module, ranks: Ranks, device: torch.device, *, keeps_order: bool
) -> nn.Module:
    """Wrap a model for several ranks.

    DDP lays gradients out anew after its first backward, in the order in which they came. Where
    three ranks or more add them up, the order of a sum depends on its place in that layout: a run
    that goes on from a checkpoint would add its first gradients in another order than one that was
    left alone. Looking for unused parameters keeps the first layout, for the price of a walk over
    the graph in each step, and of a line in which torch says that there were none.
    """
    if ranks.world_size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=keeps_order and ranks.world_size > 2,
    )


def _undivided(train: TrainSection, ranks: Ranks) -> list[str]:
    if train.shard == "none" or ranks.world_size > 1:
        return []
    return [f"train.shard={train.shard} divides nothing: there is one rank, which holds everything"]


def _divide(
    model: nn.Module,
    train: TrainSection,
    regions: Sequence[nn.Module],
    *,
    ranks: Ranks,
    device: torch.device,
) -> "Shards":
    # Here, where it is needed: importing what it stands on takes half a second.
    from pitstop.train.model.shard import shard_model

    return shard_model(model, train, regions, ranks=ranks, device=device)


def _teacher(task: Task[BatchT], train: TrainSection, device: torch.device) -> Teacher | None:
    """Load the teacher: the model its own checkpoint describes, with that checkpoint's weights."""
    path = train.distill.teacher
    if path is None:
        return None
    state = open_checkpoint(path).common(mapped=True, parts=("model", "config"))
    model = task.build_teacher(state["config"])
    model.load_state_dict(state["model"])
    return Teacher(model=model.to(device), weight=train.distill.weight)


def _accumulation(task: Task[BatchT], train: TrainSection) -> tuple[str, ...]:
    if train.accumulate == 1 or task.loss_is_separable:
        return ()
    whole = train.batch_size * train.accumulate
    return (
        f"accumulating {train.accumulate} micro-batches of {train.batch_size} is not a batch of "
        f"{whole}: this loss compares samples with each other, but only within a micro-batch",
    )
