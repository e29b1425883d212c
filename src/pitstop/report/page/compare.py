"""Several runs on one page: each against the first, differences beyond noise marked."""

from collections.abc import Iterable
from dataclasses import dataclass

from pitstop.doctor.judge import JudgedRuns
from pitstop.doctor.thresholds import LEAST_CHANGE
from pitstop.records.comparison import Comparison, PartChange
from pitstop.records.logs.comparison import LogPair
from pitstop.records.units import (
    NOT_MEASURED,
    digits,
    rate_text,
    seconds_text,
    share_text,
    signed_range_text,
    signed_seconds_text,
)
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    LegendEntry,
    Message,
    Section,
    Table,
    number_cell,
    section_of,
    text_cell,
    text_columns,
)
from pitstop.report.page.charts import Axes, Line, bar, legend_of, lines
from pitstop.report.page.over_time import losses, step_times, whole
from pitstop.report.page.palette import run_colour
from pitstop.report.page.run import RunView, quartiles, view_of
from pitstop.report.page.step import segments_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """One run against the first."""

    view: RunView
    result: str
    """Such as ``faster``, or ``not comparable``."""
    message: str
    comparison: Comparison | None = None
    log: LogPair | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunsView:
    """Two runs or more; the first is the measure."""

    views: tuple[RunView, ...]
    pairs: tuple[Pair, ...]


def runs_view(judged: JudgedRuns) -> RunsView:
    """Lay several judged runs out, each beside what its comparison with the first gave."""
    views = tuple(map(view_of, judged.runs))
    pairs = tuple(
        Pair(
            view=view,
            result=pair.result,
            message=pair.message,
            comparison=pair.comparison,
            log=pair.log,
        )
        for view, pair in zip(views[1:], judged.pairs, strict=True)
    )
    return RunsView(views=views, pairs=pairs)


def verdict_of(runs: RunsView) -> tuple[str, str]:
    """The result in a word and in a message."""
    if len(runs.pairs) == 1:
        return runs.pairs[0].result, runs.pairs[0].message
    judged = ", ".join(f"{pair.view.name}: {pair.result}" for pair in runs.pairs)
    return f"{len(runs.views)} runs", f"against {runs.views[0].name}, {judged}"


def side_by_side_section(runs: RunsView) -> Section | None:
    """All runs in one table, and their steps on one scale."""
    timed = [(view, view.facts) for view in runs.views if view.facts is not None]
    timed = [(view, facts) for view, facts in timed if facts.steps and facts.parts_us]
    longest = max((float(facts.wall_us.mean()) for _, facts in timed), default=0.0)
    charts: list[Block] = []
    for place, (view, facts) in enumerate(timed):
        segments = segments_of(view, facts, whole_us=longest)
        mean = seconds_text(float(facts.wall_us.mean()) / 1e6)
        last = place == len(timed) - 1
        charts.append(
            Chart(
                caption=f"{view.name}: a step, {mean} on average",
                svg=bar(f"runs-{place}", f"{view.name}: a step of {mean}", segments, height=30),
                legend=legend_of(segments) if last else (),
            )
        )
    names = ("run", "verdict", "steps", "median step", "IQR", "samples/s", "data wait")
    table = Table(
        caption="Runs in numbers",
        columns=tuple(Column(name=name, is_number=place > 1) for place, name in enumerate(names)),
        rows=tuple(_run_row(view, place) for place, view in enumerate(runs.views)),
        note="Measured after warm-up; bars are means on one scale.",
        sortable=len(runs.views) > 2,
    )
    return Section(key="runs", title="Side by side", blocks=(*charts, table))


def _run_row(view: RunView, place: int) -> tuple[Cell, ...]:
    name = text_cell(view.name, colour=run_colour(place))
    facts = view.facts
    if facts is None:
        return name, *_log_cells(view)
    spread = quartiles(facts.wall_us / 1e6)
    half = "" if spread is None else f"{seconds_text(spread[0])} to {seconds_text(spread[2])}"
    middle = None if spread is None else spread[1]
    rate = None
    if facts.samples is not None and facts.total_us:
        rate = facts.samples * facts.summary.world_size * facts.steps / (facts.total_us / 1e6)
    share = facts.share("data")
    return (
        name,
        text_cell(view.verdict.verdict),
        number_cell(f"{facts.steps:,}", facts.steps),
        number_cell(seconds_text(middle), middle),
        text_cell(half),
        number_cell(rate_text(rate, "samples/s"), rate),
        number_cell(share_text(share), share),
    )


def _log_cells(view: RunView) -> tuple[Cell, ...]:
    assert view.log is not None
    log = view.log.summary
    step, rate = log.step, log.rate
    half = "" if step is None else f"{seconds_text(step.low)} to {seconds_text(step.high)}"
    steps = None if step is None else step.steps
    return (
        text_cell(view.verdict.verdict),
        number_cell("not in the log" if steps is None else f"{steps:,}", steps),
        number_cell(seconds_text(None if step is None else step.middle), step and step.middle),
        text_cell(half),
        number_cell("not known" if rate is None else digits(rate.middle), rate and rate.middle),
        number_cell(share_text(log.data_share), log.data_share),
    )


def differences_section(runs: RunsView) -> Section | None:
    """Each run against the first, part by part."""
    blocks: list[Block] = []
    for pair in runs.pairs:
        text = f"{pair.view.name} against {runs.views[0].name}: {pair.result}; {pair.message}."
        blocks.append(Message(text=text, tone="strong"))
        if pair.comparison is not None:
            blocks += _changes(pair.view.name, pair.comparison)
        if pair.log is not None:
            blocks += [Message(text=note, tone="note") for note in pair.log.notes]
    return Section(key="differences", title="Differences", blocks=tuple(blocks))


def _changes(name: str, comparison: Comparison) -> Iterable[Block]:
    headings = ("part, a step", "before", "after", "difference", "99% CI", "judged")
    yield Table(
        caption=f"Parts of {name} against the first run",
        columns=tuple(
            Column(name=heading, is_number=0 < place < 5) for place, heading in enumerate(headings)
        ),
        rows=tuple(_change_row(change) for change in comparison.parts),
        note="Means a step, measured. Marked where the interval excludes no change and the change "
        f"is {share_text(LEAST_CHANGE / 2)} of the step or more.",
        sortable=len(comparison.parts) > 1,
    )
    if comparison.same_work:
        yield Message(text=f"The same work: {'; '.join(comparison.same_work)}.", tone="note")
    if comparison.not_checked:
        yield Message(text=f"Not checked: {', '.join(comparison.not_checked)}.", tone="note")
    for note in comparison.notes:
        yield Message(text=note, tone="note")


def _change_row(change: PartChange) -> tuple[Cell, ...]:
    cells = (
        text_cell(change.part, strong=change.beyond_noise),
        number_cell(seconds_text(change.before_s), change.before_s),
        number_cell(seconds_text(change.after_s), change.after_s),
    )
    if change.before_s is None or change.after_s is None:
        return (*cells, number_cell(NOT_MEASURED, None), text_cell(""), text_cell(""))
    difference = change.after_s - change.before_s
    within = signed_range_text(change.low_s, change.high_s)
    judged = ""
    if change.beyond_noise:
        judged = "slower, beyond noise" if difference > 0 else "faster, beyond noise"
    return (
        *cells,
        number_cell(signed_seconds_text(difference), difference, strong=change.beyond_noise),
        text_cell(within),
        text_cell(judged, strong=True),
    )


def series_section(runs: RunsView) -> Section | None:
    """Step time and loss of all runs over one another."""
    charts = (
        *_overlay(runs, "series-step", "Time of a step", Axes(
            y_text=seconds_text, x_text=whole, x_name="step")),
        *_overlay(runs, "series-loss", "Loss", Axes(
            y_text=digits, x_text=whole, x_name="step", from_zero=False)),
    )  # fmt: skip
    lead = "The line is the median of a window, the band reaches from its lowest to its highest."
    return section_of("over-time", "Over time", charts, lead=lead)


def _overlay(runs: RunsView, key: str, title: str, axes: Axes) -> Iterable[Chart]:
    read = losses if title == "Loss" else step_times
    drawn = [
        Line(name=view.name, series=series, colour=run_colour(place))
        for place, view in enumerate(runs.views)
        if (series := read(view)) is not None
    ]
    if drawn:
        legend = tuple(LegendEntry(name=line.name, colour=line.colour) for line in drawn)
        svg = lines(key, f"{title} of the runs", drawn, axes, height=200)
        is_log = any(view.log is not None for view in runs.views)
        how = "measured, or as a log tells" if is_log else "measured"
        yield Chart(caption=title, svg=svg, legend=legend, note=how, half=True)


def verdicts_section(runs: RunsView) -> Section | None:
    """Each run's own verdict."""
    rows = tuple(
        (
            text_cell(view.name, colour=run_colour(place)),
            text_cell(view.verdict.outcome),
            text_cell(view.verdict.message),
            text_cell(view.verdict.primary or ""),
        )
        for place, view in enumerate(runs.views)
    )
    table = Table(
        caption="What the doctor says of each",
        columns=text_columns("run", "outcome", "verdict", "finding"),
        rows=rows,
    )
    return Section(key="verdicts", title="Verdict on each", blocks=(table,))
