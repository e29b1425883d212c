"""What a job's memory holds: accelerators, process tree, control group, pinned and shared memory.

Nothing here starts torch or a CUDA context: a reading speaks of what the script has already done.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

import psutil

from pitstop.measure.host.cgroup import read_cgroup
from pitstop.measure.host.process_tree import PROC, resident_sizes, tree_memory, tree_pids
from pitstop.records.host.memory import DeviceMemory, MemoryHolder, MemoryReading, Role
from pitstop.records.host.memory_holders import MOST_HOLDERS, NEARLY_FULL

SHM: Final = Path("/dev/shm")  # noqa: S108 - the mount loader workers use, not a file of ours

DEFAULT_INTERVAL_S: Final = 2.0

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
    root: int | None = None, *, proc: Path = PROC, most: int = MOST_HOLDERS
) -> tuple[MemoryHolder, ...]:
    """Name the processes that hold most: so many of the job's own, and of the others.

    Takes milliseconds on a host with hundreds of processes, so it is for full hosts alone.
    """
    root = os.getpid() if root is None else root
    own = set(tree_pids(root, proc=proc))
    # Ranks that one launcher started are no strangers.
    ranks = set(tree_pids(os.getppid(), proc=proc)) - own if "LOCAL_RANK" in os.environ else set()

    def role(pid: int) -> Role:
        if pid == root:
            return "main process"
        if pid in own:
            return "child process"
        return "other rank" if pid in ranks else "other"

    found = [
        MemoryHolder(pid=pid, name=name, role=role(pid), resident_bytes=size)
        for pid, (name, size) in resident_sizes(proc=proc).items()
    ]
    found.sort(key=lambda holder: -holder.resident_bytes)
    strangers = [holder for holder in found if holder.role == "other"]
    ours = [holder for holder in found if holder.role != "other"]
    return (*ours[:most], *strangers[:most])


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size and free room of a file system, in bytes."""

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


def _wait(stop: threading.Event, seconds: float) -> bool:
    return stop.wait(seconds)


class MemorySampler:
    """Reads memory at an interval in a thread of its own and hands each reading to a callback.

    Keeps only the last reading, so that a run of weeks costs what a run of minutes does. A process
    forked while it runs starts without a running sampler and may start its own.

    Args:
        on_reading: Called in the sampler's thread. If it raises, sampling ends and the exception
            is kept in `failure`: measuring must not end the run it measures.
        interval_s: Pause between two readings, in seconds.
        read: Takes a reading.
        wait: Waits for the pause or until the event is set; returns whether it was set.
    """

    def __init__(
        self,
        on_reading: Callable[[MemoryReading], None],
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        read: Callable[[], MemoryReading] = read_memory,
        wait: Callable[[threading.Event, float], bool] = _wait,
    ) -> None:
        if interval_s <= 0:
            raise ValueError(f"the interval between readings must be above zero, not {interval_s}")
        self.last: MemoryReading | None = None
        self.failure: Exception | None = None
        self.readings = 0
        self.cost_s = 0.0
        self._on_reading = on_reading
        self._interval_s = interval_s
        self._read = read
        self._wait = wait
        self._life: _Life | None = None

    @property
    def running(self) -> bool:
        """Whether this process has a sampling thread alive."""
        life = self._own_life()
        return life is not None and life.thread.is_alive()

    def start(self) -> Self:
        """Begin sampling; nothing happens if it has begun."""
        if not self.running:
            stop = threading.Event()
            thread = threading.Thread(
                target=self._sample, args=(stop,), name="pitstop-memory", daemon=True
            )
            self.failure = None
            self._life = _Life(pid=os.getpid(), stop=stop, thread=thread)
            thread.start()
        return self

    def stop(self) -> None:
        """End sampling and wait for a reading under way; nothing happens if it has ended."""
        life = self._own_life()
        self._life = None
        if life is not None:
            life.stop.set()
            if life.thread is not threading.current_thread():
                life.thread.join()

    def __enter__(self) -> Self:
        """Begin sampling."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End sampling."""
        self.stop()

    def _own_life(self) -> "_Life | None":
        """Forget a thread inherited by fork: it does not run here, and its event may be locked."""
        if self._life is not None and self._life.pid != os.getpid():
            self._life = None
        return self._life

    def _sample(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._take_one()
            except Exception as error:  # noqa: BLE001 - whatever it is, the training run goes on
                self.failure = error
                return
            if self._wait(stop, self._interval_s):
                return

    def _take_one(self) -> None:
        reading = self._read()
        self.last = reading
        self.readings += 1
        self.cost_s += reading.cost_s
        self._on_reading(reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """One thread and the process it belongs to."""

    pid: int
    stop: threading.Event
    thread: threading.Thread
