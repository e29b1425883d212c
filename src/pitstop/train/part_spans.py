"""Spans for the named parts of a model, by hooks at their borders."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from pitstop_probe import Clock


@contextmanager
def part_spans(parts: Mapping[str, nn.Module], clock: Clock) -> Iterator[None]:
    """Time the forward pass of each part inside this context.

    A part that is recomputed runs again in backward, on the same thread where there is no GPU:
    then it shows under "backward" as well, as what recomputing costs.
    """
    handles = []
    for name, module in parts.items():
        border = _Border(name, clock)
        handles.append(module.register_forward_pre_hook(border.enter))
        handles.append(module.register_forward_hook(border.leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Border:
    """Opens a part's span when it is called and closes it when it returns."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._open: list[Any] = []

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - torch's hook
        span = self._clock.span(self._name)
        span.__enter__()
        self._open.append(span)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if self._open:
            self._open.pop().__exit__(None, None, None)
