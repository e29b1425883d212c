"""A study of somebody's script as text: the lines to change, what each gained, what else to do."""

from itertools import starmap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.tuning.script import Advice, CodeChange, ScriptTuning
from pitstop.records.tuning.study import GainRow
from pitstop.records.units import count_text, seconds_text, speedup_text
from pitstop.report.printable import literal
from pitstop.report.terminal_tables import plain_table, titled_lines
from pitstop.report.tuning import ending_lines, nothing_line


def script_tuning_report(found: ScriptTuning) -> RenderableType:
    """Lay out a study: result first, lines to change, evidence, advice."""
    parts: list[RenderableType] = [Text(result_line(found), style="bold")]
    if found.changes:
        parts += titled_lines("change these lines", map(literal, change_lines(found)))
        parts += [Text(), _table(found)]
    parts += titled_lines("not in the diff", map(literal, found.not_in_diff))
    parts += [Text(), *(Text(line) for line in ending_lines(found.tuning))]
    advice = [literal(line) for each in found.advice for line in _advice(each)]
    parts += titled_lines("what no change from outside fixes", advice)
    parts += titled_lines("not tried", map(literal, found.tuning.left_out))
    parts += [Text(f"note: {literal(note)}") for note in found.tuning.notes]
    return Group(*parts)


def result_line(found: ScriptTuning) -> str:
    """Say what the study gained."""
    if not found.changes:
        said = "nothing that was tried makes this script faster beyond noise"
        return nothing_line(found.tuning, said)
    first, last = found.tuning.rows[0], found.tuning.rows[-1]
    return (
        f"{speedup_text(last.cumulative_gain)} faster with "
        f"{count_text(len(found.changes), 'change')} (measured in turns): "
        f"{seconds_text(first.wall_s)} a step to {seconds_text(last.wall_s)}"
    )


def change_lines(found: ScriptTuning) -> list[str]:
    """Give the lines to change, each with its place and what it gained."""
    lines: list[str] = []
    for change in found.changes:
        where = ", ".join(place.place for place in change.places)
        gain = f"{speedup_text(change.gain)}, {change.loss}"
        lines.append(f"{where + '  ' if where else ''}{change.text}  ({gain})")
    return lines


def _table(found: ScriptTuning) -> Table:
    first = ["as it is", seconds_text(found.tuning.rows[0].wall_s)]
    changed = starmap(_cells, zip(found.tuning.rows[1:], found.changes, strict=True))
    headings = ("a step", "gain", "in turns", "cumulative", "pays after")
    return plain_table([first, *changed], ["change"], headings, "loss")


def _cells(row: GainRow, change: CodeChange) -> list[str]:
    return [
        literal(" ".join(row.overrides)),
        seconds_text(row.wall_s),
        speedup_text(row.gain),
        f"{speedup_text(change.gain_low)} to {speedup_text(change.gain_high)}",
        speedup_text(row.cumulative_gain),
        "" if row.break_even_steps is None else count_text(row.break_even_steps, "step"),
        literal(change.loss),
    ]


def _advice(advice: Advice) -> list[str]:
    where = f" ({', '.join(advice.places)})" if advice.places else ""
    lines = [f"{advice.code} {advice.summary}{where}"]
    return [*lines, f"  {advice.remedy}"] if advice.remedy else lines
