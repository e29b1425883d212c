"""Rules on the machine under a run."""

import pytest

from pitstop.doctor.rules.machine import held_clocks, other_jobs
from pitstop.records.host.memory import OtherProcess
from tests.unit.doctor.records import SETUP, facts, gpu_load, load
from tests.unit.doctor.rules.test_device import machine

STEP = {"forward": 10_000}


def test_a_stranger_on_the_gpu_is_named_by_its_number() -> None:
    loads = [load(gpu_load(other_pids=(4711,)))] * 8 + [load(gpu_load())] * 2
    found = other_jobs(facts(STEP, readings=[SETUP, *loads]))
    assert found is not None
    assert found.evidence == ("on the same GPU in 8 of 10 readings: pid 4711",)


@pytest.mark.parametrize("pids", [(), None], ids=["nobody", "numbers that cannot be compared"])
def test_nobody_is_accused_without_a_number(pids: tuple[int, ...] | None) -> None:
    loads = [load(gpu_load(other_pids=pids))] * 10
    assert other_jobs(facts(STEP, readings=[SETUP, *loads])) is None


def test_a_stranger_on_another_gpu_or_for_a_moment_does_not_matter() -> None:
    elsewhere = [load(gpu_load(), gpu_load(index=1, other_pids=(4711,)))] * 10
    assert other_jobs(facts(STEP, readings=[SETUP, *elsewhere])) is None
    moment = [load(gpu_load(other_pids=(4711,)))] * 2 + [load(gpu_load())] * 8
    assert other_jobs(facts(STEP, readings=[SETUP, *moment])) is None


@pytest.mark.parametrize(
    ("host", "own", "reported"), [(7.9, 2.0, True), (7.9, 7.5, False), (5.0, 1.0, False)]
)
def test_others_on_a_full_host_are_reported(host: float, own: float, reported: bool) -> None:
    loads = [load(host_cpu_cores=host, tree_cpu_cores=own)] * 5
    found = other_jobs(facts(STEP, readings=[*loads, machine_of(8)]))
    assert (found is not None) is reported
    assert other_jobs(facts(STEP, readings=loads)) is None, "the host's cores are not known"


def test_as_many_busy_cores_as_there_may_be_are_all_of_the_host() -> None:
    full = [load(host_cpu_cores=2.0, tree_cpu_cores=0.5, usable_cores=2.0)] * 5
    found = other_jobs(facts(STEP, readings=full))
    assert found is not None
    assert found.severity == "info", "whether that slows the run is not known"
    quota = [load(host_cpu_cores=20.0, tree_cpu_cores=0.5, usable_cores=2.0)] * 5
    assert other_jobs(facts(STEP, readings=quota)) is None


def test_strangers_on_a_full_host_are_named_by_their_numbers() -> None:
    busy = OtherProcess(pid=4242, name="cc1", cpu_cores=1.0)
    rare = OtherProcess(pid=7, name="sh", cpu_cores=0.4)
    looks = [(busy,), (busy, rare), None, (busy,)]
    loads = [
        load(host_cpu_cores=2.0, tree_cpu_cores=0.5, usable_cores=2.0, others=others)
        for others in looks
    ]
    found = other_jobs(facts(STEP, readings=loads))
    assert found is not None
    words = "busiest in 3 readings: pid 4242 (cc1, 1.0 cores), pid 7 (sh, 0.1 cores)"
    assert found.evidence[-1] == words


def machine_of(cores: int) -> object:
    reading = machine()
    reading.values["cpu"]["logical_cores"] = cores  # type: ignore[attr-defined]
    return reading


def test_clocks_held_back_are_bounded_by_the_best_of_the_run() -> None:
    hot = load(gpu_load(throttle_reasons=("thermal (hardware)",), sm_clock_hz=1.0e9))
    cool = load(gpu_load(sm_clock_hz=2.0e9))
    found = held_clocks(facts(STEP, readings=[SETUP, *[hot] * 8, *[cool] * 2]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(1 - 1.2 / 2.0)
    always = held_clocks(facts(STEP, readings=[SETUP, *[hot] * 8]))
    assert always is not None
    assert always.bound is None, "how fast it can be was not seen"


@pytest.mark.parametrize("reason", ["power cap", "idle", "application clocks"])
def test_a_gpu_at_its_power_cap_is_sound(reason: str) -> None:
    loads = [load(gpu_load(throttle_reasons=(reason,)))] * 10
    assert held_clocks(facts(STEP, readings=[SETUP, *loads])) is None
    unknown = [load(gpu_load(throttle_reasons=None))] * 10
    assert held_clocks(facts(STEP, readings=[SETUP, *unknown])) is None
