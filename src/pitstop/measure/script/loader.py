"""Time inside loader workers, batch by batch: what the worker noted, and when the loop asked.

Workers and the training process read the same clock: the monotonic one of the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pitstop.records.loader import LoaderReading

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """How one batch was made, as the process that made it saw it."""

    begun_ns: int
    finished_ns: int
    cpu_ns: int
    """Processor time of the thread."""
    stages_ns: Mapping[str, int]
    """Time by stage; together the whole of it."""
    batch_bytes: int

    @property
    def busy_ns(self) -> int:
        """From begin to end."""
        return self.finished_ns - self.begun_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlow:
    """One batch on its way to the training loop."""

    times: BatchTimes
    asked_ns: int
    """When the loop asked for it."""
    taken_ns: int
    """When the loop had it."""
    own_ns: int | None
    """From having the batch before to asking for this one; None for the first of a window."""

    @property
    def wait_ns(self) -> int:
        """How long the loop waited."""
        return self.taken_ns - self.asked_ns

    @property
    def short_ns(self) -> int:
        """How long of that the batch was not finished; the rest was handing it over."""
        return max(0, min(self.times.finished_ns, self.taken_ns) - self.asked_ns)

    @property
    def queue_ns(self) -> int:
        """How long the batch lay finished, and travelled, before it was taken."""
        return max(0, self.taken_ns - self.times.finished_ns)


@dataclass(slots=True)
class LoaderMeter:
    """Adds batches up between two readings."""

    _batches: int = field(init=False, default=0)
    _busy_ns: int = field(init=False, default=0)
    _cpu_ns: int = field(init=False, default=0)
    _queue_ns: int = field(init=False, default=0)
    _wait_ns: int = field(init=False, default=0)
    _short_ns: int = field(init=False, default=0)
    _largest_bytes: int = field(init=False, default=0)
    _stages_ns: dict[str, int] = field(init=False, default_factory=dict)

    def add(self, flow: BatchFlow) -> None:
        """Take in one batch."""
        times = flow.times
        self._batches += 1
        self._busy_ns += times.busy_ns
        self._cpu_ns += times.cpu_ns
        self._queue_ns += flow.queue_ns
        self._wait_ns += flow.wait_ns
        self._short_ns += flow.short_ns
        self._largest_bytes = max(self._largest_bytes, times.batch_bytes)
        for name, spent_ns in times.stages_ns.items():
            self._stages_ns[name] = self._stages_ns.get(name, 0) + spent_ns

    def take(self, *, workers: int, prefetch: int | None) -> LoaderReading | None:
        """Give the sums since the last call, and begin anew; None where no batch was taken."""
        if not self._batches:
            return None
        reading = LoaderReading(
            batches=self._batches,
            workers=workers,
            prefetch=prefetch,
            stages_us={name: ns // _NS_PER_US for name, ns in self._stages_ns.items()},
            busy_us=self._busy_ns // _NS_PER_US,
            cpu_us=self._cpu_ns // _NS_PER_US,
            queue_us=self._queue_ns // _NS_PER_US,
            wait_us=self._wait_ns // _NS_PER_US,
            short_us=self._short_ns // _NS_PER_US,
            largest_bytes=self._largest_bytes,
        )
        self._batches = self._busy_ns = self._cpu_ns = self._queue_ns = 0
        self._wait_ns = self._short_ns = self._largest_bytes = 0
        self._stages_ns = {}
        return reading
