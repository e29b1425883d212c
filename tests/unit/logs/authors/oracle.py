"""Holds what the doctor says of a made-up author's log against the truth beside it."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from pitstop.doctor.logs.examine import examine_log
from pitstop.errors import RecordError
from pitstop.logs.read import read_logs
from pitstop.records.logs.summary import LogExamination, LogSummary
from tests.unit.logs.authors.bars import bars_of, epoch_bars_of
from tests.unit.logs.authors.lines import lines_of
from tests.unit.logs.authors.rows import epochs_of, table_of
from tests.unit.logs.authors.run import Truth

_NEAR = 0.06
_COARSE = 0.12
_STARTS_S = 60.0
WRITERS: Final[Mapping[str, Callable[[int], tuple[list[str], Truth]]]] = {
    "lines": lines_of,
    "table": table_of,
    "epochs": epochs_of,
    "bars": bars_of,
    "epoch bars": epoch_bars_of,
}


def judge(lines: list[str], truth: Truth) -> tuple[str, list[str]]:
    """Read a log and list what is stated and not so: ``right``, ``misread`` or ``refused``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.log")
        path.write_text("\n".join(lines) + "\n")
        try:
            runs = read_logs([path])
        except RecordError as error:
            return "refused", [f"refused: {error}"]
        found = examine_log(runs[0])
    wrong = [*_counts(found.summary, truth), *_times(found.summary, truth), *_rest(found, truth)]
    return ("misread" if wrong else "right"), wrong


def _counts(said: LogSummary, truth: Truth) -> list[str]:
    wrong: list[str] = []
    allowed = {truth.last_step, (truth.last_step or 0) + truth.is_from_zero}
    is_least = any("the least it can be" in note for note in said.notes)
    if said.last_step is not None:
        if truth.counts in ("samples", "epochs"):
            wrong.append(f"last step: {said.last_step} of a log that counts none")
        elif said.last_step not in allowed and not (is_least and said.last_step < max(allowed)):
            wrong.append(f"last step: {said.last_step}, not {truth.last_step}")
    if said.total_steps is not None and said.total_steps != truth.total_steps:
        wrong.append(f"total: {said.total_steps}, not {truth.total_steps}")
    is_open = any(
        "several runs" in note or "not counted as attempts" in note for note in said.notes
    )
    if said.attempts not in (None, truth.processes) and not is_open:
        wrong.append(f"attempts: {said.attempts}, not {truth.processes}")
    if said.batch_size not in (None, truth.batch_size):
        wrong.append(f"batch: {said.batch_size}, not {truth.batch_size}")
    if said.world_size not in (None, truth.world_size):
        wrong.append(f"world: {said.world_size}, not {truth.world_size}")
    return wrong


def _times(said: LogSummary, truth: Truth) -> list[str]:
    near = _COARSE if truth.is_coarse else _NEAR
    wrong: list[str] = []
    most_s = truth.step_s + truth.hidden_s
    if said.step is not None and not truth.step_s / (1 + near) <= said.step.middle <= most_s * (
        1 + near
    ):
        wrong.append(
            f"step: {said.step.middle:.4g} s, not {truth.step_s:.4g} s; {said.step.formula}"
        )
    if said.data_wait is not None and abs(said.data_wait.middle / truth.data_s - 1) > near:
        wrong.append(f"data: {said.data_wait.middle:.4g} s, not {truth.data_s:.4g} s")
    if said.rate is not None:
        rates = [truth.batch_size * ranks / truth.step_s for ranks in (1, truth.world_size)]
        rates += [median(truth.printed_rates)] if truth.printed_rates else []
        if all(abs(said.rate.middle / rate - 1) > near for rate in rates):
            wrong.append(f"rate: {said.rate.middle:.4g}, not {rates}; {said.rate.formula}")
    return wrong + _whole(said, truth)


def _whole(said: LogSummary, truth: Truth) -> list[str]:
    """List what is wrong of the run as a whole: its time, what is left, its evaluations."""
    wrong: list[str] = []
    if said.run_s is not None and said.run_s > 1.1 * truth.run_s + _STARTS_S:
        wrong.append(f"run: {said.run_s:.0f} s, not {truth.run_s:.0f} s; {said.run_formula}")
    if said.eta is not None:
        left = said.eta.seconds
        allowed = left.error + 0.1 * truth.left_s + _STARTS_S
        is_least = said.eta.is_least and left.value < truth.left_s
        if abs(left.value - truth.left_s) > allowed and not is_least:
            wrong.append(f"left: {left.value:.0f} ± {left.error:.0f} s, not {truth.left_s:.0f} s")
    events = said.events.get("evaluation")
    if events is not None and events.timed and events.total_s > truth.evaluations_s * 1.1 + 2:
        wrong.append(f"evaluations: {events.total_s:.4g} s, not {truth.evaluations_s:.4g} s")
    return wrong


def _rest(found: LogExamination, truth: Truth) -> list[str]:
    absent = truth.holds & set(found.summary.gaps)
    wrong = [f"absent: {name} is in the log" for name in sorted(absent)]
    # The simulated runs keep their pace and their losses fall.
    for finding in found.verdict.findings:
        if finding.code in ("DRIFT001", "LOSS002", "NAN001", "MEM001"):
            wrong.append(f"finding: {finding.code} {finding.summary} {finding.evidence}")
        if finding.code == "DATA001" and truth.data_s < 0.1 * truth.step_s:
            wrong.append(f"finding: {finding.code} {finding.evidence}")
        if finding.code == "EVAL001" and not truth.evaluations_s:
            wrong.append(f"finding: {finding.code} {finding.evidence}")
        if finding.code == "DATA002" and not truth.starts_s:
            wrong.append(f"finding: {finding.code} {finding.evidence}")
    return wrong
