"""A rule on what came once: steps that stalled, where, and at which line."""

from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import line_text, long_step
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.stalls import Stall
from pitstop.doctor.thresholds import WORTH_A_WARNING
from pitstop.records.units import count_text, share_text, us_text
from pitstop.records.verdict import Finding

# A shorter one is not reported; from a second on it may be a warning.
WORTH_A_LINE_US: Final = 1e5
_WORTH_A_WARNING_US: Final = 1e6


def stall(facts: Facts) -> Finding | None:
    """Report steps that took far longer than the others, once; they are in no share."""
    stalls, lost_us = facts.stalls, facts.stalled_us
    if lost_us < WORTH_A_LINE_US:
        return None
    share = lost_us / (facts.total_us + lost_us)
    took = f"{count_text(len(stalls), 'stall')} took {us_text(lost_us)}"
    is_long = share >= WORTH_A_WARNING and lost_us >= _WORTH_A_WARNING_US
    return Finding(
        code="STALL001",
        severity="warning" if is_long else "info",
        summary=f"{took}, {share_text(share)} of the run",
        evidence=(
            *(stall_text(facts, stall) for stall in stalls),
            "not included in any share: it happened once, or irregularly",
        ),
        # How often it comes is not known, nor, so, what a longer run loses by it.
        bound=None,
        remedy=remedy_for(facts, "STALL001"),
    )


def stall_text(facts: Facts, stall: Stall) -> str:
    """Say where a stall lay, how long it was, and at which line."""
    usually = f"usually {us_text(stall.usual_us)}"
    if stall.part is None:
        where = f"step {stall.step}: {us_text(stall.us)} longer, in a step that was not sampled"
        usually = f"a step usually takes {us_text(stall.usual_us)}"
    else:
        beside = ", outside the step" if stall.is_outside else ""
        where = f"step {stall.step}: {us_text(stall.us)} longer in {stall.part}{beside}"
    found = long_step(facts, stall.step)
    # Most of the samples of a step that is nearly all stall met the line that stalled.
    line = "" if found is None else f", at {line_text(found.line)}"
    return f"{where} ({usually}){line}"
