"""Robust numbers against oracles that know nothing of weights, ranks or blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs.statistics import (
    change_point,
    is_coarse,
    middle_of,
    quantile,
    quartiles,
    slope,
)

times = st.lists(st.floats(0.001, 1000), min_size=1, max_size=30)


@given(times, st.data(), st.sampled_from([0.25, 0.5, 0.75]))
def test_a_record_counts_as_often_as_it_covers_steps(
    values: list[float], data: st.DataObject, share: float
) -> None:
    weights = data.draw(
        st.lists(st.integers(1, 9), min_size=len(values), max_size=len(values)), label="steps"
    )
    written_out = np.repeat(values, weights)
    expected = np.quantile(written_out, share, method="inverted_cdf")
    assert quantile(np.array(values), np.array(weights, float), share) == expected


@given(times)
def test_quartiles_are_values_that_occur_and_stand_in_order(values: list[float]) -> None:
    low, middle, high = quartiles(np.array(values), np.ones(len(values)))
    assert low <= middle <= high
    assert {low, middle, high} <= set(values)


@given(st.integers(8, 40), st.integers(8, 40), st.floats(1.5, 20), st.integers(0, 2**32 - 1))
def test_a_jump_is_found_where_it_is(early: int, late: int, times: float, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.95, 1.05, early + late)
    values = noise * np.where(np.arange(early + late) < early, 1.0, times)
    found = change_point(values)
    assert found is not None
    assert found.row == early
    n = early + late
    at_most = 2 * np.exp(-6 * (early * late) ** 2 / (n**3 + n**2))
    assert found.chance <= at_most * (1 + 1e-9), "the statistic at the jump itself is early * late"


def test_the_chance_of_ten_small_before_ten_large_is_pettitts() -> None:
    found = change_point(np.concatenate([np.arange(10.0), 100 + np.arange(10.0)]))
    assert found is not None
    assert found.chance == pytest.approx(2 * np.exp(-6 * 100**2 / (20**3 + 20**2)))


def test_single_spikes_do_not_move_a_jump() -> None:
    values = np.where(np.arange(60) < 40, 1.0, 1.5)
    values[[3, 50]] = 100
    found = change_point(values)
    assert found is not None
    assert (found.row, found.chance < 1e-3) == (40, True)


def test_noise_alone_is_seldom_taken_for_a_change() -> None:
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(500):
        found = change_point(rng.normal(size=60))
        alarms += found is not None and found.chance < 0.01
    assert alarms <= 10


@pytest.mark.parametrize("values", [[], [1.0], [2.0] * 30])
def test_what_cannot_differ_has_no_change_point(values: list[float]) -> None:
    assert change_point(np.array(values)) is None


@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(2, 400))
def test_a_line_keeps_its_slope_however_long_it_is(a: float, b: float, n: int) -> None:
    at = np.arange(n, dtype=float)
    assert slope(at, a + b * at) == pytest.approx(b, abs=1e-9)


def test_a_quarter_of_wild_values_does_not_bend_the_slope() -> None:
    at = np.arange(100, dtype=float)
    values = 3 * at
    values[::4] = 1e9
    assert slope(at, values) == pytest.approx(3, rel=0.2)


@given(st.floats(12, 100), st.integers(20, 120), st.integers(30, 200))
def test_a_clock_of_whole_seconds_does_not_bias_the_middle(
    window_s: float, steps: int, rows: int
) -> None:
    step_s = window_s / steps
    seconds = np.floor(np.arange(rows + 1) * steps * step_s)
    values = np.diff(seconds) / steps
    middle, _ = middle_of(values, np.ones(rows))
    rounding_s = 1 / (steps * rows)
    assert abs(middle - step_s) <= max(rounding_s, 0.006 * step_s)


def test_spikes_stay_out_of_the_mean_of_coarse_times() -> None:
    values = np.array([0.26, 0.28] * 20 + [9.0] * 3)
    assert is_coarse(values)
    middle, usual = middle_of(values, np.ones(len(values)))
    assert (middle, usual) == (pytest.approx(0.27), 40)


@pytest.mark.parametrize("values", [[0.361, 0.362] * 20, [0.5] * 40, list(np.linspace(1, 2, 40))])
def test_fine_prints_keep_their_median(values: list[float]) -> None:
    middle, usual = middle_of(np.array(values), np.ones(len(values)))
    assert usual is None
    assert middle in values


def test_one_place_has_no_slope() -> None:
    assert slope(np.ones(5), np.arange(5.0)) is None
