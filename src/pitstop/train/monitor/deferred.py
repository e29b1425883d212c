"""Scalars read from the device some steps later, so that the host never waits for the device."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Steps that the device may be behind the host. A value that is read sooner makes the host wait for
# it; later ones only delay what is shown.
LAG_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Slot:
    step: int
    names: tuple[str, ...]
    values: Tensor
    copied: Any
    known: Mapping[str, float]


class DeferredScalars:
    """Hands over what was pushed `LAG_STEPS` steps ago.

    The lag is fixed, on every device and every rank: decisions taken from these values (leaving a
    step out, stopping) fall at the same step everywhere, or ranks would wait for each other for
    ever. By then the copy is long done; should it not be, waiting for it only keeps the host from
    running further ahead.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._waiting: deque[_Slot] = deque()
        self._spare: dict[int, list[Tensor]] = {}

    def push(
        self, step: int, values: Mapping[str, Tensor], known: Mapping[str, float] | None = None
    ) -> None:
        """Send scalars on their way to the host; `known` ones are there and travel along."""
        stacked = torch.stack([value.detach().double() for value in values.values()])
        copied = None
        if self._on_cuda:
            host = self._buffer(len(values))
            host.copy_(stacked, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            stacked = host
        self._waiting.append(_Slot(step, tuple(values), stacked, copied, known or {}))

    def due(self, step: int) -> list[tuple[int, dict[str, float]]]:
        """Give what was pushed at least `LAG_STEPS` steps before `step`, oldest first."""
        ready = []
        while self._waiting and self._waiting[0].step <= step - LAG_STEPS:
            ready.append(self._take())
        return ready

    def rest(self) -> list[tuple[int, dict[str, float]]]:
        """Give everything that is left; for the end of a run, where waiting is no loss."""
        return [self._take() for _ in range(len(self._waiting))]

    def _take(self) -> tuple[int, dict[str, float]]:
        slot = self._waiting.popleft()
        if slot.copied is not None:
            slot.copied.synchronize()
            self._spare.setdefault(len(slot.names), []).append(slot.values)
        return slot.step, {**dict(zip(slot.names, slot.values.tolist(), strict=True)), **slot.known}

    def _buffer(self, size: int) -> Tensor:
        spare = self._spare.get(size)
        if spare:
            return spare.pop()
        return torch.empty(size, dtype=torch.float64, pin_memory=True)
