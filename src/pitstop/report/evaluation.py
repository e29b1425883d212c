"""A trained model over the evaluation data, as text."""

import shlex
from collections.abc import Mapping, Sequence

from rich.text import Text

from pitstop.records.evaluation import EvaluationRecord, InferenceRecord, ModelPass
from pitstop.records.units import count_text, quality_text, rate_text, seconds_text
from pitstop.report.terminal import literal
from pitstop.report.terminal_tables import headed


def evaluation_report(record: EvaluationRecord, arguments: Sequence[str]) -> Text:
    """Say how good the model is; `arguments` are what the command was given."""
    whole = {name: value for name, value in record.metrics.items() if "/" not in name}
    metrics = ", ".join(f"{name} {quality_text(value)}" for name, value in whole.items())
    return headed(
        metrics or "no metric could be measured",
        *_table(record.metrics),
        *_facts(record),
        f"next: {_command('infer', arguments)} --output FOLDER",
    )


def inference_report(record: InferenceRecord, arguments: Sequence[str]) -> Text:
    """Say what the model made and where it is; `arguments` are what the command was given."""
    head = f"{count_text(record.files, 'file')} in {literal(record.output)}"
    return headed(head, *_facts(record), f"next: {_command('eval', arguments)}")


def _table(metrics: Mapping[str, float | None]) -> list[str]:
    """Lay metrics of many things, such as r1/NIR+CP or iou_best/car, out in rows and columns."""
    parts = {tuple(name.split("/", 1)): value for name, value in metrics.items() if "/" in name}
    if not parts:
        return []
    columns = list(dict.fromkeys(score for score, _ in parts))
    rows = list(dict.fromkeys(thing for _, thing in parts))
    cells = [["", *columns]] + [
        [
            thing,
            *(
                quality_text(parts[score, thing]) if (score, thing) in parts else ""
                for score in columns
            ),
        ]
        for thing in rows
    ]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns) + 1)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return [literal(line) for line in lines]


def _facts(record: ModelPass) -> list[str]:
    step = "step not known" if record.step is None else f"step {record.step}"
    which = f"{step}, averaged weights" if record.averaged else step
    rate = rate_text(record.samples_per_s, "samples/s")
    took = f"{count_text(record.samples, 'sample')} in {seconds_text(record.wall_s)}, {rate}"
    where = f"{record.device}, {record.precision}, {count_text(record.ranks, 'rank')}"
    lines = [f"{record.workload}, {literal(record.checkpoint)} ({which})", f"{took}; {where}"]
    return [*lines, *(f"note: {literal(note)}" for note in record.notes)]


def _command(name: str, arguments: Sequence[str]) -> str:
    return f"pitstop {name} {literal(shlex.join(arguments))}"
