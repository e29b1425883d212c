"""The doctor that sent the probe: whether it still lives, and what it was asked to end.

The environment that carries the probe reaches every grandchild and never expires. So the doctor
holds a lock for as long as it runs, and whoever finds it free leaves the script alone.
"""

import errno
import os
import sys
from multiprocessing import parent_process
from typing import IO, Any, List, Mapping, Optional

try:
    import fcntl
except ImportError:  # on Windows locks are of bytes, and nobody shares one
    fcntl = None
try:
    import msvcrt
except ImportError:
    msvcrt = None

# What says that somebody else has the lock, and not that there are none.
_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)

LOCK = "doctor-alive"
"""Name of the file that the doctor holds locked."""


class Doctor:
    """Who sent the probe.

    Args:
        lock: File that it holds locked while it lives.
        pid: Its process.
        command: What it was asked to run.
    """

    def __init__(self, lock: str, pid: int, command: List[str]) -> None:
        self._lock = lock
        self._command = command
        # Asked here, where the process starts: the parent may be gone later.
        self._is_its_child = os.getppid() == pid
        self.is_forked = False
        """Whether this process was forked off one that the probe was in."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; in doubt it does not."""
        return is_held(self._lock)

    def ends_this(self, *, is_rank: bool) -> bool:
        """Whether this process is what the user named, so that it may be ended.

        It is the one that the doctor started, or it runs a script that the command names, behind a
        launcher or a wrapper. Processes that such a script starts through multiprocessing are it
        only together, as the ranks of one training. All else is somebody else's to end: what a
        shell script, a makefile or a launcher of the user's starts.
        """
        if self.is_forked or parent_process() is not None:
            return is_rank and (self._is_its_child or self._is_named())
        return self._is_its_child or self._is_named()

    def _is_named(self) -> bool:
        script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
        module = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
        words = [word for word in self._command if not word.startswith("-")]
        return any(os.path.basename(word) == script or word == module for word in words if word)


def doctor_of(values: Mapping[str, Any]) -> Optional[Doctor]:
    """Read who sent the probe from its settings; None where nobody waits for it."""
    about = values.get("doctor")
    return None if about is None else Doctor(about["lock"], about["pid"], about["command"])


def hold(path: str) -> IO[bytes]:
    """Lock a file until what is given back is closed, or this process is gone.

    Raises:
        OSError: It cannot be locked.
    """
    file = open(path, "ab")  # noqa: SIM115 - for the caller to close
    try:
        _lock(file, exclusive=True)
    except OSError:
        file.close()
        raise
    return file


def is_held(path: str) -> bool:
    """Whether somebody holds a file locked; not where it is gone."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError:
        return False
    with file:
        try:
            _lock(file, exclusive=False)
        except OSError as error:
            return error.errno in _TAKEN
    return False


def _lock(file: IO[bytes], *, exclusive: bool) -> None:
    """Lock a file without waiting; closing it lets go."""
    if fcntl is not None:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    elif msvcrt is not None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
