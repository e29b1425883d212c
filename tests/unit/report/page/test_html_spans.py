"""Rows of spans: every part lies inside the one around it, and is as wide as its time."""

import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.judge import judge_record
from pitstop.records.script import Modules, ModuleTime
from pitstop.report.page.blocks import Chart
from pitstop.report.page.parts import kind_colours, modules_section
from pitstop.report.page.run import RunView, view_of
from pitstop.report.page.spans import Lane, Level, Pass, Piece, icicle, lanes
from pitstop.report.page.svg import Described
from tests.unit.doctor.records import rank, run_of

DESCRIBED = Described(key="k", title="title", description="description")


def viewed_with(reading: object) -> RunView:
    return view_of(judge_record(run_of(rank({"forward": 10_000}, readings=(reading,)))))


def levels(most_us: int, depth: int) -> st.SearchStrategy[tuple[Level, ...]]:
    """Parts whose times fit into one of `most_us`."""

    def cut(shares: list[int]) -> st.SearchStrategy[tuple[Level, ...]]:
        whole = sum(shares) * 2
        times = [max(1, most_us * share // whole) for share in shares]
        inside = [st.just(()) if depth == 1 else levels(us, depth - 1) for us in times]
        return st.tuples(*inside).map(
            lambda found: tuple(
                Level(name=f"p{n}", size=us, colour="c2", text=f"{depth}.{n}: {us}", inside=within)
                for n, (us, within) in enumerate(zip(times, found, strict=True))
            )
        )

    return st.lists(st.integers(1, 9), min_size=1, max_size=3).flatmap(cut)


def rectangles(text: str) -> Iterator[tuple[float, float, float, str]]:
    """Start, end, height and text of every piece, in percent and pixels."""
    found = re.findall(
        r'<rect x="([\d.]+)%" width="([\d.]+)%" y="([\d.]+)" height="[\d.]+" '
        r'class="piece[^"]*"><title>([^<]*)</title>',
        text,
    )
    for x, width, y, said in found:
        yield float(x), float(x) + float(width), float(y), unescape(said)


@given(levels(1_000_000, 3))
def test_a_part_lies_inside_the_one_above_it_and_is_as_wide_as_its_time(
    outermost: tuple[Level, ...],
) -> None:
    drawn = icicle(DESCRIBED, [Pass(name="forward", outermost=outermost)], most_levels=3)
    whole = sum(level.size for level in outermost)
    rows: dict[float, list[tuple[float, float]]] = {}
    for start, end, y, said in rectangles(drawn.text):
        us = int(said.partition(": ")[2])
        assert abs((end - start) - max(100 * us / whole, 0.08)) < 0.011, "two digits of percent"
        rows.setdefault(y, []).append((start, end))
    above: list[tuple[float, float]] = [(0.0, 100.0)]
    for _, row in sorted(rows.items()):
        for start, end in row:
            # The thinnest are drawn a little wider than they are, to be seen at all.
            assert any(left - 0.02 <= start and end <= right + 0.1 for left, right in above)
        ends = sorted(row)
        assert all(one[1] <= other[0] + 0.1 for one, other in pairwise(ends))
        above = row


def test_both_passes_are_on_one_scale() -> None:
    half = Level(name="a", size=50, colour="c2", text="half")
    whole = Level(name="a", size=100, colour="c2", text="whole")
    passes = [Pass(name="forward", outermost=(half,)), Pass(name="backward", outermost=(whole,))]
    drawn = icicle(DESCRIBED, passes, most_levels=3)
    widths = {said: end - start for start, end, _, said in rectangles(drawn.text)}
    assert widths == {"half": 50.0, "whole": 100.0}


def test_levels_beyond_the_deepest_are_left_out() -> None:
    inner = Level(name="inner", size=10, colour="c2", text="inner")
    outer = Level(name="outer", size=10, colour="c2", text="outer", inside=(inner,))
    one = Pass(name="forward", outermost=(outer,))
    assert "inner" not in icicle(DESCRIBED, [one], most_levels=1).text
    assert "inner" in icicle(DESCRIBED, [one], most_levels=2).text


def test_a_window_tells_the_script_what_it_spans() -> None:
    piece = Piece(name="data", start=0.25, end=0.5, colour="c0", text="data: 1 ms")
    drawn = lanes(DESCRIBED, [Lane(name="host", pieces=(piece,))], ticks=("0", "4"), span_us=4000)
    assert 'class="zoom" data-us="4000"' in drawn.text
    assert list(rectangles(drawn.text)) == [(25.0, 50.0, 15.0, "data: 1 ms")]


def test_colours_go_to_the_kinds_that_take_longest_by_themselves() -> None:
    def module(kind: str, us: int, parent: int | None = None) -> ModuleTime:
        return ModuleTime(name=kind, kind=kind, forward_us=us, backward_us=None, parent=parent)

    # The wrapper has all of the time and none of its own.
    modules = [module("Wrapper", 100), module("Conv2d", 70, 0), module("ReLU", 30, 0)]
    assert list(kind_colours(modules)) == ["Conv2d", "ReLU", "Wrapper"]
    many = [module(f"K{number}", number) for number in range(1, 20)]
    assert list(kind_colours(many)) == [f"K{number}" for number in range(19, 11, -1)]


def test_modules_of_a_list_stand_in_its_order() -> None:
    def module(name: str, us: int, parent: int | None) -> ModuleTime:
        return ModuleTime(name=name, kind="K", forward_us=us, backward_us=None, parent=parent)

    named = [("blocks", 60, None), ("blocks.10", 30, 0), ("blocks.2", 20, 0), ("blocks.0", 10, 0)]
    modules = Modules(step=5, modules=tuple(module(*one) for one in named))
    section = modules_section(viewed_with(modules))
    assert section is not None
    drawn = section.blocks[0]
    assert isinstance(drawn, Chart)
    starts = {said.partition(" ")[0]: start for start, _, _, said in rectangles(drawn.svg.text)}
    assert starts["blocks.0"] < starts["blocks.2"] < starts["blocks.10"]
