"""What a job's memory holds: accelerators, process tree, control group, pinned and shared memory.

Nothing here starts torch or a CUDA context: a reading speaks of what the script has already done.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import psutil

from pitstop.measure.host.cgroup import read_cgroup
from pitstop.measure.host.process_tree import resident_sizes, tree_memory, tree_pids
from pitstop.records.host.memory import DeviceMemory, MemoryHolder, MemoryReading, Role
from pitstop.records.host.memory_holders import MOST_HOLDERS, NEARLY_FULL

SHM: Final = Path("/dev/shm")  # noqa: S108 - the mount loader workers use, not a file of ours

Clock = Callable[[], float]


def read_memory(*, root: int | None = None, clock: Clock = time.perf_counter) -> MemoryReading:
    """Take one reading of a process and everything below it.

    Costs milliseconds per process (the kernel walks page tables for a proportional set size), so
    it belongs into a thread of its own, never into a step.

    Args:
        root: The process; this one unless given.
        clock: Monotonic seconds.
    """
    begun_s = clock()
    notes: list[str] = []
    devices, pinned_bytes = _device_side(sys.modules.get("torch"), notes)
    tree = tree_memory(root)
    if tree is None:
        notes.append("host memory: not measured, the system does not let this process read its own")
    elif tree.basis != "pss":
        notes.append(f"host memory: counted as {tree.basis}, no proportional size to be had")
    cgroup = read_cgroup()
    host = psutil.virtual_memory()
    shm = shm_space()
    reading = MemoryReading(
        at_s=begun_s,
        devices=devices,
        tree=tree,
        host_total_bytes=host.total,
        host_available_bytes=host.available,
        cgroup_limit_bytes=cgroup.memory_limit_bytes,
        cgroup_usage_bytes=cgroup.memory_usage_bytes,
        cgroup_working_bytes=cgroup.memory_working_bytes,
        pinned_bytes=pinned_bytes,
        shm_used_bytes=None if shm is None else shm.total_bytes - shm.free_bytes,
        shm_total_bytes=None if shm is None else shm.total_bytes,
        cost_s=0.0,
        notes=tuple(notes),
    )
    is_full = (reading.used_share or 0.0) >= NEARLY_FULL
    holders = largest_holders(root) if is_full else None
    return replace(reading, holders=holders, cost_s=clock() - begun_s)


def largest_holders(
    root: int | None = None, *, most: int = MOST_HOLDERS
) -> tuple[MemoryHolder, ...]:
    """Name the processes that hold most: so many of the job's own, and of the others.

    Takes milliseconds on a host with hundreds of processes, so it is for full hosts alone.
    """
    root = os.getpid() if root is None else root
    own = set(tree_pids(root))
    # Ranks that one launcher started are of this job.
    ranks = set(tree_pids(os.getppid())) - own if "LOCAL_RANK" in os.environ else set()

    def role(pid: int) -> Role:
        if pid == root:
            return "main process"
        if pid in own:
            return "child process"
        return "other rank" if pid in ranks else "other"

    found = [
        MemoryHolder(pid=pid, name=name, role=role(pid), resident_bytes=size)
        for pid, (name, size) in resident_sizes().items()
    ]
    found.sort(key=lambda holder: -holder.resident_bytes)
    others = [holder for holder in found if holder.role == "other"]
    ours = [holder for holder in found if holder.role != "other"]
    return (*ours[:most], *others[:most])


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size and free space of a file system, in bytes."""

    total_bytes: int
    free_bytes: int


def shm_space(mount: Path = SHM) -> Space | None:
    """Ask how large /dev/shm is and how much of it is free; None where there is none."""
    if not mount.is_dir():
        return None
    stat = os.statvfs(mount)
    return Space(total_bytes=stat.f_blocks * stat.f_frsize, free_bytes=stat.f_bfree * stat.f_frsize)


def device_memory(device: str, stats: Mapping[str, Any], total_bytes: int | None) -> DeviceMemory:
    """Translate the statistics of torch's allocator; a counter it does not keep is zero calls."""
    return DeviceMemory(
        device=device,
        total_bytes=total_bytes,
        allocated_bytes=int(stats["allocated_bytes.all.current"]),
        reserved_bytes=int(stats["reserved_bytes.all.current"]),
        peak_allocated_bytes=int(stats["allocated_bytes.all.peak"]),
        peak_reserved_bytes=int(stats["reserved_bytes.all.peak"]),
        alloc_retries=int(stats.get("num_alloc_retries", 0)),
        ooms=int(stats.get("num_ooms", 0)),
    )


def _device_side(
    torch: ModuleType | None, notes: list[str]
) -> tuple[tuple[DeviceMemory, ...], int | None]:
    """Read every device the script has used, and pinned memory, through the script's own torch."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized"):
        notes.append("device memory: not measured, torch is not loaded")
        return (), None
    if not cuda.is_initialized():
        notes.append("device memory: not measured, nothing has used CUDA yet")
        return (), None
    devices: list[DeviceMemory] = []
    for index in range(cuda.device_count()):
        stats = cuda.memory_stats(index)
        # A device nobody touched has an allocator without a history; asking more would open it.
        if stats.get("reserved_bytes.all.peak", 0) > 0:
            total_bytes = int(cuda.get_device_properties(index).total_memory)
            devices.append(device_memory(f"cuda:{index}", stats, total_bytes))
    return tuple(devices), _pinned_bytes(cuda, notes)


def _pinned_bytes(cuda: ModuleType, notes: list[str]) -> int | None:
    if not hasattr(cuda, "host_memory_stats"):
        notes.append("pinned memory: not measured, this torch does not count it")
        return None
    held = cuda.host_memory_stats().get("allocated_bytes.current")
    if held is None:
        notes.append("pinned memory: not measured, this torch does not count it")
    return None if held is None else int(held)
