import dataclasses
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.measure.host import load as host
from pitstop.measure.host.load import (
    HostCounters,
    LoadMeter,
    Others,
    affinity_cores,
    rate_between,
    read_counters,
    usable_cores,
)
from pitstop.records.host.memory import GpuLoad, OtherProcess

ZERO = HostCounters(
    tree_cpu_s=0.0,
    host_cpu_s=0.0,
    throttled_s=0.0,
    tree_read_bytes=0,
    tree_write_bytes=0,
    disk_read_bytes=0,
    disk_write_bytes=0,
)


def no_gpus() -> tuple[tuple[GpuLoad, ...], tuple[str, ...]]:
    return (), ("GPU load: not measured, no driver",)


def ticking(*seconds: float) -> Callable[[], float]:
    """A clock that is read twice per reading: when it begins and when it ends."""
    times: Iterator[float] = iter([t for each in seconds for t in (each, each + 0.001)])
    return lambda: next(times)


def meter(counters: list[HostCounters], *seconds: float) -> LoadMeter:
    queue = iter(counters)
    return LoadMeter(
        counters=lambda: next(queue), gpus=no_gpus, cores=lambda: 4.0, clock=ticking(*seconds)
    )


def test_the_first_reading_has_no_rates_and_says_so() -> None:
    first = meter([ZERO], 10.0).read()
    assert first.window_s is None
    assert (first.tree_cpu_cores, first.disk_read_bytes_per_s) == (None, None)
    assert any("second reading" in note for note in first.notes)
    assert first.usable_cores == 4.0


def test_rates_are_growth_over_the_time_between_two_readings() -> None:
    later = HostCounters(
        tree_cpu_s=6.0,
        host_cpu_s=7.0,
        throttled_s=1.0,
        tree_read_bytes=4000,
        tree_write_bytes=200,
        disk_read_bytes=8000,
        disk_write_bytes=400,
    )
    one = meter([ZERO, later], 10.0, 12.0)
    one.read()
    found = one.read()
    assert (found.window_s, found.tree_cpu_cores, found.host_cpu_cores) == (2.0, 3.0, 3.5)
    assert found.throttled_share == 0.5
    assert found.tree_cpu_share == 0.75
    assert (found.tree_read_bytes_per_s, found.tree_write_bytes_per_s) == (2000, 100)
    assert (found.disk_read_bytes_per_s, found.disk_write_bytes_per_s) == (4000, 200)
    assert found.cost_s == pytest.approx(0.001)
    assert found.notes == ("GPU load: not measured, no driver",)


def test_a_counter_that_is_missing_or_fell_gives_no_rate() -> None:
    before = dataclasses.replace(ZERO, tree_cpu_s=9.0)
    after = dataclasses.replace(ZERO, tree_cpu_s=5.0, tree_read_bytes=None, disk_read_bytes=10)
    one = meter([before, after], 0.0, 1.0)
    one.read()
    found = one.read()
    assert (found.tree_cpu_cores, found.tree_read_bytes_per_s) == (None, None)
    assert found.disk_read_bytes_per_s == 10


def test_two_readings_at_the_same_moment_have_no_rate() -> None:
    one = meter([ZERO, ZERO], 5.0, 5.0)
    one.read()
    assert one.read().tree_cpu_cores is None


@given(
    start=st.integers(0, 1 << 50),
    steps=st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1000)), min_size=1),
)
def test_rates_times_their_windows_add_up_to_the_growth(
    start: int, steps: list[tuple[int, int]]
) -> None:
    value, total = start, 0.0
    for growth, window_s in steps:
        rate = rate_between(value, value + growth, window_s)
        assert rate is not None
        total += rate * window_s
        value += growth
    assert total == pytest.approx(value - start)


def test_real_counters_never_fall_while_this_process_works() -> None:
    before = read_counters()
    sum(number * number for number in range(200_000))
    after = read_counters()
    assert before.tree_cpu_s is not None
    assert after.tree_cpu_s is not None
    assert after.tree_cpu_s >= before.tree_cpu_s
    assert after.host_cpu_s is not None
    assert before.host_cpu_s is not None
    assert after.host_cpu_s >= before.host_cpu_s


def test_usable_cores_never_exceed_affinity() -> None:
    usable, affinity = usable_cores(), affinity_cores()
    assert usable is not None
    assert affinity is not None
    assert 0 < usable <= affinity


def test_the_busiest_strangers_are_named_on_a_full_host_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = os.getpid()
    times = iter(
        [
            {own: ("python", 1.0), 7: ("cc1 (x)", 10.0), 8: ("idle", 3.0), 9: ("old", 1.0)},
            {own: ("python", 9.0), 7: ("cc1 (x)", 11.5), 8: ("idle", 3.01), 9: ("new", 5.0)},
        ]
    )
    monkeypatch.setattr(host, "processor_times", lambda: next(times))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    others = Others(clock=iter([0.0, 2.0]).__next__)
    assert others(2.0) is None, "cores are left, so nobody looks"
    assert others(None) is None
    assert others(3.9) is None, "the first look only sets the mark"
    assert others(3.9) == (OtherProcess(pid=7, name="cc1 (x)", cpu_cores=0.75),)
