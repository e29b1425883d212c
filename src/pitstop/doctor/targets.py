"""A run's targets, judged by what was recorded of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.readings import CacheUse
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.targets import TargetResult


def judge_targets(facts: Facts, targets: Mapping[str, float | None]) -> tuple[TargetResult, ...]:
    """Hold a run against its targets.

    Args:
        facts: A rank after warm-up, with what was read of its host.
        targets: By the names of the section `targets`; those that are None are not judged.
    """
    return tuple(
        TargetResult(
            key=f"targets.{name}",
            target=targets[name] or 0.0,
            value=measure.value(facts),
            at_most=measure.at_most,
        )
        for name, measure in _MEASURES.items()
        if targets.get(name) is not None
    )


def _data_wait_ms(facts: Facts) -> float | None:
    waits_us = facts.parts_us.get("data")
    return None if waits_us is None or not len(waits_us) else float(np.median(waits_us)) / 1e3


def _gpu_busy(facts: Facts) -> float | None:
    shares = [
        gpu.busy_share
        for load in facts.readings.all(HostLoad)
        if load.window_s is not None  # the first reading is from before the steps
        for gpu in load.gpus
        if gpu.busy_share is not None
    ]
    return fmean(shares) if shares else None


def _hit_rate(facts: Facts) -> float | None:
    use = facts.readings.last(CacheUse)
    return None if use is None or not use.lookups else use.hits / use.lookups


def _host_memory(facts: Facts) -> float | None:
    shares = [
        1 - reading.host_available_bytes / reading.host_total_bytes
        for reading in facts.readings.all(MemoryReading)
        if reading.host_available_bytes is not None and reading.host_total_bytes
    ]
    return max(shares, default=None)


def _samples_per_s(facts: Facts) -> float | None:
    if facts.samples is None or not facts.total_us:
        return None
    return facts.samples * facts.steps / (facts.total_us / 1e6)


@dataclass(frozen=True, slots=True)
class _Measure:
    """How a target is measured, and which side of it is the good one."""

    value: Callable[[Facts], float | None]
    at_most: bool


_MEASURES: Final[Mapping[str, _Measure]] = {
    "data_wait_ms": _Measure(_data_wait_ms, at_most=True),
    "gpu_busy": _Measure(_gpu_busy, at_most=False),
    "hit_rate": _Measure(_hit_rate, at_most=False),
    "host_memory": _Measure(_host_memory, at_most=True),
    "samples_per_s": _Measure(_samples_per_s, at_most=False),
}
