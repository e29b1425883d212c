"""How fast one reader gets bytes from the volume a dataset lies on.

Pages already in memory would make a slow disk look fast, so the kernel is asked to drop them
before a file is timed, and afterwards asked whether it did. Nothing is ever written.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import psutil

from pitstop.errors import MeasureError
from pitstop.records.host.machine import Volume, VolumeRead
from pitstop.records.quantity import measured

_BLOCK_BYTES: Final = 4 << 20
# A data set may have millions of files on a slow mount: a sample of the first ones found must do.
_MAX_FILES_SEEN: Final = 50_000
_MAX_FILES_READ: Final = 2_000
_MAX_SEARCH_S: Final = 3.0
_ROUNDS: Final = 5
# Below this a rate says more about opening files than about the volume.
_ENOUGH_BYTES: Final = 1 << 20

# Kept in memory by design: there is no storage below them whose rate could be measured.
_MEMORY_FILESYSTEMS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})


class PageCache(Protocol):
    """Drops a file's pages from memory and tells whether they are gone."""

    def drop(self, descriptor: int) -> bool:
        """Ask for the pages to be dropped; True only when they are known to be out of memory."""
        ...


class KernelPageCache:
    """The page cache of a Linux kernel; elsewhere nothing is known to be dropped."""

    def drop(self, descriptor: int) -> bool:
        """Drop clean pages, then look whether the first block still answers without the disk."""
        if not hasattr(os, "posix_fadvise"):
            return False
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
        return self._is_out(descriptor)

    def _is_out(self, descriptor: int) -> bool:
        if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
            return False
        try:
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            # Not every file system can answer without waiting: then nothing is known.
            return False
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Where a timed read ends, whichever comes first."""

    read_bytes: int = 1 << 30
    seconds: float = 2.0


@dataclass(slots=True)
class _Pass:
    """What one pass over files has read so far."""

    files: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    out_of_cache: bool = True
    buffer: bytearray = field(default_factory=lambda: bytearray(_BLOCK_BYTES))
    rates: list[float] = field(default_factory=list)
    files_per_s: list[float] = field(default_factory=list)


def measure_volume(
    path: Path,
    *,
    limits: ReadLimits | None = None,
    cache: PageCache | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Volume:
    """Time reads of a dataset, file after file and, in a folder, whole files in random order.

    Args:
        path: A file, or a folder that is searched for regular files.
        limits: Bounds of each of the two reads.
        cache: Drops pages before a file is timed.
        clock: Monotonic seconds.

    Raises:
        MeasureError: There is no such path, or it may not be read.
    """
    limits = ReadLimits() if limits is None else limits
    cache = KernelPageCache() if cache is None else cache
    files, complete = _files_of(path, clock)
    order = sorted(files)
    reads = [_sequential(order, limits, cache, clock)]
    if path.is_dir() and len(order) > 1:
        reads.append(_random_files(order, limits, cache, clock))
    return Volume(
        path=str(path),
        filesystem=filesystem_of(path),
        files_seen=len(files),
        bytes_seen=sum(files.values()),
        complete=complete,
        reads=tuple(read for read in reads if read is not None),
    )


def filesystem_of(path: Path) -> str | None:
    """Name the kind of file system a path lies on; None when the system does not tell."""
    resolved = path.resolve()
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError, psutil.Error):
        kinds = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    for folder in (resolved, *resolved.parents):
        if str(folder) in kinds:
            return kinds[str(folder)] or None
    return None


def _files_of(path: Path, clock: Callable[[], float]) -> tuple[dict[Path, int], bool]:
    """Sizes of the regular files of a dataset, and whether all of it was seen.

    Raises:
        MeasureError: There is no such path, or it may not be read.
    """
    try:
        if path.is_dir():
            # A walk passes over a folder it may not open; the one that was named must open.
            os.scandir(path).close()
            return _walk(path, clock)
        # A pipe or a device would block or never end.
        if path.is_file():
            with path.open("rb"):
                return {path: path.stat().st_size}, True
        exists = path.exists()
    except OSError as error:
        raise MeasureError(
            f"cannot read {path} ({error.strerror}); give --data a folder or file you may read"
        ) from error
    what = "is neither a folder nor a regular file" if exists else "does not exist"
    raise MeasureError(f"{path} {what}; give --data the folder or file your dataset lies in")


def _walk(folder: Path, clock: Callable[[], float]) -> tuple[dict[Path, int], bool]:
    """Search a folder; a dataset of millions of files on a slow volume is not searched whole."""
    files: dict[Path, int] = {}
    until_s = clock() + _MAX_SEARCH_S
    for parent, _, names in os.walk(folder):
        for name in names:
            if len(files) >= _MAX_FILES_SEEN or clock() > until_s:
                return files, False
            file = Path(parent, name)
            with contextlib.suppress(OSError):
                if file.is_file():
                    files[file] = file.stat().st_size
    return files, True


def _sequential(
    files: Sequence[Path], limits: ReadLimits, cache: PageCache, clock: Callable[[], float]
) -> VolumeRead | None:
    """Read files in order in large blocks; each share of the bytes read is one repeat."""
    share = _Pass()
    done = _Pass()
    round_bytes = min(max(_BLOCK_BYTES, _total_bytes(files) // _ROUNDS), 8 * _BLOCK_BYTES)
    for file in files:
        for size, seconds in _read_file(file, done, cache, clock):
            share.read_bytes += size
            share.seconds += seconds
            if share.read_bytes >= round_bytes and share.seconds > 0:
                done.rates.append(share.read_bytes / share.seconds)
                share = _Pass()
            if _spent(done, limits):
                return _result("sequential", done)
    if not done.rates and done.seconds > 0 and done.read_bytes >= _ENOUGH_BYTES:
        done.rates.append(done.read_bytes / done.seconds)
    return _result("sequential", done)


def _random_files(
    files: Sequence[Path], limits: ReadLimits, cache: PageCache, clock: Callable[[], float]
) -> VolumeRead | None:
    """Read whole files in shuffled order, dealt into rounds; each round is one repeat."""
    chosen = random.Random(0).sample(files, min(len(files), _MAX_FILES_READ))  # noqa: S311 - no secret
    rounds = min(_ROUNDS, len(chosen))
    done = _Pass()
    for number in range(rounds):
        before = (done.files, done.read_bytes, done.seconds)
        share = ReadLimits(
            read_bytes=limits.read_bytes * (number + 1) // rounds,
            seconds=limits.seconds * (number + 1) / rounds,
        )
        for file in chosen[number::rounds]:
            for _ in _read_file(file, done, cache, clock):
                if _spent(done, share):
                    break
            if _spent(done, share):
                break
        _close_round(done, before)
    return _result("random files", done)


def _spent(done: _Pass, limits: ReadLimits) -> bool:
    return done.read_bytes >= limits.read_bytes or done.seconds >= limits.seconds


def _close_round(done: _Pass, before: tuple[int, int, float]) -> None:
    files, read_bytes, seconds = before
    took_s = done.seconds - seconds
    if took_s > 0 and done.read_bytes > read_bytes:
        done.rates.append((done.read_bytes - read_bytes) / took_s)
        done.files_per_s.append((done.files - files) / took_s)


def _read_file(
    file: Path, done: _Pass, cache: PageCache, clock: Callable[[], float]
) -> Iterator[tuple[int, float]]:
    """Read one file block by block; yield bytes and seconds of each, the first with the opening.

    A file that cannot be read adds nothing. Dropping its pages is not part of the time.
    """
    with contextlib.suppress(OSError):
        with file.open("rb", buffering=0) as handle:
            out = cache.drop(handle.fileno())
        begun_s = clock()
        with file.open("rb", buffering=0) as handle:
            done.files += 1
            while True:
                size = handle.readinto(done.buffer) or 0
                ended_s = clock()
                seconds = ended_s - begun_s
                done.seconds += seconds
                done.read_bytes += size
                done.out_of_cache &= out or size == 0
                if size:
                    yield size, seconds
                else:
                    return
                begun_s = clock()


def _result(order: str, done: _Pass) -> VolumeRead | None:
    rate = measured(done.rates, "B/s")
    if rate is None:
        return None
    return VolumeRead(
        order=order,
        files=done.files,
        read_bytes=done.read_bytes,
        rate=rate,
        files_per_s=measured(done.files_per_s, "file/s"),
        cache="dropped" if done.out_of_cache else "may include page cache",
    )


def _total_bytes(files: Sequence[Path]) -> int:
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def in_memory(volume: Volume) -> bool:
    """Whether a volume has no storage below it, so that its rate is that of memory."""
    return volume.filesystem in _MEMORY_FILESYSTEMS
