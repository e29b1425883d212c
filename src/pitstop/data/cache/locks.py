"""Locks that no death can leave held: the operating system frees them with their process.

They are numbered, so that one object serves a cache for everything: number 0 guards the index,
each higher one is held by one process for life and says that it lives. A semaphore or a lock of
`multiprocessing` would stay held for ever when its owner is killed.
"""

import errno
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

try:
    import fcntl
except ImportError:
    fcntl = None

MEMBERS: Final = 512
"""Processes that can use one cache at a time."""

# Between two attempts where the system has no call that waits.
_PAUSE_S: Final = 0.0005


class Locks(Protocol):
    """A row of locks that processes share."""

    def take(self, number: int, *, wait: bool) -> bool:
        """Take one lock; False where another process has it and `wait` is off."""
        ...

    def give(self, number: int) -> None:
        """Give one lock back."""
        ...

    def idle(self, count: int) -> bool:
        """Tell whether nobody holds any of the first `count` locks; own ones count as free."""
        ...

    def forked(self) -> None:
        """Forget what the parent held: a forked child holds none of it."""
        ...

    def close(self, *, remove: bool) -> None:
        """Give everything back; with `remove`, also delete what the locks have on disk."""
        ...


def open_locks(fd: int, path: Path | None, *, after_bytes: int) -> Locks:
    """Choose the locks of an arena.

    Args:
        fd: The arena's file.
        path: Its name, where it has one; needed on systems without locks on parts of a file.
        after_bytes: Size of the arena; locks lie behind its end, so that they cover no data.
    """
    if fcntl is not None:
        return RecordLocks(fd, after_bytes)
    assert path is not None
    return FileLocks(path)


class RecordLocks:
    """Locks on single bytes of a file, by ``fcntl``. They belong to a process, not to a thread.

    A process that closes any descriptor of the file loses all of them, therefore a process opens
    an arena only once (see `pitstop.data.cache.arena`).
    """

    def __init__(self, fd: int, first_byte: int) -> None:
        self._fd = fd
        self._first_byte = first_byte

    def take(self, number: int, *, wait: bool) -> bool:
        """Take one lock; False where another process has it and `wait` is off."""
        assert fcntl is not None
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        while True:
            try:
                fcntl.lockf(self._fd, how, 1, self._first_byte + number)
            except (BlockingIOError, PermissionError):
                return False
            except OSError as error:
                # The kernel sees processes, not threads, and takes two threads of one process
                # that wait for different caches for a circle. There is none.
                if error.errno != errno.EDEADLK:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return True

    def give(self, number: int) -> None:
        """Give one lock back."""
        assert fcntl is not None
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._first_byte + number)

    def idle(self, count: int) -> bool:
        """Tell whether nobody holds any of the first `count` locks; own ones count as free."""
        assert fcntl is not None
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, count, self._first_byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def forked(self) -> None:
        """Forget what the parent held; the kernel has not given it to the child either."""

    def close(self, *, remove: bool) -> None:
        """Leave it to the arena: its file holds the locks, and to close that frees them."""


class FileLocks:
    """One lock file for each number, held as an exclusive transaction of SQLite.

    For systems without ``fcntl``: SQLite knows how to lock a file on every one of them, and the
    system frees that lock too with its process. No table is ever written.
    """

    def __init__(self, arena: Path) -> None:
        self._arena = arena
        self._connections: dict[int, sqlite3.Connection] = {}
        self._of_parents: list[dict[int, sqlite3.Connection]] = []

    def take(self, number: int, *, wait: bool) -> bool:
        """Take one lock; False where another process has it and `wait` is off."""
        connection = self._connections.get(number)
        if connection is None:
            connection = sqlite3.connect(
                f"{self._arena}.{number}.lock",
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
            )
        while True:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                if not wait:
                    if number not in self._connections:
                        connection.close()
                    return False
                time.sleep(_PAUSE_S)
            else:
                self._connections[number] = connection
                return True

    def give(self, number: int) -> None:
        """Give one lock back."""
        self._connections[number].execute("ROLLBACK")

    def idle(self, count: int) -> bool:
        """Tell whether nobody holds any of the first `count` locks; own ones count as free."""
        held = {n for n, connection in self._connections.items() if connection.in_transaction}
        numbers = {int(path.suffixes[-2][1:]) for path in self._files()}
        if not numbers:
            # Its maker has not come to its first lock.
            return False
        taken: list[int] = []
        for number in sorted(numbers - held):
            if number >= count:
                continue
            if not self.take(number, wait=False):
                for each in taken:
                    self.give(each)
                return False
            taken.append(number)
        return True

    def forked(self) -> None:
        """Forget what the parent held; its connections are kept, since closing them is an act."""
        self._of_parents.append(self._connections)
        self._connections = {}

    def close(self, *, remove: bool) -> None:
        """Give everything back; with `remove`, also delete the lock files."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
        for path in self._files() if remove else ():
            # Another system may refuse to delete what somebody still looks at; the next does it.
            with suppress(OSError):
                path.unlink()

    def _files(self) -> list[Path]:
        return list(self._arena.parent.glob(f"{self._arena.name}.*.lock"))
