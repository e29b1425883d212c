"""Quality over a data set: streamed, sharded over ranks, in constant memory."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pitstop.config.sections import EvalSection, LoaderSection
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.errors import ConfigError
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks
from pitstop.train.task import BatchT, Metrics, SeesModel, Task, predict


def eval_order(num_samples: int, section: EvalSection, ranks: Ranks) -> ShuffledBatches:
    """Deal the evaluation samples to ranks and batches: in order, each sample once."""
    return ShuffledBatches(
        num_samples,
        section.batch_size,
        seed=0,
        rank=ranks.rank,
        world_size=ranks.world_size,
        drop_last=False,
        shuffle=False,
    )


def eval_loader(
    task: Task[BatchT], section: EvalSection, loader: LoaderSection, ranks: Ranks
) -> Loader[BatchT]:
    """Build the loader of this rank's evaluation batches; it owns processes, so close it."""
    samples = task.eval_samples()
    return build_loader(
        samples,
        eval_order(len(samples), section, ranks),
        task.collate,
        loader,
        world_size_on_host=ranks.local_world_size,
        for_eval=True,
    )


def require_metric(task: Task[BatchT], metric: str) -> bool:
    """Say whether a higher value of a metric is better.

    Raises:
        ConfigError: Where the task does not measure it.
    """
    known = task.higher_is_better
    if metric not in known:
        raise ConfigError(
            f"checkpoint.best_of is {metric}, but {task.name} measures {', '.join(sorted(known))}"
        )
    return known[metric]


@torch.inference_mode()
def evaluate(
    task: Task[BatchT],
    model: nn.Module,
    batches: Iterable[BatchT],
    *,
    precision: Precision,
    device: torch.device,
    ranks: Ranks,
) -> dict[str, float]:
    """Measure quality over this rank's batches and join what all ranks saw.

    Every rank gets the same numbers. They do not depend on how samples were dealt to batches and
    ranks, since metrics gather sums.
    """
    was_training = model.training
    model.eval()
    try:
        metrics, state = gather(
            task, model, batches, precision=precision, device=device, ranks=ranks
        )
        return metrics.result(state)
    finally:
        model.train(was_training)


@torch.inference_mode()
def gather(
    task: Task[BatchT],
    model: nn.Module,
    batches: Iterable[BatchT],
    *,
    precision: Precision,
    device: torch.device,
    ranks: Ranks,
) -> tuple[Metrics, Tensor]:
    """Give a collector, and what the collectors of all ranks gathered.

    The model must be in evaluation mode, and stay in it while the collector is asked.
    """
    metrics = task.metrics()
    gather_into(metrics, task, model, batches, precision=precision, device=device)
    return metrics, ranks.sum(metrics.state().to(device))


def gather_into(
    metrics: Metrics,
    task: Task[BatchT],
    model: nn.Module,
    batches: Iterable[BatchT],
    *,
    precision: Precision,
    device: torch.device,
) -> None:
    """Show a collector every batch and what the model makes of it."""
    if isinstance(metrics, SeesModel):
        metrics.see(model)
    for batch in batches:
        on_device = task.to_device(batch, device)
        with precision.autocast():
            output = predict(task, model, on_device)
        metrics.update(output, on_device)
