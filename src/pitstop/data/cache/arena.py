"""One piece of memory for all processes of a host, and the ways into it.

Where the system can (Linux), the memory has no name: it lives as long as somebody has it open and
is gone with the last process, however that ends. Children get the open file from their parent;
a process that is no child opens it through the ``/proc`` entry of the one that handed it a handle.
Elsewhere, or where a folder is asked for, it is a file with a name. Its last user deletes it, and
what a killed run left behind is deleted by the next one that starts.

Pages are reserved before they are written, so a full disk or mount is an answer and not a SIGBUS.
"""

import errno
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pitstop.data.cache.backing import (
    Backing,
    finish,
    new_backing,
    open_backing,
    remove_unfinished,
    write_zeros,
)
from pitstop.data.cache.locks import MEMBERS, Locks, fcntl, open_locks
from pitstop.errors import DataError

if TYPE_CHECKING:
    from pitstop.data.cache.items import Array

PAGE_BYTES: Final = 4096
MUTEX: Final = 0

_NO_ROOM: Final = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What another process needs to open an arena."""

    token: str
    path: str
    passed: Any = None
    """The open file itself, on its way to a child that is being started."""


class Arena:
    """The memory as this process has it. Made by `create_arena` or `open_arena`.

    Attributes:
        memory: All of it, writable.
        words: The same as 64-bit numbers.
        links: The same as 32-bit numbers.
        view: All of it, read-only. Arrays that are handed out are parts of it, and no flag makes
            them writable.
        count_lock: For counters, which threads of one process share.
        member: Which of the `MEMBERS` locks this process holds; None before it has joined.
    """

    def __init__(self, backing: Backing, token: str, size_bytes: int) -> None:
        self.token: Final = token
        self.size_bytes: Final = size_bytes
        self.backing: Final = backing.words
        self.users = 0
        self.member: int | None = None
        self.count_lock = threading.Lock()
        self._thread_lock = threading.Lock()
        self._fd = backing.fd
        self._path = backing.path
        self._spare_fds: list[int] = []
        self._passed_to: Callable[[], object] = _nobody
        self._locks: Locks = open_locks(backing.fd, backing.path, after_bytes=size_bytes)
        self._mapping = mmap.mmap(backing.fd, size_bytes)
        self.memory: memoryview = memoryview(self._mapping)
        self.view: Array = np.frombuffer(self.memory.toreadonly(), np.uint8)
        self.words: memoryview[int] = self.memory.cast("q")
        self.links: memoryview[int] = self.memory.cast("I")

    def lock(self) -> None:
        """Keep every other thread and process out of the index; waits."""
        self._thread_lock.acquire()
        try:
            self._locks.take(MUTEX, wait=True)
        except BaseException:
            self._thread_lock.release()
            raise

    def unlock(self) -> None:
        """Let the next one in."""
        try:
            self._locks.give(MUTEX)
        finally:
            self._thread_lock.release()

    def join(self) -> int:
        """Take a place among the members, which this process keeps while it lives.

        Raises:
            DataError: Where all places are taken.
        """
        for member in range(MEMBERS):
            if self._locks.take(1 + member, wait=False):
                self.member = member
                return member
        raise DataError(f"more than {MEMBERS} processes use one cache; start fewer workers")

    def is_alive(self, member: int) -> bool:
        """Tell whether a member's process lives: the system has freed its lock if not."""
        if member == self.member:
            return True
        if not self._locks.take(1 + member, wait=False):
            return True
        self._locks.give(1 + member)
        return False

    def reserve(self, start: int, stop: int) -> bool:
        """Make the system reserve bytes that nobody has used yet; False where it has none left."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, start, stop - start)
            else:
                write_zeros(self._fd, start, stop)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return False
        return True

    def handle(self) -> Handle:
        """Say how another process opens this arena."""
        if self._path is not None:
            return Handle(token=self.token, path=str(self._path))
        child, passed = get_spawning_popen(), None
        # Once for each child: a second handle finds what the first has opened.
        if child is not None and self._passed_to() is not child:
            self._passed_to = weakref.ref(child)
            passed = reduction.DupFd(self._fd)
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return Handle(token=self.token, path=path, passed=passed)

    def keep_open(self, fd: int) -> None:
        """Hold on to a second descriptor: closing it would free every lock of this process."""
        self._spare_fds.append(fd)

    def forked(self) -> None:
        """Begin anew in a forked child: it holds no lock and is no member yet."""
        self.count_lock = threading.Lock()
        self._thread_lock = threading.Lock()
        self.member = None
        self._locks.forked()

    def try_close(self) -> bool:
        """Leave the arena; False where views of it are still in use, and nothing is closed then.

        The last user of a named file deletes it.
        """
        in_use = weakref.ref(self.view)
        del self.view
        view = in_use()
        if view is not None:
            self.view = view
            return False
        for view in (self.words, self.links, self.memory):
            view.release()
        self._mapping.close()
        name = self._path if self._path is not None and self._locks.idle(1 + MEMBERS) else None
        if name is not None and fcntl is not None:
            # Before the descriptor is closed, since that gives the locks to the next one.
            name.unlink(missing_ok=True)
        for fd in (self._fd, *self._spare_fds):
            os.close(fd)
        if name is not None and fcntl is None:
            # Only now: systems without fcntl delete no open file.
            with suppress(OSError):
                name.unlink(missing_ok=True)
        self._locks.close(remove=name is not None)
        return True


_ARENAS: Final[dict[str, Arena]] = {}
# Reentrant: collecting garbage may leave one arena while another is being opened.
_ARENAS_LOCK = threading.RLock()


def create_arena(
    size_bytes: int, *, folder: Path | None, prepare: Callable[[Arena], None]
) -> Arena:
    """Make an arena of exactly `size_bytes`, a multiple of the page size.

    Args:
        size_bytes: Size of the memory.
        folder: Where to put a named file; None for memory without a name where there is such.
        prepare: Fills in what every user relies on, before anybody else can find the arena.

    Raises:
        ConfigError: Where no place has that much free.
    """
    token = secrets.token_hex(16)
    backing = new_backing(size_bytes, token, folder, own=_ARENAS)
    arena = Arena(backing, token, size_bytes)
    try:
        prepare(arena)
        finish(backing, arena.memory, token)
    except BaseException:
        arena.try_close()
        remove_unfinished(backing)
        raise
    with _ARENAS_LOCK:
        arena.users = 1
        _ARENAS[token] = arena
    return arena


def open_arena(handle: Handle) -> Arena:
    """Open an arena that another process, or this one, has made.

    Raises:
        DataError: Where it is gone or this process may not open it.
    """
    passed_fd = None if handle.passed is None else handle.passed.detach()
    with _ARENAS_LOCK:
        arena = _ARENAS.get(handle.token)
        if arena is None:
            backing, size_bytes = open_backing(handle.path, handle.token, passed_fd)
            arena = _ARENAS[handle.token] = Arena(backing, handle.token, size_bytes)
        elif passed_fd is not None:
            arena.keep_open(passed_fd)
        arena.users += 1
        return arena


def leave_arena(arena: Arena) -> None:
    """Give up one use of an arena in this process; with the last one it is closed.

    Views that are still in use keep it open. It is then found again, not opened a second time: to
    close a second descriptor would free the locks of the first.
    """
    with _ARENAS_LOCK:
        arena.users -= 1
        if arena.users <= 0 and arena.try_close():
            del _ARENAS[arena.token]


def _nobody() -> None:
    return None


def _forked() -> None:
    global _ARENAS_LOCK  # noqa: PLW0603 - another thread of the parent may have held it
    _ARENAS_LOCK = threading.RLock()
    for arena in _ARENAS.values():
        arena.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
