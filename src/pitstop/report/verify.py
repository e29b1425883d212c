"""A checklist and a verification as text: the result first, then the evidence, then what next."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.units import (
    bytes_text,
    count_text,
    digits,
    quality_text,
    seconds_text,
    share_text,
    speedup_text,
)
from pitstop.records.verify.checklist import Checklist, CheckRow
from pitstop.records.verify.quality import NonInferiority, TimeToQuality
from pitstop.records.verify.verification import Verification
from pitstop.report.printable import literal
from pitstop.report.terminal_tables import plain_table


def checklist_report(found: Checklist) -> RenderableType:
    """Lay out a checklist row by row: value, target, pass or fail."""
    headings = ("check", "measured", "target", "", "evidence")
    table = plain_table(map(_cells, found.rows), headings, ())
    head = Text.assemble((f"{found.outcome}: ", "bold"), _checklist_message(found))
    return Group(head, "", table, "", Text(_next_of_checklist(found)))


def _checklist_message(found: Checklist) -> str:
    counts = {
        standing: sum(row.standing == standing for row in found.rows)
        for standing in ("pass", "fail", "not recorded")
    }
    judged = sum(counts.values())
    return (
        f"{counts['pass']} of {count_text(judged, 'check')} pass, {counts['fail']} fail, "
        f"{counts['not recorded']} not recorded: {literal(found.source)}"
    )


def _next_of_checklist(found: Checklist) -> str:
    if found.outcome == "passes":
        return "next: pitstop verify BASE.yaml CANDIDATE.yaml holds a change against this training"
    return f"next: pitstop doctor {literal(found.source)}"


def _cells(row: CheckRow) -> list[str]:
    limit = "at most" if row.at_most else "at least"
    target = "none" if row.target is None else f"{limit} {_value_text(row, row.target)}"
    measured = "nothing" if row.value is None else _value_text(row, row.value)
    return [row.name, measured, target, row.standing, literal(row.evidence)]


def _value_text(row: CheckRow, value: float) -> str:
    if row.unit == "share":
        return share_text(value)
    if row.unit == "bytes":
        return bytes_text(value)
    if row.unit == "ms":
        return seconds_text(value / 1e3)
    if row.unit == "samples/s":
        return digits(value)
    return f"{value:,.0f}" if row.unit == "count" else count_text(int(value), "step")


def verification_report(found: Verification) -> RenderableType:
    """Lay out a verification: the verdict, then level by level, then the runs."""
    levels = ((one.level, one.outcome, literal(one.message)) for one in found.levels)
    parts: list[RenderableType] = [
        Text.assemble((f"{found.outcome}: ", "bold"), literal(found.message)),
        "",
        plain_table(levels, ("level", "outcome", "evidence"), ()),
    ]
    if found.changes:
        parts += ["", Text("changed settings", style="bold"), _changes(found)]
    if found.statistical is not None:
        parts += ["", Text(f"{found.statistical.metric} of each run", style="bold")]
        parts += [Text(f"  {line}") for line in _values(found.statistical)]
    if found.time_to_quality is not None:
        parts += ["", Text("time to quality", style="bold")]
        parts += [Text(f"  {line}") for line in _time_lines(found.time_to_quality)]
    parts += ["", Text(_next_of_verification(found))]
    return Group(*parts)


def _changes(found: Verification) -> Table:
    table = Table.grid(padding=(0, 2))
    for one in found.changes:
        row = (f"  {one.key}", f"{one.base} -> {one.candidate}", f"claims: {one.claim}")
        table.add_row(*map(literal, row))
    return table


def _values(test: NonInferiority) -> list[str]:
    how = "paired by seed" if test.paired else "not paired"
    return [
        f"{name}: {', '.join(map(quality_text, values))}"
        for name, values in (("base     ", test.base), ("candidate", test.candidate))
    ] + [how]


def _time_lines(found: TimeToQuality) -> list[str]:
    lines = [
        f"{found.metric} {quality_text(found.level)}: the baseline reached it "
        f"{_reached(found.base_s, found.base_samples)}, the candidate "
        f"{_reached(found.candidate_s, found.candidate_samples)}"
    ]
    if found.speedup is not None:
        lines.append(f"{speedup_text(found.speedup)} as fast to the same quality (median of seeds)")
    lines.append(
        f"at equal time, {seconds_text(found.equal_time_s)}: baseline "
        f"{_quality(found.base_then)}, candidate {_quality(found.candidate_then)}"
    )
    return lines


def _reached(seconds: float | None, samples: float | None) -> str:
    if seconds is None:
        return "not in every run"
    counted = "" if samples is None else f" ({samples:,.0f} samples)"
    return f"after {seconds_text(seconds)}{counted}"


def _quality(value: float | None) -> str:
    return "not evaluated by then" if value is None else quality_text(value)


def _next_of_verification(found: Verification) -> str:
    if found.outcome == "undecided" and found.statistical is not None:
        seeds = len(found.statistical.base) + (found.statistical.more_seeds or 0)
        if found.statistical.more_seeds:
            return (
                f"next: the same command with --seeds {seeds}; runs in "
                f"{literal(found.study)} are not repeated"
            )
    return f"next: read what the runs printed, {literal(found.study)}/*/output.txt"
