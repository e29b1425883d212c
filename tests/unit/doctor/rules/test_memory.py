"""Rules on memory: growth by cause, caches beyond the limit, a device cut to pieces."""

from dataclasses import replace

import numpy as np
import pytest

from pitstop.doctor.examine import examine
from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.rules.memory import (
    device_memory,
    full_host,
    host_growth,
    large_cache,
    unsettled_growth,
)
from pitstop.records.host.memory import MemoryHolder, MemoryReading
from tests.unit.doctor.records import (
    CACHE,
    GIB,
    ON_CPU,
    OWNERS,
    facts,
    gpu_load,
    load,
    memory,
    rank,
    run_of,
)

STEP = {"forward": 10_000}
MIB = 1 << 20


def readings(tree_mib: list[float], own_mib: list[float] | None = None) -> list[MemoryReading]:
    """One a minute; the training process holds 1 GiB where nothing else is said."""
    own = [1024.0] * len(tree_mib) if own_mib is None else own_mib
    return [
        memory(60.0 * number, int(tree * MIB), int(mine * MIB))
        for number, (tree, mine) in enumerate(zip(tree_mib, own, strict=True))
    ]


GROWING = [2048 + 20.0 * number for number in range(30)]


def test_growth_in_workers_is_copy_on_write() -> None:
    found = host_growth(facts(STEP, readings=[ON_CPU, *readings(GROWING)]))
    assert found is not None
    assert found.summary.endswith("workers copy what they only read, or keep it")
    # 20 MiB a minute.
    assert found.evidence[0].startswith("1.17 GiB an hour")
    assert "hold metadata in arrays" in found.remedy[0]
    # 60 GiB are left of 64: 51 hours at 1.17 GiB an hour.
    assert "in 51.2 h" in found.evidence[2]
    assert found.severity == "warning"


def test_memory_that_grows_while_the_run_starts_is_not_counted() -> None:
    assert host_growth(timed(range(1, 31))) is not None
    assert host_growth(timed(range(-20, 10))) is None


def timed(minutes: range, tree_mib: list[float] = GROWING) -> Facts:
    """An hour of steps, whose readings were written at some minutes after the first of them."""
    record = rank({"forward": 60e6 * 60 / 100}, readings=[ON_CPU, *readings(tree_mib)])
    assert record.steps is not None
    start_us = record.steps.start_us[10]
    written = [
        replace(reading, at_us=int(start_us) + 60_000_000 * minute)
        for minute, reading in zip(minutes, record.readings[1:], strict=True)
    ]
    return facts_of(replace(record, readings=(record.readings[0], *written)))


def test_memory_that_falls_once_training_is_over_has_grown_all_the_same() -> None:
    """Workers end with the last step, and what they held is given back."""
    ended = [*GROWING, *[1100.0] * 30]
    assert host_growth(timed(range(25, 85), ended)) is not None
    assert host_growth(facts(STEP, readings=[ON_CPU, *readings(ended)])) is None


def test_workers_that_grow_by_more_than_there_was_keep_what_they_read() -> None:
    """Copies of 2 GiB in four workers are 8 GiB; they grow by 27 GiB."""
    beyond = [2048 + 1024.0 * number for number in range(30)]
    found = host_growth(facts(STEP, readings=[ON_CPU, *readings(beyond)]))
    assert found is not None
    assert "every worker keeps what it has read" in found.summary
    assert not any("arrays" in fix for fix in found.remedy)


@pytest.mark.parametrize(("world", "own_mib"), [(2, 1024.0), (1, 4.0)])
def test_under_a_launcher_growth_is_not_laid_to_the_workers(world: int, own_mib: float) -> None:
    """Readings begin at what was started: torchrun, or a shell."""
    grown = readings(GROWING, [own_mib] * len(GROWING))
    found = host_growth(facts(STEP, readings=[ON_CPU, *grown], world=world))
    assert found is not None
    assert found.summary.endswith("or its workers keep objects they should free")
    assert not any("training process itself" in line for line in found.evidence)


def test_growth_in_a_short_time_is_noted_and_not_judged() -> None:
    few = facts(STEP, readings=[ON_CPU, *readings(GROWING[:10])])
    assert host_growth(few) is None
    assert unsettled_growth(few) == (
        "host memory rose by 120 MiB in 6 min 00 s, too short to see a trend: measure more steps"
    )
    assert unsettled_growth(facts(STEP, readings=[ON_CPU, *readings([2048.0] * 10)])) is None
    assert unsettled_growth(facts(STEP, readings=[ON_CPU, *readings(GROWING)])) is None
    assert unsettled_growth(facts(STEP, readings=[ON_CPU])) is None
    verdict = examine(run_of(rank(STEP, readings=[ON_CPU, *readings(GROWING[:10])])))
    assert verdict.outcome == "healthy"
    assert any("rose by 120 MiB" in note for note in verdict.notes)


def test_growth_in_the_training_process_is_a_leak() -> None:
    own = [1024 + 20.0 * number for number in range(30)]
    found = host_growth(facts(STEP, readings=[ON_CPU, *readings(GROWING, own)]))
    assert found is not None
    assert "keeps objects it should free" in found.summary
    assert "100.0% of it in the training process" in found.evidence[1]


def test_a_cache_in_every_worker_is_named() -> None:
    copies = replace(CACHE, copies=4)
    found = host_growth(facts(STEP, readings=[ON_CPU, copies, *readings(GROWING)]))
    assert found is not None
    assert "cache of its own" in found.summary


def test_memory_that_is_full_within_a_day_is_critical() -> None:
    fast = [2048 + 200.0 * number for number in range(30)]
    found = host_growth(facts(STEP, readings=[ON_CPU, *readings(fast)]))
    assert found is not None
    assert found.severity == "critical"


@pytest.mark.parametrize(
    "tree",
    [
        [2048.0] * 30,
        GROWING[:12],
        [2048 + 1.0 * number for number in range(30)],
        [2048 + 400 * (1 - float(np.exp(-number / 4))) for number in range(30)],
        [2048 + 300 * float(np.sin(number)) for number in range(30)],
        [2048.0] * 15 + [2560.0] * 15,
        [1024 + 50.0 * number for number in range(15)] + [1774 + number for number in range(15)],
    ],
    ids=["flat", "few readings", "little", "a cache that fills", "up and down", "a jump", "a ramp"],
)
def test_memory_that_settles_is_left_alone(tree: list[float]) -> None:
    assert host_growth(facts(STEP, readings=[ON_CPU, *readings(tree)])) is None


@pytest.mark.parametrize(
    ("budget", "copies", "severity"),
    [(30, 1, None), (40, 1, "warning"), (10, 4, "warning"), (20, 4, "critical")],
)
def test_a_cache_is_counted_as_often_as_it_exists(
    budget: int, copies: int, severity: str | None
) -> None:
    cache = replace(CACHE, budget_bytes=budget * GIB, copies=copies)
    found = large_cache(facts(STEP, readings=[cache, *readings([2048.0])]))
    assert (None if found is None else found.severity) == severity


def test_the_control_group_is_the_limit_where_there_is_one() -> None:
    small = memory(0.0, GIB, GIB, cgroup_limit_bytes=8 * GIB, cgroup_working_bytes=GIB)
    cache = replace(CACHE, budget_bytes=5 * GIB)
    assert large_cache(facts(STEP, readings=[cache, small])) is not None
    assert large_cache(facts(STEP, readings=[cache])) is None, "the limit is not known"


def test_retries_and_gaps_of_a_full_device_are_reported() -> None:
    thrash = replace(OWNERS, alloc_retries=7)
    found = device_memory(facts(STEP, readings=[thrash]))
    assert found is not None
    assert "7 times" in found.evidence[0]
    cut = replace(OWNERS, inactive_split_bytes=20 * GIB)
    found = device_memory(facts(STEP, readings=[cut]))
    assert found is not None
    assert "(27.8%) is fragmented" in found.evidence[0]


def test_gaps_on_a_device_with_room_do_not_matter() -> None:
    roomy = replace(OWNERS, reserved_bytes=20 * GIB, inactive_split_bytes=10 * GIB)
    assert device_memory(facts(STEP, readings=[roomy])) is None
    assert device_memory(facts(STEP, readings=[OWNERS])) is None
    assert device_memory(facts(STEP)) is None


def test_strangers_on_a_full_device_are_named_before_any_setting() -> None:
    thrash = replace(OWNERS, alloc_retries=7)
    held = (OWNERS.reserved_bytes or 0) + 20 * GIB
    crowded = gpu_load(memory_used_bytes=held, memory_total_bytes=80 * GIB, other_pids=(41,))
    found = device_memory(facts(STEP, readings=[thrash, load(crowded)]))
    assert found is not None
    words = "other processes (pid 41) hold about 20.0 GiB"
    assert found.evidence[-1] == f"{words} of the device's memory"
    assert found.remedy[0] == f"free the device first: {words} of it"
    alone = replace(crowded, other_pids=())
    found = device_memory(facts(STEP, readings=[thrash, load(alone)]))
    assert found is not None
    assert "other processes" not in str(found)


def test_who_held_the_memory_of_a_full_host_is_a_note() -> None:
    stranger = MemoryHolder(pid=3, name="database", role="other", resident_bytes=61 * GIB)
    full = memory(0.0, 339 * MIB, 300 * MIB, host_available_bytes=GIB, holders=(stranger,))
    words = full_host(facts(STEP, readings=[ON_CPU, full, memory(1.0, MIB, MIB)]))
    assert words == (
        "host memory was 98.4% full: 63.0 GiB of 64.0 GiB used; this job's 5 processes hold "
        "339 MiB, everything else 62.7 GiB (largest: database 61.0 GiB)"
    )
    record = rank(STEP, readings=[ON_CPU, full])
    assert words in examine(run_of(record)).notes
    assert full_host(facts(STEP, readings=[ON_CPU, memory(1.0, MIB, MIB)])) is None


def test_growth_says_what_the_host_has_and_what_this_job_holds() -> None:
    found = host_growth(facts(STEP, readings=[ON_CPU, *readings(GROWING)]))
    assert found is not None
    assert found.evidence[-1].startswith("4.00 GiB of 64.0 GiB used; this job's 5 processes hold")
