"""Workers end with their parent and not before; the news of an early end waits for a batch.

Schedulers, ``timeout`` and service managers send SIGTERM to the whole process group. The trainer
still finishes its step and saves, and needs its workers until then. Where one dies all the same,
torch raises that wherever the training thread is, in the middle of an update too. Here the news
is held back until the trainer asks for a batch: then the state of training is that of a whole step.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, forkserver, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Final

from pitstop.errors import DataError

_PR_SET_PDEATHSIG: Final = 1
_STOPS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_TORCH: Final = "torch.utils.data._utils.signal_handling"

# Workers on whose batch the main thread waits just now.
_awaited: list[BaseProcess] = []
_passed_on: list[Callable[[int, FrameType | None], object]] = []


class WorkerLostError(DataError):
    """A worker ended that was still needed."""


def stay_until_parent_ends() -> None:
    """Have this worker leave signals to stop to its parent, and end when that ends."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    # The system sends it when the thread ends that started this process: right for the main one.
    if threading.current_thread().name == "MainThread":
        signal_at_parent_death(signal.SIGKILL)
    # Where that end is over already, no signal comes.
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


def signal_at_parent_death(number: int) -> None:
    """Have the system send a signal to this process when its parent has ended; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def start_fork_server() -> None:
    """Start the server that workers are forked from so that it, too, leaves signals alone."""
    resource_tracker.ensure_running()  # ignores them by itself, and unblocks them here
    with stops_blocked():
        forkserver.ensure_running()


@contextmanager
def stops_blocked() -> Iterator[None]:
    """Start processes inside that signals to stop do not end; here, they come afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hold_back_news() -> None:
    """Take the place of torch's own handler; to be called after torch has installed it."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    present = signal.getsignal(signal.SIGCHLD)
    if present is _on_end:
        return
    _passed_on.clear()
    if callable(present) and getattr(present, "__module__", "") != _TORCH:
        _passed_on.append(present)
    signal.signal(signal.SIGCHLD, _on_end)


@contextmanager
def awaiting(workers: Sequence[BaseProcess]) -> Iterator[None]:
    """Wait for a batch of these workers inside; the end of one of them is raised at once.

    Raises:
        ChildProcessError: One of them has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not heard here; torch looks every few seconds
        return
    before = tuple(_awaited)
    _awaited[:] = workers
    try:
        _raise_if_ended(workers)
        yield
    finally:
        _awaited[:] = before


def kill_left(workers: Sequence[BaseProcess]) -> None:
    """End workers that did not end when they were asked to: they ignore SIGTERM."""
    for worker in workers:
        if worker.is_alive():
            worker.kill()
        worker.join()


def ended_among(workers: Sequence[BaseProcess], *, limit_s: float) -> list[BaseProcess]:
    """Give those that have ended, by now or within a time limit: what tells of it may come first.

    A process that ends closes its files a moment before the system has its exit code.
    """
    closed = connection.wait([worker.sentinel for worker in workers], timeout=limit_s)
    for worker in workers:
        if worker.sentinel in closed:
            worker.join(limit_s)
    return [worker for worker in workers if worker.exitcode is not None]


def _on_end(number: int, frame: FrameType | None) -> None:
    for handler in _passed_on:
        handler(number, frame)
    _raise_if_ended(_awaited)


def _raise_if_ended(workers: Sequence[BaseProcess]) -> None:
    if any(map(_has_failed, workers)):
        raise ChildProcessError("a data worker has ended")


def _has_failed(worker: BaseProcess) -> bool:
    """Tell without collecting the exit code: whoever owns the process does that."""
    pid = worker.pid
    if pid is None or not hasattr(os, "waitid"):
        return False
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False  # another process's child, or collected already
    return ended is not None and not (ended.si_code == os.CLD_EXITED and ended.si_status == 0)
