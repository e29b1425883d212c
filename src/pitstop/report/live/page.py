"""A live view as a page that renews itself; it looks like the report and is escaped like it."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from pitstop.records.units import (
    bytes_text,
    count_text,
    digits,
    rate_text,
    seconds_text,
    share_text,
)
from pitstop.report.live.text import (
    checkpoint_text,
    evaluation_text,
    loss_text,
    range_text,
    state_text,
    step_text,
)
from pitstop.report.live.throughput import NOW_STEPS
from pitstop.report.live.view import LiveView
from pitstop.report.page.blocks import (
    Chart,
    Column,
    Figure,
    Figures,
    Findings,
    LegendEntry,
    ReportedFinding,
    Section,
    Table,
    number_cell,
    text_cell,
)
from pitstop.report.page.charts import Axes, Line, Segment, bar, lines, meter
from pitstop.report.page.palette import colours
from pitstop.report.page.series import shortened
from pitstop.report.page.svg import Svg
from pitstop.report.page.templating import environment, policy_hash, source
from pitstop.report.terminal import limit_text

_SMALL: Final = 0.005
_MOST_RANKS: Final = 256
_TEMPLATE: Final = "live.html.j2"
_INSIDE: Final = "live_view.html.j2"


class LivePage:
    """Renders views; style and script are the same in all of them.

    Args:
        refresh_s: How often an open page asks for the present view.
    """

    def __init__(self, *, refresh_s: float) -> None:
        self._templates = environment()
        self._refresh_ms = max(250, round(refresh_s * 1000))
        self._style = source(self._templates, "page.css") + source(self._templates, "live.css")
        self._script = source(self._templates, "live.js")

    @property
    def policy(self) -> str:
        """What a browser may do: use our style and script, ask us for the view, nothing else."""
        return (
            f"default-src 'none'; img-src data:; style-src '{policy_hash(self._style)}'; "
            f"script-src '{policy_hash(self._script)}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def whole(self, view: LiveView) -> str:
        """The page with a view in it: complete without its script, which only renews it."""
        return self._templates.get_template(_TEMPLATE).render(
            view=view,
            inside=Svg(self.inside(view)),
            style=Svg(self._style),
            script=Svg(self._script),
            refresh_ms=self._refresh_ms,
        )

    def inside(self, view: LiveView) -> str:
        """What changes: everything but the frame."""
        sections = [one for one in _sections(view) if one is not None]
        return self._templates.get_template(_INSIDE).render(
            view=view,
            state=state_text(view),
            bar=_done(view),
            happened=_happened(view),
            step=step_text(view),
            figures=Figures(entries=tuple(_figures(view))),
            sections=sections,
            count_text=count_text,
        )


def _done(view: LiveView) -> Svg | None:
    """How far the run is, as a bar; the text beside it say the same."""
    if view.step is None or not view.total_steps:
        return None
    return meter(view.step / view.total_steps, "c7")


def _happened(view: LiveView) -> tuple[tuple[str, str], ...]:
    return (
        ("evaluation", evaluation_text(view.evaluation)),
        ("checkpoint", checkpoint_text(view.checkpoint)),
    )


def _figures(view: LiveView) -> Iterable[Figure]:
    first = view.first
    steps = 0 if first is None else first.now_steps
    now = f"last {count_text(steps, 'step')}"
    several = f"{len(view.ranks)} of {view.world_size} ranks; " if view.world_size > 1 else ""
    yield Figure(
        name="throughput now",
        value=rate_text(view.samples_per_s, "samples/s"),
        how=f"{several}measured, {now}, pauses included",
    )
    yield Figure(
        name="throughput by the median step",
        value=rate_text(view.steady_samples_per_s, "samples/s"),
        how=f"{several}measured, {count_text(first.steady_steps if first else 0, 'step')}, "
        "within 2%",
    )
    yield Figure(
        name="a step, median",
        value=seconds_text(first.step_s if first else None),
        how=f"measured, {now}",
    )
    yield Figure(
        name="waiting for data",
        value=share_text(first.data_share if first else None),
        how=f"of the step; measured, {now}",
    )
    if view.left is not None:
        yield Figure(name="time left", value=seconds_text(view.left.seconds),
                     how=f"estimated; {range_text(view.left)}")  # fmt: skip
    yield from _memory_figures(view)


def _memory_figures(view: LiveView) -> Iterable[Figure]:
    memory = view.memory
    device = memory.device_peak_bytes if memory else None
    total = memory.device_total_bytes if memory else None
    of = f"of {bytes_text(total)} on {memory.device}" if memory and total is not None else ""
    yield Figure(
        name="device memory, peak",
        value=bytes_text(device),
        how="no reading of a device yet" if device is None else f"{of}; measured".lstrip("; "),
    )
    tree = memory.tree_bytes if memory else None
    host = memory.host_total_bytes if memory else None
    of = "" if host is None else f"of {bytes_text(host)}; "
    yield Figure(
        name="host memory of its processes",
        value=bytes_text(tree),
        how="no reading yet" if tree is None else f"{of}measured, latest reading",
    )


def _sections(view: LiveView) -> Iterable[Section | None]:
    yield _step_section(view)
    yield _loss_section(view)
    yield _ranks_section(view)
    yield _findings_section(view)


def _step_section(view: LiveView) -> Section | None:
    first = view.first
    if first is None or not first.parts:
        return None
    colour = colours(part.name for part in first.parts)
    segments = [
        Segment(
            name=part.name,
            share=part.share,
            colour=colour[part.name],
            text=f"{seconds_text(part.mean_s)}, {share_text(part.share)}",
        )
        for part in first.parts
        if part.share > 0
    ]
    named = [one for one in segments if one.share >= _SMALL]
    chart = Chart(
        caption=f"Parts of the step, mean of the last {count_text(first.now_steps, 'step')}",
        svg=bar("live-step", "The parts of a step now", segments),
        legend=tuple(
            LegendEntry(name=f"{one.name} {one.text}", colour=one.colour) for one in named
        ),
    )
    lead = f"Of rank {first.rank}." if view.world_size > 1 else None
    return Section(key="step", title="The step now", lead=lead, blocks=(chart,))


def _loss_section(view: LiveView) -> Section | None:
    loss = view.loss
    if loss is None or not loss.means:
        return None
    series = shortened(np.array(loss.means_steps, dtype=float), np.array(loss.means))
    axes = Axes(y_text=digits, x_text=_whole, x_name="step", from_zero=False)
    drawn = [Line(name="loss", series=series, colour="c2")]
    chart = Chart(caption=f"Latest: {loss_text(loss)}",
                  svg=lines("live-loss", "Loss over the steps", drawn, axes),
                  note="means of windows of equal length, as read from the run")  # fmt: skip
    return Section(key="loss", title="Loss", blocks=(chart,))


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _ranks_section(view: LiveView) -> Section | None:
    if view.world_size == 1 and len(view.ranks) <= 1:
        return None
    rows = tuple(
        (
            text_cell(f"rank {rank.rank}"),
            text_cell(rank.state),
            number_cell("none" if rank.step is None else f"{rank.step:,}", rank.step),
            number_cell(rate_text(rank.samples_per_s, "samples/s"), rank.samples_per_s),
            number_cell(seconds_text(rank.step_s), rank.step_s),
            number_cell(share_text(rank.data_share), rank.data_share),
        )
        for rank in view.ranks[:_MOST_RANKS]
    )
    names = ("rank", "state", "step", "throughput", "a step, median", "waiting for data")
    table = Table(
        caption=f"Each rank over its last steps, at most {NOW_STEPS}",
        columns=tuple(Column(name=name, is_number=name not in names[:2]) for name in names),
        rows=rows,
        left_out=max(0, len(view.ranks) - _MOST_RANKS),
    )
    return Section(key="ranks", title="Ranks side by side", blocks=(table,))


def _findings_section(view: LiveView) -> Section | None:
    if view.verdict is None or not view.verdict.findings:
        return None
    entries = tuple(
        ReportedFinding(
            finding=finding,
            limit=None if finding.bound is None else limit_text(finding.bound),
            how=f"bound from measured shares of the last {count_text(view.verdict.steps, 'step')}",
        )
        for finding in view.verdict.findings
    )
    return Section(key="findings", title="What was found", blocks=(Findings(entries=entries),))
