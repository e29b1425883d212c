"""How a run went on: step time, throughput, data wait and loss, with what happened in between."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.records.logs.windows import Kind, WindowTable
from pitstop.records.run import Array, StepTable
from pitstop.records.units import (
    NOT_MEASURED,
    count_text,
    digits,
    quality_text,
    rate_text,
    seconds_text,
    share_text,
)
from pitstop.report.page.blocks import (
    Cell,
    Chart,
    LegendEntry,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.charts import Axes, Format, Line, Mark, lines
from pitstop.report.page.run import RunView
from pitstop.report.page.series import Series, rates, shortened

MARKED: Final = ("evaluation", "checkpoint", "epoch boundary", "resume")
_MARK_COLOURS: Final = {
    "evaluation": "m-evaluation",
    "checkpoint": "m-checkpoint",
    "epoch boundary": "m-epoch",
    "resume": "m-resume",
}
_TRAINING: Final[tuple[Kind, ...]] = ("train", "epoch start", "after eval", "after checkpoint")
_QUALITY: Final = "eval/"
_MOST_EVALUATIONS: Final = 60
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OverTime:
    """A chart over the steps, before it is drawn."""

    key: str
    title: str
    series: Series
    axes: Axes
    how: str
    colour: str = "c2"


def whole(value: float) -> str:
    """A step's number."""
    return f"{value:,.0f}"


def over_time_section(view: RunView) -> Section | None:
    """What changed while the run went on; extremes are kept however long it was."""
    found = (
        *_step_charts(view.rank.steps),
        *_window_charts(view.rank.windows),
        *_loss_charts(view),
    )
    charts = [_chart(view, one) for one in found if len(one.series)]
    if not charts:
        return None
    marks = marks_of(view)
    legend = tuple(
        LegendEntry(name=name, colour=_MARK_COLOURS[name])
        for name in dict.fromkeys(mark.name for mark in marks)
    )
    blocks = [*charts, *_evaluations(view)]
    lead = "The line is the median of a window, the band reaches from its lowest to its highest."
    if view.total_name:
        lead += f" Of {view.total_name}."
    return Section(
        key="over-time", title="Over time", lead=lead, blocks=tuple(blocks), legend=legend
    )


def marks_of(view: RunView) -> list[Mark]:
    """Evaluations, checkpoints and the like, at their steps."""
    return [
        Mark(x=float(event.step), name=event.name, colour=_MARK_COLOURS[event.name])
        for event in view.rank.events
        if event.name in MARKED
    ]


def step_times(view: RunView) -> Series | None:
    """Wall clock of the steps, warm-up included; of a log, of its windows."""
    windows, table = view.rank.windows, view.rank.steps
    if windows is not None:
        rows = windows.of_kind(*_TRAINING)
        return _or_none(shortened(windows.last_step[rows], windows.step_s[rows]))
    if table is None or len(table) < _FEWEST:
        return None
    return _or_none(shortened(table.index, table.wall_us / 1e6))


def losses(view: RunView) -> Series | None:
    """The loss where it was read."""
    found = view.rank.scalars.get("loss")
    return None if found is None else _or_none(shortened(found.step, found.value))


def _or_none(series: Series) -> Series | None:
    return series if len(series) else None


def _step_charts(table: StepTable | None) -> Iterable[_OverTime]:
    if table is None or len(table) < _FEWEST:
        return
    walls = shortened(table.index, table.wall_us / 1e6)
    yield _OverTime(
        key="over-time-step",
        title="Time of a step",
        series=walls,
        axes=_axes(seconds_text),
        how="measured, what lies between the steps left out",
    )
    yield _OverTime(
        key="over-time-rate",
        title="Throughput",
        series=_throughput(table),
        axes=_axes(lambda value: rate_text(value, "samples/s")),
        how="measured on the wall clock, what lies between the steps included; this rank",
    )
    waits = _data_shares(table)
    if waits is not None:
        yield _OverTime(
            key="over-time-wait",
            title="Waiting for data",
            series=waits,
            axes=Axes(y_text=share_text, x_text=whole, x_name="step", top=1.0),
            how="of each step's wall clock; measured",
            colour="c0",
        )


def _throughput(table: StepTable) -> Series:
    return rates(table.index, table.samples, (table.wall_us + table.outside_us) / 1e6)


def _data_shares(table: StepTable) -> Series | None:
    if ("data",) not in table.paths:
        return None
    waited = table.host_us[:, table.paths.index(("data",))]
    shares = np.divide(
        waited, table.wall_us, out=np.full(len(table), np.nan), where=table.wall_us > 0
    )
    return _or_none(shortened(table.index, shares))


def _window_charts(windows: WindowTable | None) -> Iterable[_OverTime]:
    if windows is None:
        return
    rows = windows.of_kind(*_TRAINING)
    for column, key, title, text in (
        ("step_s", "over-time-step", "Time of a step", seconds_text),
        ("samples_per_s", "over-time-rate", "Printed samples/s", digits),
        ("data_s", "over-time-wait", "Waiting for data, a step", seconds_text),
    ):
        values: Array = getattr(windows, column)
        yield _OverTime(
            key=key,
            title=title,
            series=shortened(windows.last_step[rows], values[rows]),
            axes=_axes(text),
            how=_origin(windows, column),
            colour="c0" if column == "data_s" else "c2",
        )


def _origin(windows: WindowTable, column: str) -> str:
    note = windows.note(column)
    formula = f" ({note.formula})" if note.formula else ""
    return f"{note.meaning}, {note.source}{formula}"


def _loss_charts(view: RunView) -> Iterable[_OverTime]:
    series = losses(view)
    if series is None:
        return
    missing = "" if not series.missing else f"; {count_text(series.missing, 'value')} not finite"
    yield _OverTime(
        key="over-time-loss",
        title="Loss",
        series=series,
        axes=Axes(y_text=digits, x_text=whole, x_name="step", from_zero=False),
        how=f"as the run read it, {count_text(series.values, 'time')}{missing}",
        colour="c3",
    )


def _axes(text: Format) -> Axes:
    return Axes(y_text=text, x_text=whole, x_name="step")


def _chart(view: RunView, values: _OverTime) -> Chart:
    title = values.title
    drawn = [Line(name=title, series=values.series, colour=values.colour)]
    svg = lines(values.key, f"{title} over the steps", drawn, values.axes, marks=marks_of(view))
    return Chart(caption=title, svg=svg, note=values.how, half=True)


def _evaluations(view: RunView) -> Iterable[Table | Message]:
    metrics = {
        name.removeprefix(_QUALITY): series
        for name, series in view.rank.scalars.items()
        if name.startswith(_QUALITY)
    }
    if not metrics:
        return
    by_step: dict[int, dict[str, float]] = {}
    for name, series in metrics.items():
        for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
            by_step.setdefault(int(step), {})[name] = value
    steps = sorted(by_step)[-_MOST_EVALUATIONS:]
    rows = tuple(
        (
            number_cell(f"{step:,}", step),
            *(_quality_cell(by_step[step].get(name)) for name in metrics),
        )
        for step in steps
    )
    yield Table(
        caption="Evaluations",
        columns=named_columns("step", *metrics),
        rows=rows,
        note="Measured on the evaluation data; one reading each.",
        sortable=len(rows) > 1,
        left_out=len(by_step) - len(steps),
    )


def _quality_cell(value: float | None) -> Cell:
    return text_cell(NOT_MEASURED) if value is None else number_cell(quality_text(value), value)
