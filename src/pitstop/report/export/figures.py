"""What other tools take of a judged run: named numbers, and the verdict as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pitstop.doctor.judge import JudgedRun
from pitstop.records.units import share_text
from pitstop.records.verdict import Finding, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A verdict in plain values."""

    name: str
    metrics: Mapping[str, float]
    """By names such as ``pitstop/share/data``; what was not measured is not there."""
    texts: Mapping[str, str]
    """Outcome, message, and the findings as Markdown."""


def exported(run: JudgedRun) -> ExportedRun:
    """Give what trackers show of a run."""
    verdict = run.verdict
    return ExportedRun(
        name=Path(run.record.source).name,
        metrics={f"pitstop/{name}": value for name, value in _metrics(run).items()},
        texts={
            "pitstop/outcome": verdict.outcome,
            "pitstop/verdict": verdict.message,
            "pitstop/findings": findings_markdown(verdict),
        },
    )


def _metrics(run: JudgedRun) -> dict[str, float]:
    verdict = run.verdict
    found: dict[str, float] = {"steps": float(verdict.steps)}
    if run.log is None:
        middle_us, rate = run.summary.wall.quantile_us(0.5), run.summary.samples_per_s
        if middle_us is not None:
            found["step_s"] = middle_us / 1e6
        if rate is not None:
            found["samples_per_s"] = rate * run.summary.world_size
    found |= {f"share/{part}": share for part, share in verdict.shares.items()}
    for finding in verdict.findings:
        if finding.bound is not None and finding.bound.speedup is not None:
            found[f"bound/{finding.code}"] = finding.bound.speedup
    return found


def findings_markdown(verdict: Verdict) -> str:
    """Give the findings as text that trackers render."""
    return "\n\n".join(_markdown(finding) for finding in verdict.findings) or "no findings"


def _markdown(finding: Finding) -> str:
    cost = "" if finding.bound is None else f", {share_text(finding.bound.share)} of the time"
    lines = (*finding.evidence, *(f"try: {remedy}" for remedy in finding.remedy))
    return "\n".join(
        (f"**{finding.code}** {finding.summary}{cost}", "", *(f"- {x}" for x in lines))
    )
