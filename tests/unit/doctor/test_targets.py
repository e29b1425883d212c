"""Targets of a run, held against records whose figures are known."""

import pytest

from pitstop.config.sections import TargetsSection
from pitstop.doctor.readings import CacheUse
from pitstop.doctor.targets import judge_targets
from tests.unit.doctor.records import facts, gpu_load, load, memory

EVERY = dict.fromkeys(TargetsSection.model_fields, 0.5)


def test_every_target_is_measured_in_its_own_unit() -> None:
    run = facts(
        {"data": 4_000, "forward": 16_000},
        apart={"evaluation": {50: 200_000}},
        samples=8,
        readings=[
            load(gpu_load(busy_share=0.0), window_s=None),
            load(gpu_load(busy_share=0.6), window_s=5.0),
            load(gpu_load(busy_share=0.8), window_s=5.0),
            memory(0.0, 1, 1, host_total_bytes=100, host_available_bytes=40),
            memory(0.0, 1, 1, host_total_bytes=100, host_available_bytes=70),
            CacheUse(budget_bytes=1, policy="keep", items=1, hits=3, misses=1),
        ],
    )
    found = {one.key.removeprefix("targets."): one.value for one in judge_targets(run, EVERY)}
    assert found["data_wait_ms"] == pytest.approx(4)
    assert found["gpu_busy"] == pytest.approx(0.7)
    assert found["hit_rate"] == pytest.approx(0.75)
    assert found["host_memory"] == pytest.approx(0.6)
    # Steps after warm-up, and the evaluation between them.
    counted = run.steps
    seconds = (counted * 20_000 + 200_000) / 1e6
    assert found["samples_per_s"] == pytest.approx(8 * counted / seconds)


def test_every_setting_has_its_measure_and_none_is_judged_unasked() -> None:
    run = facts({"forward": 10_000})
    assert {one.key for one in judge_targets(run, EVERY)} == {f"targets.{key}" for key in EVERY}
    assert judge_targets(run, TargetsSection().model_dump()) == ()


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    results = judge_targets(facts({"forward": 10_000}, samples=None), EVERY)
    assert [one.passed for one in results] == [None] * len(EVERY)


@pytest.mark.parametrize(("target_ms", "passed"), [(3.9, False), (4.0, True), (9.0, True)])
def test_an_upper_limit_may_be_met_exactly(target_ms: float, *, passed: bool) -> None:
    run = facts({"data": 4_000, "forward": 16_000})
    (result,) = judge_targets(run, {"data_wait_ms": target_ms})
    assert result.passed is passed
