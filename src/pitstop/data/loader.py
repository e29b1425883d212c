"""Batches on time: torch's DataLoader, built from the configuration and resumable in mid-epoch.

    for batch, consumed in loader:     # the rest of the present epoch
        ...
    loader.set_epoch(loader.epoch + 1)

What is read ahead is not consumed: `consumed` counts what the trainer was handed, so a state saved
after a batch continues with the one after it, whatever workers and prefetch are set to.
"""

import multiprocessing
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Sampler

from pitstop.config.sections import LoaderSection
from pitstop.data.fetch import (
    BatchFetcher,
    BatchT,
    Desk,
    Fetched,
    Request,
    Samples,
    start_worker,
)
from pitstop.data.samplers import Batches
from pitstop.errors import ConfigError, DataError
from pitstop.measure.advice import workers_per_rank
from pitstop.measure.limits import read_host_limits

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

ResultT = TypeVar("ResultT")

_CAUSES: Final = {
    "was killed by SIGKILL": "the host most likely ran out of memory: lower loader.workers or "
    "loader.prefetch",
    "was killed by SIGBUS": "shared memory is most likely too small: enlarge /dev/shm, or lower "
    "loader.prefetch",
}
_UNKNOWN_CAUSE: Final = "run with loader.workers=0 to see the fault in the training process itself"

# How long a broken connection to a worker may come before the news of the worker's end.
_END_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedLoader:
    """What the settings came to on this host, for the record."""

    workers: int
    prefetch: int | None
    """Batches each worker prepares ahead; None where there are no workers."""
    pinned: bool
    persistent: bool
    start_method: str | None
    """None where there are no workers."""


def build_loader(
    samples: Samples,
    batches: Batches,
    collate: Callable[[list[Any]], BatchT],
    section: LoaderSection,
    *,
    world_size_on_host: int = 1,
    for_eval: bool = False,
) -> "Loader[BatchT]":
    """Build the loader of one rank. Build it after the device is chosen: CUDA decides how to fork.

    Evaluation has its own number of workers, and they end with each pass, so that they do not sit
    on memory during training. A damaged sample always stops an evaluation: a metric over other
    samples would be another metric.

    Raises:
        ConfigError: Where the settings cannot be had on this host.
    """
    if section.prefetch_bytes is not None:
        raise ConfigError("loader.prefetch_bytes is not supported yet; use loader.prefetch")
    applied = _applied(section, world_size_on_host, for_eval=for_eval)
    fetcher = BatchFetcher(
        samples,
        collate,
        corrupt="raise" if for_eval else section.corrupt,
        desk=Desk(applied.workers),
    )
    return Loader(fetcher, batches, applied)


def resolve_workers(
    workers: Literal["auto"] | int | float, *, world_size_on_host: int, cores: int
) -> int:
    """Turn the setting, a total for the host, into the workers of one rank.

    Raises:
        ConfigError: Where a count is too small for every rank to have one.
    """
    if workers == "auto":
        return workers_per_rank(cores, world_size_on_host) or 1
    if isinstance(workers, float):
        return max(1, int(workers * cores) // world_size_on_host)
    if 0 < workers < world_size_on_host:
        raise ConfigError(
            f"loader.workers={workers} cannot be shared by the {world_size_on_host} ranks of this "
            f"host; give at least {world_size_on_host}, or 0 to load in the training processes"
        )
    return workers // world_size_on_host


def resolve_start_method(method: str) -> str:
    """Choose how workers start.

    Fork is fastest and needs nothing to be picklable, but a child of a process that uses CUDA
    inherits a context it cannot use, with locks and threads that are gone. Forkserver forks from
    a clean process, which imports torch once for all workers. Outside Linux system libraries do
    not survive a fork, so workers start from nothing.

    Raises:
        ConfigError: Where this platform does not have the method.
    """
    known = multiprocessing.get_all_start_methods()
    if method == "auto":
        if sys.platform != "linux":
            return "spawn"
        return "forkserver" if torch.cuda.is_initialized() else "fork"
    if method not in known:
        raise ConfigError(
            f"loader.start_method={method} does not exist here; use one of {', '.join(known)}"
        )
    return method


def _applied(section: LoaderSection, world_size_on_host: int, *, for_eval: bool) -> AppliedLoader:
    wanted, prefetch = section.workers, section.prefetch
    if for_eval:
        wanted = wanted if section.eval_workers is None else section.eval_workers
        prefetch = section.eval_prefetch or prefetch
    cores = read_host_limits().cores
    workers = resolve_workers(wanted, world_size_on_host=world_size_on_host, cores=cores)
    return AppliedLoader(
        workers=workers,
        prefetch=prefetch if workers else None,
        # Page-locked memory only serves copies to a GPU; without one it is refused.
        pinned=section.pin and torch.cuda.is_available(),
        persistent=section.persistent and workers > 0 and not for_eval,
        start_method=resolve_start_method(section.start_method) if workers else None,
    )


class Loader(Generic[BatchT]):
    """The batches of one rank. Use it in a ``with`` statement, or close it: it owns processes."""

    def __init__(
        self, fetcher: BatchFetcher[BatchT], batches: Batches, applied: AppliedLoader
    ) -> None:
        self.applied: Final = applied
        self.skipped: Counter[str] = Counter()
        """Damaged samples that others stood in for, each with how often."""
        self._batches = batches
        self._fetcher = fetcher
        self._torch_loader: DataLoader[Fetched[BatchT]] | None = _torch_loader(
            fetcher, _Requests(batches), applied
        )
        self._running: Iterator[Fetched[BatchT]] | None = None
        self._workers: list[BaseProcess] = []
        self._turn = 0

    def __enter__(self) -> "Loader[BatchT]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[BatchT, int]]:
        """Give the rest of the present epoch: each batch, and how many are consumed with it.

        Raises:
            DataError: Where a sample cannot be read or a worker has died.
        """
        self._turn += 1
        return self._rest_of_epoch(self._turn)

    @property
    def epoch(self) -> int:
        """The epoch that iterating goes through."""
        return self._batches.epoch

    @property
    def position(self) -> int:
        """Batches of this epoch that the trainer was handed."""
        return self._batches.consumed

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; the present one stays where it is."""
        self._turn += epoch != self.epoch
        self._batches.set_epoch(epoch)

    def rewind(self) -> None:
        """Go back to the start of the present epoch, as an evaluation does before each pass."""
        self._turn += 1
        self._batches.rewind()

    def state_dict(self, *, consumed: int | None = None) -> dict[str, object]:
        """Describe the place in the data.

        Args:
            consumed: Batches consumed, where something between loader and trainer reads ahead:
                the number that came with the last batch trained on.
        """
        state: dict[str, object] = dict(self._batches.state_dict())
        return state if consumed is None else {**state, "consumed": consumed}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place that `state_dict` described; nothing before it is read.

        Raises:
            DataError: Where the place is in other data or another order.
        """
        self._turn += 1
        self._batches.load_state_dict(state)

    def close(self) -> None:
        """End the workers. Harmless when repeated."""
        self._turn += 1
        self._end_workers()
        self._torch_loader = None

    def _rest_of_epoch(self, turn: int) -> Iterator[tuple[BatchT, int]]:
        assert self._torch_loader is not None, "the loader is closed"
        consumed = self._batches.consumed
        self._start(self._torch_loader)
        try:
            while (fetched := self._next()) is not None:
                consumed += 1
                self._batches.consumed = consumed
                yield cast("BatchT", fetched.batch), consumed
                assert turn == self._turn, "the loader has moved on; iterate anew"
        finally:
            if turn == self._turn and not self.applied.persistent:
                self._end_workers()

    def _start(self, torch_loader: DataLoader[Fetched[BatchT]]) -> None:
        if not self.applied.persistent:
            self._end_workers()
        before = set(multiprocessing.active_children())
        with _own_words_for_workers():
            self._running = self._watched(lambda: iter(torch_loader))
        started = [child for child in multiprocessing.active_children() if child not in before]
        # None where the workers of the epoch before go on.
        self._workers = started or self._workers

    def _end_workers(self) -> None:
        # Letting go of the iterator would end them too, but not while the traceback of an error
        # holds on to it; and torch has no public way.
        shut_down = getattr(self._running, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        self._running = None
        self._workers = []

    def _next(self) -> Fetched[BatchT] | None:
        running = self._running
        assert running is not None
        fetched = self._watched(lambda: next(running, None))
        if fetched is not None and fetched.failure is not None:
            raise _failure(fetched)
        self.skipped.update(fetched.skipped if fetched is not None else ())
        return fetched

    def _watched(self, action: Callable[[], ResultT]) -> ResultT:
        """Do what needs living workers; where one has died, end the others and say so."""
        try:
            return action()
        except (RuntimeError, OSError, EOFError) as error:
            death = self._explain_death(error)
            if death is None:
                raise
        self.close()
        # Here, where torch's own error is no longer under way: it would be shown as the cause.
        raise death

    def _explain_death(self, error: Exception) -> DataError | None:
        """Tell an error that a worker's end left behind from one that a worker reported."""
        if not self._workers or "in DataLoader worker process" in str(error):
            return None
        connection.wait([worker.sentinel for worker in self._workers], timeout=_END_WAIT_S)
        ended = [(worker.pid, worker.exitcode) for worker in self._workers]
        pid, exit_code = next((end for end in ended if end[1] is not None), (None, None))
        if pid is None or exit_code is None:
            return None
        place = self._fetcher.desk.reading(pid)
        doing = "between samples"
        if place is not None:
            doing = f"while reading {self._fetcher.describe(place.index)} in epoch {place.epoch}"
        end = _end_of(exit_code)
        return DataError(f"a data worker {end} {doing}; {_CAUSES.get(end, _UNKNOWN_CAUSE)}")


def _end_of(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


class _Requests(Sampler[Request]):
    """The sampler's batches with the epoch written on each."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Request]:
        epoch = self._batches.epoch
        return (Request(epoch, indices) for indices in self._batches.rest())


def _torch_loader(
    fetcher: BatchFetcher[BatchT], requests: _Requests, applied: AppliedLoader
) -> DataLoader[Fetched[BatchT]]:
    context = None
    if applied.start_method is not None:
        context = multiprocessing.get_context(applied.start_method)
        if applied.start_method == "forkserver":
            context.set_forkserver_preload([BatchFetcher.__module__])
    with _own_words_for_workers():
        return DataLoader(
            fetcher,
            batch_size=None,
            sampler=requests,
            collate_fn=_as_it_is,
            num_workers=applied.workers,
            prefetch_factor=applied.prefetch,
            persistent_workers=applied.persistent,
            pin_memory=applied.pinned,
            multiprocessing_context=context,
            worker_init_fn=start_worker,
            # Of its own, since torch draws a seed from it at each start: from the global one, a
            # resumed run would have drawn once more than the run it continues.
            generator=torch.Generator(),
        )


def _as_it_is(fetched: Any) -> Any:
    return fetched


def _failure(fetched: Fetched[Any]) -> DataError:
    error = DataError(fetched.failure)
    if fetched.origin is not None:
        error.add_note(fetched.origin)
    return error


@contextmanager
def _own_words_for_workers() -> Iterator[None]:
    """Keep torch from warning of many workers: checking the configuration has said it already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        # Raised for any process with threads, which every process with torch is. The children
        # read samples and take none of the parent's locks.
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        yield
