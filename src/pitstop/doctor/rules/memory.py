"""Rules on memory: growth of the host's, a cache too large, a device's cut to pieces."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.loader_facts import workers_of
from pitstop.doctor.readings import CacheUse
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.records.host.growth import (
    FEWEST_READINGS,
    LEAST_GROWTH_BYTES,
    WARM_UP_READINGS,
    line_slope,
    steady_growth,
)
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.host.memory_holders import NEARLY_FULL, holders_text
from pitstop.records.script import Owners
from pitstop.records.units import bytes_text, count_text, listing, seconds_text, share_text
from pitstop.records.verdict import Finding, Severity

# A cache that fills up grows ever more slowly, and a jump grows once; a leak grows in every third
# of the run, at this share of its rate at least.
_STILL_GROWING: Final = 0.25
# From here on the training process itself is named, not its workers.
_OWN_PROCESS: Final = 0.7
# A process with less has not even imported torch.
_LEAST_WITH_TORCH_BYTES: Final = 64 << 20
# Before somebody who starts a run in the evening looks at it again: critical.
_SOON_HOURS: Final = 24.0

# The other half is for the training process, its workers and the page cache.
_MOST_CACHE_SHARE: Final = 0.5

# Memory in blocks that are cut up, of all that is reserved, and how full the device must be for
# that to matter: a device with free memory simply takes a new block.
_FRAGMENTED: Final = 0.25
_NEARLY_FULL: Final = 0.8
# Of a device, the least that other processes must hold for it to matter to this run.
_RELEVANT: Final = 0.1


def host_growth(facts: Facts) -> Finding | None:
    """Report host memory that only ever grows, and say in which processes."""
    readings = _settled(facts)
    at_s = np.array([reading.at_s for reading in readings])
    tree = np.array([_tree_bytes(reading) for reading in readings])
    growth = steady_growth(at_s, tree)
    if growth is None or _least_third(at_s, tree) < _STILL_GROWING * growth.rate:
        return None
    own, _ = line_slope(at_s, np.array([_own_bytes(reading) for reading in readings]))
    own_share = None if _is_launcher(facts, readings[-1]) else min(1.0, max(0.0, own / growth.rate))
    cause, remedy = _growth_cause(facts, own_share, growth.total)
    evidence = [
        f"{bytes_text(growth.rate * 3600)} an hour (± {bytes_text(growth.error * 3600)}), "
        f"{bytes_text(growth.total)} so far, "
        f"in {count_text(len(readings), 'reading')}"
    ]
    if own_share is not None:
        evidence.append(f"{share_text(own_share)} of it in the training process itself")
    hours = _hours_to_full(readings[-1], growth.rate)
    if hours is not None:
        evidence.append(f"at this rate memory is full in {seconds_text(hours * 3600)}")
    held = holders_text(readings[-1])
    evidence += [] if held is None else [held]
    severity: Severity = "critical" if hours is not None and hours < _SOON_HOURS else "warning"
    return Finding(
        code="MEM001",
        severity=severity,
        summary=f"host memory grows without end: {cause}",
        evidence=tuple(evidence),
        bound=None,
        remedy=remedy,
    )


def unsettled_growth(facts: Facts) -> str | None:
    """Say that memory rose in too short a time to see a trend; None where it did not.

    More frequent readings are no way out: one takes as long as a step or several, and a cache that
    fills looks like a leak for as long as it does.
    """
    readings = _settled(facts)
    if not 2 <= len(readings) < FEWEST_READINGS:
        return None
    risen = _tree_bytes(readings[-1]) - _tree_bytes(readings[0])
    if risen < LEAST_GROWTH_BYTES:
        return None
    took = seconds_text(readings[-1].at_s - readings[0].at_s)
    return (
        f"host memory rose by {bytes_text(risen)} in {took}, too short to see a trend: "
        "measure more steps"
    )


def full_host(facts: Facts) -> str | None:
    """Say who holds the memory of a host that was nearly full; None where it was not.

    A note and no finding: what a full host costs a run, short of its death, was not measured.
    """
    full = [
        reading
        for reading in facts.readings.all(MemoryReading)
        if (reading.used_share or 0.0) >= NEARLY_FULL
    ]
    if not full:
        return None
    worst = max(full, key=lambda reading: reading.used_share or 0.0)
    return f"host memory was {share_text(worst.used_share)} full: {holders_text(worst)}"


def _settled(facts: Facts) -> list[MemoryReading]:
    """Readings during the counted steps; after the last of them workers end and memory falls."""
    table = facts.record.steps
    assert table is not None, "rules need single steps; read the run with its steps"
    if not len(table):
        return []
    last_us = float((table.start_us + table.wall_us).max())
    readings = facts.readings.between(facts.first_us, last_us, MemoryReading)
    return [reading for reading in readings if reading.tree][WARM_UP_READINGS:]


def _least_third(xs: np.ndarray, ys: np.ndarray) -> float:
    """Slope in the third of a series that rises least."""
    thirds = zip(np.array_split(xs, 3), np.array_split(ys, 3), strict=True)
    return min(line_slope(*third)[0] for third in thirds)


def _is_launcher(facts: Facts, reading: MemoryReading) -> bool:
    """Whether the root of a watched process tree starts the training process and is not it."""
    many = facts.summary.world_size > 1
    return not facts.is_engine_run and (many or _own_bytes(reading) < _LEAST_WITH_TORCH_BYTES)


def _growth_cause(
    facts: Facts, own_share: float | None, growth_bytes: float
) -> tuple[str, tuple[str, ...]]:
    leak = (
        "total += loss.item() or loss.detach(), not loss: it keeps the graph of every step",
        "look for lists and dicts that gain an entry in every step",
    )
    if not workers_of(facts) or (own_share is not None and own_share >= _OWN_PROCESS):
        return "the training process keeps objects it should free", leak
    if own_share is None:
        return "the training process or its workers keep objects they should free", leak
    cache = facts.readings.last(CacheUse)
    if cache is not None and cache.copies > 1:
        return "every worker fills a cache of its own", (
            "share one cache between all workers, or divide its size by their number",
        )
    keeps = "look for dicts and lists of the dataset that gain an entry with every sample"
    if (1 - own_share) * growth_bytes > _most_copied_bytes(facts):
        return "every worker keeps what it has read, more than it could copy", (
            keeps,
            "share one cache between all workers, or bound its size in each",
        )
    return "workers copy what they only read, or keep it", (
        "hold metadata in arrays (numpy, torch) instead of lists of Python objects: each access to "
        "an object writes its reference count, which copies the page",
        keeps,
    )


def _most_copied_bytes(facts: Facts) -> int:
    """What workers can copy at most: each all that there was when they began, counted once."""
    trees = [tree for reading in facts.readings.all(MemoryReading) if (tree := reading.tree)]
    workers = max(tree.processes for tree in trees) - 1
    return workers * min(tree.tree_bytes for tree in trees if tree.processes > workers)


def _hours_to_full(reading: MemoryReading, slope: float) -> float | None:
    limit, used = reading.limit_bytes, reading.used_bytes
    if limit is None or used is None:
        return None
    return max(0.0, limit - used) / slope / 3600


def _tree_bytes(reading: MemoryReading) -> int:
    assert reading.tree is not None
    return reading.tree.tree_bytes


def _own_bytes(reading: MemoryReading) -> int:
    assert reading.tree is not None
    return reading.tree.own_bytes


def large_cache(facts: Facts) -> Finding | None:
    """Report a cache that may take more than half of the memory there is."""
    cache, memory = facts.readings.last(CacheUse), facts.readings.last(MemoryReading)
    limit = None if memory is None else memory.limit_bytes
    if cache is None or not limit:
        return None
    allowed = cache.budget_bytes * max(1, cache.copies)
    if allowed <= _MOST_CACHE_SHARE * limit:
        return None
    return Finding(
        code="MEM002",
        severity="critical" if allowed > limit else "warning",
        summary="the cache may take more than half of the memory",
        evidence=(
            f"{bytes_text(cache.budget_bytes)} x {max(1, cache.copies)} on this host = "
            f"{bytes_text(allowed)} "
            f"of {bytes_text(limit)} ({share_text(allowed / limit)})",
        ),
        bound=None,
        remedy=remedy_for(facts, "MEM002"),
    )


def device_memory(facts: Facts) -> Finding | None:
    """Report a device's memory that is fragmented, or that is freed and allocated again."""
    owners = facts.readings.last(Owners)
    retries = _retries(facts, owners)
    evidence: list[str] = []
    if retries:
        evidence.append(
            f"the allocator freed its cache and retried {count_text(retries, 'time')}; "
            "each retry waits for the device"
        )
    split = _split(owners)
    if split is not None:
        evidence.append(split)
    if not evidence:
        return None
    others = _others_on_device(facts, owners)
    evidence += [] if others is None else [f"{others} of the device's memory"]
    freeing = () if others is None else (f"free the device first: {others} of it",)
    return Finding(
        code="MEM003",
        severity="warning",
        summary="device memory is fragmented or nearly full",
        evidence=tuple(evidence),
        # What one retry costs is not recorded.
        bound=None,
        remedy=(*freeing, *remedy_for(facts, "MEM003")),
    )


def _others_on_device(facts: Facts, owners: Owners | None) -> str | None:
    """Say what other processes hold of the device, where that is a relevant part of it.

    What the driver counts beyond torch's own is their memory only where another one was seen: some
    of it is the context that every process on a GPU has.
    """
    number = "" if owners is None else owners.device.partition(":")[2]
    gpus = [gpu for load in facts.readings.all(HostLoad) for gpu in load.gpus]
    seen = [gpu for gpu in gpus if str(gpu.index) == (number or "0") and gpu.other_pids]
    if owners is None or owners.reserved_bytes is None or not seen:
        return None
    used, total = seen[-1].memory_used_bytes, seen[-1].memory_total_bytes
    if used is None or not total or used - owners.reserved_bytes < _RELEVANT * total:
        return None
    pids = listing(sorted(seen[-1].other_pids or ()))
    return f"other processes (pid {pids}) hold about {bytes_text(used - owners.reserved_bytes)}"


def _retries(facts: Facts, owners: Owners | None) -> int:
    if owners is not None and owners.alloc_retries is not None:
        return owners.alloc_retries
    return _grown([r.devices for r in facts.readings.all(MemoryReading)])


def _grown(devices: Sequence[Sequence[object]]) -> int:
    """Retries between the first and the last reading, of all devices."""
    counts = [sum(getattr(device, "alloc_retries", 0) for device in group) for group in devices]
    return max(0, counts[-1] - counts[0]) if counts else 0


def _split(owners: Owners | None) -> str | None:
    if owners is None or not owners.reserved_bytes or owners.inactive_split_bytes is None:
        return None
    share = owners.inactive_split_bytes / owners.reserved_bytes
    full = owners.reserved_bytes / owners.total_bytes if owners.total_bytes else 1.0
    if share < _FRAGMENTED or full < _NEARLY_FULL:
        return None
    return (
        f"{bytes_text(owners.inactive_split_bytes)} of {bytes_text(owners.reserved_bytes)} "
        "reserved "
        f"({share_text(share)}) is fragmented; {share_text(full)} of the device is reserved"
    )
