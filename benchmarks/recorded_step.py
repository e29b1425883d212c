"""A trainer whose forward pass, loss and backward pass are one CUDA graph of this process's own.

Regions that are compiled one by one stay as they are: what is recorded are the kernels that they
start. So the graph needs no compile of the whole network. Where there is no GPU the pass runs
plainly on the recorded batch's memory, which shows that batches arrive there.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import torch
from torch import Tensor

from pitstop.train.step import Trainer
from pitstop.train.task import Loss
from pitstop_probe import Clock

WARM_UPS = 3
"""Plain passes before a recording: libraries choose and allocate in them."""


class RecordedTrainer(Trainer[Any]):
    """Runs passes plainly until `record`, and replays that recording until `forget`."""

    _replay: Callable[[], object] | None = None
    _batch: Any = None
    _loss: Loss | None = None
    _recorded: list[Tensor | None]

    @classmethod
    def of(cls, plain: Trainer[Any]) -> Self:
        """Take over everything that a trainer works with."""
        return cls(**{part.name: getattr(plain, part.name) for part in fields(plain) if part.init})

    def record(self, batch: Any, clock: Clock) -> None:
        """Record the passes of a batch on the device; its memory belongs to the recording."""
        self.forget()
        self._batch = batch
        if self.device.type != "cuda":
            self._replay = lambda: self._pass(clock)
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._pass(clock)
        torch.cuda.current_stream().wait_stream(side)
        self._drop_gradients()
        graph = torch.cuda.CUDAGraph()
        # A thread that pins batches may go on allocating meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._pass(clock)
        self._recorded = [parameter.grad for parameter in self._parameters]
        self._replay = graph.replay

    def forget(self) -> None:
        """Give the recording's memory back."""
        self._replay, self._batch, self._loss, self._recorded = None, None, None, []
        self._drop_gradients()

    def _forward_and_backward(self, batch: Any, *, step: int, clock: Clock) -> Loss:
        if self._replay is None:
            return super()._forward_and_backward(batch, step=step, clock=clock)
        with clock.span("replay"):
            return self.replay(batch)

    def replay(self, batch: Any) -> Loss:
        """Bring a batch to where the recorded one lies, and run the recording."""
        assert self._replay is not None, "nothing is recorded"
        for part in fields(batch):
            getattr(self._batch, part.name).copy_(getattr(batch, part.name))
        self._replay()
        for parameter, gradient in zip(self._parameters, self._recorded, strict=False):
            parameter.grad = gradient
        assert self._loss is not None, "recorded without a loss"
        return self._loss

    def _pass(self, clock: Clock) -> None:
        self._drop_gradients()
        self._loss = super()._forward_and_backward(self._batch, step=0, clock=clock)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
