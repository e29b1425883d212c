"""Batches on time: torch's DataLoader, built from the configuration and resumable in mid-epoch.

    for batch, consumed in loader:     # the rest of the present epoch
        ...
    loader.set_epoch(loader.epoch + 1)

What is read ahead is not consumed: `consumed` counts what the trainer was handed, so a state saved
after a batch continues with the one after it, whatever workers and prefetch are set to. Workers
that stay read on into the next epoch, so that its first batch is there when it is asked for.
"""

import dataclasses
import math
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batch_bytes import estimate_batch_bytes
from pitstop.data.loader.fetch import (
    BatchFetcher,
    BatchT,
    Fetched,
    Place,
    Request,
    Samples,
    WorkerBoard,
)
from pitstop.data.loader.ring import Lender
from pitstop.data.loader.stream import place_after, quiet_worker_warnings, stream_of
from pitstop.data.loader.worker_ends import (
    WorkerLostError,
    awaiting,
    ended_among,
    hold_back_news,
    kill_left,
    stops_blocked,
)
from pitstop.data.loader.worker_needs import require_worker_needs
from pitstop.data.loader.worker_settings import (
    AppliedLoader,
    PrefetchBudget,
    applied_loader,
    slots_for,
    within_budget,
)
from pitstop.data.sampling.samplers import Batches
from pitstop.errors import DataError
from pitstop.measure.script.loader import BatchFlow, LoaderMeter

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from torch.utils.data import DataLoader

ResultT = TypeVar("ResultT")

_CAUSES: Final = {
    "was killed by SIGKILL": "the host most likely ran out of memory: lower loader.workers or "
    "loader.prefetch",
    "was killed by SIGBUS": "shared memory is most likely too small: enlarge /dev/shm, or lower "
    "loader.prefetch",
}
_UNKNOWN_CAUSE: Final = "run with loader.workers=0 to see the fault in the training process itself"

_TOO_MANY_FILES: Final = "Too many open files"

# How long a broken connection to a worker may come before the news of the worker's end.
_END_WAIT_S: Final = 5.0


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
    applied = applied_loader(section, world_size_on_host=world_size_on_host, for_eval=for_eval)
    fetcher = BatchFetcher(
        samples,
        collate,
        corrupt=section.corrupt,
        board=WorkerBoard(applied.workers),
        for_eval=for_eval,
    )
    budget = section.prefetch_bytes
    if budget is None or (for_eval and section.eval_prefetch is not None):
        return Loader(fetcher, batches, applied)
    is_tuned = section.tune == "auto" and not for_eval
    return Loader(
        fetcher,
        batches,
        applied,
        budget=PrefetchBudget(bytes=budget // world_size_on_host, is_filled=not is_tuned),
    )


class Loader(Generic[BatchT]):
    """The batches of one rank. Use it in a ``with`` statement, or close it: it owns processes."""

    def __init__(
        self,
        fetcher: BatchFetcher[BatchT],
        batches: Batches,
        applied: AppliedLoader,
        *,
        budget: PrefetchBudget | None = None,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        """Damaged samples that others stood in for, each with how often."""
        self.meter: Final = LoaderMeter()
        self.on_batch: Callable[[BatchFlow], None] | None = None
        """Described of every batch that was handed out."""
        self._batches = batches
        self._fetcher = fetcher
        self._applied = applied
        self._asked = self._fitted = applied
        self._budget = budget if applied.workers else None
        self._estimated: tuple[int, int] | None = None
        self._stream_at: tuple[int, int] | None = None
        self._largest_bytes = 0
        self._lender = Lender(0)
        self._torch_loader: DataLoader[Fetched[BatchT]] | None = None
        self._running: Iterator[Fetched[BatchT]] | None = None
        self._workers: list[BaseProcess] = []
        self._turn = 0
        self._is_closed = False
        self._fit()

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
    def applied(self) -> AppliedLoader:
        """What the settings come to at present."""
        return self._applied

    @property
    def is_running(self) -> bool:
        """Whether batches are being read, or were and may be ahead of the trainer."""
        return self._running is not None

    def resize(self, *, workers: int, prefetch: int) -> None:
        """Go on with another number of workers or batches ahead, from the next batch on.

        Batches, their order and the place in them stay what they are; what was read ahead is
        read again.
        """
        assert workers > 0
        assert self._applied.workers > 0, "a loader without workers has nothing to resize"
        # Workers are changed by whoever iterates, which may be another thread than this one.
        self._asked = dataclasses.replace(self._asked, workers=workers, prefetch=prefetch)

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
        self._is_closed = True

    def _rest_of_epoch(self, turn: int) -> Iterator[tuple[BatchT, int]]:
        assert not self._is_closed, "the loader is closed"
        consumed, length = self._batches.consumed, len(self._batches)
        if consumed >= length:
            return
        self._fit()
        handed_ns: int | None = None
        try:
            while consumed < length:
                asked_ns = time.perf_counter_ns()
                if self._asked is not self._fitted:
                    self._fit()
                self._go_to(self._batches.epoch, consumed)
                fetched = self._next()
                taken_ns = time.perf_counter_ns()
                consumed += 1
                self._batches.consumed = consumed
                self._stream_at = place_after(self._batches.epoch, consumed, length)
                own_ns = None if handed_ns is None else asked_ns - handed_ns
                self._note(fetched, asked_ns=asked_ns, taken_ns=taken_ns, own_ns=own_ns)
                handed_ns = time.perf_counter_ns()
                yield cast("BatchT", fetched.batch), consumed
                assert turn == self._turn, "the loader has moved on; iterate anew"
        finally:
            if turn == self._turn and not self._applied.persistent:
                self._end_workers()

    def _note(
        self, fetched: Fetched[BatchT], *, asked_ns: int, taken_ns: int, own_ns: int | None
    ) -> None:
        assert fetched.times is not None
        flow = BatchFlow(times=fetched.times, asked_ns=asked_ns, taken_ns=taken_ns, own_ns=own_ns)
        self._largest_bytes = max(self._largest_bytes, fetched.times.batch_bytes)
        self._lender.fit(self._largest_bytes)
        self.meter.add(flow)
        if self.on_batch is not None:
            self.on_batch(flow)

    def _fit(self) -> None:
        """Take as much of what is asked for as the budget holds; sizes may change by epoch."""
        self._fitted = applied = self._asked
        if self._budget is not None and (batch_bytes := self._estimate_batch_bytes()) is not None:
            applied = within_budget(applied, self._budget, batch_bytes, batches=len(self._batches))
        if applied != self._applied:
            self._end_workers()
            self._torch_loader = None
            self._applied = applied

    def _estimate_batch_bytes(self) -> int | None:
        """Estimate a batch's size once in each epoch; None where the epoch has no batch left."""
        epoch = self._batches.epoch
        if self._estimated is None or self._estimated[0] != epoch:
            indices = next(self._batches.rest(), None)
            if indices is None:
                return None
            # Workers read on into the next epoch, where samples may be larger.
            epochs = (epoch, epoch + 1) if self._applied.persistent else (epoch,)
            requests = [Request(number, indices) for number in epochs]
            sizes = estimate_batch_bytes(self._fetcher, requests, self._asked.start_method)
            # Samples may differ in size: a batch of the epoch before may have been larger.
            self._estimated = (epoch, max(*sizes, self._largest_bytes))
            self._largest_bytes = 0
        return self._estimated[1]

    def _go_to(self, epoch: int, consumed: int) -> None:
        """See that the next batch of the stream is this one: go on, or begin anew."""
        if self._running is not None and self._stream_at == (epoch, consumed):
            return
        if not self._applied.persistent:
            self._end_workers()
        if self._torch_loader is None:
            require_worker_needs(self._applied.workers)
            self._fetcher = self._fetcher.with_board(WorkerBoard(self._applied.workers))
            self._lender = Lender(slots_for(self._applied))
            self._torch_loader = stream_of(
                self._fetcher, self._batches, self._lender, self._applied
            )
        torch_loader = self._torch_loader
        before = set(multiprocessing.active_children())
        with quiet_worker_warnings(), stops_blocked():
            self._running = self._watched(lambda: iter(torch_loader))
        hold_back_news()
        started = [child for child in multiprocessing.active_children() if child not in before]
        # None where the workers of before go on.
        self._workers = started or self._workers
        self._stream_at = (epoch, consumed)

    def _end_workers(self) -> None:
        # Letting go of the iterator would end them too, but not while the traceback of an error
        # holds on to it; and torch has no public way.
        shut_down = getattr(self._running, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        kill_left(self._workers)
        self._running = None
        self._workers = []

    def _next(self) -> Fetched[BatchT]:
        running = self._running
        assert running is not None
        fetched = self._watched(lambda: next(running, None))
        assert fetched is not None, "the order has fewer batches than its length says"
        fetched = fetched.opened()
        if fetched.failure is not None:
            raise _failure(fetched)
        self.skipped.update(fetched.skipped)
        return fetched

    def _watched(self, action: Callable[[], ResultT]) -> ResultT:
        """Do what needs living workers; where one has died, end the others and say so."""
        try:
            with awaiting(self._workers):
                return action()
        except (RuntimeError, OSError, EOFError) as error:
            if _TOO_MANY_FILES in str(error):
                death = DataError(
                    "batches cannot come from the data workers: too many open files; raise the "
                    "limit (ulimit -n), or lower loader.workers or loader.prefetch"
                )
            else:
                death = self._explain_death(error)
            if death is None:
                raise
        self.close()
        # Here, where torch's own error is no longer under way: it would be shown as the cause.
        raise death

    def _explain_death(self, error: Exception) -> WorkerLostError | None:
        """Tell an error that a worker's end left behind from one that a worker reported."""
        if not self._workers or "in DataLoader worker process" in str(error):
            return None
        ended = ended_among(self._workers, limit_s=_END_WAIT_S)
        if not ended:
            return None
        # Where several died, of the same cause as like as not, the one first in the order tells.
        end, place = min(map(self._end_and_place, ended), key=_epoch_of)
        doing = "between samples"
        if place is not None:
            doing = f"while reading {self._fetcher.describe(place.index)} in epoch {place.epoch}"
        return WorkerLostError(f"a data worker {end} {doing}; {_CAUSES.get(end, _UNKNOWN_CAUSE)}")

    def _end_and_place(self, worker: "BaseProcess") -> tuple[str, Place | None]:
        assert worker.pid is not None
        assert worker.exitcode is not None
        return _end_of(worker.exitcode), self._fetcher.board.reading(worker.pid)


def _epoch_of(words: tuple[str, Place | None]) -> float:
    return math.inf if words[1] is None else words[1].epoch


def _end_of(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


def _failure(fetched: Fetched[Any]) -> DataError:
    error = DataError(fetched.failure)
    if fetched.origin is not None:
        error.add_note(fetched.origin)
    return error
