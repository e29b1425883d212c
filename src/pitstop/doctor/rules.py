"""Rules: from facts to a finding, or to none. One function each, listed in `RULES`."""

from collections.abc import Callable
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.verdict import Bound, Finding

Rule = Callable[[Facts], Finding | None]

_WAITING_WARNING = 0.10
_WAITING_CRITICAL = 0.30
_UNACCOUNTED = 0.10
_APART = 0.20


def data_wait(facts: Facts) -> Finding | None:
    """Report a run that waits for its next batch more than a tenth of the time."""
    share = facts.share("data")
    if share is None or share < _WAITING_WARNING:
        return None
    low, middle, high = facts.quartiles_ms("data")
    return Finding(
        code="DATA001",
        severity="critical" if share >= _WAITING_CRITICAL else "warning",
        summary="the training loop waits for data",
        evidence=(
            f"waiting for the next batch took {share:.1%} of {facts.steps} steps",
            f"median wait {middle:.1f} ms, middle half {low:.1f} to {high:.1f} ms",
        ),
        bound=Bound(part="data", share=share),
        remedy=(
            "prepare batches in parallel with the step: raise loader.workers",
            "make a batch cheaper to prepare: decode only what the crop needs, cache, or pack",
        ),
    )


def unaccounted_time(facts: Facts) -> Finding | None:
    """Report a run with more than a tenth of its time in no span: the verdict may miss it."""
    share = facts.shares().get("unaccounted")
    if share is None or share < _UNACCOUNTED:
        return None
    return Finding(
        code="TIME001",
        severity="warning",
        summary="part of the step was not measured",
        evidence=(f"{share:.1%} of the wall clock of {facts.steps} steps lies in no span",),
        # Naming what was not measured makes nothing faster; what it holds is not known.
        bound=None,
        remedy=("name the missing parts with spans and run again",),
    )


def time_apart(facts: Facts) -> Finding | None:
    """Report a run that spends more than a fifth of its time beside the steps."""
    apart_us = facts.summary.apart_us
    total_us = facts.summary.wall.total_us + apart_us
    if not total_us or apart_us / total_us < _APART:
        return None
    named = sorted(facts.summary.events.items(), key=lambda item: -item[1].total_us)
    evidence = tuple(
        f"{name}: {event.count} times, {event.total_us / 1e6:.1f} s" for name, event in named[:3]
    )
    return Finding(
        code="APART001",
        severity="warning",
        summary="much of the run is spent beside the steps",
        evidence=(f"{apart_us / total_us:.1%} of the run was no training step", *evidence),
        # The share is of the run, not of the step, so it does not add to the others.
        bound=None,
        remedy=("evaluate and save less often: eval.every_steps, checkpoint.every_steps",),
    )


RULES: Final[tuple[Rule, ...]] = (data_wait, unaccounted_time, time_apart)
