"""Batches on the device before they are needed.

    for batch in DevicePrefetcher(loader, "cuda"):
        ...

While a step computes, the next batch is copied on a stream of its own. What comes out is what went
in, on the device; nothing else changes.
"""

import copy
import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sized
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pitstop.data.tensors import tensors_in, with_parts

BatchT = TypeVar("BatchT")


class DevicePrefetcher(Generic[BatchT]):
    """Brings batches to a device, each while the one before it is worked on.

    Tensors are found in dictionaries, lists, tuples, named tuples and data classes, however deep;
    strings and everything else stay as they are. Copies overlap with computing where the batches
    lie in page-locked memory (`pin_memory=True` of a DataLoader); from other memory they are as
    right, but the host waits for them. On a CPU, and where `cuda` is asked for and there is none,
    batches are handed through untouched, so that a script runs on either.

    One batch is taken from the source ahead of time, so a loader's own count of batches is one
    ahead of what was trained on. An error of the source comes when its batch is asked for, after
    all batches before it. Each iteration iterates the source anew.

    Args:
        batches: Where batches come from: a loader or any other iterable.
        device: Where they shall go.
    """

    def __init__(self, batches: Iterable[BatchT], device: torch.device | str) -> None:
        self._batches = batches
        self._device = _present(torch.device(device))

    def __repr__(self) -> str:
        return f"DevicePrefetcher({type(self._batches).__name__} to {self._device})"

    def __len__(self) -> int:
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} does not say how long it is")
        return len(self._batches)

    def __iter__(self) -> Iterator[BatchT]:
        if self._device.type == "cpu":
            return iter(self._batches)
        if self._device.type == "cuda":
            return look_ahead(self._batches, SideStream(self._device))
        return (on_device(batch, self._device) for batch in self._batches)


def _present(device: torch.device) -> torch.device:
    """Give the device, or the CPU where it is a CUDA device and there is none."""
    absent = device.type == "cuda" and not torch.cuda.is_available()
    return torch.device("cpu") if absent else device


class Lane(Protocol):
    """A way to the device that is not the one computing takes."""

    def send(self, batch: Any) -> Any:
        """Start to copy a batch; give what `receive` needs."""
        ...

    def receive(self, sent: Any) -> Any:
        """Make what was sent usable for whoever computes from now on."""
        ...


class SideStream:
    """Copies on a CUDA stream of its own, ordered against computing by events alone."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._stream = torch.cuda.Stream(device)

    def send(self, batch: Any) -> tuple[Any, torch.cuda.Event]:
        """Start the copies and mark their end; the host does not wait."""
        with torch.cuda.stream(self._stream):
            moved = on_device(batch, self._device)
        copied = torch.cuda.Event()
        copied.record(self._stream)
        return moved, copied

    def receive(self, sent: tuple[Any, torch.cuda.Event]) -> Any:
        """Let the present stream wait for the copies, and take over their memory."""
        moved, copied = sent
        present = torch.cuda.current_stream(self._device)
        present.wait_event(copied)
        # The memory belongs to the side stream, whose next copy may have it as soon as the batch
        # is let go. Computing lags behind that moment, so the allocator must know who else uses it.
        _lend(moved, present)
        return moved


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


_NOTHING_LEFT: Final = object()


def look_ahead(batches: Iterable[Any], lane: Lane) -> Generator[Any, None, None]:
    """Give batches through a lane, the next one always under way."""
    source = iter(batches)
    try:
        ahead = _send_next(source, lane)
        while ahead is not _NOTHING_LEFT:
            if isinstance(ahead, _Failed):
                raise ahead.error
            received = [lane.receive(ahead)]
            ahead = _send_next(source, lane)
            # Taken out, so that its memory is the caller's alone to keep or let go.
            yield received.pop()
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _send_next(source: Iterator[Any], lane: Lane) -> Any:
    try:
        return lane.send(next(source))
    except StopIteration:
        return _NOTHING_LEFT
    except Exception as error:  # noqa: BLE001 - the source's own, raised when its batch is due
        return _Failed(error)


def on_device(value: Any, device: torch.device) -> Any:
    """Give a batch with its tensors on a device; what is there already is not copied."""
    # A packed sequence is a tuple by descent, but one of its tensors must stay on the host.
    if isinstance(value, Tensor | PackedSequence):
        move: Callable[..., Any] = value.to
        return move(device, non_blocking=True)
    if isinstance(value, Mapping):
        return _mapping_like(value, {key: on_device(item, device) for key, item in value.items()})
    return with_parts(value, lambda item: on_device(item, device))


def _mapping_like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Keep the kind of dictionary: one with defaults or an order of its own stays one."""
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items
    own_kind = copy.copy(value)
    own_kind.update(items)
    return own_kind


def _lend(batch: Any, stream: torch.cuda.Stream) -> None:
    for tensor in tensors_in(batch):
        if tensor.is_cuda:
            tensor.record_stream(stream)
