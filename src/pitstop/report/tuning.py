"""A study of settings as text for a terminal: what each change gained, and what it cost."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.tuning.study import OTHER_SEEDS, GainRow, Trial, Tuning
from pitstop.records.units import bytes_text, count_text, rate_text, seconds_text, speedup_text
from pitstop.report.printable import literal
from pitstop.report.terminal_tables import plain_table, titled_lines


def tuning_report(tuning: Tuning, written: str | None) -> RenderableType:
    """Lay out a study: result first, evidence second, next command last.

    Args:
        tuning: The study.
        written: The tuned configuration; None where nothing was gained and none was written.
    """
    parts: list[RenderableType] = [Text(result_line(tuning), style="bold"), Text(), _table(tuning)]
    parts += [Text(), *(Text(line) for line in ending_lines(tuning))]
    parts += titled_lines("not tried", map(literal, tuning.left_out))
    parts += [Text(f"note: {literal(note)}") for note in tuning.notes]
    if written is not None:
        parts += [Text(), Text(f"written to {literal(written)}")]
        parts.append(Text(f"next: {literal(tuning.verify_command(written))}"))
    return Group(*parts)


def result_line(tuning: Tuning) -> str:
    """Say what the study gained."""
    if len(tuning.rows) == 1:
        return nothing_line(tuning, "no setting that was tried makes this run faster beyond noise")
    first, last = tuning.rows[0], tuning.rows[-1]
    return (
        f"{speedup_text(last.cumulative_gain)} faster with "
        f"{count_text(len(tuning.rows) - 1, 'change')} (measured in turns): "
        f"{rate_text(1 / first.wall_s, 'samples/s')} to {rate_text(1 / last.wall_s, 'samples/s')}"
    )


def nothing_line(tuning: Tuning, text: str) -> str:
    """Say that nothing was gained by `text`; where no change was tried, say that."""
    is_tried = any(trial.overrides for trial in tuning.trials)
    return text if is_tried else f"no change was tried: {tuning.stopped}"


def trial_line(trial: Trial, *, of: str = "samples") -> str:
    """Say what came of one trial; its times are of samples, or of steps."""
    settings = literal(" ".join(trial.overrides)) or "as given"
    if trial.overrides == OTHER_SEEDS:
        settings = "as given, other seeds"
    if trial.wall_s is None:
        return f"{settings}: {trial.end}: {literal(trial.reason)}"
    return f"{settings}: {rate_text(1 / trial.wall_s, f'{of}/s')}"


def _table(tuning: Tuning) -> Table:
    has_device = any(row.peak_device_bytes is not None for row in tuning.rows)
    headings = ["samples/s", "gain", "in turns", "cumulative", "arithmetic"]
    headings += [*(["device memory"] if has_device else []), "pays after"]
    rows = (_cells(row, has_device=has_device) for row in tuning.rows)
    return plain_table(rows, ["change"], headings)


def _cells(row: GainRow, *, has_device: bool) -> list[str]:
    memory = [bytes_text(row.peak_device_bytes)] if has_device else []
    if not row.knob:
        return ["as given", rate_text(1 / row.wall_s, "samples/s"), "", "", "", "", *memory, ""]
    pays = "" if row.break_even_steps is None else count_text(row.break_even_steps, "step")
    return [
        literal(" ".join(row.overrides)),
        rate_text(1 / row.wall_s, "samples/s"),
        speedup_text(row.gain),
        f"{speedup_text(row.gain_low)} to {speedup_text(row.gain_high)}",
        speedup_text(row.cumulative_gain),
        "same bits" if row.claim == "exact" else row.claim,
        *memory,
        pays,
    ]


def ending_lines(tuning: Tuning) -> list[str]:
    """Say how many trials there were, how they ended, and why no more were made."""
    ends = Counter(trial.end for trial in tuning.trials)
    took_s = sum(trial.took_s for trial in tuning.trials)
    failed = ", ".join(f"{count} {end}" for end, count in ends.items() if end != "measured")
    return [
        f"{count_text(len(tuning.trials), 'trial')} in {seconds_text(took_s)}"
        + (f" ({failed})" if failed else "")
        + f"; stopped because {tuning.stopped}",
    ]
