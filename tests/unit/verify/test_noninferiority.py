"""The test that decides about quality, against hand-worked figures and simulated runs."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.verify.noninferiority import Question, judge_noninferiority

if TYPE_CHECKING:
    from pitstop.records.verify.quality import NonInferiority

PSNR = Question(metric="psnr", higher_is_better=True, margin=0.3, margin_from="given")
ERROR = Question(metric="error", higher_is_better=False, margin=0.3, margin_from="given")
APART = Question(
    metric="psnr", higher_is_better=True, margin=0.3, margin_from="given", paired=False
)


def test_a_hand_worked_example() -> None:
    # Gains 0.1, -0.1, 0.0, 0.1, -0.1: mean 0, spread 0.1, error 0.0447; t = 0.3 / 0.0447 = 6.708.
    found = judge_noninferiority(PSNR, [30.0] * 5, [30.1, 29.9, 30.0, 30.1, 29.9])
    assert found.gain == pytest.approx(0.0, abs=1e-12)
    assert found.low == pytest.approx(-2.132 * 0.044721, abs=1e-4)
    assert found.p_value == pytest.approx(0.00129, abs=2e-5)
    assert found.outcome == "passes"
    assert found.more_seeds is None


def test_a_candidate_worse_by_more_than_the_margin_fails() -> None:
    found = judge_noninferiority(PSNR, [30.0, 30.1, 29.9], [29.4, 29.6, 29.3])
    assert (found.outcome, found.more_seeds) == ("fails", None)
    assert found.gain < -0.3


def test_where_lower_is_better_a_rise_is_a_loss() -> None:
    assert judge_noninferiority(ERROR, [1.0, 1.1, 0.9], [1.6, 1.65, 1.52]).outcome == "fails"
    assert judge_noninferiority(ERROR, [1.0, 1.1, 0.9], [0.6, 0.65, 0.52]).outcome == "passes"


def test_noise_leaves_it_undecided_and_says_how_many_seeds_are_missing() -> None:
    found = judge_noninferiority(PSNR, [30.0, 30.5, 29.5], [30.4, 29.9, 30.0])
    assert found.outcome == "undecided"
    assert found.more_seeds is not None
    assert 1 <= found.more_seeds < 100
    assert found.power is not None
    assert found.power < 0.5


def test_one_run_each_decides_nothing() -> None:
    found = judge_noninferiority(PSNR, [30.0], [31.0])
    assert (found.outcome, found.p_value, found.power) == ("undecided", None, None)


def test_runs_that_agree_to_the_bit_pass() -> None:
    found = judge_noninferiority(PSNR, [30.0, 31.0], [30.0, 31.0])
    assert (found.outcome, found.p_value, found.power) == ("passes", 0.0, 1.0)


def test_a_margin_below_the_noise_has_no_number_of_seeds() -> None:
    tiny = Question(metric="psnr", higher_is_better=True, margin=1e-6, margin_from="given")
    found = judge_noninferiority(tiny, [30.0, 31.0, 29.0], [31.0, 29.0, 30.0])
    assert (found.outcome, found.more_seeds) == ("undecided", None)


@given(
    values=st.lists(st.floats(-50, 50), min_size=2, max_size=8),
    shift=st.floats(-2, 2),
    scale=st.floats(0.1, 10),
)
def test_the_verdict_does_not_depend_on_the_unit(
    values: list[float], shift: float, scale: float
) -> None:
    other = [value + shift + 0.01 * place for place, value in enumerate(values)]
    wide = Question(metric="x", higher_is_better=True, margin=0.3 * scale, margin_from="given")
    one = judge_noninferiority(PSNR, values, other)
    same = judge_noninferiority(wide, [scale * v for v in values], [scale * v for v in other])
    assert one.p_value == pytest.approx(same.p_value, abs=1e-6)


def rates(true_gain: float, question: Question, *, seeds: int = 5) -> dict[str, float]:
    """Outcomes of 400 simulated comparisons with a spread of 0.2 in each run."""
    rng = np.random.default_rng(1)
    outcomes: list[NonInferiority] = []
    for _ in range(400):
        base = 30 + 0.2 * rng.standard_normal(seeds)
        candidate = 30 + true_gain + 0.2 * rng.standard_normal(seeds)
        outcomes.append(judge_noninferiority(question, base.tolist(), candidate.tolist()))
    found = [one.outcome for one in outcomes]
    power = float(np.mean([one.power for one in outcomes if one.power is not None]))
    return {name: found.count(name) / 400 for name in set(found)} | {"power": power}


@pytest.mark.parametrize("question", [PSNR, APART], ids=["paired", "unpaired"])
def test_harm_at_the_margin_passes_in_one_of_twenty_at_most(question: Question) -> None:
    # Three standard errors of a share of 5 % over 400 draws are 3 %.
    assert rates(-0.3, question).get("passes", 0.0) <= 0.085
    assert rates(-1.0, question).get("passes", 0.0) == 0.0


def test_the_stated_power_is_about_how_often_an_equal_candidate_passes() -> None:
    found = rates(0.0, PSNR, seeds=12)
    assert found["passes"] == pytest.approx(found["power"], abs=0.08)
    assert found["passes"] > 0.8
