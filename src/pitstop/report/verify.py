"""A checklist and a verification as text: the result first, then the evidence, then what next."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.units import bytes_text, count_text, digits, seconds_text, share_text
from pitstop.records.verify.checklist import Checklist, CheckRow
from pitstop.report.printable import literal


def checklist_report(found: Checklist) -> RenderableType:
    """Lay out a checklist row by row: value, target, pass or fail."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("check", "measured", "target", "", "evidence"):
        table.add_column(heading)
    for row in found.rows:
        table.add_row(*_cells(row))
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
