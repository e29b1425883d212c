"""The whole run as one bar, and what would remain of it were findings fixed."""

from collections.abc import Iterable
from typing import Final

from pitstop.records.summary import RunSummary
from pitstop.records.units import seconds_text, share_text
from pitstop.records.verdict import Verdict
from pitstop.report.page.blocks import (
    Block,
    Chart,
    Message,
    Section,
    Table,
    WhatIf,
    WhatIfFix,
    named_columns,
    number_cell,
    section_of,
    text_cell,
)
from pitstop.report.page.charts import Segment, bar, legend_of
from pitstop.report.page.palette import HATCHED
from pitstop.report.page.run import RunView
from pitstop.report.page.svg import Svg
from pitstop.report.terminal import limit_text, start_up_text

_STEPS: Final = "steps"
_START_UP: Final = "start-up"


def run_section(view: RunView) -> Section | None:
    """Where the run's time went, and how much of it fixes can save at most."""
    blocks: list[Block] = [*_run_bar(view), *_what_if(view), *_notes(view.verdict)]
    return section_of("run", "The whole run", blocks)


def _run_bar(view: RunView) -> Iterable[Chart]:
    facts = view.facts
    if facts is None or not facts.summary.wall.total_us:
        return
    pieces_us = _pieces_us(facts.summary)
    whole_us = sum(pieces_us.values())
    segments = [
        view.segment(name, us / whole_us, seconds_text(us / 1e6)) for name, us in pieces_us.items()
    ]
    took = seconds_text(whole_us / 1e6)
    yield Chart(
        caption=f"{took}, from the start to the last step that was measured",
        svg=bar("run-bar", f"What {took} of the run went into", segments),
        legend=legend_of(segments, sizes=True),
        note="Measured. Shares elsewhere are of the steps after warm-up and what lay between them.",
    )


def _pieces_us(summary: RunSummary) -> dict[str, int]:
    """Start-up, all steps, and what lay between them, the longest first."""
    outside = {name: event.total_us for name, event in summary.events.items()}
    pieces = {_START_UP: outside.pop(_START_UP, 0), _STEPS: summary.wall.total_us}
    pieces |= dict(sorted(outside.items(), key=lambda item: -item[1]))
    return {name: us for name, us in pieces.items() if us > 0}


def _what_if(view: RunView) -> Iterable[WhatIf]:
    fixes = tuple(
        WhatIfFix(
            code=finding.code,
            summary=finding.summary,
            bound=finding.bound,
            alone=f"{share_text(finding.bound.saved_share)} of the wall clock at most: "
            f"{limit_text(finding.bound)}",
            # What is only information is not to be fixed, so no gain is promised for it.
            ticked=finding.severity != "info",
        )
        for finding in view.verdict.findings
        if finding.bound is not None
    )
    if not fixes:
        return
    together = view.verdict.combined_bound
    saved_share = 0.0 if together is None else together.saved_share
    shares = "measured shares" if view.log is None else "shares of the log's own times"
    yield WhatIf(
        caption="What would remain of the wall clock, were these fixed",
        svg=_remainder_bar(saved_share),
        fixes=fixes,
        together="nothing gained" if together is None else limit_text(together),
        note=f"From {shares}, by Amdahl's law: bounds, and no forecast. What overlaps counts once.",
    )


def _remainder_bar(saved_share: float) -> Svg:
    remains = Segment(
        name="remains", share=1 - saved_share, colour="c2", text=share_text(1 - saved_share)
    )
    saved = Segment(
        name="saved at most", share=saved_share, colour=HATCHED, text=share_text(saved_share)
    )
    return bar("what-if", "What would remain of the wall clock", [remains, saved], height=28)


def _notes(verdict: Verdict) -> Iterable[Block]:
    if len(verdict.cumulative_gains) >= 2:
        yield _cumulative(verdict)
    if verdict.whole_run_hours is not None:
        took = seconds_text(verdict.whole_run_hours * 3600)
        yield Message(text=f"The whole training takes {took} at the measured rate.")
    if verdict.start_up_s is not None:
        said = start_up_text(verdict, aside="no part of the bounds")
        yield Message(text=f"{said[0].upper()}{said[1:]}.", tone="note")


def _cumulative(verdict: Verdict) -> Table:
    return Table(
        caption="Fixed in this order",
        columns=named_columns("this one and those above", "the run is", "saved at most"),
        rows=tuple(
            (
                text_cell(gain.code),
                number_cell(limit_text(gain.bound), gain.bound.speedup),
                number_cell(
                    "" if gain.hours_saved is None else seconds_text(gain.hours_saved * 3600),
                    gain.hours_saved,
                ),
            )
            for gain in verdict.cumulative_gains
        ),
    )
