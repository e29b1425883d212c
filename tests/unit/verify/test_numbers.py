"""Losses and gradients of two runs, and what a change claims of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.keys import every_key, section_classes
from pitstop.config.load import config_from
from pitstop.config.workloads.kinds import KINDS
from pitstop.records.verify.quality import QualityPoint
from pitstop.records.verify.trial import TrialResult
from pitstop.verify.claims import EXACT, ROUNDING, changed_settings, claim_of
from pitstop.verify.numbers import MOST_RATIO, compare_exactly, compare_numerically
from tests.unit.verify.workload import HARMLESS, HARMS, SETTINGS, SIGNAL

RNG = np.random.default_rng(0)
GRADIENT = {"0": RNG.standard_normal((5, 3)), "1": RNG.standard_normal(7)}
OTHER = {"0": RNG.standard_normal((5, 3)), "1": RNG.standard_normal(7)}


def result(*losses: float | None, psnr: float = 30.0) -> TrialResult:
    point = QualityPoint(step=len(losses), samples=None, wall_s=None, value=psnr)
    return TrialResult(
        label="run",
        status="finished",
        reason="",
        wall_s=1.0,
        losses=dict(enumerate(losses)),
        metrics={"psnr": (point,)},
    )


def test_the_last_bit_of_one_loss_is_a_difference() -> None:
    found = compare_exactly(result(1.0, 2.0), result(1.0, math.nextafter(2.0, 3.0)))
    assert (found.values, found.equal, found.is_equal) == (3, 2, False)
    assert found.first_difference is not None
    assert "loss of step 1" in found.first_difference


def test_a_metric_or_a_missing_step_is_a_difference() -> None:
    assert not compare_exactly(result(1.0), result(1.0, psnr=29.0)).is_equal
    assert not compare_exactly(result(1.0, 2.0), result(1.0)).is_equal
    assert compare_exactly(result(1.0, 2.0), result(1.0, 2.0)).is_equal


def test_runs_that_recorded_nothing_are_not_equal() -> None:
    nothing = TrialResult(label="run", status="finished", reason="", wall_s=1.0)
    assert not compare_exactly(nothing, nothing).is_equal


def ratio_of(changed: dict[str, np.ndarray]) -> float:
    runs = result(1.0), result(1.0), result(2.0)
    return compare_numerically(*runs, ([GRADIENT], [changed], [OTHER])).gradient_ratios[0]


@given(scale=st.floats(0.01, 10))
def test_a_scaled_gradient_is_as_far_as_its_scale(scale: float) -> None:
    squares = sum(np.sum(GRADIENT[k] ** 2) for k in GRADIENT)
    apart = math.sqrt(sum(np.sum((GRADIENT[k] - OTHER[k]) ** 2) for k in GRADIENT))
    expected = abs(scale - 1) * math.sqrt(squares) / apart
    changed = {name: scale * value for name, value in GRADIENT.items()}
    assert ratio_of(changed) == pytest.approx(expected, rel=1e-9)


def test_rounding_is_within_the_limit_and_a_forgotten_division_is_not() -> None:
    rounded = {name: value.astype(np.float16) for name, value in GRADIENT.items()}
    assert ratio_of(rounded) < MOST_RATIO / 10
    assert ratio_of({name: 4 * value for name, value in GRADIENT.items()}) > MOST_RATIO


def test_gradients_of_another_shape_or_not_finite_are_infinitely_far() -> None:
    assert ratio_of({"0": GRADIENT["0"]}) == math.inf
    assert ratio_of({**GRADIENT, "1": np.full(7, np.nan)}) == math.inf


def test_a_loss_that_is_not_finite_is_infinitely_far() -> None:
    found = compare_numerically(result(1.0), result(None), result(2.0), ([], [], []))
    assert found.loss_ratio == math.inf


def claim(settings: tuple[str, ...]) -> str:
    base, changed = (
        config_from(SETTINGS, one, kinds={"signal": SIGNAL}).config for one in ((), settings)
    )
    return claim_of(changed_settings(base, changed))


def test_claims_of_the_planted_changes() -> None:
    assert {name: claim(settings) for name, (_, settings) in HARMS.items()} == {
        "wrong accumulation scaling": "rounding",
        "fp16 without scaler": "rounding",
        "dropped EMA": "exact",
        "clipped twice": "rounding",
        "augmentation lost": "exact",
        "window changed": "training",
    }
    assert {claim(settings) for settings in HARMLESS.values()} == {"exact", "rounding"}


def test_a_batch_of_another_size_claims_nothing() -> None:
    assert claim(("train.batch_size=8", "train.accumulate=2")) == "rounding"
    assert claim(("train.batch_size=8",)) == "training"
    assert claim(("optimizer.lr=0.1", "loader.workers=1")) == "training"
    assert claim(("run.seed=5",)) == "exact"


def test_the_tables_name_settings_that_there_are() -> None:
    known = {name for kind in KINDS for name in every_key(section_classes(KINDS[kind]))}
    for name in (*EXACT, *ROUNDING):
        assert any(key.startswith(name) if name.endswith(".") else key == name for key in known)
