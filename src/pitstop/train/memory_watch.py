"""Judges memory while a run goes on: how close to the limit, and whether it only ever grows."""

import math
from dataclasses import dataclass, field

from pitstop.config.sections import CacheSection, LoaderSection, TrainSection
from pitstop.records.memory import DeviceMemory, MemoryReading

FULL_SHARE = 0.90
TARGET_SHARE = 0.85

_FEWEST_READINGS = 12
_WARM_UP_READINGS = 3
_LEAST_GROWTH_BYTES = 64 << 20
_SURE_OF_SLOPE = 4.0  # standard errors

_GIB = 1 << 30


@dataclass(slots=True, kw_only=True)
class MemoryWatch:
    """Warns of memory that is nearly full and of memory that leaks; each once until it changes."""

    train: TrainSection
    loader: LoaderSection
    cache: CacheSection
    _steps: list[int] = field(init=False, default_factory=list)
    _tree_bytes: list[int] = field(init=False, default_factory=list)
    _told: set[str] = field(init=False, default_factory=set)

    def judge(self, step: int, reading: MemoryReading) -> list[str]:
        """Take in a reading and give the warnings that are new."""
        if reading.tree is not None:
            self._steps.append(step)
            self._tree_bytes.append(reading.tree.tree_bytes)
        found = {f"device {device.device}": self._device(device) for device in reading.devices}
        found["host"] = self._host(reading)
        found["leak"] = self._leak()
        new = [text for what, text in found.items() if text is not None and what not in self._told]
        self._told = {what for what, text in found.items() if text is not None}
        return new

    def _device(self, device: DeviceMemory) -> str | None:
        if not device.total_bytes:
            return None
        share = device.peak_reserved_bytes / device.total_bytes
        if share < FULL_SHARE:
            return None
        batch = self.train.batch_size
        smaller = max(1, math.floor(batch * TARGET_SHARE / share))
        advice = f"lower train.batch_size from {batch} to {smaller}"
        if smaller >= batch:
            advice = "set train.recompute to full, or crop smaller: the batch is one sample already"
        return f"{device.device} memory is {share:.0%} full at its peak; {advice}"

    def _host(self, reading: MemoryReading) -> str | None:
        limit, used = _limit_and_use(reading)
        if limit is None or used is None or used / limit < FULL_SHARE:
            return None
        excess = used - TARGET_SHARE * limit
        return f"host memory is {used / limit:.0%} full; {self._host_advice(excess)}"

    def _host_advice(self, excess_bytes: float) -> str:
        budget = self.cache.budget
        if budget:
            smaller = max(0, math.floor((budget - excess_bytes) / _GIB))
            return f"lower cache.budget from {budget / _GIB:.1f}GiB to {smaller}GiB"
        if self.loader.prefetch > 1:
            return f"lower loader.prefetch from {self.loader.prefetch} to 1, then loader.workers"
        return "lower loader.workers"

    def _leak(self) -> str | None:
        """Fit a line through the readings after warm-up; a slope far above its error is a leak."""
        steps = self._steps[_WARM_UP_READINGS:]
        sizes = self._tree_bytes[_WARM_UP_READINGS:]
        if len(steps) < _FEWEST_READINGS:
            return None
        slope, error = line_slope(steps, sizes)
        growth = slope * (steps[-1] - steps[0])
        if growth < _LEAST_GROWTH_BYTES or slope < _SURE_OF_SLOPE * error:
            return None
        return (
            f"host memory grows by {slope * 1000 / (1 << 20):.1f} MiB every 1,000 steps "
            f"({growth / (1 << 20):.0f} MiB since step {steps[0]}); with workers, lists of Python "
            "objects in the dataset grow so: hold metadata in arrays"
        )


def line_slope(xs: list[int], ys: list[int]) -> tuple[float, float]:
    """Slope of the least-squares line, and its standard error."""
    count = len(xs)
    mean_x, mean_y = math.fsum(xs) / count, math.fsum(ys) / count
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return 0.0, math.inf
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = (y - mean_y - slope * (x - mean_x) for x, y in zip(xs, ys, strict=True))
    return slope, math.sqrt(math.fsum(r * r for r in rest) / max(1, count - 2) / spread)


def _limit_and_use(reading: MemoryReading) -> tuple[int | None, int | None]:
    """The tighter of control group and host, and what is used of it."""
    if reading.cgroup_limit_bytes is not None and reading.cgroup_working_bytes is not None:
        return reading.cgroup_limit_bytes, reading.cgroup_working_bytes
    if reading.host_total_bytes is None or reading.host_available_bytes is None:
        return None, None
    return reading.host_total_bytes, reading.host_total_bytes - reading.host_available_bytes
