"""What happens in a worker: read the samples of one batch, join them, and note how long it took.

Nothing here depends on which worker reads, or on what it read before: a request carries the epoch
and the indices, and a sample is a function of seed, epoch and index. Random numbers of worker
processes therefore decide nothing.
"""

import dataclasses
import os
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import Dataset, get_worker_info

from pitstop.data.loader.ring import Parcel, Slot, pack, take_back, unpack
from pitstop.data.loader.stages import gathering
from pitstop.data.loader.worker_ends import stay_until_parent_ends
from pitstop.data.tensors import bytes_in, pinned
from pitstop.errors import DataError
from pitstop.measure.host.garbage import freeze_long_lived
from pitstop.measure.script.loader import BatchTimes

BatchT = TypeVar("BatchT")

# What reading a damaged file raises: the system, decoders (a broken PNG is a SyntaxError to
# Pillow), decompressors, arrays that turn out too short, and the dataset itself where it looked.
# Anything else is a bug and passes.
_UNREADABLE: Final = (OSError, EOFError, ValueError, SyntaxError, zlib.error, DataError)

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
    slot: Slot | None = None
    """Where the batch may be put, for its way to the training process."""


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
    times: BatchTimes | None = None
    """How the batch was made; None where there is none."""
    parcel: Parcel | None = None
    """The batch where it lies in a slot; `batch` is None then."""
    unused: Slot | None = None
    """The slot that came with the request and was not used."""

    def opened(self) -> "Fetched[BatchT]":
        """Give the same with its batch at hand, in the training process."""
        if self.unused is not None:
            take_back(self.unused)
        if self.parcel is None:
            return self
        return dataclasses.replace(self, batch=unpack(self.parcel), parcel=None, unused=None)

    def pin_memory(self) -> "Fetched[BatchT]":
        """Move the batch to page-locked memory; the loader's pinning thread calls this."""
        opened = self.opened()
        return dataclasses.replace(opened, batch=pinned(opened.batch), unused=None)


class WorkerBoard:
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
    """Reads whole batches, in a worker or in the training process where there are no workers.

    Args:
        samples: What is read.
        collate: Joins samples into a batch.
        corrupt: What to do with a sample that cannot be read.
        board: Where workers note what they read.
        for_eval: Whether these are samples of an evaluation, which never leaves one out.
    """

    def __init__(
        self,
        samples: Samples,
        collate: Callable[[list[Any]], BatchT],
        *,
        corrupt: Literal["raise", "skip"],
        board: WorkerBoard,
        for_eval: bool = False,
    ) -> None:
        self._samples = samples
        self._collate = collate
        self._corrupt: Literal["raise", "skip"] = "raise" if for_eval else corrupt
        self._for_eval = for_eval
        self.board: Final = board

    def with_board(self, board: WorkerBoard) -> "BatchFetcher[BatchT]":
        """Give the same fetcher for other workers."""
        return BatchFetcher(
            self._samples,
            self._collate,
            corrupt=self._corrupt,
            board=board,
            for_eval=self._for_eval,
        )

    def __getitem__(self, request: Request) -> Fetched[BatchT]:
        begun_ns, begun_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        skipped: list[str] = []
        try:
            with gathering() as stages:
                with stages.timed("sample"):
                    samples = [self._read(request.epoch, i, skipped) for i in request.indices]
                with stages.timed("collate"):
                    batch = self._collate(samples)
                with stages.timed("send"):
                    parcel = None if request.slot is None else pack(batch, request.slot)
        except DataError as error:
            # As a value: raised here, torch would wrap it into a message of its own.
            origin = "".join(traceback.format_exception(error))
            return Fetched(batch=None, failure=str(error), origin=origin, unused=request.slot)
        times = BatchTimes(
            begun_ns=begun_ns,
            finished_ns=time.perf_counter_ns(),
            cpu_ns=time.thread_time_ns() - begun_cpu_ns,
            stages_ns=stages.total_ns,
            batch_bytes=bytes_in(batch),
        )
        return Fetched(
            batch=batch if parcel is None else None,
            skipped=tuple(skipped),
            times=times,
            parcel=parcel,
            unused=request.slot if parcel is None else None,
        )

    def estimate_bytes(self, request: Request) -> int:
        """Estimate the bytes of a batch by its first sample, repeated for every sample of it.

        Raises:
            DataError: Where the sample cannot be read.
        """
        sample = self._read(request.epoch, request.indices[0], [])
        return bytes_in(self._collate([sample] * len(request.indices)))

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
                problem = f"{self.describe(taken)} cannot be read: {_said_by(error)}"
                if self._corrupt == "raise":
                    raise DataError(f"{problem}; {self._advice}") from error
                skipped.append(problem)
        raise DataError(
            f"{_MOST_SUBSTITUTES} samples in a row cannot be read, the first: {skipped[0]}; "
            "check the storage of the dataset"
        )

    @property
    def _advice(self) -> str:
        if self._for_eval:
            return "fix or remove it: a metric over other samples would be another metric"
        return "fix or remove it, or set loader.corrupt=skip"

    def _read_one(self, epoch: int, index: int) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self._samples.sample(epoch, index)
        self.board.note(worker.id, Place(epoch, index))
        sample = self._samples.sample(epoch, index)
        self.board.note(worker.id, _NOTHING)
        return sample


def start_worker(worker: int) -> None:
    """Prepare a new worker process; torch has made it single-threaded by now."""
    del worker
    stay_until_parent_ends()
    lower_priority()
    freeze_long_lived()  # what is shared with the parent


def lower_priority() -> None:
    """Have this process wait for its turn when it wakes up, with the same share of the cores.

    A worker wakes up because the training loop asks for a batch. Otherwise the system may give it
    the core that the loop is on, which then stands still for a few milliseconds.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    # A container may forbid it: then it stays as it is.
    with suppress(OSError):
        # Whoever chose another policy for the whole run keeps it.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _said_by(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
