"""How busy the host is: GPU, processor against its quota, throttling, disk.

Rates are differences between two readings of counters that only grow, so the first reading has
none, and a counter that fell (a member left the tree without being reaped) gives none.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import psutil

from pitstop.measure.host.cgroup import read_cgroup
from pitstop.measure.host.nvml import Nvml
from pitstop.measure.host.process_tree import processor_times, tree_counters, tree_pids
from pitstop.records.host.memory import GpuLoad, HostLoad, OtherProcess

# Share of all cores that is busy on a host that has none to spare.
_FULL: Final = 0.9
_MOST_OTHERS: Final = 3
# Cores a process must keep busy to be named.
_BUSY: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounters:
    """Counters of a host and a process tree at one moment; None where one cannot be read."""

    tree_cpu_s: float | None
    host_cpu_s: float | None
    throttled_s: float | None
    tree_read_bytes: int | None
    tree_write_bytes: int | None
    disk_read_bytes: int | None
    disk_write_bytes: int | None


class GpuReader(Protocol):
    """Whatever can tell the load of the visible GPUs."""

    def __call__(self) -> tuple[tuple[GpuLoad, ...], tuple[str, ...]]:
        """Return one load per GPU, and notes on what is missing."""
        ...


def read_counters() -> HostCounters:
    """Read the counters of this host and of this process with its descendants."""
    tree = tree_counters()
    # Hosts without block devices of their own (some containers) have no disk counters at all.
    disk = psutil.disk_io_counters()
    return HostCounters(
        tree_cpu_s=tree.cpu_s,
        host_cpu_s=_busy_s(),
        throttled_s=read_cgroup().throttled_s,
        tree_read_bytes=tree.read_bytes,
        tree_write_bytes=tree.write_bytes,
        disk_read_bytes=None if disk is None else disk.read_bytes,
        disk_write_bytes=None if disk is None else disk.write_bytes,
    )


def affinity_cores() -> int | None:
    """Count the hardware threads this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def usable_cores() -> float | None:
    """Count the cores this process may use: the smaller of affinity and control-group quota."""
    bounds = [affinity_cores(), read_cgroup().quota_cores]
    return min((bound for bound in bounds if bound is not None), default=None)


class NvmlGpus:
    """Reads GPU load through NVML, opened at the first reading and then kept."""

    def __init__(self) -> None:
        self._opened: tuple[Nvml | None, str | None] | None = None

    def __call__(self) -> tuple[tuple[GpuLoad, ...], tuple[str, ...]]:
        """Read every visible GPU."""
        if self._opened is None:
            self._opened = Nvml.open()
        nvml, reason = self._opened
        if nvml is None:
            return (), () if reason is None else (reason,)
        loads = nvml.loads(tree_pids(os.getpid()))
        return loads, () if loads else ("GPU load: not measured, no whole GPU is visible",)


class Others:
    """Names the busiest processes outside this one's tree, where it matters.

    To read all processes of a host takes milliseconds, so it is done on a full host alone, and
    the first time there only sets the mark.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._before: tuple[float, dict[int, tuple[str, float]]] | None = None

    def __call__(self, busy_cores: float | None) -> tuple[OtherProcess, ...] | None:
        """Give the busiest since the last call, most first; None before a second reading."""
        before, self._before = self._before, None
        if busy_cores is None or busy_cores < _FULL * (os.cpu_count() or 1):
            return None
        now_s, now = self._clock(), processor_times()
        self._before = (now_s, now)
        if before is None or now_s <= before[0]:
            return None
        own = set(tree_pids(os.getpid()))
        found = [
            OtherProcess(pid=pid, name=name, cpu_cores=(spent_s - old[1]) / (now_s - before[0]))
            for pid, (name, spent_s) in now.items()
            if pid not in own and (old := before[1].get(pid)) is not None and old[0] == name
        ]
        found.sort(key=lambda other: -other.cpu_cores)
        return tuple(other for other in found[:_MOST_OTHERS] if other.cpu_cores >= _BUSY)


class LoadMeter:
    """Turns growing counters into rates between one reading and the next.

    Args:
        counters: Reads the counters.
        gpus: Reads the GPUs.
        cores: Tells how many cores this process may use.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        counters: Callable[[], HostCounters] = read_counters,
        gpus: GpuReader | None = None,
        cores: Callable[[], float | None] = usable_cores,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counters = counters
        self._gpus = NvmlGpus() if gpus is None else gpus
        self._cores = cores
        self._clock = clock
        self._others = Others()
        self._before: tuple[float, HostCounters] | None = None

    def read(self) -> HostLoad:
        """Read the load since the last call; the first call only sets the mark for rates."""
        at_s = self._clock()
        now = self._counters()
        window_s, before = self._window(at_s)
        self._before = (at_s, now)
        gpus, notes = self._gpus()
        if window_s is None:
            notes = (*notes, "rates: not measured, they need a second reading")

        def rate(earlier: float | None, later: float | None) -> float | None:
            return None if window_s is None else rate_between(earlier, later, window_s)

        host_cpu_cores = rate(before.host_cpu_s, now.host_cpu_s)
        return HostLoad(
            at_s=at_s,
            window_s=window_s,
            gpus=gpus,
            tree_cpu_cores=rate(before.tree_cpu_s, now.tree_cpu_s),
            host_cpu_cores=host_cpu_cores,
            others=self._others(host_cpu_cores),
            usable_cores=self._cores(),
            throttled_share=rate(before.throttled_s, now.throttled_s),
            tree_read_bytes_per_s=rate(before.tree_read_bytes, now.tree_read_bytes),
            tree_write_bytes_per_s=rate(before.tree_write_bytes, now.tree_write_bytes),
            disk_read_bytes_per_s=rate(before.disk_read_bytes, now.disk_read_bytes),
            disk_write_bytes_per_s=rate(before.disk_write_bytes, now.disk_write_bytes),
            cost_s=self._clock() - at_s,
            notes=tuple(notes),
        )

    def _window(self, at_s: float) -> tuple[float | None, HostCounters]:
        if self._before is None:
            return None, _NOTHING
        before_s, before = self._before
        return (at_s - before_s if at_s > before_s else None), before


def rate_between(earlier: float | None, later: float | None, window_s: float) -> float | None:
    """Divide growth by time; None when either end is missing or the counter fell."""
    if earlier is None or later is None or later < earlier or not math.isfinite(window_s):
        return None
    return (later - earlier) / window_s


_NOTHING = HostCounters(
    tree_cpu_s=None,
    host_cpu_s=None,
    throttled_s=None,
    tree_read_bytes=None,
    tree_write_bytes=None,
    disk_read_bytes=None,
    disk_write_bytes=None,
)


def _busy_s() -> float:
    """Processor time spent by everybody since boot; guests' time is part of ``user`` already."""
    times = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")
    return float(sum(getattr(times, kind, 0.0) for kind in kinds))
