"""Readings of a running job: what its memory holds, and how busy its host is.

``None`` means "not measured" and never zero; ``notes`` says why.
"""

from dataclasses import dataclass
from typing import Literal

Basis = Literal["pss", "private", "rss"]
"""How a process's memory was counted.

``pss``: shared pages divided among those who share them, so that a sum over processes is true.
``private``: only pages nobody else has, so that a sum is too small by what is shared.
``rss``: every page a process maps, so that a sum counts shared pages once per process.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What torch's allocator holds on one accelerator. Bytes unless the name says otherwise."""

    device: str
    """For instance ``"cuda:0"``."""
    total_bytes: int | None
    """Memory of the device."""
    allocated_bytes: int
    """Held by tensors now."""
    reserved_bytes: int
    """Taken from the driver now."""
    peak_allocated_bytes: int
    """Most ever held by tensors since the peak was last reset."""
    peak_reserved_bytes: int
    """Most ever taken from the driver since the peak was last reset; this decides out-of-memory."""
    alloc_retries: int
    """How often the allocator had to give back its cache and ask again (a count)."""
    ooms: int
    """How often an allocation failed for good (a count)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMemory:
    """Host memory of a process and all its descendants."""

    basis: Basis
    """How it was counted."""
    tree_bytes: int
    """All readable processes together."""
    own_bytes: int
    """The root process alone."""
    processes: int
    """Processes counted."""
    unreadable: int
    """Living descendants whose memory this user may not read; they are missing from the sum."""


Role = Literal["main process", "child process", "other rank", "other"]
"""Whose a process is: the root of the job's tree, below it, another rank, another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHolder:
    """One of the processes that hold most of a host's memory."""

    pid: int
    name: str
    """Of its program, never its arguments: those of other jobs may hold secrets."""
    role: Role
    resident_bytes: int
    """Every page it maps, shared ones too, so that a sum over processes is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """One look at a job's memory."""

    at_s: float
    """When, on the monotonic clock of the host (seconds since an arbitrary origin)."""
    devices: tuple[DeviceMemory, ...]
    """Accelerators this process has used."""
    tree: TreeMemory | None
    """Host memory of the process tree."""
    host_total_bytes: int | None
    """Memory of the host."""
    host_available_bytes: int | None
    """What the host could still hand out without swapping."""
    cgroup_limit_bytes: int | None
    """Tightest limit of the control groups this process sits in; None where there is none."""
    cgroup_usage_bytes: int | None
    """What that control group is charged with, page cache included."""
    cgroup_working_bytes: int | None
    """The same less inactive file pages, which the kernel drops before it kills anybody."""
    pinned_bytes: int | None
    """Page-locked host memory held by torch's allocator, its cache included."""
    shm_used_bytes: int | None
    """Taken in /dev/shm, by anybody."""
    shm_total_bytes: int | None
    """Size of /dev/shm."""
    cost_s: float
    """How long this reading took, in seconds."""
    notes: tuple[str, ...]
    """Why a number is missing."""
    holders: tuple[MemoryHolder, ...] | None = None
    """The largest of the job's processes and of the others, largest first; None on a host with
    memory to spare, for then nobody looks."""

    @property
    def limit_bytes(self) -> int | None:
        """What may be used at most: the control group's limit, or the host's memory."""
        return self.cgroup_limit_bytes if self._is_confined else self.host_total_bytes

    @property
    def used_bytes(self) -> int | None:
        """What is used of that, by anybody."""
        if self._is_confined:
            return self.cgroup_working_bytes
        return self.host_used_bytes

    @property
    def host_used_bytes(self) -> int | None:
        """What is used of the host's memory, by anybody; None where it was not read."""
        if self.host_total_bytes is None or self.host_available_bytes is None:
            return None
        return self.host_total_bytes - self.host_available_bytes

    @property
    def used_share(self) -> float | None:
        """Share of the limit that is used; None where either is not known."""
        limit, used = self.limit_bytes, self.used_bytes
        return used / limit if limit and used is not None else None

    @property
    def _is_confined(self) -> bool:
        return self.cgroup_limit_bytes is not None and self.cgroup_working_bytes is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """What one accelerator was doing when it was asked."""

    index: int
    """Its number among the visible GPUs, in the driver's order. Torch's order is the same unless
    the GPUs are of different models and CUDA_DEVICE_ORDER is not PCI_BUS_ID."""
    busy_share: float | None
    """Share of the driver's last sample period in which any kernel ran (0 to 1): a symptom."""
    memory_busy_share: float | None
    """Share of that period in which device memory was read or written (0 to 1)."""
    memory_used_bytes: int | None
    """Device memory taken by everybody, the driver included."""
    memory_total_bytes: int | None
    """Device memory."""
    sm_clock_hz: float | None
    """Clock of the multiprocessors, in Hz."""
    memory_clock_hz: float | None
    """Clock of the device memory, in Hz."""
    power_w: float | None
    """Power drawn, in watts."""
    power_limit_w: float | None
    """Power the board may draw, in watts."""
    temperature_c: float | None
    """Temperature, in degrees Celsius."""
    throttle_reasons: tuple[str, ...] | None
    """Why the clocks are below their highest; empty when they are not held back."""
    processes: int | None
    """Compute processes on the device, this job's included."""
    other_pids: tuple[int, ...] | None
    """Processes on the device outside this job's tree; None where process numbers cannot be
    compared because the driver counts them in another namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcess:
    """A process outside the job's tree that keeps the host busy."""

    pid: int
    name: str
    cpu_cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """How busy a host and a job's process tree were. Rates are means over ``window_s``."""

    at_s: float
    """When, on the monotonic clock of the host (seconds since an arbitrary origin)."""
    window_s: float | None
    """Time since the reading before, in seconds; None for the first, which has no rates."""
    gpus: tuple[GpuLoad, ...]
    """Accelerators visible to this process."""
    tree_cpu_cores: float | None
    """Processor time the process tree used, in cores."""
    host_cpu_cores: float | None
    """Processor time everybody on the host used, in cores."""
    usable_cores: float | None
    """What affinity and quota allow this process, in cores."""
    throttled_share: float | None
    """Share of the time in which the control group was held back for having spent its quota."""
    tree_read_bytes_per_s: float | None
    """Bytes the process tree made the storage deliver, a second."""
    tree_write_bytes_per_s: float | None
    """Bytes the process tree sent to storage, a second."""
    disk_read_bytes_per_s: float | None
    """Bytes read from all disks of the host, a second."""
    disk_write_bytes_per_s: float | None
    """Bytes written to all disks of the host, a second."""
    cost_s: float
    """How long this reading took, in seconds."""
    notes: tuple[str, ...]
    """Why a number is missing."""
    others: tuple[OtherProcess, ...] | None = None
    """The busiest processes outside the tree, most first; None where the host has cores to spare,
    for then nobody looks."""

    @property
    def tree_cpu_share(self) -> float | None:
        """Share of the usable cores the process tree kept busy."""
        if self.tree_cpu_cores is None or not self.usable_cores:
            return None
        return self.tree_cpu_cores / self.usable_cores
