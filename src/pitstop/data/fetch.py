"""What happens in a worker: read the samples of one batch and join them.

Nothing here depends on which worker reads, or on what it read before: a request carries the epoch
and the indices, and a sample is a function of seed, epoch and index. Random numbers of worker
processes therefore decide nothing.
"""

import dataclasses
import os
import signal
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from pitstop.errors import DataError

BatchT = TypeVar("BatchT")

# What reading a damaged file raises: the system, decoders (a broken PNG is a SyntaxError to
# Pillow), decompressors, and arrays that turn out too short. Anything else is a bug and passes.
_UNREADABLE: Final = (OSError, EOFError, ValueError, SyntaxError, zlib.error)

# Neighbours tried in place of a damaged sample before the dataset as a whole is called damaged.
_MOST_SUBSTITUTES: Final = 16


class Samples(Protocol):
    """A dataset by index; the epoch decides what is random about a sample."""

    def __len__(self) -> int:
        """Count the samples of one epoch."""
        ...

    def sample(self, epoch: int, index: int) -> Any:
        """Give sample `index` as it is in `epoch`."""
        ...


@runtime_checkable
class NamedSamples(Protocol):
    """A dataset that can say which file or record a sample is; messages then do."""

    def name_of(self, index: int) -> str:
        """Name sample `index` for a person."""
        ...


class Request(NamedTuple):
    """One batch to read. Carries the epoch, so that long-lived workers never hold a stale one."""

    epoch: int
    indices: list[int]


@dataclass(frozen=True, slots=True)
class Place:
    """One sample as it is in one epoch."""

    epoch: int
    index: int


_NOTHING: Final = Place(-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Generic[BatchT]):
    """One answer of a worker: a batch, or why there is none."""

    batch: BatchT | None
    skipped: tuple[str, ...] = ()
    """Damaged samples that others stand in for."""
    failure: str | None = None
    origin: str | None = None
    """Where the failure arose, as a traceback of the worker."""

    def pin_memory(self) -> "Fetched[BatchT]":
        """Move the batch to page-locked memory; the loader's pinning thread calls this."""
        return dataclasses.replace(self, batch=_pinned(self.batch))


class Desk:
    """What each worker is reading just now, where it can be seen also after the worker's death.

    Workers write and nobody else does, so there is no lock that a killed worker could hold.
    """

    def __init__(self, workers: int) -> None:
        self._rows = torch.full((workers, 3), -1, dtype=torch.int64).share_memory_()

    def note(self, worker: int, place: Place) -> None:
        """Say what `worker`, this process, reads from now on."""
        self._rows.numpy()[worker] = (os.getpid(), place.epoch, place.index)

    def reading(self, pid: int) -> Place | None:
        """Say what a process was reading, if it was reading anything."""
        places = {row[0]: Place(*row[1:]) for row in self._rows.tolist()}
        place = places.get(pid)
        return place if place is not None and place.index >= 0 else None


class BatchFetcher(Dataset[Fetched[BatchT]]):
    """Reads whole batches, in a worker or in the training process where there are no workers."""

    def __init__(
        self,
        samples: Samples,
        collate: Callable[[list[Any]], BatchT],
        *,
        corrupt: Literal["raise", "skip"],
        desk: Desk,
    ) -> None:
        self._samples = samples
        self._collate = collate
        self._corrupt = corrupt
        self.desk: Final = desk

    def __getitem__(self, request: Request) -> Fetched[BatchT]:
        skipped: list[str] = []
        try:
            samples = [self._read(request.epoch, index, skipped) for index in request.indices]
        except DataError as error:
            # As a value: raised here, torch would wrap it into a message of its own.
            origin = "".join(traceback.format_exception(error))
            return Fetched(batch=None, failure=str(error), origin=origin)
        return Fetched(batch=self._collate(samples), skipped=tuple(skipped))

    def describe(self, index: int) -> str:
        """Name a sample as well as the dataset can."""
        name = self._samples.name_of(index) if isinstance(self._samples, NamedSamples) else None
        return f"sample {index}" if name is None else f"sample {index} ({name})"

    def _read(self, epoch: int, index: int, skipped: list[str]) -> Any:
        """Read a sample, or under the policy `skip` the next one that can be read.

        The next by index, not by chance, so that every run takes the same one.
        """
        for neighbour in range(_MOST_SUBSTITUTES):
            taken = (index + neighbour) % len(self._samples)
            try:
                return self._read_one(epoch, taken)
            except _UNREADABLE as error:
                problem = f"{self.describe(taken)} cannot be read: {type(error).__name__}: {error}"
                if self._corrupt == "raise":
                    raise DataError(
                        f"{problem}; mend or remove it, or set loader.corrupt=skip"
                    ) from error
                skipped.append(problem)
        raise DataError(
            f"{_MOST_SUBSTITUTES} samples in a row cannot be read, the first: {skipped[0]}; "
            "look at the storage of the dataset"
        )

    def _read_one(self, epoch: int, index: int) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self._samples.sample(epoch, index)
        self.desk.note(worker.id, Place(epoch, index))
        sample = self._samples.sample(epoch, index)
        self.desk.note(worker.id, _NOTHING)
        return sample


def start_worker(worker: int) -> None:
    """Prepare a new worker process; torch has made it single-threaded by now."""
    del worker
    # Ctrl-C reaches the whole process group. The trainer still finishes its step and saves, and
    # needs its workers until then; it ends them itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _pinned(value: Any) -> Any:
    if isinstance(value, Tensor) or hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {key: _pinned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = map(_pinned, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.init]
        return dataclasses.replace(value, **{n: _pinned(getattr(value, n)) for n in names})
    return value
