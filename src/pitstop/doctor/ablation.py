"""A bound put to the test: what leaving a part out really gave, beside what was predicted."""

from collections.abc import Mapping
from typing import Final

from pitstop.doctor.compare import judged, ratios_of
from pitstop.doctor.examine import examine
from pitstop.records.run import RunRecord
from pitstop.records.verdict import Ablation, Finding, Verdict

# What the findings about each part begin with.
_CODES: Final[Mapping[str, str]] = {"data": "DATA", "sync": "SYNC", "log": "LOG"}


def judge_ablation(
    part: str, verdict: Verdict, plain: RunRecord | None, without: RunRecord | None
) -> Ablation:
    """Set two runs of one command side by side, the second without a part."""
    found = _about(part, verdict)
    predicted = None if found is None or found.bound is None else found.bound.speedup
    if plain is None or without is None:
        return Ablation(part=part, predicted=predicted)
    before, after = judged(plain), judged(without)
    ratios = ratios_of(before, after)
    if ratios is None:
        return Ablation(part=part, predicted=predicted)
    left = _about(part, examine(without))
    return Ablation(
        part=part,
        predicted=predicted,
        # Of whole runs, for a share of all counted time is what was predicted to go.
        measured=1 / ratios[1].value,
        low=1 / ratios[1].high,
        high=1 / ratios[1].low if ratios[1].low else None,
        steps=after.steps,
        left=() if left is None else left.evidence,
    )


def _about(part: str, verdict: Verdict) -> Finding | None:
    """The finding about a part that promises most."""
    found = [one for one in verdict.findings if one.bound and one.code.startswith(_CODES[part])]
    return max(found, key=lambda one: one.bound.share if one.bound else 0.0, default=None)
