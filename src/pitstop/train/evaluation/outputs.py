"""Outputs of a trained model, batch by batch, in constant memory."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from pitstop.train.optim.precision import Precision
from pitstop.train.task import BatchT, Task, predict


@torch.inference_mode()
def infer(
    task: Task[BatchT],
    model: nn.Module,
    batches: Iterable[BatchT],
    *,
    precision: Precision,
    device: torch.device,
) -> Iterator[tuple[BatchT, Any]]:
    """Run the model over batches, handing each out with its output: one at a time in memory."""
    model.eval()
    for batch in batches:
        on_device = task.to_device(batch, device)
        with precision.autocast():
            output = predict(task, model, on_device)
        yield batch, output
