"""The verdict with its evidence, and where the gain is."""

from collections.abc import Iterable

from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    digits,
    rate_text,
    seconds_text,
    share_text,
    us_text,
)
from pitstop.records.verdict import Bound, Verdict
from pitstop.report.headroom import small_share
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Figure,
    Figures,
    Findings,
    Message,
    ReportedFinding,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.charts import Lane, Piece, lanes
from pitstop.report.page.run import RunView, quartiles
from pitstop.report.page.svg import Described
from pitstop.report.terminal import limit_text, start_up_text


def headline_figures(view: RunView) -> Figures:
    """The few numbers that stand beside the verdict."""
    entries = _log_figures(view) if view.log is not None else _run_figures(view)
    return Figures(entries=tuple(entries))


def _run_figures(view: RunView) -> Iterable[Figure]:
    facts = view.facts
    assert facts is not None
    basis = f"measured, {count_text(facts.steps, 'step')} after warm-up"
    spread = quartiles(facts.wall_us / 1e6)
    if spread is None:
        yield Figure(name="a step", value=NOT_MEASURED, how="no step after warm-up")
    else:
        low, middle, high = spread
        half = f"IQR {seconds_text(low)} to {seconds_text(high)}"
        yield Figure(name="a step, median", value=seconds_text(middle), how=f"{half}; {basis}")
    yield _rate_figure(view)
    yield _wait_figure(view)
    yield from _headroom_figures(view)
    yield from _memory_figures(view)
    yield from _busy_figures(view)


def _rate_figure(view: RunView) -> Figure:
    facts = view.facts
    assert facts is not None
    if facts.samples is None or not facts.total_us:
        return Figure(name="samples/s", value=NOT_MEASURED, how="samples were not counted")
    world = facts.summary.world_size
    rate = facts.samples * world * facts.steps / (facts.total_us / 1e6)
    whose = "" if world == 1 else f"all {world} ranks; "
    return Figure(
        name="throughput",
        value=rate_text(rate, "samples/s"),
        how=f"{whose}measured on the wall clock, evaluation and checkpoints included",
    )


def _wait_figure(view: RunView) -> Figure:
    facts = view.facts
    assert facts is not None
    share = facts.share("data")
    if share is None:
        return Figure(name="waiting for data", value=NOT_MEASURED, how="no such part was seen")
    error = facts.share_error("data")
    return Figure(
        name="waiting for data",
        value=share_text(share),
        how=f"± {share_text(error)} standard error; measured, of the wall clock",
    )


def _headroom_figures(view: RunView) -> Iterable[Figure]:
    headroom = view.verdict.headroom
    if headroom is None or headroom.flops_share is None or headroom.arithmetic_us is None:
        return
    took, whole = (us_text(us) for us in (headroom.arithmetic_us, headroom.step_us))
    yield Figure(
        name=f"of the device's {headroom.number_format} rate",
        value=small_share(headroom.flops_share),
        how=f"at that rate the arithmetic takes {took} of {whole}; both measured",
    )


def _memory_figures(view: RunView) -> Iterable[Figure]:
    readings = view.readings("memory", MemoryReading)
    peaks = [device.peak_reserved_bytes for one in readings for device in one.devices]
    if peaks:
        how = f"reserved, measured {count_text(len(readings), 'time')}"
        yield Figure(name="device memory, peak", value=bytes_text(max(peaks)), how=how)
    trees = [one.tree.tree_bytes for one in readings if one.tree is not None]
    if trees:
        times = count_text(len(trees), "time")
        how = f"process tree, lowest {bytes_text(min(trees))}; measured {times}"
        yield Figure(name="host memory, most", value=bytes_text(max(trees)), how=how)


def _busy_figures(view: RunView) -> Iterable[Figure]:
    loads = view.readings("load", HostLoad)
    busy = [g.busy_share for one in loads for g in one.gpus if g.busy_share is not None]
    spread = quartiles(busy)
    if spread is not None:
        low, middle, high = spread
        half = f"IQR {share_text(low)} to {share_text(high)}"
        how = f"{half}; measured {count_text(len(busy), 'time')}"
        yield Figure(name="GPU busy, median", value=share_text(middle), how=how)


def _log_figures(view: RunView) -> Iterable[Figure]:
    assert view.log is not None
    log = view.log.summary
    for name, steady, text in (
        ("a step", log.step, seconds_text),
        ("samples/s", log.rate, digits),
        ("waiting for data", log.data_wait, seconds_text),
    ):
        if steady is None:
            yield Figure(name=name, value="not in the log", how="the log does not tell")
            continue
        half = f"IQR {text(steady.low)} to {text(steady.high)}"
        yield Figure(name=name, value=text(steady.middle), how=f"{half}; {steady.formula}")
    if log.eta is not None:
        left = log.eta.seconds
        value = f"{seconds_text(left.value)} ± {seconds_text(left.error)}"
        yield Figure(name="left, estimated", value=value, how=log.eta.formula)


def findings_section(view: RunView) -> Section | None:
    """What was found, each thing with evidence, bound and remedy."""
    verdict = view.verdict
    if not verdict.findings:
        return None
    entries = tuple(
        ReportedFinding(
            finding=finding,
            limit=None if finding.bound is None else limit_text(finding.bound),
            how=f"bound from {_shares_text(view)}",
        )
        for finding in verdict.findings
    )
    return Section(key="findings", title="What was found", blocks=(Findings(entries=entries),))


def _shares_text(view: RunView) -> str:
    return "measured shares" if view.log is None else "shares of the log's own times"


def gain_section(view: RunView) -> Section | None:
    """The most that fixing each thing can give, and all of it together."""
    bounded = [finding for finding in view.verdict.findings if finding.bound is not None]
    if not bounded:
        return None
    rows: list[tuple[Cell, ...]] = []
    for finding in bounded:
        bound = finding.bound
        assert bound is not None
        rows.append(
            (
                text_cell(f"{finding.code} {finding.summary}"),
                number_cell(share_text(bound.saved_share), bound.saved_share),
                number_cell(limit_text(bound), bound.speedup),
                text_cell(f"{share_text(bound.pool_share)}: {bound.pool}"),
            )
        )
    columns = (
        Column(name="finding", is_number=False),
        Column(name="of the wall clock, at most"),
        Column(name="fixed, the run is"),
        Column(name="taken from", is_number=False),
    )
    table = Table(
        caption="The most that fixing each finding can give",
        columns=columns,
        rows=tuple(rows),
        note=f"From {_shares_text(view)}, by Amdahl's law: bounds, and no forecast.",
        sortable=len(rows) > 1,
    )
    blocks = (_gain_chart(view.verdict), table, *_together(view.verdict))
    return Section(key="gain", title="Where the gain is", blocks=blocks)


def _gain_chart(verdict: Verdict) -> Chart:
    bounds = [(one.code, one.bound) for one in verdict.findings if one.bound is not None]
    if verdict.combined_bound is not None and len(bounds) > 1:
        bounds.append(("all warnings together", verdict.combined_bound))
    described = Described(
        key="gain-bars",
        title="Time that fixing each finding can save at most",
        description="; ".join(f"{name} {share_text(b.saved_share)}" for name, b in bounds) + ".",
    )
    rows = [_gain_lane(name, bound) for name, bound in bounds]
    ticks = ("0%", "50% of the wall clock", "100%")
    return Chart(caption="Time that goes at most", svg=lanes(described, rows, ticks=ticks))


def _gain_lane(name: str, bound: Bound) -> Lane:
    text = f"{name}: {share_text(bound.saved_share)} of the wall clock, {limit_text(bound)}"
    piece = Piece(name=name, start=0.0, end=bound.saved_share, colour="c2", text=text)
    return Lane(name=text, pieces=(piece,))


def _together(verdict: Verdict) -> Iterable[Block]:
    bound = verdict.combined_bound
    if bound is not None and len(verdict.findings) > 1:
        text = f"All warnings together: {limit_text(bound)}."
        yield Message(text=text, tone="strong")
    if len(verdict.cumulative_gains) >= 2:
        rows = tuple(
            (
                text_cell(gain.code),
                number_cell(limit_text(gain.bound), gain.bound.speedup),
                number_cell(
                    "length of the training not known"
                    if gain.hours_saved is None
                    else seconds_text(gain.hours_saved * 3600),
                    gain.hours_saved,
                ),
            )
            for gain in verdict.cumulative_gains
        )
        yield Table(
            caption="Cumulative gains, fixed in this order",
            columns=named_columns("this one and those above", "the run is", "saved at most"),
            rows=rows,
        )
    if verdict.whole_run_hours is not None:
        took = seconds_text(verdict.whole_run_hours * 3600)
        yield Message(text=f"The whole training takes {took} at the measured rate.")
    if verdict.start_up_s is not None:
        said = start_up_text(verdict)
        yield Message(text=f"{said[0].upper()}{said[1:]}.", tone="note")
