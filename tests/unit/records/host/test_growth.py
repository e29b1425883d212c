"""A line through readings: exact where they lie on one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.host.growth import line_slope


@given(
    st.lists(st.integers(-1000, 1000), min_size=3, max_size=30, unique=True),
    st.integers(-50, 50),
    st.integers(-1000, 1000),
)
def test_the_slope_of_an_exact_line_is_found_without_error(
    xs: list[int], slope: int, start: int
) -> None:
    found, error = line_slope(xs, [start + slope * x for x in xs])
    assert found == pytest.approx(slope, abs=1e-9)
    assert error == pytest.approx(0, abs=1e-6)
