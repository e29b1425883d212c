"""A process and all its descendants: who they are, what memory, processor time and I/O they hold.

Linux is read from ``/proc`` directly, because only there a shared page can be divided among those
who share it; other systems go through psutil. A process that ends while it is being read is normal
and simply not part of the answer.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import psutil

from pitstop.records.host.memory import Basis, TreeMemory

PROC: Final = Path("/proc")

_GONE: Final = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCounters:
    """Counters of a process tree that only grow while it lives; None where they cannot be read."""

    cpu_s: float | None
    """Processor time of all living members and of every member they have reaped, in seconds."""
    read_bytes: int | None
    """Bytes storage delivered for them; reads answered from the page cache are not in it."""
    write_bytes: int | None
    """Bytes they sent to storage."""


def tree_pids(root: int, *, proc: Path = PROC) -> tuple[int, ...]:
    """List a process and its descendants, the root first.

    Descendants whose parent died first have left the tree and are not found.
    """
    if not proc.is_dir():
        return _psutil_pids(root)
    children_of = _child_lists(proc)
    if not os.path.exists(f"{proc}/{root}/task/{root}/children"):  # noqa: PTH110 - see `_text_of`
        children_of = _children_by_parent(proc)
    found = [root]
    for pid in found:
        found.extend(children_of(pid))
    return tuple(found)


def tree_memory(root: int | None = None, *, proc: Path = PROC) -> TreeMemory | None:
    """Add up the host memory of a process tree; None when not even the root can be read.

    Every member is counted on the same basis: proportional set size where the kernel gives it,
    resident size where it does not, private bytes on systems without ``/proc``.

    Args:
        root: Process at the top of the tree; this process when not given.
        proc: Where the process file system is mounted.
    """
    root = os.getpid() if root is None else root
    pids = tree_pids(root, proc=proc)
    for basis, read in _readers(proc):
        own = _attempt(read, root)
        if own is None:
            continue
        sizes = {pid: _attempt(read, pid) for pid in pids if pid != root}
        readable = [size for size in sizes.values() if size is not None]
        silent = [pid for pid, size in sizes.items() if size is None]
        return TreeMemory(
            basis=basis,
            tree_bytes=own + sum(readable),
            own_bytes=own,
            processes=1 + len(readable),
            unreadable=sum(is_alive(pid, proc=proc) for pid in silent),
        )
    return None


def anonymous_bytes() -> int | None:
    """Give the part of this process that lies in no file; None where the kernel does not say.

    Code and data of libraries lie in files and are shared by every process that loads them.
    """
    try:
        text = _text_of(f"{PROC}/{os.getpid()}/smaps_rollup")
    except OSError:
        return None
    return _sum_of(text, "Pss_Anon:")


def tree_counters(root: int | None = None, *, proc: Path = PROC) -> TreeCounters:
    """Read the growing counters of a process tree.

    A member's time and bytes pass to its parent when it is reaped, so summing members with what
    they have reaped loses nothing when a worker ends.
    """
    root = os.getpid() if root is None else root
    pids = tree_pids(root, proc=proc)
    reads, writes = _io_bytes(pids, proc)
    return TreeCounters(cpu_s=_cpu_s(pids, proc), read_bytes=reads, write_bytes=writes)


def processor_times(*, proc: Path = PROC) -> dict[int, tuple[str, float]]:
    """Give the name and the processor time in seconds of every process; none without ``/proc``."""
    found: dict[int, tuple[str, float]] = {}
    if not proc.is_dir():
        return found
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for name in os.listdir(proc):  # noqa: PTH208 - a host has thousands of entries, names suffice
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit():
                head, _, rest = _text_of(f"{proc}/{name}/stat").rpartition(")")
                fields = rest.split()
                spent_s = (int(fields[11]) + int(fields[12])) / ticks_per_s
                found[int(name)] = (head.partition("(")[2], spent_s)
    return found


def resident_sizes(*, proc: Path = PROC) -> dict[int, tuple[str, int]]:
    """Give the name and the resident bytes of every process that this user may see."""
    if not proc.is_dir():
        return _psutil_residents()
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    found: dict[int, tuple[str, int]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - a host has thousands of entries, names suffice
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit():
                head, _, rest = _text_of(f"{proc}/{name}/stat").rpartition(")")
                found[int(name)] = (head.partition("(")[2], int(rest.split()[21]) * page_bytes)
    return found


def _text_of(path: str) -> str:
    """Read a small file by the text of its path.

    A `Path` puts each of its parts into Python's table of interned strings and takes it out again.
    The table of a process that has loaded torch is 4 MB; each time a few bytes of it are written
    to, which workers shared until then, and when it is full it becomes twice as large.
    """
    with open(path) as file:  # noqa: PTH123
        return file.read()


def is_alive(pid: int, *, proc: Path = PROC) -> bool:
    """Tell whether a process still exists, zombies not counted."""
    if proc.is_dir():
        fields = _stat_fields(f"{proc}/{pid}")
        return fields is not None and fields[0] != "Z"
    return psutil.pid_exists(pid)


def _readers(proc: Path) -> tuple[tuple[Basis, Callable[[int], int]], ...]:
    if not proc.is_dir():
        return (("private", _private_bytes), ("rss", _psutil_rss_bytes))
    return (
        ("pss", lambda pid: _pss_bytes(f"{proc}/{pid}")),
        ("rss", lambda pid: _rss_bytes(f"{proc}/{pid}")),
    )


def _attempt(read: Callable[[int], int], pid: int) -> int | None:
    try:
        return read(pid)
    except (OSError, ValueError, psutil.Error):
        return None


def _pss_bytes(folder: str) -> int:
    """Read the proportional set size; summed over mappings on kernels without a rollup."""
    try:
        text = _text_of(f"{folder}/smaps_rollup")
    except FileNotFoundError:
        text = _text_of(f"{folder}/smaps")
    num_bytes = _sum_of(text, "Pss:")
    if num_bytes is None:
        # A zombie has no mappings left, and an old kernel no such line: neither is zero bytes.
        raise ValueError(f"no proportional set size in {folder}")
    return num_bytes


def _sum_of(text: str, name: str) -> int | None:
    """Add up the lines of one name, which are in KiB, as bytes; None where there are none."""
    sizes = [int(line.split()[1]) for line in text.splitlines() if line.startswith(name)]
    return sum(sizes) * 1024 if sizes else None


def _rss_bytes(folder: str) -> int:
    pages = int(_text_of(f"{folder}/statm").split()[1])
    if not pages:
        raise ValueError(f"no memory in {folder}")  # a zombie's is gone, which is not zero bytes
    return pages * os.sysconf("SC_PAGE_SIZE")


def _private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)


def _psutil_rss_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def _psutil_residents() -> dict[int, tuple[str, int]]:
    return {
        process.pid: (process.info["name"] or "?", process.info["memory_info"].rss)
        for process in psutil.process_iter(["name", "memory_info"])
        if process.info["memory_info"] is not None
    }


def _psutil_pids(root: int) -> tuple[int, ...]:
    try:
        children = psutil.Process(root).children(recursive=True)
    except psutil.Error:
        return (root,)
    return (root, *(child.pid for child in children))


def _child_lists(proc: Path) -> Callable[[int], list[int]]:
    """Read children off each thread's own list: the cost grows with the tree, not with the host."""

    def children_of(pid: int) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(OSError):
            folder = f"{proc}/{pid}/task"
            for thread in os.listdir(folder):  # noqa: PTH208 - see `_text_of`
                with contextlib.suppress(*_GONE):
                    children = _text_of(f"{folder}/{thread}/children")
                    found += [int(child) for child in children.split()]
        return found

    return children_of


def _children_by_parent(proc: Path) -> Callable[[int], list[int]]:
    """Find children by asking every process for its parent, where threads keep no lists."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - a host has thousands of entries, names suffice
        if not name.isdigit():
            continue
        fields = _stat_fields(f"{proc}/{name}")
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    return lambda pid: children.get(pid, [])


def _stat_fields(folder: str) -> list[str] | None:
    """Fields of ``stat`` after the program's name, which may itself hold spaces and brackets."""
    try:
        text = _text_of(f"{folder}/stat")
    except OSError:
        return None
    return text.rpartition(")")[2].split() or None


def _cpu_s(pids: Iterable[int], proc: Path) -> float | None:
    if not proc.is_dir():
        return _psutil_cpu_s(pids)
    every = (_stat_fields(f"{proc}/{pid}") for pid in pids)
    # utime, stime and the same two of reaped children are fields 14 to 17 of the file.
    ticks = [sum(int(value) for value in fields[11:15]) for fields in every if fields]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _psutil_cpu_s(pids: Iterable[int]) -> float | None:
    total: float | None = None
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            spent = times.user + times.system
            spent += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            total = (total or 0.0) + cast("float", spent)
    return total


def _io_bytes(pids: Iterable[int], proc: Path) -> tuple[int | None, int | None]:
    """Sum storage reads and writes; None as soon as one living member may not be read.

    A sum that silently lacks a member would fall when permissions change and rise again later.
    """
    reads = writes = 0
    seen = False
    for pid in pids:
        try:
            text = _text_of(f"{proc}/{pid}/io")
        except OSError:
            if is_alive(pid, proc=proc):
                return None, None
            continue
        table = dict(line.split(": ") for line in text.splitlines())
        reads += int(table["read_bytes"])
        writes += int(table["write_bytes"])
        seen = True
    return (reads, writes) if seen else (None, None)
