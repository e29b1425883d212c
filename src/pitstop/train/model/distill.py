"""A trained model that a smaller one learns from."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pitstop.train.task import BatchT, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A frozen teacher and the weight of its loss."""

    model: nn.Module
    weight: float

    def __post_init__(self) -> None:
        """Freeze the teacher: it is asked, never trained."""
        self.model.eval()
        self.model.requires_grad_(requires_grad=False)

    @torch.no_grad()
    def output(self, task: Task[BatchT], batch: BatchT) -> Any:
        """What the teacher makes of a batch."""
        return task.forward(self.model, batch)
