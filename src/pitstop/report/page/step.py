"""The step: as one bar, as a tree that opens, and as host and device saw it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.records.engine import EngineSetup
from pitstop.records.run import Timeline, TimelineSpan
from pitstop.records.script import Setup
from pitstop.records.summary import SpanSummary
from pitstop.records.units import NOT_MEASURED, count_text, seconds_text, share_text, us_text
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    LegendEntry,
    Message,
    Node,
    Section,
    Table,
    Tree,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.charts import Segment, bar, legend_of, meter
from pitstop.report.page.headroom import device_track_chart
from pitstop.report.page.palette import HATCHED, UNACCOUNTED
from pitstop.report.page.run import RunView, quartiles
from pitstop.report.page.spans import Lane, Piece, lanes
from pitstop.report.page.svg import Described

_MOST_NODES: Final = 300
# Deeper than anybody opens by hand, and shallow enough to be written from within itself.
_MOST_LEVELS: Final = 40
_MOST_TIMELINES: Final = 3
_MOST_PIECES: Final = 160
_SMALL: Final = 0.005
_TINY: Final = 0.0005


def step_section(view: RunView) -> Section | None:
    """Where the time of a step goes; all pieces add up to the wall clock."""
    facts = view.facts
    if facts is None:
        return _shares_of_a_log(view)
    if not facts.steps or not facts.parts_us or not facts.wall_us.sum():
        return _from_blocks(view, facts)
    blocks: list[Block] = [*_bars_of(view, facts), _parts_table(view, facts)]
    tree = _tree(view, facts)
    if tree is not None:
        blocks.append(tree)
    blocks += _outside(facts)
    basis = f"Measured: means of {count_text(facts.steps, 'step')} after warm-up"
    if len(facts.sampled) < facts.steps:
        basis += f", their parts in {len(facts.sampled)} of them"
    rank = f", {view.total_name}" if view.total_name else ""
    lead = f"{basis}{rank}. All pieces together are the wall clock of a step."
    return Section(key="step", title="The step", lead=lead, blocks=tuple(blocks))


def _from_blocks(view: RunView, facts: Facts) -> Section | None:
    """The step by its summaries alone, where rows kept no parts to save space."""
    summary = facts.summary
    top = [span for span in summary.spans if len(span.path) == 1]
    if not top or not summary.wall.total_us:
        return None
    steps = max(1, summary.sampled_steps)
    pieces = {span.path[0]: span.host.total_us / steps for span in top}
    pieces[UNACCOUNTED] = summary.unaccounted.total_us / steps
    wall_us = summary.sampled_wall_us / steps
    segments = [
        view.segment(name, us / wall_us, f"{us_text(us)}, {share_text(us / wall_us)}")
        for name, us in sorted(pieces.items(), key=lambda item: (item[0] == UNACCOUNTED, -item[1]))
    ]
    mean = us_text(wall_us)
    chart = Chart(
        caption=f"One step, {mean} on average",
        svg=bar("step-bar", f"The parts of a step of {mean}", segments),
        legend=legend_of(segments),
    )
    tree = _tree(view, facts)
    counted = count_text(summary.sampled_steps, "step")
    return Section(
        key="step",
        title="The step",
        lead=f"Measured: means of {counted}, warm-up included, for single steps kept no parts.",
        blocks=(chart,) if tree is None else (chart, tree),
    )


def part_times_us(facts: Facts) -> dict[str, float]:
    """Mean time of each part in a step, largest first, and last what no part saw."""
    means = {name: facts.mean_us(times) for name, times in facts.parts_us.items() if times.any()}
    ordered = dict(sorted(means.items(), key=lambda item: -item[1]))
    ordered.pop(UNACCOUNTED, None)
    return {**ordered, UNACCOUNTED: max(0.0, facts.mean_us(facts.unaccounted_us))}


def segments_of(view: RunView, facts: Facts, *, whole_us: float | None = None) -> list[Segment]:
    """The step's parts as pieces of a bar, small ones too.

    Args:
        view: The run, for its colours.
        facts: The rank.
        whole_us: What the whole bar stands for; the step itself unless given.
    """
    shares = facts.shares()
    whole = whole_us or max(float(facts.wall_us.mean()), 1.0)
    return [
        view.segment(name, us / whole, f"{us_text(us)}, {share_text(shares.get(name))}")
        for name, us in part_times_us(facts).items()
        if us > 0 or name == UNACCOUNTED
    ]


def _bars_of(view: RunView, facts: Facts) -> Iterable[Chart]:
    """The step on the host's clock and, where a device has one of its own, on that below it."""
    segments = segments_of(view, facts)
    on_device = _device_segments(view, facts)
    mean = seconds_text(float(facts.wall_us.mean()) / 1e6)
    yield Chart(
        caption=f"One step, {mean} on average{', on the host' if on_device else ''}",
        svg=bar("step-bar", f"The parts of a step of {mean}", segments),
        legend=legend_of(one for one in segments if one.share >= _SMALL),
    )
    if on_device:
        yield Chart(
            caption="The same on the device",
            svg=bar("step-bar-device", "The parts of a step on the device", on_device),
            legend=legend_of(one for one in on_device if one.share >= _SMALL),
            note="The host hands work over and runs ahead: what it waits for is what the device "
            "does. From the first mark of a part to its last, idle gaps included. Measured.",
        )


def _device_segments(view: RunView, facts: Facts) -> list[Segment]:
    device = facts.device
    if device is None or not device.steps or not device.wall_us:
        return []
    shares = {name: us / device.wall_us for name, us in device.parts_us.items() if us > 0}
    # Parts that another one reached into are longer than the step: no pieces of one whole.
    if not shares or sum(shares.values()) > 1 + _SMALL:
        return []
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    rest = 1 - sum(shares.values())
    if rest >= _TINY:
        ordered["between parts"] = rest
    step_us = device.wall_us / device.steps
    return [view.segment(name, share, us_text(share * step_us)) for name, share in ordered.items()]


def _parts_table(view: RunView, facts: Facts) -> Table:
    shares = facts.shares()
    rows = [_part_row(view, facts, name, shares.get(name)) for name in part_times_us(facts)]
    wall = quartiles(facts.wall_us / 1e6)
    assert wall is not None
    rows.append(
        (
            text_cell("all of the step", strong=True),
            _time_cell(float(facts.wall_us.mean()) / 1e6),
            _share_cell(float(facts.wall_us.sum()) / facts.total_us),
            text_cell(f"{seconds_text(wall[0])} to {seconds_text(wall[2])}"),
            number_cell("", None),
            _time_cell(None if facts.device_step_us is None else facts.device_step_us / 1e6),
        )
    )
    return Table(
        caption="The parts in numbers",
        columns=named_columns(
            "part", "mean a step", "of the wall clock", "IQR", "self", "on the device"
        ),
        rows=tuple(rows),
        note="Self is time inside a part and in none of its own parts. The wall clock is that of "
        "the steps and of what lay between them. Measured.",
    )


def _part_row(view: RunView, facts: Facts, name: str, share: float | None) -> tuple[Cell, ...]:
    times = facts.unaccounted_us if name == UNACCOUNTED else facts.parts_us[name]
    mean_s = facts.mean_us(times) / 1e6
    spread = quartiles(times / 1e6)
    assert spread is not None
    inner_s = sum(us for path, us in facts.inner_us.items() if path[0] == name) / facts.steps / 1e6
    device = None
    if facts.device is not None and name in facts.device.parts_us:
        device = facts.device.parts_us[name] / facts.device.steps / 1e6
    is_part = name != UNACCOUNTED
    return (
        text_cell(name, colour=view.colours.get(name, HATCHED)),
        _time_cell(mean_s),
        _share_cell(share),
        text_cell(f"{seconds_text(spread[0])} to {seconds_text(spread[2])}"),
        _time_cell(mean_s - inner_s) if is_part else number_cell("", None),
        _time_cell(device) if is_part else number_cell("", None),
    )


def _time_cell(seconds: float | None) -> Cell:
    return number_cell(seconds_text(seconds), seconds)


def _share_cell(share: float | None) -> Cell:
    return number_cell(share_text(share), share)


def _tree(view: RunView, facts: Facts) -> Tree | None:
    spans = facts.summary.spans
    if not any(len(span.path) > 1 for span in spans):
        return None
    near = [span for span in spans if len(span.path) <= _MOST_LEVELS]
    shown = sorted(near, key=lambda span: -span.host.total_us)[:_MOST_NODES]
    kept = {span.path for span in shown}
    nodes = _nodes(view, _on_one_base([span for span in spans if span.path in kept], facts), ())
    more, deeper = len(near) - len(shown), len(spans) - len(near)
    note = (
        "The whole run, warm-up included, but for shares, which are those of the steps after it; "
        "medians are within 2%. Measured on the host's clock."
    )
    if more:
        note += f" {count_text(more, 'smaller part')} left out."
    if deeper:
        note += f" {count_text(deeper, 'part')} below {_MOST_LEVELS} others left out."
    return Tree(
        caption="Parts inside parts",
        headings=("of wall", "total", "self", "median a step", "calls"),
        nodes=nodes,
        note=note,
    )


def _on_one_base(spans: Sequence[SpanSummary], facts: Facts) -> list[SpanSummary]:
    """Give spans of the whole run the shares that their part has in the rest of the page."""
    shares = facts.shares()
    scales = {
        span.path[0]: shares[span.path[0]] / span.share
        for span in spans
        if len(span.path) == 1 and span.share and span.path[0] in shares
    }
    return [replace(span, share=span.share * scales.get(span.path[0], 1.0)) for span in spans]


def _nodes(view: RunView, spans: Sequence[SpanSummary], above: tuple[str, ...]) -> tuple[Node, ...]:
    depth = len(above)
    return tuple(
        _node(view, span, _nodes(view, _below(spans, span.path), span.path))
        for span in spans
        if len(span.path) == depth + 1
    )


def _below(spans: Sequence[SpanSummary], path: tuple[str, ...]) -> list[SpanSummary]:
    depth = len(path)
    return [span for span in spans if len(span.path) > depth and span.path[:depth] == path]


def _node(view: RunView, span: SpanSummary, children: tuple[Node, ...]) -> Node:
    middle = span.host.quantile_us(0.5)
    colour = view.colours.get(span.path[0], HATCHED)
    return Node(
        name=span.path[-1],
        colour=colour if len(span.path) == 1 else None,
        share=span.share,
        numbers=(
            share_text(span.share),
            us_text(span.host.total_us),
            us_text(span.host_self_us),
            seconds_text(None if middle is None else middle / 1e6),
            NOT_MEASURED if span.calls is None else f"{span.calls:,}",
        ),
        meter=meter(span.share, colour),
        children=children,
    )


def _outside(facts: Facts) -> Iterable[Block]:
    if not facts.outside:
        return
    total = facts.total_us
    rows = tuple(
        (
            text_cell(name),
            number_cell(f"{outside.count:,}", outside.count),
            _time_cell(outside.total_us / 1e6),
            _time_cell(outside.total_us / max(1, outside.count) / 1e6),
            number_cell(share_text(outside.total_us / total), outside.total_us),
        )
        for name, outside in sorted(facts.outside.items(), key=lambda item: -item[1].total_us)
    )
    yield Table(
        caption="What lay between the steps",
        columns=named_columns("outside steps", "times", "total", "mean", "of the wall clock"),
        rows=rows,
        note="Measured, after warm-up; no part of the bar above.",
    )


def _shares_of_a_log(view: RunView) -> Section | None:
    shares = {name: share for name, share in view.verdict.shares.items() if share >= _TINY}
    if not shares:
        return None
    segments = [
        view.segment(name, share, share_text(share))
        for name, share in sorted(shares.items(), key=lambda item: (item[0] == UNACCOUNTED,))
    ]
    chart = Chart(
        caption="The run's wall clock without its start-up, as far as the log tells",
        svg=bar("step-bar", "Shares of the run's wall clock", segments),
        legend=legend_of(segments),
        note="From the log's own times; what it does not tell is hatched.",
    )
    return Section(key="step", title="Where the time goes", blocks=(chart,))


def timeline_section(view: RunView) -> Section | None:
    """Host and device over a few sampled steps."""
    timelines = [one for one in view.rank.timelines if one.spans][-_MOST_TIMELINES:]
    track = device_track_chart(view)
    charts = [_timeline_chart(view, one) for one in timelines]
    if track is not None:
        charts.append(track)
    if not charts:
        return None
    with_device = any(_has_device(one) for one in timelines)
    lead = (
        "Where the parts lay in sampled steps: above on the host's clock, below on the device's."
        if with_device
        else f"Where the parts lay in sampled steps, on the host's clock. {_without_places(view)}"
    )
    title = "Host and device over a few steps"
    if _is_on_cpu(view):
        title, lead = "The host over a few steps", "Where the parts lay in sampled steps."
    note = [Message(text=f"{one.left_out} more spans in step {one.step} were not recorded.",
                     tone="note") for one in timelines if one.left_out]  # fmt: skip
    return Section(
        key="timeline", title=title, lead=lead,
        blocks=(*charts, *note),
    )  # fmt: skip


def _is_on_cpu(view: RunView) -> bool:
    """Whether the run is known to have had no device beside the host."""
    devices = {one.device for one in view.readings("setup", Setup)}
    devices |= {one.device for one in view.readings("engine", EngineSetup)}
    return devices == {"cpu"}


def _without_places(view: RunView) -> str:
    if view.facts is not None and view.facts.device is not None:
        return "Of the device, how long parts took is measured, above; where they lay is not."
    return f"The device's clock: {NOT_MEASURED}."


def _has_device(timeline: Timeline) -> bool:
    return any(span.device_start_us is not None for span in timeline.spans)


def _timeline_chart(view: RunView, timeline: Timeline) -> Chart:
    ends = [max(span.end_us, span.device_end_us or 0) for span in timeline.spans]
    whole = max(1, *ends)
    depths = sorted({len(span.path) for span in timeline.spans})[:3]
    rows = [_host_lane(view, timeline, depth, whole) for depth in depths]
    if _has_device(timeline):
        rows.append(_device_lane(view, timeline, whole))
    top = [span for span in timeline.spans if len(span.path) == 1][:24]
    said = "; ".join(
        f"{span.path[0]} {us_text(span.start_us)} to {us_text(span.end_us)}" for span in top
    )
    title = f"Step {timeline.step:,}, {us_text(whole)}"
    described = Described(
        key=f"timeline-{timeline.attempt}-{timeline.step}",
        title=title,
        description=f"On the host: {said}.",
    )
    ticks = [seconds_text(share * whole / 1e6) for share in np.linspace(0, 1, 3).tolist()]
    legend = [
        LegendEntry(name=name, colour=view.colours.get(name, HATCHED))
        for name in dict.fromkeys(span.path[0] for span in timeline.spans)
    ]
    svg = lanes(described, rows, ticks=ticks, span_us=whole)
    return Chart(caption=title, svg=svg, legend=tuple(legend))


def _host_lane(view: RunView, timeline: Timeline, depth: int, whole: int) -> Lane:
    spans = [span for span in timeline.spans if len(span.path) == depth][:_MOST_PIECES]
    name = "host" if depth == 1 else f"host, {'inside those' if depth == 2 else 'further inside'}"
    return Lane(
        name=name,
        pieces=tuple(_piece(view, span, (span.start_us, span.end_us), whole) for span in spans),
    )


def _device_lane(view: RunView, timeline: Timeline, whole: int) -> Lane:
    pieces = [
        _piece(view, span, (span.device_start_us, span.device_end_us), whole)
        for span in timeline.spans
        if len(span.path) == 1
        and span.device_start_us is not None
        and span.device_end_us is not None
    ]
    return Lane(name="device", pieces=tuple(pieces[:_MOST_PIECES]))


def _piece(view: RunView, span: TimelineSpan, ends_us: tuple[int, int], whole: int) -> Piece:
    start, end = ends_us
    took = seconds_text((end - start) / 1e6)
    name = " / ".join(span.path)
    return Piece(
        name=name,
        start=start / whole,
        end=end / whole,
        colour=view.colours.get(span.path[0], HATCHED),
        text=f"{name}: {took}, from {us_text(start)}",
    )
