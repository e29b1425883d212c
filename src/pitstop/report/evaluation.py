"""A trained model over the evaluation data, as text."""

import shlex
from collections.abc import Mapping, Sequence

from rich.text import Text

from pitstop.records.evaluation import EvaluationRecord, InferenceRecord, ModelPass
from pitstop.records.units import count_text, quality_text, rate_text, seconds_text
from pitstop.report.terminal import literal


def evaluation_report(record: EvaluationRecord, arguments: Sequence[str]) -> Text:
    """Say how good the model is; `arguments` are what the command was given."""
    whole = {name: value for name, value in record.metrics.items() if "/" not in name}
    metrics = ", ".join(f"{name} {quality_text(value)}" for name, value in whole.items())
    text = Text(metrics or "no metric could be measured", "bold")
    text.append(_table(record.metrics), "not bold")
    text.append(_facts(record), "not bold")
    text.append(f"\nnext: {_command('infer', arguments)} --output FOLDER", "not bold")
    return text


def inference_report(record: InferenceRecord, arguments: Sequence[str]) -> Text:
    """Say what the model made and where it is; `arguments` are what the command was given."""
    text = Text(f"{count_text(record.files, 'file')} in {literal(record.output)}", "bold")
    text.append(_facts(record), "not bold")
    text.append(f"\nnext: {_command('eval', arguments)}", "not bold")
    return text


def _table(metrics: Mapping[str, float | None]) -> str:
    """Lay metrics of many things, such as r1/NIR+CP or iou_best/car, out in rows and columns."""
    parts = {tuple(name.split("/", 1)): value for name, value in metrics.items() if "/" in name}
    if not parts:
        return ""
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
    return "".join(f"\n{literal(line)}" for line in lines)


def _facts(record: ModelPass) -> str:
    step = "step not known" if record.step is None else f"step {record.step}"
    which = f"{step}, averaged weights" if record.averaged else step
    rate = rate_text(record.samples_per_s, "samples/s")
    took = f"{count_text(record.samples, 'sample')} in {seconds_text(record.wall_s)}, {rate}"
    where = f"{record.device}, {record.precision}, {count_text(record.ranks, 'rank')}"
    lines = [f"{record.workload}, {literal(record.checkpoint)} ({which})", f"{took}; {where}"]
    lines += [f"note: {literal(note)}" for note in record.notes]
    return "".join(f"\n{line}" for line in lines)


def _command(name: str, arguments: Sequence[str]) -> str:
    return f"pitstop {name} {literal(shlex.join(arguments))}"
