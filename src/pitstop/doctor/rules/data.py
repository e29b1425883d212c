"""Rules on the way of a sample from storage to the training loop."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import HostTime, line_text, lines_of_part
from pitstop.doctor.loader_facts import (
    LoaderFacts,
    loader_facts_of,
    train_loader,
    usable_cores,
    workers_of,
)
from pitstop.doctor.numbers import place_text, spill, spread_ms
from pitstop.doctor.readings import CacheUse
from pitstop.doctor.rules.cadence import cadence_error
from pitstop.doctor.rules.loader_advice import VECTORISE, cores_taken, enough_workers, more_workers
from pitstop.doctor.rules.machine import contention
from pitstop.doctor.rules.places import steps_environments
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import WORTH_A_WARNING, is_sure, severity_of
from pitstop.records.host.memory import HostLoad
from pitstop.records.script import LoaderSetup
from pitstop.records.units import bytes_text, count_text, share_text, us_text
from pitstop.records.verdict import Bound, Finding, Severity

_EPOCH_BOUNDARY = "epoch boundary"

# A stall is a wait this many times the usual one and at least half a step long.
_STALL_FACTOR = 10.0
_STALL_STEPS = 0.5
_FEWEST_STALLS = 3
# Stalls in more than one step in twenty are no epoch boundaries but batches that come too late.
_MOST_STALLS = 0.05

# Hits a policy may lack of the most that is possible before it is blamed.
_ENOUGH_OF_THE_MOST = 0.9
_FEWEST_LOOKUPS = 200
# Workers read ahead, and a last batch may be smaller, so lookups and samples differ a little.
_ONE_EACH = 0.1
# Orders in which samples that share items follow each other.
_NEIGHBOURS = ("by sequence", "in order")

# Workers this many times as fast as the loop cannot be what it waits for.
_MUCH_FASTER = 3.0

# Bytes a second; the slowest of disks delivers more where it is what others wait for.
_LEAST_DELIVERED = 1 << 18

# Workers busy for less than this share of their life are not what the loop waits for.
_WORKERS_SATURATED = 0.7


def data_wait(facts: Facts) -> Finding | None:
    """Report a run that waits for its next batch a tenth of the time or more."""
    bound = facts.waste("data")
    if bound is None or not is_sure(facts, "data", bound.share):
        return None
    loader = loader_facts_of(facts)
    host = lines_of_part(facts, "data")
    share, waits = facts.share("data") or 0.0, facts.parts_us.get("data")
    evidence = [
        f"waiting for the next batch took {share_text(share, facts.share_error('data'))} "
        f"of {facts.steps} steps"
        + ("" if facts.steps_share > 0.99 else " and the time between them")
    ]
    if waits is not None:
        evidence.append(f"{spread_ms(waits).replace('median', 'median wait', 1)}")
    if facts.on_gpu:
        evidence.append(f"the device idled {share_text(bound.share)} of the time")
    evidence += _stage_evidence(loader, host)
    crowded = contention(facts) if _are_ready_in_time(facts, loader) else None
    if crowded is not None:
        evidence.append(f"batches are ready in time, but {crowded}")
    return Finding(
        code="DATA001",
        # What the loop then waits for is its turn on a processor, and no fault of the script.
        severity=severity_of(bound.share) if crowded is None else "info",
        summary="the training loop waits for data",
        evidence=tuple(evidence),
        bound=bound,
        remedy=tuple(_data_remedy(facts, loader)),
    )


def _are_ready_in_time(facts: Facts, loader: LoaderFacts | None) -> bool:
    """Whether all workers together make batches several times as fast as the loop takes them."""
    if loader is None or not loader.workers or not loader.batches:
        return False
    made_every_us = loader.busy_us / loader.batches / loader.workers
    return made_every_us * _MUCH_FASTER < facts.step_us * (1 - (facts.share("data") or 0.0))


def _stage_evidence(loader: LoaderFacts | None, host: HostTime | None) -> Iterator[str]:
    if loader is not None and loader.busy_us and loader.batches:
        stages = ", ".join(
            f"{name} {share_text(us / loader.busy_us)}" for name, us in loader.stages_us.items()
        )
        each = us_text(loader.busy_us / loader.batches)
        count = loader.workers
        place = f"one of {count_text(count, 'worker')}" if count else "the training process itself"
        yield f"making a batch takes {each} in {place}: {stages}"
        yield from _worker_evidence(loader)
        if count:
            return  # their lines are not those of the loop, which was sampled
    if host is not None:
        for line in host.lines[:3]:
            yield f"{share_text(line.samples / host.samples)} of the wait at {line_text(line)}"


def _worker_evidence(loader: LoaderFacts) -> Iterator[str]:
    if loader.processor_share is not None:
        rest = "the CPU"
        if loader.waits_for_storage:
            other = "a CPU core, a lock or the network"
            rest = "storage, or a CPU core" if _reads_storage(loader) else other
        share = share_text(loader.processor_share)
        yield f"workers computed for {share} of that; the stage waits for {rest}"
    if loader.unfinished_share is not None:
        share = share_text(loader.unfinished_share)
        yield f"{share} of the wait was for unfinished batches, the rest for their transfer"
    if loader.used_share is not None:
        yield f"workers were busy {share_text(loader.used_share)} of the time"
    per_s = _delivered_bytes_per_s(loader)
    if per_s is not None and per_s >= _LEAST_DELIVERED:
        place = "storage" if loader.volume is None else loader.volume
        yield f"{place} delivered {bytes_text(per_s)}/s"
    elif loader.volume is not None:
        yield f"the files are under {loader.volume}"


def _delivered_bytes_per_s(loader: LoaderFacts) -> float | None:
    """What storage delivered to all workers; None where nobody counted."""
    if loader.read_bytes is None or not loader.alive_us:
        return None
    return loader.read_bytes * loader.workers / (loader.alive_us / 1e6)


def _reads_storage(loader: LoaderFacts) -> bool:
    """Whether storage may be what workers wait for: it delivers something, or nobody counted."""
    per_s = _delivered_bytes_per_s(loader)
    return per_s is None or per_s >= _LEAST_DELIVERED


def _data_remedy(facts: Facts, loader: LoaderFacts | None) -> Iterator[str]:
    workers, enough = workers_of(facts), enough_workers(facts)
    if steps_environments(facts, "data"):
        yield VECTORISE
        return
    if workers == 0 or workers is None:
        # Where no core is free, what the script itself can change comes first.
        both = (more_workers(facts), _cheaper(loader))
        yield from both if cores_taken(facts) is None else reversed(both)
        return
    if loader is not None and loader.waits_for_storage and _reads_storage(loader):
        place = loader.volume or "the dataset"
        yield f"copy {place} to a local disk, or pack its small files into few large ones"
        yield _cache_text(facts)
    elif loader is not None and _is_handed_over_late(loader):
        yield _prefetch_text(facts)
        yield "send less from the workers: uint8 instead of float32, no copies in collate"
    elif enough is not None and workers >= enough:
        stage = "" if loader is None or loader.stage is None else f" ({loader.stage})"
        yield f"no core is free for more workers: make a batch cheaper to prepare{stage}"
        yield "decode only what the crop needs; prepare once what is the same every epoch"
    else:
        yield more_workers(facts)
        yield _cheaper(loader)


def _cheaper(loader: LoaderFacts | None) -> str:
    if loader is not None and loader.stage == "collate":
        return "make collate cheaper: prepare once, before the loop, what is the same every epoch"
    return (
        "make a batch cheaper to prepare: open files and build tables once, decode only what the "
        "crop needs, shrink images first, cache, or pack"
    )


def _is_handed_over_late(loader: LoaderFacts) -> bool:
    """Whether batches are finished in time and the loop waits all the same."""
    if loader.unfinished_share is not None:
        return loader.unfinished_share < 0.5
    return loader.used_share is not None and loader.used_share < _WORKERS_SATURATED


def _prefetch_text(facts: Facts) -> str:
    if facts.is_engine_run:
        return "prefetch more: raise loader.prefetch; loader.pin: true"
    if facts.on_gpu:
        return "prefetch more: DataLoader(..., prefetch_factor=4, pin_memory=True)"
    return "prefetch more: DataLoader(..., prefetch_factor=4)"


def _cache_text(facts: Facts) -> str:
    if facts.is_engine_run:
        return "keep decoded samples in memory: cache.budget"
    return "keep decoded samples in memory, once for all workers"


def epoch_stalls(facts: Facts) -> Finding | None:
    """Report stalls at epoch boundaries: workers that start anew, a loader built again."""
    stalls = _boundary_stalls(facts) or _waiting_stalls(facts)
    if stalls is None:
        return None
    share, bound, stalls_us, when = stalls
    loader = train_loader(facts)
    evidence = [
        f"{count_text(len(stalls_us), 'stall')} {when} took {share_text(share)} of the time",
        spread_ms(stalls_us).replace("median", "median stall", 1),
        *spill(facts, _EPOCH_BOUNDARY),
    ]
    if loader is not None:
        kept = "persistent" if loader.persistent else "restarted every pass"
        evidence.append(f"{count_text(loader.workers, 'worker')} ({kept}), {loader.passes} passes")
    return Finding(
        code="DATA002",
        severity=severity_of(share) if len(stalls_us) > 1 else "info",
        summary="each new epoch stalls the training loop",
        evidence=tuple(evidence),
        bound=bound,
        remedy=remedy_for(facts, "DATA002"),
    )


# Share of the time, bound, how long each took, and when they come.
_Stalls = tuple[float, Bound, np.ndarray, str]


def _boundary_stalls(facts: Facts) -> _Stalls | None:
    name = _EPOCH_BOUNDARY
    outside, share, most = facts.outside.get(name), facts.whole_share(name), facts.most_share(name)
    if outside is None or share is None or most is None:
        return None
    if share - outside.once_us / facts.total_us < WORTH_A_WARNING:
        return None
    bound = Bound(part=name, share=most, error=cadence_error(facts, name))
    return share, bound, np.array(outside.times_us), "between epochs"


def _waiting_stalls(facts: Facts) -> _Stalls | None:
    """Find waits that come at even distances, as only passes over the data do."""
    timed = facts.parts_us.get("data")
    if timed is None or not facts.steps:
        return None
    usual = float(np.median(timed))
    least = max(_STALL_FACTOR * usual, _STALL_STEPS * float(np.median(facts.wall_us)))
    waits = _waits_of_all(facts, timed, least)
    places = np.flatnonzero(waits > least)
    if not _FEWEST_STALLS <= len(places) <= _MOST_STALLS * facts.steps:
        return None
    distances = np.diff(facts.indices[places])
    even = distances.max() - distances.min() <= max(1.0, 0.02 * distances.mean())
    # A worker that hands over its batches in turn makes a rhythm of its own.
    of_workers = distances.mean() <= 4 * (workers_of(facts) or 0)
    excess = waits[places] - usual
    bound = facts.waste("data", float(excess.sum()) / facts.total_us)
    if not even or of_workers or bound is None or bound.share < WORTH_A_WARNING:
        return None
    return bound.share, bound, excess, f"every {distances.mean():.0f} steps"


def _waits_of_all(facts: Facts, timed: np.ndarray, least: float) -> np.ndarray:
    """Give the wait of each step.

    Of short steps few are sampled. Where all long ones among these were long for want of data,
    the other long ones are taken for the same; else those are not known to have waited.
    """
    if len(timed) == facts.steps:
        return timed
    excess = facts.wall_us - float(np.median(facts.wall_us))
    known = excess[facts.sampled] > least
    waits = np.zeros(facts.steps)
    if known.any() and (timed[known] > least).all():
        waits[excess > least] = excess[excess > least]
    waits[facts.sampled] = timed
    return waits


def hit_rate(facts: Facts) -> Finding | None:
    """Report a cache that hits less than its size and the order of reading allow."""
    readings = facts.readings.all(CacheUse)
    settled = _after_first_pass(tuple(_with_dataset(facts, reading) for reading in readings))
    if settled is None:
        return None
    cache, hits, lookups = settled
    rate, most = hits / lookups, cache.most_hits or 0.0
    cause = _cache_cause(facts, cache, rate, most)
    if cause is None:
        return None
    name, reachable, remedy = cause
    evidence = (
        f"{share_text(rate)} of {count_text(lookups, 'lookup')} after the first pass were hits",
        f"{cache.items:,} of {cache.dataset_items:,} items are held, policy {cache.policy}, "
        f"read {cache.order}: at most {share_text(most)} of a pass can hit",
    )
    return Finding(
        code="DATA003",
        severity=_hit_severity(facts, rate, reachable),
        summary=f"the cache hits less often than it could, because of its {name}",
        evidence=evidence,
        bound=_hit_bound(facts, rate, reachable),
        remedy=remedy,
    )


def _with_dataset(facts: Facts, cache: CacheUse) -> CacheUse:
    """Take the items of a pass from the loader, where the cache was asked once for each sample."""
    loader, last = train_loader(facts), facts.readings.last(CacheUse)
    if cache.dataset_items is not None or loader is None or last is None:
        return cache
    if not loader.length or not loader.batch_size or not loader.batches:
        return cache
    samples = loader.batches * loader.batch_size
    if abs(last.lookups - samples) > _ONE_EACH * samples:
        return cache
    return replace(cache, dataset_items=loader.length * loader.batch_size)


def _after_first_pass(readings: tuple[CacheUse, ...]) -> tuple[CacheUse, int, int] | None:
    """Give the latest reading, and its hits and lookups without those that nobody can avoid."""
    if not readings or not readings[-1].dataset_items:
        return None
    last = readings[-1]
    of_pass = (last.dataset_items or 0) * last.item_uses
    first = next((reading for reading in readings if reading.lookups >= of_pass), last)
    lookups = last.lookups - first.lookups
    if lookups < _FEWEST_LOOKUPS:
        return None
    return last, last.hits - first.hits, lookups


def _cache_cause(
    facts: Facts, cache: CacheUse, rate: float, most: float
) -> tuple[str, float, tuple[str, ...]] | None:
    """Blame sampler, policy or budget; give the rate that fixing it could reach."""
    ours, shared = facts.is_engine_run, cache.is_shared_by_samples
    if rate < _ENOUGH_OF_THE_MOST * most:
        if shared and cache.order == "shuffled":
            group = "read neighbours together: group samples of a sequence in the sampler"
            known = "cache.policy: epoch" if ours else "evict what the known order needs last"
            return "sampler", most, (group, f"where the order must stay: {known}")
        if shared and cache.order in _NEIGHBOURS and cache.policy == "keep":
            drop = "cache.policy: lru" if ours else "evict the least recently used when it is full"
            return "policy", most, (drop, "neighbours are read soon after each other, then not")
        if not shared and cache.policy == "lru":
            keep = "cache.policy: keep" if ours else "stop evicting when the cache is full"
            why = "every item is read once a pass, so LRU evicts it just before it is needed"
            return "policy", most, (keep, why)
    if rate < _ENOUGH_OF_THE_MOST and cache.items < (cache.dataset_items or 0):
        larger = "raise cache.budget" if ours else "give the cache more memory"
        return "budget", 1.0, (larger, "or store items smaller: as bytes, not as floats")
    return None


def _hit_bound(facts: Facts, rate: float, reachable: float) -> Bound | None:
    waste = facts.waste("data")
    if waste is None or rate >= 1:
        return None
    # Waiting falls at most as the misses do.
    fewer = max(0.0, (reachable - rate) / (1 - rate))
    return facts.waste("data", waste.share * fewer)


def _hit_severity(facts: Facts, rate: float, reachable: float) -> Severity:
    bound = _hit_bound(facts, rate, reachable)
    return "info" if bound is None else severity_of(bound.share)


def too_many_workers(facts: Facts) -> Finding | None:
    """Report more loader workers than cores, where that shows."""
    workers, cores = workers_of(facts), usable_cores(facts)
    ranks = _local_ranks(facts)
    if workers is None or cores is None or workers * ranks <= cores:
        return None
    loads = [load for load in facts.readings.all(HostLoad) if load.window_s is not None]
    shares = [share for load in loads if (share := load.tree_cpu_share) is not None]
    held = [load.throttled_share for load in loads if load.throttled_share is not None]
    evidence = [
        f"{workers} workers for each of {count_text(ranks, 'rank')} on {cores:g} usable cores"
    ]
    if shares:
        evidence.append(f"the job kept {share_text(float(np.median(shares)))} of these cores busy")
    if held and max(held) > 0:
        evidence.append(
            f"its CPU quota throttled it {share_text(float(np.mean(held)))} of the time"
        )
    contended = bool(shares) and float(np.median(shares)) >= 0.9
    contended = contended or (bool(held) and float(np.mean(held)) >= 0.05)
    fit = max(1, int(cores / ranks) - 1)
    ours = f"loader.workers: {fit * ranks}"
    code = f"DataLoader(..., num_workers={fit})"
    return Finding(
        code="DATA004",
        severity="warning" if contended else "info",
        summary="there are more loader workers than usable cores",
        evidence=tuple(evidence),
        bound=None,
        remedy=(ours if facts.is_engine_run else code,),
    )


def _local_ranks(facts: Facts) -> int:
    # Ranks of one host are not distinguished from those of others; most runs have one host.
    return max(1, facts.summary.world_size)


def _has_other_passes(loader: LoaderSetup) -> bool:
    """Whether passes ended early, beside the last: their batches count to a pass around them.

    So it is where a script evaluates on some batches of its training loader within an epoch.
    """
    return loader.passes > loader.whole_passes + 1


# What a pass may lack of its announced length, or have beyond it, before that is reported.
_LENGTH_DIFFERS = 0.02
_LENGTH_IS_WRONG = 0.10


def announced_length(facts: Facts) -> Finding | None:
    """Report a training loader whose whole passes are not as long as its `len` says."""
    loader = train_loader(facts)
    if loader is None or not loader.length or not loader.whole_passes:
        return None
    made = loader.whole_batches / loader.whole_passes
    differs = abs(made / loader.length - 1)
    if differs < _LENGTH_DIFFERS or (made > loader.length and _has_other_passes(loader)):
        return None
    at = "" if loader.place is None else f", iterated at {place_text(loader.place)}"
    passes = count_text(loader.whole_passes, "whole pass").replace("passs", "passes")
    return Finding(
        code="BAR001",
        severity="warning" if differs >= _LENGTH_IS_WRONG else "info",
        summary=f"a pass {'ends before' if made < loader.length else 'goes on after'} "
        "the announced number of batches",
        evidence=(
            f"len of the DataLoader over {loader.dataset}{at} is {loader.length:,}; "
            f"{passes} had {made:,.0f} batches"
            f"{' each' if loader.whole_passes > 1 else ''}",
        ),
        bound=None,
        remedy=(
            "make len() of the batch sampler the number of batches it yields: progress bars, "
            "schedules and ETAs use it",
            "check which part of the dataset an epoch really samples",
        ),
    )
