"""A verdict inside a notebook: a few lines of HTML, everything from a record escaped."""

import io
from html import escape
from typing import Final

from rich.console import Console

from pitstop.records.verdict import Finding, Verdict
from pitstop.report.terminal import limit_text, verdict_report

_WIDTH: Final = 120


def verdict_text(verdict: Verdict) -> str:
    """Give the verdict as the terminal shows it, without colours."""
    # Rich would show what it prints in a notebook by itself, beside what the notebook shows.
    console = Console(file=io.StringIO(), force_jupyter=False, width=_WIDTH, markup=False)
    with console.capture() as captured:
        console.print(verdict_report(verdict))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).rstrip()


def verdict_html(verdict: Verdict) -> str:
    """Give the verdict as a notebook shows it: the message, then each finding to open."""
    found = "".join(_finding(finding) for finding in verdict.findings)
    notes = "".join(f"<div>note: {escape(note)}</div>" for note in verdict.notes)
    head = f"<b>{escape(verdict.outcome)}</b>: {escape(verdict.message)}"
    return f"<div>{head}{found}{notes}</div>"


def _finding(finding: Finding) -> str:
    bound = "" if finding.bound is None else f" ({escape(limit_text(finding.bound))})"
    lines = (*finding.evidence, *(f"try: {remedy}" for remedy in finding.remedy))
    inside = "".join(f"<li>{escape(line)}</li>" for line in lines)
    summary = f"<summary><b>{finding.code}</b> {escape(finding.summary)}{bound}</summary>"
    return f"<details>{summary}<ul>{inside}</ul></details>"
