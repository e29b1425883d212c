"""Judges memory while a run goes on: how close to the limit, and whether it only ever grows."""

import math
from dataclasses import dataclass, field

from pitstop.config.sections import CacheSection, LoaderSection, TrainSection
from pitstop.records.host.growth import WARM_UP_READINGS, steady_growth
from pitstop.records.host.memory import DeviceMemory, MemoryReading
from pitstop.records.host.memory_holders import held_by_others, holders_text
from pitstop.records.units import bytes_text, share_text

# Above it the next larger batch or the next worker may be one too many.
FULL_SHARE = 0.90
# Below FULL_SHARE: advice that aimed at the limit of the warning would warn again after it.
TARGET_SHARE = 0.85
RELEVANT_SHARE = 0.25
"""Of what must be freed, the least that a setting must be able to free to be named."""

MOST_READINGS = 256
"""That a line is fitted through: of a longer run every second is left out, then every fourth."""

_GIB = 1 << 30


@dataclass(slots=True)
class _TreeSizes:
    """Sizes over a whole run at equal distances, in a few hundred numbers however long it is."""

    steps: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _taken: int = -WARM_UP_READINGS
    _every: int = 1

    def add(self, step: int, size_bytes: int) -> None:
        """Take the next size; the first ones, of the warm-up, are left out."""
        if self._taken >= 0 and self._taken % self._every == 0:
            self.steps.append(step)
            self.sizes.append(size_bytes)
        self._taken += 1
        if len(self.steps) == MOST_READINGS:
            del self.steps[1::2], self.sizes[1::2]
            self._every *= 2


@dataclass(slots=True, kw_only=True)
class MemoryMonitor:
    """Warns of memory that is nearly full and of memory that leaks; each once until it changes."""

    train: TrainSection
    loader: LoaderSection
    cache: CacheSection
    _tree: _TreeSizes = field(init=False, default_factory=_TreeSizes)
    _reported: set[str] = field(init=False, default_factory=set)

    def judge(self, step: int, reading: MemoryReading) -> list[str]:
        """Take in a reading and give the warnings that are new."""
        if reading.tree is not None:
            self._tree.add(step, reading.tree.tree_bytes)
        found = {f"device {device.device}": self._device(device) for device in reading.devices}
        found["host"] = self._host(reading)
        found["leak"] = self._leak()
        new = [
            text for what, text in found.items() if text is not None and what not in self._reported
        ]
        self._reported = {what for what, text in found.items() if text is not None}
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
        return f"{device.device} memory is {share_text(share)} full at its peak; {advice}"

    def _host(self, reading: MemoryReading) -> str | None:
        limit, used, share = reading.limit_bytes, reading.used_bytes, reading.used_share
        if limit is None or used is None or share is None or share < FULL_SHARE:
            return None
        held = holders_text(reading)
        if held is None:
            held = f"{bytes_text(used)} of {bytes_text(limit)} used, by whom is not known"
        advice = self._advice(reading, used, limit)
        return f"host memory is {share_text(share)} full: {held}; {advice}"

    def _advice(self, reading: MemoryReading, used: int, limit: int) -> str:
        """Name a setting only where lowering it frees a relevant part of what is too much.

        That is `RELEVANT_SHARE` of what lies above `TARGET_SHARE` of the limit. No setting frees
        more than the job's processes hold: of that, the cache at most its budget, and batches in
        flight at most what the workers hold beside it. What others hold is theirs to free.
        """
        excess = used - TARGET_SHARE * limit
        relevant = RELEVANT_SHARE * excess
        tree = reading.tree
        ours = math.inf if tree is None else tree.tree_bytes
        cached = min(self.cache.budget, ours)
        if cached >= relevant:
            budget = self.cache.budget
            smaller = max(0, math.floor((budget - excess) / _GIB))
            return f"lower cache.budget from {budget / _GIB:.1f}GiB to {smaller}GiB"
        if tree is not None and ours - tree.own_bytes - cached < relevant:
            others = held_by_others(reading) or 0
            who = "other processes hold" if others > ours else "the training process itself holds"
            return f"{who} most of it, so no setting of this run frees a relevant part"
        if self.loader.prefetch > 1:
            return f"lower loader.prefetch from {self.loader.prefetch} to 1, then loader.workers"
        return "lower loader.workers"

    def _leak(self) -> str | None:
        """Fit a line through the readings after warm-up; a slope far above its error is a leak."""
        growth = steady_growth(self._tree.steps, self._tree.sizes)
        if growth is None:
            return None
        return (
            f"host memory grows by {bytes_text(growth.rate * 1000)} every 1,000 steps "
            f"({bytes_text(growth.total)} since step {self._tree.steps[0]}); with workers, lists "
            "of Python objects in the dataset grow so: hold metadata in arrays"
        )
