"""A study of settings as one page: the table of cumulative gains, and a plot of it."""

import math
from pathlib import Path
from typing import Final

from pitstop.records.tuning.study import GainRow, Tuning
from pitstop.records.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    rate_text,
    seconds_text,
    speedup_text,
)
from pitstop.report.page.blocks import (
    Cell,
    Chart,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.html import Page, write_single_page
from pitstop.report.page.svg import Described, Svg, drawing, element, percent
from pitstop.report.tuning import ending_lines, result_line

_ROW: Final = 44
"""Pixels of a row of the plot: its name above its bar."""
_BAR: Final = 16
_NAME: Final = 14
_LONGEST: Final = 0.86
"""Share of the width that the largest gain takes; its number stands behind it."""


def write_tuning_page(tuning: Tuning, output: Path) -> None:
    """Write a study as a self-contained page.

    Raises:
        RecordError: The page cannot be written.
    """
    is_faster = len(tuning.rows) > 1
    page = Page(
        title=tuning.source,
        origin=(),
        source=tuning.source,
        outcome="faster" if is_faster else "no gain",
        message=result_line(tuning),
        figures=None,
        sections=(_gains_section(tuning),),
        notes=tuning.notes,
        absent=(),
        basis="Every row was measured in turns with its neighbours, on this machine.",
    )
    write_single_page(page, output)


def _gains_section(tuning: Tuning) -> Section:
    plot = Chart(
        caption="Speed over that of the first row",
        svg=gains_plot(tuning.rows),
        note="A bar is the median of the turns.",
    )
    left_out = [Message(text=f"Not tried: {line}", tone="note") for line in tuning.left_out]
    endings = [Message(text=line) for line in ending_lines(tuning)]
    return Section(
        key="gains",
        title="Cumulative gains",
        blocks=(plot, _table(tuning), *endings, *left_out),
        lead="Each row adds one change to those above.",
    )


def gains_plot(rows: tuple[GainRow, ...]) -> Svg:
    """Draw one bar a row, as long as its speed over that of the first."""
    most = max(row.cumulative_gain for row in rows)
    pieces: list[Svg] = []
    for place, row in enumerate(rows):
        top = place * _ROW
        share = _LONGEST * row.cumulative_gain / most
        bar = {"x": 0, "y": top + _NAME + 4, "width": percent(share), "height": _BAR}
        said = speedup_text(row.cumulative_gain)
        label = {"x": percent(share), "dx": 6, "y": top + _NAME + _BAR, "class_": "label"}
        pieces += [
            element("text", {"x": 0, "y": top + _NAME - 2, "class_": "label"}, _name(row)),
            element("rect", {**bar, "class_": "piece c2"}, element("title", {}, said)),
            element("text", label, said),
        ]
    described = Described(
        key="gains-plot",
        title="Speed over that of the first row",
        description="; ".join(f"{_name(row)} {speedup_text(row.cumulative_gain)}" for row in rows),
    )
    return drawing(described, _ROW * len(rows), pieces)


def _name(row: GainRow) -> str:
    return " ".join(row.overrides) if row.knob else "as given"


def _table(tuning: Tuning) -> Table:
    names = ("a step", "samples/s", "gain", "in turns", "cumulative", "device memory", "loss")
    return Table(
        caption="Every cell was measured",
        columns=named_columns("change", *names, "start", "pays after"),
        rows=tuple(map(_cells, tuning.rows)),
    )


def _cells(row: GainRow) -> tuple[Cell, ...]:
    is_first = not row.knob
    memory = row.peak_device_bytes
    samples = None if row.step_s is None or math.isnan(row.wall_s) else row.step_s / row.wall_s
    # Of a script a sample is a step: its rate says no more than its time.
    has_samples = samples is not None and round(samples) > 1
    spread = f"{speedup_text(row.gain_low)} to {speedup_text(row.gain_high)}"
    start = row.start_s
    return (
        text_cell(_name(row)),
        number_cell(NOT_MEASURED if row.step_s is None else seconds_text(row.step_s), row.step_s),
        number_cell(rate_text(1 / row.wall_s, "samples/s") if has_samples else "", None),
        number_cell("" if is_first else speedup_text(row.gain), row.gain),
        text_cell("" if is_first else spread),
        number_cell("" if is_first else speedup_text(row.cumulative_gain), row.cumulative_gain),
        number_cell(NOT_MEASURED if memory is None else bytes_text(memory), memory),
        text_cell("" if is_first else row.loss or _claim(row)),
        number_cell(NOT_MEASURED if start is None else seconds_text(start), start),
        text_cell("" if row.break_even_steps is None else count_text(row.break_even_steps, "step")),
    )


def _claim(row: GainRow) -> str:
    """Say what stands for the quality where losses were not compared."""
    return "same bits claimed" if row.claim == "exact" else f"{row.claim}: see pitstop verify"
