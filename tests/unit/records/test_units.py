"""Numbers as text: read back they are the number that went in, within what was rounded."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records import units

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SIZES = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
PREFIXES = {unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))}

# Three digits: half of the last one is at most 0.5 % of the number.
ROUNDING = 0.00501


def read_back(text: str, scale: dict[str, float]) -> float:
    """The oracle: add up every "number unit" pair of a text."""
    pairs = re.findall(r"(\d+(?:\.\d+)?) ([a-zA-Z]+)", text)
    assert pairs, text
    total = sum(float(number) * scale[unit] for number, unit in pairs)
    return -total if text.startswith("-") else total


def shown_digits(text: str) -> int:
    return len(re.sub(r"\D", "", text.split()[0]).lstrip("0"))


@given(st.floats(1e-7, 99.94))
def test_short_times_read_back_within_three_digits(seconds: float) -> None:
    text = units.seconds_text(seconds)
    assert read_back(text, SECONDS) == pytest.approx(seconds, rel=ROUNDING)
    assert shown_digits(text) == 3, text


@given(st.floats(99.95, 1e12))
def test_long_times_read_back_within_half_of_their_last_unit(seconds: float) -> None:
    text = units.seconds_text(seconds)
    half = 0.5 if text.endswith("s") else 180 if "." in text else 1800
    assert abs(read_back(text, SECONDS) - seconds) <= half + 1e-3
    assert "e+" not in text


@given(st.floats(1e-7, 1e9))
def test_a_time_below_zero_is_the_same_text_with_a_minus(seconds: float) -> None:
    assert units.seconds_text(-seconds) == f"-{units.seconds_text(seconds)}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-0.0, "0 s"),
        (4e-7, "0.400 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),
        (9.996e-3, "10.0 ms"),
        (99.96e-3, "100 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.81, "1.81 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (572.4, "9 min 32 s"),
        (999.6, "16 min 40 s"),
        (7199.4, "119 min 59 s"),
        (7199.6, "2.0 h"),
        (7529, "2.1 h"),
        (7170 + 3599, "3.0 h"),
        (-2000, "-33 min 20 s"),
        (359_000, "99.7 h"),
        (359_900, "100 h"),
        (3.6e9, "1000000 h"),
        (math.inf, "inf s"),
        (math.nan, "not measured"),
        (None, "not measured"),
    ],
)
def test_times_at_the_borders_of_their_units(seconds: float | None, text: str) -> None:
    assert units.seconds_text(seconds) == text


@given(st.integers(0, 2**63))
def test_sizes_read_back_within_three_digits(count: int) -> None:
    text = units.bytes_text(count)
    if text.endswith(" B"):
        assert text == f"{count} B"
    else:
        assert read_back(text, SIZES) == pytest.approx(count, rel=ROUNDING)
        assert float(text.split()[0]) < 1024 or text.endswith("PiB")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1023.7, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1.5 * 1024**3, "1.50 GiB"),
        (-1.5 * 1024**3, "-1.50 GiB"),
        (5000 * 1024**5, "5000 PiB"),
        (math.nan, "not measured"),
        (None, "not measured"),
    ],
)
def test_sizes_at_the_borders_of_their_units(count: float | None, text: str) -> None:
    assert units.bytes_text(count) == text


@given(st.floats(0.01, 1e17))
def test_rates_read_back_within_three_digits(value: float) -> None:
    number, unit = units.rate_text(value, "FLOP/s").split()
    prefix = unit.removesuffix("FLOP/s")
    assert float(number) * PREFIXES[prefix] == pytest.approx(value, rel=ROUNDING)
    assert float(number) < 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.9e14, "790 TFLOP/s"),
        (999.4, "999 FLOP/s"),
        (999.6, "1.00 kFLOP/s"),
        (0, "0 FLOP/s"),
        (math.nan, "not measured"),
        (None, "not measured"),
    ],
)
def test_rates_at_the_borders_of_their_prefixes(value: float | None, text: str) -> None:
    assert units.rate_text(value, "FLOP/s") == text


@given(st.floats(0, 1))
def test_shares_read_back_within_a_twentieth_of_a_percent(share: float) -> None:
    text = units.share_text(share)
    assert text.endswith("%")
    assert abs(float(text[:-1]) / 100 - share) <= 0.000501


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0201, "+20.1 ms"), (-1.81, "-1.81 s"), (0.0, "0 s")]
)
def test_a_difference_has_its_sign_and_none_has_no_sign(seconds: float, text: str) -> None:
    assert units.signed_seconds_text(seconds) == text


def test_what_is_missing_is_not_shown_as_zero() -> None:
    assert units.share_text(None) == units.share_text(math.nan) == "not measured"
    assert units.speedup_text(None) == "without limit"
    assert units.speedup_text(4 / 3) == "1.33x"


def test_counts_agree_with_their_noun() -> None:
    assert [units.count_text(count, "step") for count in (0, 1, 2, 2222)] == [
        "0 steps",
        "1 step",
        "2 steps",
        "2,222 steps",
    ]
    assert [units.count_text(count, "batch") for count in (1, 2)] == ["1 batch", "2 batches"]
    assert units.count_text(3, "backward pass") == "3 backward passes"


@given(st.floats(-1e12, 1e12))
def test_a_number_is_never_shown_in_exponent_form(value: float) -> None:
    text = units.digits(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=ROUNDING, abs=5e-7)


@given(st.floats(-1e9, 1e9).filter(lambda value: abs(value) > 1e-3))
def test_metrics_read_back_within_five_digits(value: float) -> None:
    text = units.quality_text(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=0.500001e-4)


def test_metrics_at_the_borders_of_their_digits() -> None:
    shown = [units.quality_text(value) for value in (31.23449, 99999.6, 0.999996, 0.0, -2.0)]
    assert shown == ["31.234", "100000", "1.0000", "0", "-2.0000"]


FORMATS = {
    "duration": (units.seconds_text, SECONDS),
    "size": (units.bytes_text, SIZES),
    "rate": (
        lambda value: units.rate_text(value, "x/s"),
        {f"{p}x": n for p, n in PREFIXES.items()},
    ),
    "share": (lambda value: units.share_text(value).replace("%", " percent"), {"percent": 0.01}),
}


@pytest.mark.parametrize("name", FORMATS)
@given(values=st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)))
def test_a_larger_number_is_never_shown_as_a_smaller_one(
    name: str, values: tuple[float, float]
) -> None:
    text, scale = FORMATS[name]
    small, large = (read_back(text(value), scale) for value in sorted(values))
    assert small <= large * (1 + 1e-12)


@pytest.mark.parametrize("name", FORMATS)
@given(st.floats(0, 1e7))
def test_the_same_number_is_the_same_text_whatever_its_type(name: str, value: float) -> None:
    text, _ = FORMATS[name]
    assert text(value) == text(float(np.float64(value))) == text(np.float64(value))


@given(st.floats(0, 1e9))
def test_microseconds_and_seconds_are_shown_alike(microseconds: float) -> None:
    assert units.us_text(microseconds) == units.seconds_text(microseconds / 1e6)


def test_a_share_has_its_error_where_that_is_worth_a_digit() -> None:
    assert units.share_text(0.232) == units.share_text(0.232, 0.0004) == "23.2%"
    assert units.share_text(0.232, 0.011) == "23.2% ± 1.1%"
    assert units.change_text(0.1) == "+10.0%"
    assert units.change_text(-0.1) == "-10.0%"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (123456.0, "123,456"), (1.23456e-6, "0.000001235"), (12.3449, "12.34")],
)
def test_a_value_of_a_log_is_shown_as_the_log_prints_it(value: float, text: str) -> None:
    assert units.logged_text(value) == text
