"""Losses are read without waiting, and every one that arrives is written once."""

from types import SimpleNamespace
from typing import Any

import torch

from pitstop_probe.losses import Losses


class LateDevice:
    """Stands in for torch with a GPU: copies arrive when told."""

    def __init__(self) -> None:
        self.clock = 0
        self.made = 0
        self.cuda = SimpleNamespace(Event=lambda: LateEvent(self))

    def empty(self, _: Any, *, dtype: torch.dtype, device: str, pin_memory: bool) -> torch.Tensor:
        assert (device, pin_memory) == ("cpu", True)
        self.made += 1
        return torch.zeros((), dtype=dtype)

    def loss(self, value: float, dtype: torch.dtype = torch.float32) -> Any:
        class OnDevice(torch.Tensor):
            is_cuda = True

        return torch.tensor(value, dtype=dtype).as_subclass(OnDevice)


class LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._recorded = 0

    def record(self) -> None:
        self._recorded = self._device.clock

    def query(self) -> bool:
        return self._recorded < self._device.clock


def test_a_loss_on_the_host_is_written_at_once() -> None:
    written: list[tuple[int, float]] = []
    Losses(torch, lambda *loss: written.append(loss)).take(3, torch.tensor(0.5))
    assert written == [(3, 0.5)]


def test_a_loss_on_a_device_is_written_once_it_is_there() -> None:
    written: list[tuple[int, float]] = []
    device = LateDevice()
    losses = Losses(device, lambda *loss: written.append(loss))
    losses.take(16, device.loss(0.5))
    losses.write_arrived()
    assert written == []
    device.clock += 1
    losses.take(32, device.loss(0.25))
    losses.write_arrived()
    assert written == [(16, 0.5)]
    device.clock += 1
    losses.write_arrived()
    losses.write_arrived()
    assert written == [(16, 0.5), (32, 0.25)]


def test_memory_to_copy_to_is_used_again_for_losses_of_its_kind() -> None:
    written: list[tuple[int, float]] = []
    device = LateDevice()
    losses = Losses(device, lambda *loss: written.append(loss))
    kinds = [torch.float32] * 5 + [torch.float64] * 5
    for step, dtype in enumerate(kinds):
        losses.take(step, device.loss(step / 10, dtype))
        device.clock += 1
        losses.write_arrived()
    assert device.made == 2
    assert [step for step, _ in written] == list(range(10))
    assert written[9][1] == 0.9  # to all its digits


def test_what_was_on_its_way_is_let_go() -> None:
    written: list[tuple[int, float]] = []
    device = LateDevice()
    losses = Losses(device, lambda *loss: written.append(loss))
    losses.take(16, device.loss(0.5))
    losses.clear()
    device.clock += 1
    losses.write_arrived()
    assert written == []
