"""A run's folder: one training at a time, and whether it is still the one it began in."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pitstop.errors import ConfigError, PitstopError

FILE_NAME: Final = ".lock"
_MOST_BYTES: Final = 200


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run's folder for this process; its end, however it comes, lets go of it.

    The lock belongs to the process and not to those it forks: a worker left behind holds nothing.
    Systems without such locks (Windows) go without.

    Raises:
        ConfigError: Where another process trains in there.
        OSError: Where the folder cannot be written to.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ConfigError(
                f"{folder} is in use by {_holder(file)}, which trains there; wait for its end or "
                "stop it, or give this run another name (run.name)"
            ) from None
        except OSError:
            yield  # a file system without locks
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


class LostFolderError(PitstopError):
    """A run's folder is not the one it began in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The folder that a run began in, by what the system knows it by."""

    path: Path
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> "RunFolder":
        """Take note of a folder that is there."""
        return cls(path=path, identity=_identity(path))

    def is_deleted(self) -> bool:
        """Tell whether nothing is left at its path.

        Raises:
            LostFolderError: Another folder is there, which may be another run's.
        """
        try:
            found = _identity(self.path)
        except FileNotFoundError:
            return True
        if found != self.identity:
            raise LostFolderError(
                f"{self.path} is another folder than the one this run began in, and may be another "
                "run's: nothing was written to it, and the steps since the last checkpoint are "
                "lost; start the run again, and leave its folder in place while it goes on"
            )
        return False


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    named = file.read(_MOST_BYTES).decode("utf-8", errors="replace").strip()
    return named if named.isprintable() and named else "another process"
