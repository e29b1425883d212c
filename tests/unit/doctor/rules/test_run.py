"""Rules on losses that are no numbers and settings that did nothing."""

import math
from dataclasses import replace

import pytest

from pitstop.doctor.rules.run import debugging_left_on, non_finite, without_effect
from tests.unit.doctor.records import COMPILED, LOADER, ON_CPU, SETUP, WORK, facts, raw

STEP = {"forward": 10_000}
SOUND = [1.0, 0.9, 0.8, 0.7]


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (SOUND, None),
        ([1.0, math.nan, 0.8, 0.7], "warning"),
        ([1.0, 0.9, math.inf, math.nan], "critical"),
    ],
)
def test_a_loss_that_ends_as_no_number_is_critical(
    losses: list[float], severity: str | None
) -> None:
    found = non_finite(facts(STEP, scalars={"train/loss": losses, "lr": [math.nan]}))
    assert (None if found is None else found.severity) == severity


def test_the_first_bad_step_is_named() -> None:
    found = non_finite(facts(STEP, scalars={"loss": [1.0, 0.9, math.nan, 0.8]}))
    assert found is not None
    assert found.evidence == ("loss: 1 of 4 values not finite, the first at step 2",)


def test_a_scaler_may_leave_a_step_out_now_and_then() -> None:
    left_out = raw("warning", step=5, about="nonfinite", text="left out")
    assert non_finite(facts(STEP, readings=[left_out] * 2)) is None
    found = non_finite(facts(STEP, readings=[left_out] * 20))
    assert found is not None
    assert "20 updates skipped (20.0% of all)" in found.evidence


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([SETUP, replace(WORK, flops_by_dtype={"float32": 10**12})], "covers 0.0%"),
        ([replace(SETUP, scaler=True)], "GradScaler without float16"),
        ([replace(ON_CPU, loaders=(LOADER,))], "pin_memory=True without a GPU"),
        (
            [SETUP, replace(COMPILED, graphs=0, calls=2, place="/home/me/train.py:41")],
            "called 2 times (last at train.py:41) and compiled nothing",
        ),
    ],
)
def test_a_setting_without_effect_is_named(readings: list[object], words: str) -> None:
    found = without_effect(facts(STEP, readings=readings))
    assert found is not None
    assert words in found.evidence[0]
    assert found.bound is None


@pytest.mark.parametrize(
    "readings",
    [[SETUP, WORK], [ON_CPU], [replace(SETUP, scaler=True, autocast="float16")], [], [COMPILED]],
)
def test_settings_that_work_are_left_alone(readings: list[object]) -> None:
    assert without_effect(facts(STEP, readings=readings)) is None


def test_anomaly_detection_that_is_on_is_named_with_what_it_slows() -> None:
    on = replace(ON_CPU, anomaly_detection=True)
    found = debugging_left_on(
        facts({"data": 2_000, "forward": 5_000, "backward": 3_000}, readings=[on])
    )
    assert found is not None
    assert (found.code, found.severity, found.bound) == ("DEBUG001", "warning", None)
    assert "forward and backward, which it slows, took 80.0%" in found.evidence
    assert "remove torch.autograd.set_detect_anomaly(True)" in found.remedy[0]


@pytest.mark.parametrize("readings", [[], [ON_CPU]])
def test_without_anomaly_detection_nothing_is_said_of_it(readings: list[object]) -> None:
    assert debugging_left_on(facts(STEP, readings=readings)) is None
