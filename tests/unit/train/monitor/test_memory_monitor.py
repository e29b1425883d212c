"""Memory that is nearly full or only ever grows is named: who holds it, then what to lower."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.sections import CacheSection, LoaderSection, TrainSection
from pitstop.records.host.growth import Growth, steady_growth
from pitstop.records.host.memory import DeviceMemory, MemoryHolder, MemoryReading, TreeMemory
from pitstop.train.monitor import memory_monitor
from pitstop.train.monitor.memory_monitor import MemoryMonitor

GIB = 1 << 30
MIB = 1 << 20


def reading(
    *,
    tree: int = GIB,
    own: int | None = None,
    holders: tuple[MemoryHolder, ...] | None = None,
    limit: int | None = None,
    working: int = GIB,
    available: int = 60 * GIB,
    devices: tuple[DeviceMemory, ...] = (),
) -> MemoryReading:
    return MemoryReading(
        at_s=0.0,
        devices=devices,
        tree=TreeMemory(
            basis="pss",
            tree_bytes=tree,
            own_bytes=tree if own is None else own,
            processes=1 if own is None else 5,
            unreadable=0,
        ),
        host_total_bytes=64 * GIB,
        host_available_bytes=available,
        cgroup_limit_bytes=limit,
        cgroup_usage_bytes=None if limit is None else working,
        cgroup_working_bytes=None if limit is None else working,
        pinned_bytes=None,
        shm_used_bytes=None,
        shm_total_bytes=None,
        cost_s=0.0,
        notes=(),
        holders=holders,
    )


def device(peak: float) -> DeviceMemory:
    return DeviceMemory(
        device="cuda:0",
        total_bytes=100 * GIB,
        allocated_bytes=0,
        reserved_bytes=0,
        peak_allocated_bytes=0,
        peak_reserved_bytes=int(peak * GIB),
        alloc_retries=0,
        ooms=0,
    )


def monitor(*, batch: int = 4, budget: int = 0, prefetch: int = 2) -> MemoryMonitor:
    return MemoryMonitor(
        train=TrainSection(steps=1, batch_size=batch),
        loader=LoaderSection(prefetch=prefetch),
        cache=CacheSection(budget=budget),
    )


def test_a_device_that_is_nearly_full_names_the_batch_size_and_how_far_to_lower_it() -> None:
    assert monitor().judge(0, reading(devices=(device(89),))) == []
    [warning] = monitor(batch=8).judge(0, reading(devices=(device(95),)))
    assert "cuda:0 memory is 95.0% full" in warning
    assert "lower train.batch_size from 8 to 7" in warning
    [single] = monitor(batch=1).judge(0, reading(devices=(device(95),)))
    assert "train.recompute" in single


@given(batch=st.integers(2, 512), peak=st.floats(90.0, 100.0))
def test_the_smaller_batch_would_fit(batch: int, peak: float) -> None:
    [warning] = monitor(batch=batch).judge(0, reading(devices=(device(peak),)))
    smaller = int(warning.rsplit(" ", 1)[1])
    assert 1 <= smaller < batch
    assert smaller == 1 or peak / 100 * smaller / batch <= 0.86


def test_a_full_host_names_the_cache_then_prefetch_then_workers() -> None:
    full = reading(tree=18 * GIB, own=2 * GIB, limit=20 * GIB, working=19 * GIB)
    [cache] = monitor(budget=10 * GIB).judge(0, full)
    assert "host memory is 95.0% full" in cache
    assert "lower cache.budget from 10.0GiB to 8GiB" in cache  # 19 - 0.85 x 20 = 2 GiB too much
    [prefetch] = monitor(prefetch=4).judge(0, full)
    assert "lower loader.prefetch from 4 to 1" in prefetch
    [workers] = monitor(prefetch=1).judge(0, full)
    assert workers.endswith("lower loader.workers")
    assert monitor().judge(0, reading(limit=20 * GIB, working=17 * GIB)) == []


def test_memory_that_others_hold_is_told_as_theirs_and_names_no_setting() -> None:
    holders = (
        MemoryHolder(pid=9, name="python", role="main process", resident_bytes=300 * MIB),
        MemoryHolder(pid=1, name="database", role="other", resident_bytes=14 * GIB),
        MemoryHolder(pid=2, name="browser", role="other", resident_bytes=7 * GIB),
        MemoryHolder(pid=3, name="small", role="other", resident_bytes=1 * MIB),
    )
    full = reading(
        tree=339 * MIB,
        own=300 * MIB,
        limit=23 * GIB,
        working=22 * GIB + GIB // 2,
        holders=holders,
    )
    for settings in (monitor(budget=GIB // 10), monitor(prefetch=4), monitor(prefetch=1)):
        [warning] = settings.judge(0, full)
        assert warning == (
            "host memory is 97.8% full: 22.5 GiB of 23.0 GiB used; this job's 5 processes hold "
            "339 MiB (largest: python, main process, 300 MiB), everything else 22.2 GiB "
            "(largest: database 14.0 GiB, browser 7.00 GiB); "
            "other processes hold most of it, so no setting of this run frees a relevant part"
        )


def test_a_job_that_holds_the_memory_itself_is_told_which_process() -> None:
    large = MemoryHolder(pid=9, name="python", role="main process", resident_bytes=17 * GIB)
    full = reading(
        tree=18 * GIB, own=18 * GIB - 100 * MIB, limit=20 * GIB, working=19 * GIB, holders=(large,)
    )
    [warning] = monitor(prefetch=4).judge(0, full)
    assert "hold 18.0 GiB (largest: python, main process, 17.0 GiB)" in warning
    assert "the training process itself holds most of it, so no setting" in warning


@given(
    tree=st.integers(0, 19 * GIB),
    own=st.floats(0, 1),
    budget=st.integers(0, 64 * GIB),
    prefetch=st.integers(1, 8),
)
def test_a_setting_is_named_only_where_it_can_free_a_relevant_part(
    tree: int, own: float, budget: int, prefetch: int
) -> None:
    excess = 2 * GIB  # 19 GiB used, the target is 85 % of 20
    full = reading(tree=tree, own=int(own * tree), limit=20 * GIB, working=19 * GIB)
    [warning] = monitor(budget=budget, prefetch=prefetch).judge(0, full)
    names_setting = "; lower " in warning
    freeable = max(min(budget, tree), tree - int(own * tree) - min(budget, tree))
    assert names_setting == (freeable >= excess / 4)
    assert "this job's 5 processes hold" in warning


def test_without_a_control_group_the_host_itself_is_the_limit() -> None:
    [warning] = monitor().judge(0, reading(available=3 * GIB))
    assert "host memory is 95.3% full" in warning


def test_a_warning_is_given_once_until_it_has_gone() -> None:
    one = monitor()
    full, fine = reading(devices=(device(95),)), reading(devices=(device(50),))
    assert [len(one.judge(step, r)) for step, r in enumerate((full, full, fine, full))] == [
        1,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("growth", "noise", "leaks"),
    [(20 * MIB, 4 * MIB, True), (0, 50 * MIB, False), (MIB, MIB, False)],
    ids=["steady growth", "noise alone", "growth too small to matter"],
)
def test_growth_is_told_from_noise(growth: int, noise: int, leaks: bool) -> None:
    rng = random.Random(0)
    one = monitor()
    warnings = []
    for number in range(40):
        size = GIB + growth * number + rng.randint(-noise, noise)
        warnings += one.judge(number * 100, reading(tree=size))
    assert bool(warnings) is leaks
    if leaks:
        [warning] = warnings
        # 20 MiB every 100 steps is 200 MiB every 1,000.
        stated = float(warning.split("grows by ")[1].split(" MiB")[0])
        assert stated == pytest.approx(200, rel=0.1)


def test_a_run_of_any_length_is_judged_by_as_many_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []

    def counted(steps: list[int], sizes: list[int]) -> Growth | None:
        counts.append(len(steps))
        return steady_growth(steps, sizes)

    monkeypatch.setattr(memory_monitor, "steady_growth", counted)
    long = monitor()
    for count in range(10_000):
        assert long.judge(count, reading(tree=GIB)) == []
    assert max(counts) < memory_monitor.MOST_READINGS


def test_a_slow_leak_is_found_in_a_long_run() -> None:
    long = monitor()
    warnings = [
        warning
        for count in range(3000)
        for warning in long.judge(100 * count, reading(tree=GIB + 50_000 * count))
    ]
    assert len(warnings) == 1
    assert "grows by 488 KiB every 1,000 steps" in warnings[0]
