"""Two runs side by side as text: which is faster, by how much, and where."""

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.comparison import Comparison, PartChange, RunThroughput
from pitstop.records.units import (
    count_text,
    rate_text,
    seconds_text,
    signed_range_text,
    signed_seconds_text,
)
from pitstop.report.terminal import literal
from pitstop.report.terminal_tables import plain_table


def comparison_report(comparison: Comparison) -> RenderableType:
    """Show the result first, then both runs, then the parts, then what was not checked."""
    head = Text.assemble((f"{comparison.change}: ", "bold"), literal(comparison.message))
    parts: list[RenderableType] = [
        head,
        "",
        Text(f"before: {_throughput_text(comparison.before)}"),
        Text(f"after:  {_throughput_text(comparison.after)}"),
        "",
        plain_table(
            map(_cells, comparison.parts),
            ["part, a step"],
            ("before", "after", "difference", "99% CI"),
            "",
        ),
    ]
    if comparison.same_work:
        parts.append(Text(f"the same work: {literal('; '.join(comparison.same_work))}"))
    if comparison.not_checked:
        parts.append(Text(f"not checked: {literal(', '.join(comparison.not_checked))}"))
    parts += [Text(f"note: {literal(note)}", style="dim") for note in comparison.notes]
    return Group(*parts)


def _throughput_text(throughput: RunThroughput) -> str:
    pieces = [
        literal(throughput.source),
        count_text(throughput.steps, "step"),
        f"{seconds_text(throughput.step_s)} a step (mean of windows' medians)",
        f"{seconds_text(throughput.run_s)} with what lies between steps",
    ]
    rate = throughput.samples_per_s
    return ", ".join(
        [*pieces, "samples/s not known" if rate is None else rate_text(rate, "samples/s")]
    )


def _cells(change: PartChange) -> list[str]:
    cells = [literal(change.part), seconds_text(change.before_s), seconds_text(change.after_s)]
    if change.before_s is None or change.after_s is None:
        return [*cells, "", "", ""]
    within = signed_range_text(change.low_s, change.high_s)
    judged = "beyond noise" if change.beyond_noise else ""
    return [*cells, signed_seconds_text(change.after_s - change.before_s), within, judged]
