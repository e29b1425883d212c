import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.quantity import Estimated, Measured, measured

finite = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=20))
def test_a_measurement_lies_inside_its_own_spread(repeats: list[float]) -> None:
    found = measured(repeats, "B/s")
    assert found is not None
    ordered = sorted(repeats)
    assert (found.low, found.high, found.samples) == (ordered[0], ordered[-1], len(ordered))
    assert found.value == statistics.median(ordered)


def test_no_repeats_is_not_a_measurement_of_zero() -> None:
    assert measured([], "B/s") is None


def test_a_repeat_that_is_no_number_spoils_the_measurement() -> None:
    assert measured([1.0, float("nan")], "B/s") is None
    assert measured([1.0, float("inf")], "B/s") is None


def test_a_single_reading_claims_no_spread() -> None:
    assert Measured(value=3.0, unit="B/s", low=3.0, high=3.0, samples=1).spread is None
    assert Measured(value=4.0, unit="B/s", low=3.0, high=5.0, samples=2).spread == 0.5


def test_a_value_outside_its_spread_is_refused() -> None:
    with pytest.raises(ValueError, match="not a measurement"):
        Measured(value=6.0, unit="B/s", low=1.0, high=5.0, samples=3)


@pytest.mark.parametrize("error", [-1.0, float("nan"), float("inf")])
def test_an_estimate_that_hides_its_error_is_refused(error: float) -> None:
    with pytest.raises(ValueError, match="needs an error"):
        Estimated(value=1.0, unit="s", error=error)


def test_measured_and_estimated_numbers_are_never_equal() -> None:
    guess = Estimated(value=1.0, unit="s", error=0.0)
    fact = Measured(value=1.0, unit="s", low=1.0, high=1.0, samples=1)
    assert guess != fact
