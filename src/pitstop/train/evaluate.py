"""Quality over a data set: streamed, sharded over ranks, in constant memory."""

from collections.abc import Iterable

import torch
from torch import nn

from pitstop.train.precision import Precision
from pitstop.train.ranks import Ranks
from pitstop.train.task import BatchT, Task


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
    metrics = task.metrics()
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            on_device = task.to_device(batch, device)
            with precision.autocast():
                output = task.forward(model, on_device)
            metrics.update(output, on_device)
    finally:
        model.train(was_training)
    return metrics.result(ranks.sum(metrics.state().to(device)))
