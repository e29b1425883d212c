"""The stream of batches that torch's DataLoader fetches: which ones are asked for, and by whom."""

import copy
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from pitstop.data.loader.fetch import BatchFetcher, BatchT, Fetched, Request, start_worker
from pitstop.data.loader.request_queue import with_request_queues
from pitstop.data.loader.ring import Lender
from pitstop.data.loader.worker_ends import start_fork_server
from pitstop.data.loader.worker_settings import AppliedLoader
from pitstop.data.sampling.samplers import Batches


class Requests(Sampler[Request]):
    """The sampler's batches with the epoch written on each; those of later epochs, too, on wish."""

    def __init__(self, batches: Batches, lender: Lender, *, reads_on: bool) -> None:
        self._batches = batches
        self._lender = lender
        self._reads_on = reads_on

    def __iter__(self) -> Iterator[Request]:
        # A copy: this runs ahead of the trainer, whose place the original is.
        return self._requests(copy.copy(self._batches))

    def _requests(self, batches: Batches) -> Iterator[Request]:
        # Torch asks for the first one when workers are done with what they were asked before.
        self._lender.reclaim()
        while len(batches):
            for indices in batches.rest():
                yield Request(batches.epoch, indices, self._lender.lend())
            if not self._reads_on:
                return
            batches.set_epoch(batches.epoch + 1)


def place_after(epoch: int, consumed: int, length: int) -> tuple[int, int]:
    """Say which batch, by epoch and number, comes after so many of an epoch."""
    return (epoch, consumed) if consumed < length else (epoch + 1, 0)


def stream_of(
    fetcher: BatchFetcher[BatchT], batches: Batches, lender: Lender, applied: AppliedLoader
) -> DataLoader[Fetched[BatchT]]:
    """Have batches fetched from where the order stands; workers that stay read on for ever."""
    context = None
    if applied.start_method is not None:
        context = multiprocessing.get_context(applied.start_method)
        if applied.start_method == "forkserver":
            context.set_forkserver_preload(_own_modules())
            start_fork_server()
        context = with_request_queues(context)
    with quiet_worker_warnings():
        return DataLoader(
            fetcher,
            batch_size=None,
            sampler=Requests(batches, lender, reads_on=applied.persistent),
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


def _own_modules() -> list[str]:
    """Name what the server of workers is to load once, instead of every worker: what we have.

    A worker loads the script that started the run again, and with it most of this.
    """
    package = __name__.partition(".")[0]
    return sorted(name for name in sys.modules if name.partition(".")[0] == package)


def _as_it_is(fetched: Any) -> Any:
    return fetched


@contextmanager
def quiet_worker_warnings() -> Iterator[None]:
    """Keep torch from warning of many workers: checking the configuration has said it already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        # Raised for any process with threads, which every process with torch is. The children
        # read samples and take none of the parent's locks.
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        yield
