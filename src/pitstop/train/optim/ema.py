"""An averaged copy of the weights, and how to look through it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pitstop.train.optim import foreach
from pitstop.train.optim.local_part import local_parts


class WeightAverage:
    """Exponential moving average of a model's parameters; buffers are the latest."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._average = [parameter.detach().clone() for parameter in self._parameters]
        # Every rank averages the part that it holds.
        self._own = local_parts(self._parameters)
        self._own_average = local_parts(self._average)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights."""
        foreach.move_towards(self._own_average, self._own, 1 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model hold the average inside this context, and its own weights after it."""
        own = [part.clone() for part in self._own]
        self._copy(self._own_average)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, values: list[Tensor]) -> None:
        foreach.copy(self._own, values)

    def state_dict(self) -> dict[str, Tensor]:
        """Give the average by parameter name."""
        return dict(zip(self._names, self._average, strict=True))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where another run stopped."""
        for name, average in zip(self._names, self._average, strict=True):
            average.copy_(state[name])
