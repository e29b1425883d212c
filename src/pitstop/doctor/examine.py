"""From a record to a verdict: run every rule, order what they found, bound the gain."""

from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.rules import RULES
from pitstop.records.run import RunRecord
from pitstop.records.verdict import Bound, Finding, Outcome, Verdict

_FEWEST_STEPS = 20


def examine(record: RunRecord) -> Verdict:
    """Judge a run by its slowest rank: that is the one the others wait for."""
    facts = max((facts_of(rank) for rank in record.ranks), key=_mean_step_us)
    notes = (*record.notes, *(note for rank in record.ranks for note in rank.notes))
    notes = (*notes, *_ending_notes(record))
    if facts.steps < _FEWEST_STEPS or not facts.parts_us:
        return Verdict(
            outcome="not enough evidence",
            sentence=_too_little(facts),
            findings=(),
            steps=facts.steps,
            rank=facts.summary.rank,
            notes=notes,
        )
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    findings = tuple(sorted(found, key=_bound_share, reverse=True))
    principal = next((finding for finding in findings if finding.severity != "info"), None)
    return Verdict(
        outcome=_outcome(principal),
        sentence=_sentence(principal, facts),
        findings=findings,
        shares=facts.shares(),
        combined_bound=combined_bound(findings),
        steps=facts.steps,
        rank=facts.summary.rank,
        notes=notes,
    )


def _outcome(principal: Finding | None) -> Outcome:
    if principal is None:
        return "healthy"
    # What was not measured may hide anything: that is no verdict on what was.
    return "not enough evidence" if principal.code == "TIME001" else "bottleneck"


def _ending_notes(record: RunRecord) -> tuple[str, ...]:
    if not record.is_finished:
        return ("the run has no ending: it was killed, or it is still running",)
    endings = [rank.ending for rank in record.ranks if rank.ending is not None]
    bad = next((ending for ending in endings if ending.status != "finished"), None)
    return () if bad is None else (f"the run {bad.status}: {bad.reason}",)


def combined_bound(findings: tuple[Finding, ...]) -> Bound | None:
    """Bound the gain of mending everything: shares of different parts add, none counts twice."""
    largest: dict[str, float] = {}
    for finding in findings:
        if finding.bound is not None:
            part = finding.bound.part
            largest[part] = max(largest.get(part, 0.0), finding.bound.share)
    if not largest:
        return None
    return Bound(part=" + ".join(largest), share=min(1.0, sum(largest.values())))


def _mean_step_us(facts: Facts) -> float:
    return float(facts.wall_us.mean()) if facts.steps else 0.0


def _bound_share(finding: Finding) -> float:
    return finding.bound.share if finding.bound is not None else 0.0


def _too_little(facts: Facts) -> str:
    if not facts.parts_us:
        return "the record holds no measured parts of the step"
    return f"{facts.steps} steps after warm-up are too few to judge; {_FEWEST_STEPS} are needed"


def _sentence(principal: Finding | None, facts: Facts) -> str:
    if principal is None:
        return f"nothing holds this run back by a tenth or more, in {facts.steps} steps"
    if principal.bound is None or principal.bound.speedup is None:
        return principal.summary
    gain = f"{principal.bound.speedup:.2f}x"
    return f"{principal.summary}; mending it makes a step at most {gain} as fast"
