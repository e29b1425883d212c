"""The closing checklist of a run: one row a check, each with what was measured and its target."""

from dataclasses import dataclass
from typing import Literal

Standing = Literal["pass", "fail", "not recorded", "no target"]
"""``not recorded`` is not a pass: the record does not hold what the check needs.

``no target`` is a value that nobody set a target for; it is shown and decides nothing.
"""

Unit = Literal["steps", "count", "share", "bytes", "ms", "samples/s"]

ChecklistOutcome = Literal["passes", "fails", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check."""

    name: str
    value: float | None
    """What was measured, in `unit`; None where nothing was."""
    unit: Unit
    target: float | None
    """None where nobody set one."""
    at_most: bool
    """Whether the target is an upper limit; else it is a lower one."""
    standing: Standing
    evidence: str
    """What the value rests on, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All checks of one run."""

    source: str
    """File or folder of the run."""
    outcome: ChecklistOutcome
    """``incomplete`` where no check fails and one that is judged is not recorded."""
    rows: tuple[CheckRow, ...]


def check_row(  # noqa: PLR0913 - one parameter a field
    name: str,
    value: float | None,
    unit: Unit,
    *,
    target: float | None,
    at_most: bool,
    evidence: str,
    is_met: bool | None = None,
) -> CheckRow:
    """Hold a value against its target; `is_met` decides where comparing the two is not enough."""
    standing: Standing
    if target is None:
        standing = "no target"
    elif value is None:
        standing = "not recorded"
    else:
        within = value <= target if at_most else value >= target
        standing = "pass" if (within if is_met is None else is_met) else "fail"
    return CheckRow(
        name=name,
        value=value,
        unit=unit,
        target=target,
        at_most=at_most,
        standing=standing,
        evidence=evidence,
    )


def checklist(source: str, rows: tuple[CheckRow, ...]) -> Checklist:
    """Sum up the rows of a run."""
    found = {row.standing for row in rows}
    outcome: ChecklistOutcome = "passes"
    if "fail" in found:
        outcome = "fails"
    elif "not recorded" in found or "pass" not in found:
        outcome = "incomplete"
    return Checklist(source=source, outcome=outcome, rows=rows)
