"""Long series made short, scales with round ends, drawings that stay inside their frame."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.units import bytes_text, digits
from pitstop.report.page.charts import Axes, Line, Mark, Segment, bar, lines
from pitstop.report.page.palette import HATCHED, colours
from pitstop.report.page.series import rates, shortened
from pitstop.report.page.svg import Svg, element, number, shown

VALUES = st.lists(
    st.one_of(st.floats(-1e9, 1e9), st.just(float("nan")), st.just(float("inf"))), max_size=400
)


@given(values=VALUES, most=st.integers(1, 40))
def test_every_finite_value_lies_in_a_stretch_and_extremes_are_exact(
    values: list[float], most: int
) -> None:
    array = np.array(values, dtype=float)
    series = shortened(np.arange(len(values), dtype=float), array, most=most)
    known = [value for value in values if np.isfinite(value)]
    assert (series.values, series.missing) == (len(known), len(values) - len(known))
    assert len(series) == min(most, len(known))
    if known:
        assert series.low.min() == min(known)
        assert series.high.max() == max(known)
        assert (series.low <= series.middle).all()
        assert (series.middle <= series.high).all()
        assert (np.diff(series.x) >= 0).all()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10**6)), min_size=1, max_size=200),
    st.integers(1, 30),
)
def test_rates_are_sums_over_sums(pairs: list[tuple[int, int]], most: int) -> None:
    amounts = np.array([amount for amount, _ in pairs], dtype=float)
    times = np.array([time for _, time in pairs], dtype=float)
    series = rates(np.arange(len(pairs), dtype=float), amounts, times, most=most)
    singles = amounts / times
    assert series.low.min() >= singles.min() * (1 - 1e-9)
    assert series.high.max() <= singles.max() * (1 + 1e-9)
    if most == 1:
        assert series.middle[0] == pytest.approx(amounts.sum() / times.sum())


def test_steps_without_a_count_give_no_rate() -> None:
    nothing = rates(np.arange(3.0), np.full(3, np.nan), np.ones(3))
    assert len(nothing) == 0
    assert nothing.missing == 3


def drawn_points(svg: Svg) -> list[tuple[float, float]]:
    """Every point of every path, as across (0 to 1000) and down."""
    paths = re.findall(r' d="M([^"]+)"', svg.text)
    return [
        (float(across), float(down))
        for path in paths
        for across, down in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)
    ]


@given(
    st.lists(st.floats(-1e6, 1e12) | st.floats(-1e307, 1e307), min_size=1, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_no_line_leaves_its_frame(values: list[float], from_zero: bool, binary: bool) -> None:
    series = shortened(np.arange(len(values), dtype=float), np.array(values))
    axes = Axes(
        y_text=bytes_text if binary else digits, x_text=str, x_name="step",
        from_zero=from_zero, binary=binary,
    )  # fmt: skip
    svg = lines("key", "title", [Line(name="one", series=series, colour="c0")], axes, height=170)
    for across, down in drawn_points(svg):
        assert -0.01 <= across <= 1000.01
        assert -0.01 <= down <= 170 - 14 - 22 + 0.01


def test_values_that_no_scale_has_room_for_are_counted_and_not_drawn() -> None:
    series = shortened(np.arange(4.0), np.array([1.0, 1.7e308, -1.7e308, 2.0]))
    assert (series.values, series.missing) == (2, 2)
    assert series.high.max() == 2.0


def test_a_scale_ends_at_a_round_number_above_the_highest() -> None:
    for high, binary, wanted in ((37.3, False, "40.0"), (0.0093, False, "0.0100"),
                                 (3.1 * 2**30, True, "4.00 GiB")):  # fmt: skip
        series = shortened(np.arange(2.0), np.array([0.0, high]))
        text = bytes_text if binary else digits
        axes = Axes(y_text=text, x_text=str, x_name="step", binary=binary)
        svg = lines("key", "title", [Line(name="one", series=series, colour="c0")], axes)
        assert f">{wanted}</text>" in svg.text


@pytest.mark.parametrize(
    ("first", "last", "between"),
    [
        (0, 199, ["50", "100", "150"]),
        (9, 199, ["50", "100", "150"]),
        (0, 60, ["20", "40"]),
        (0, 3, ["1", "2"]),
        (0, 1, []),
    ],
)
def test_between_the_ends_of_a_scale_stand_round_numbers(
    first: int, last: int, between: list[str]
) -> None:
    series = shortened(np.array([first, last], dtype=float), np.ones(2))
    axes = Axes(y_text=digits, x_text=lambda x: f"{x:.0f}", x_name="step")
    drawn = lines("k", "t", [Line(name="a", series=series, colour="c0")], axes).text
    assert re.findall(r'class="label middle[^"]*">([^<]+)<', drawn) == between
    assert [f">step {first}<" in drawn, f">{last}<" in drawn] == [True, True]


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_labels_of_steps_never_touch(first: float, width: float) -> None:
    """Neither those at the ends nor each other, however long they are."""
    series = shortened(np.array([first, first + width]), np.ones(2))
    axes = Axes(y_text=digits, x_text=lambda x: f"+{x:.1f} s", x_name="")
    drawn = lines("k", "t", [Line(name="a", series=series, colour="c0")], axes).text
    places = [
        (float(share) / 100 * 330, len(text) * 6.5)
        for share, text in re.findall(
            r'x="([\d.]+)%"[^>]*class="label middle[^"]*">([^<]+)<', drawn
        )
    ]
    ends = [len(f"+{x:.1f} s") * 6.5 for x in (first, first + width)]
    for centre, wide in places:
        assert ends[0] <= centre - wide / 2
        assert centre + wide / 2 <= 330 - ends[1]


def test_a_single_value_is_a_dot_and_is_told() -> None:
    series = shortened(np.array([7.0]), np.array([3.5]))
    axes = Axes(y_text=digits, x_text=lambda x: f"{x:.0f}", x_name="step")
    svg = lines("key", "title", [Line(name="loss", series=series, colour="c0")], axes)
    assert "dot" in svg.text
    assert "loss: step 7 to 7, median 3.50" in svg.text


def test_many_marks_are_thinned_and_their_true_number_is_told() -> None:
    series = shortened(np.arange(1000.0), np.ones(1000))
    axes = Axes(y_text=digits, x_text=str, x_name="step")
    marks = [Mark(x=float(x), name="evaluation", colour="m-evaluation") for x in range(1000)]
    drawn = [Line(name="one", series=series, colour="c0")]
    svg = lines("key", "title", drawn, axes, marks=marks)
    assert svg.text.count('class="mark') == 80
    assert "evaluation is marked 1000 times" in svg.text


def test_a_bar_says_its_pieces_and_hatches_what_nobody_saw() -> None:
    segments = [
        Segment(name="data <b>", share=0.7, colour="c0", text="7 ms"),
        Segment(name="unaccounted", share=0.3, colour=HATCHED, text="3 ms"),
    ]
    svg = bar("step", "A step", segments)
    assert "data &lt;b&gt; 7 ms; unaccounted 3 ms." in svg.text
    assert 'fill="url(#step-hatch)"' in svg.text
    assert 'id="step-hatch"' in svg.text


def test_a_piece_of_a_few_pixels_has_no_border_that_hides_it() -> None:
    pieces = [("long", 0.998), ("short", 0.002)]
    segments = [Segment(name=name, share=share, colour="c2", text="") for name, share in pieces]
    assert re.findall(r'class="(piece [^"]+)"', bar("k", "t", segments).text) == [
        "piece c2",
        "piece c2 thin",
    ]


def test_a_part_has_one_colour_and_no_two_known_parts_share_it() -> None:
    parts = ["data", "forward", "backward", "optimizer", "check", "clip", "mine"]
    found = colours(parts)
    assert len(set(found.values())) == len(parts)
    assert colours(reversed(parts))["data"] == found["data"]


def test_more_unknown_parts_than_colours_share_them() -> None:
    assert len(colours(f"part {n}" for n in range(50))) == 50


def test_text_of_any_kind_becomes_text() -> None:
    assert element("text", {"x": 1.0}, "<a & b>").text == '<text x="1">&lt;a &amp; b&gt;</text>'
    assert element("a", {"class_": '"x"'}).text == '<a class="&quot;x&quot;"/>'
    assert "\x00" not in shown("a\x00b\u202ec")
    assert len(shown("x" * 10_000)) < 600


@given(st.floats(-1e7, 1e7))
def test_coordinates_are_short_and_near(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, abs=0.0051)
    assert "e" not in number(value)
    assert number(value) != "-0"
