"""The usual finding: as severe as the share it bounds, with the advice of its code."""

from collections.abc import Iterable

from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import severity_of
from pitstop.records.verdict import Bound, Finding


def bounded_finding(
    facts: Facts, code: str, summary: str, *, bound: Bound, evidence: Iterable[str]
) -> Finding:
    """Report what takes a share of the wall clock; advice follows from the code and the run."""
    return Finding(
        code=code,
        severity=severity_of(bound.share),
        summary=summary,
        evidence=tuple(evidence),
        bound=bound,
        remedy=remedy_for(facts, code),
    )
