"""Distributions against integrals, tables and simulation, none of which share their method."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.verify.distributions import incomplete_beta, power_of_t_test, t_cdf, t_quantile

FREEDOMS = st.floats(1.0, 200.0)


def integrated_t_cdf(t: float, freedom: float) -> float:
    """The trapezoid rule over the density, in an angle that makes the tail finite."""
    # t = sqrt(f) tan(a): the density becomes cos(a)^(f-1), up to a constant.
    angles = np.linspace(-math.pi / 2, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    # cos^0 is 1 at the ends as well, where rounding makes cos a tiny negative number.
    density = np.where(np.isfinite(density), density, 1.0)
    pieces = (density[1:] + density[:-1]) / 2
    total = pieces.sum()
    below = np.interp(
        math.atan(t / math.sqrt(freedom)), angles, np.concatenate([[0.0], np.cumsum(pieces)])
    )
    return float(below / total)


@given(t=st.floats(-30, 30), freedom=FREEDOMS)
def test_the_distribution_is_the_integral_of_its_density(t: float, freedom: float) -> None:
    assert t_cdf(t, freedom) == pytest.approx(integrated_t_cdf(t, freedom), abs=2e-5)


# One-sided critical values as printed in tables of Student's t.
@pytest.mark.parametrize(
    ("share", "freedom", "printed"),
    [
        (0.95, 1, 6.314),
        (0.95, 2, 2.920),
        (0.95, 4, 2.132),
        (0.95, 9, 1.833),
        (0.95, 30, 1.697),
        (0.975, 5, 2.571),
        (0.99, 10, 2.764),
        (0.999, 3, 10.215),
    ],
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: int, printed: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(printed, abs=6e-4)
    assert t_quantile(1 - share, freedom) == pytest.approx(-printed, abs=6e-4)


@given(share=st.floats(1e-6, 1 - 1e-6), freedom=FREEDOMS)
def test_a_quantile_is_where_the_distribution_has_its_share(share: float, freedom: float) -> None:
    assert t_cdf(t_quantile(share, freedom), freedom) == pytest.approx(share, rel=1e-7, abs=1e-9)


@given(a=st.floats(0.5, 50), b=st.floats(0.5, 50), x=st.floats(0, 1))
def test_the_incomplete_beta_function_is_symmetric_and_a_share(
    a: float, b: float, x: float
) -> None:
    value = incomplete_beta(a, b, x)
    assert 0 <= value <= 1 + 1e-12
    assert value + incomplete_beta(b, a, 1 - x) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 40])
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_power_is_how_often_a_simulated_test_rejects(freedom: int, shift: float) -> None:
    rng = np.random.default_rng(freedom)
    draws = rng.standard_normal((100_000, freedom + 1))
    means = draws.mean(axis=1) * math.sqrt(freedom + 1) + shift
    found = means / draws.std(axis=1, ddof=1) > t_quantile(0.95, freedom)
    # Five standard errors of a share over as many draws.
    assert power_of_t_test(shift, freedom, 0.05) == pytest.approx(found.mean(), abs=0.008)
