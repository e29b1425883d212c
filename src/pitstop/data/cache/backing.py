"""Where the memory of an arena comes from: nameless memory, or a file with a name.

A named file is found by others through its name, so a killed run can leave it behind. Its locks
tell whether anybody still lives in it; who starts next deletes those in which nobody does.
"""

import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pitstop.data.cache.locks import MEMBERS, fcntl, open_locks
from pitstop.errors import ConfigError, DataError
from pitstop.records.units import bytes_text

_MAGIC: Final = b"pitcache"
_HEADER: Final = struct.Struct("<8s16sq")
"""Magic, token and size, at the very start."""

_SHM: Final = Path("/dev/shm")  # noqa: S108 - memory that other processes can open by name
_PROC_FD: Final = Path("/proc/self/fd")

NAMELESS: Final = "memory without a name"


@dataclass(frozen=True, slots=True)
class Backing:
    """An open file, its name and how to call it."""

    fd: int
    path: Path | None
    """None where the memory has no name."""
    words: str


def new_backing(
    size_bytes: int, token: str, folder: Path | None, *, own: Container[str]
) -> Backing:
    """Make the memory of an arena, as large as it will ever be but with no page reserved.

    Args:
        size_bytes: How large.
        token: What the arena is called in the name of a file.
        folder: Where to put a named file; None for memory without a name where there is such.
        own: Tokens of the arenas that this process has open; they are not swept.

    Raises:
        ConfigError: Where no place has that much free.
    """
    backing = _nameless() if folder is None else None
    if backing is None:
        place, note = _folder_with_space(size_bytes, folder)
        _sweep(place, own)
        backing = _named(place / f"pitstop-cache-{_user()}-{token}.arena", note)
    try:
        os.truncate(backing.fd, size_bytes)
    except OSError as error:
        os.close(backing.fd)
        remove_unfinished(backing)
        raise ConfigError(
            f"a cache of {bytes_text(size_bytes)} cannot be made as {backing.words}: "
            f"{error.strerror}; lower cache.budget"
        ) from error
    return backing


def finish(backing: Backing, memory: memoryview, token: str) -> None:
    """Let others find the arena, now that a lock says that somebody lives in it."""
    _HEADER.pack_into(memory, 0, _MAGIC, bytes.fromhex(token), len(memory))
    if backing.path is not None and fcntl is not None:
        _unfinished(backing.path).rename(backing.path)


def open_backing(path: str, token: str, passed_fd: int | None) -> tuple[Backing, int]:
    """Open the memory of an arena that another process made, and say how large it is.

    Raises:
        DataError: Where it is gone or this process may not open it.
    """
    fd = _opened(path) if passed_fd is None else passed_fd
    os.set_inheritable(fd, False)  # noqa: FBT003 - the name of the function says it
    size_bytes = _size_of(fd, token)
    if size_bytes is None:
        os.close(fd)
        raise _unreachable(path)
    if path.startswith("/proc/"):
        return Backing(fd, None, NAMELESS), size_bytes
    return Backing(fd, Path(path), f"file {path}"), size_bytes


def remove_unfinished(backing: Backing) -> None:
    """Delete a named file whose arena did not come to be."""
    if backing.path is not None:
        for path in (backing.path, _unfinished(backing.path)):
            path.unlink(missing_ok=True)


def _opened(path: str) -> int:
    try:
        # The entry may by now be that of another process, and a pipe: opening one would wait.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise _unreachable(path)
        return os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise _unreachable(path) from error


def _unreachable(path: str) -> DataError:
    return DataError(
        f"the shared cache at {path} cannot be opened: the process that made it has ended, or is "
        "of another user or container; make it anew, or give SharedCache a folder that all its "
        "users can write to"
    )


def _size_of(fd: int, token: str) -> int | None:
    """Size of the arena with this token in a file; None where the file is something else."""
    start = _read_start(fd)
    if len(start) < _HEADER.size:
        return None
    magic, found, size_bytes = _HEADER.unpack(start)
    same = magic == _MAGIC and found == bytes.fromhex(token)
    return size_bytes if same and os.fstat(fd).st_size == size_bytes else None


def _sweep(folder: Path, own: Container[str]) -> None:
    """Delete the arenas that killed runs of this user left in a folder."""
    for path in folder.glob(f"pitstop-cache-{_user()}-*.arena"):
        # To open and close one of this process's own would free its locks.
        if path.stem.rpartition("-")[2] not in own:
            with suppress(OSError):
                _sweep_one(path)


def write_zeros(fd: int, start: int, stop: int) -> None:
    """Reserve a part of a file that nobody has used yet, on systems with no call for it."""
    os.lseek(fd, start, os.SEEK_SET)
    zeros = memoryview(bytes(min(stop - start, 1 << 20)))
    while start < stop:
        start += os.write(fd, zeros[: stop - start])


def _sweep_unfinished(folder: Path, *, now_s: float) -> None:
    """Delete what was never finished; whoever is at it needs milliseconds, not an hour."""
    for path in folder.glob(f"pitstop-cache-{_user()}-*.new"):
        with suppress(OSError):
            if now_s - path.stat().st_mtime > 3600:
                path.unlink()


def _sweep_one(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        locks = open_locks(fd, path, after_bytes=os.fstat(fd).st_size)
        if not locks.idle(1 + MEMBERS):
            return
        if fcntl is None:
            # Open files cannot be deleted on systems that have no fcntl.
            os.close(fd)
            fd = -1
        path.unlink()
        locks.close(remove=True)
    finally:
        if fd >= 0:
            os.close(fd)


def _nameless() -> Backing | None:
    if not (hasattr(os, "memfd_create") and _PROC_FD.is_dir()):
        return None
    try:
        return Backing(os.memfd_create("pitstop-cache"), None, NAMELESS)
    except OSError:
        return None


def _named(path: Path, note: str) -> Backing:
    # Readable by this user alone: samples may be private.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    fd = os.open(path if fcntl is None else _unfinished(path), flags, 0o600)
    _sweep_unfinished(path.parent, now_s=os.fstat(fd).st_mtime)
    return Backing(fd, path, f"file {path}{note}")


def _folder_with_space(size_bytes: int, folder: Path | None) -> tuple[Path, str]:
    """Choose where a named file goes: into memory if its mount is large enough, else onto disk."""
    candidates = [folder] if folder is not None else [_SHM, Path(tempfile.gettempdir())]
    refusals: list[str] = []
    for place in candidates:
        if not place.is_dir():
            refusals.append(f"there is no folder {place}")
            continue
        free_bytes = shutil.disk_usage(place).free
        if free_bytes >= size_bytes:
            return place, f" ({'; '.join(refusals)})" if refusals else ""
        refusals.append(f"{place} has {bytes_text(free_bytes)} free")
    raise ConfigError(
        f"a cache of {bytes_text(size_bytes)} fits nowhere: {', '.join(refusals)}; lower "
        "cache.budget, or name a folder with more free space"
    )


def _unfinished(path: Path) -> Path:
    return path.with_suffix(".new")


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _read_start(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, _HEADER.size)
