"""The verdict with its evidence, and the few numbers beside it."""

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt

from pitstop.errors import PitstopError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.script import Owners
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
from pitstop.report.explain import explain
from pitstop.report.headroom import small_share
from pitstop.report.page.blocks import Figure, Figures, Findings, ReportedFinding, Section
from pitstop.report.page.run import RunView, quartiles
from pitstop.report.page.svg import Svg
from pitstop.report.terminal import limit_text


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
    else:
        yield from _peak_of_tensors(view)
    # A reading after the last process ended finds nothing, which is not the least that was held.
    trees = [one.tree.tree_bytes for one in readings if one.tree and one.tree.tree_bytes]
    if trees:
        times = count_text(len(trees), "time")
        how = f"process tree, lowest {bytes_text(min(trees))}; measured {times}"
        yield Figure(name="host memory, most", value=bytes_text(max(trees)), how=how)


def _peak_of_tensors(view: RunView) -> Iterable[Figure]:
    """The peak by the training process's own count, where nobody read the allocator over time."""
    owners = view.readings("owners", Owners)
    if not owners or owners[-1].peak_bytes is None:
        return
    total = owners[-1].total_bytes
    of = "" if total is None else f" of {bytes_text(total)}"
    reserved = owners[-1].reserved_bytes
    kept = "" if reserved is None else f"; {bytes_text(reserved)} reserved"
    how = f"held by tensors{of}{kept}; measured"
    yield Figure(name="device memory, peak", value=bytes_text(owners[-1].peak_bytes), how=how)


def _busy_figures(view: RunView) -> Iterable[Figure]:
    loads = view.loads_in_steps()
    busy = [g.busy_share for one in loads for g in one.gpus if g.busy_share is not None]
    spread = quartiles(busy)
    if spread is not None:
        low, middle, high = spread
        half = f"IQR {share_text(low)} to {share_text(high)}"
        how = f"{half}; measured {count_text(len(busy), 'time')} in the steps"
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
            # Absent, or there and not understood: the list of gaps says which.
            yield Figure(name=name, value="not known", how=log.rate_gap or "the log does not tell")
            continue
        half = f"IQR {text(steady.low)} to {text(steady.high)}"
        yield Figure(name=name, value=text(steady.middle), how=f"{half}; {steady.formula}")
    if log.eta is not None:
        left = log.eta.seconds
        least = "at least " if log.eta.is_least else ""
        value = f"{least}{seconds_text(left.value)} ± {seconds_text(left.error)}"
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
            explanation=_explanation(finding.code, view.language),
        )
        for finding in verdict.findings
    )
    return Section(key="findings", title="What was found", blocks=(Findings(entries=entries),))


def _explanation(code: str, language: str) -> Svg | None:
    """The finding's own page, as HTML; headings one level below those of the section's findings."""
    try:
        text = explain(code, language).text
    except PitstopError:
        return None
    below = re.sub(r"^## ", "#### ", text, flags=re.MULTILINE)
    return Svg(MarkdownIt("commonmark", {"html": False}).enable("table").render(below))


def _shares_text(view: RunView) -> str:
    return "measured shares" if view.log is None else "shares of the log's own times"
