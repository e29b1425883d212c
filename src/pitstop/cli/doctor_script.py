"""``pitstop doctor -- CMD``: somebody's script under measurement, then a verdict."""

import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pitstop.cli.output import write_record

if TYPE_CHECKING:
    from pitstop.measure.launch import Part
    from pitstop.records.run import RunRecord
    from pitstop.records.script import Ended
    from pitstop.records.verdict import Severity, Verdict

_ORDER = ("info", "warning", "critical")
_BY_SIGNAL = 128  # what a shell adds to the number of the signal that ended a command


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What the user asked for beside the command."""

    steps: int
    detach: bool
    bound: "Part | None"
    folder: Path | None
    fail_on: "Severity | None"
    json_path: str | None


def diagnose_script(command: Sequence[str], options: ScriptOptions) -> int:
    """Run a command under measurement and judge it; give the exit code.

    The command's output is its own, so ours goes to stderr.
    """
    from pitstop.measure.launch import run_script

    folder = options.folder or Path(tempfile.mkdtemp(prefix="pitstop-doctor-"))
    ended = run_script(
        command,
        folder,
        steps=options.steps,
        detach=options.detach,
        quiet_stdout=options.json_path == "-",
    )
    record = _read(folder)
    if record is None:
        _say_nothing_seen(folder, ended, options.json_path)
        return _code_of(ended)
    verdict = _judge(record, folder, options.json_path)
    if options.bound is not None and not ended.interrupted:
        _test_bound(command, verdict, options, folder)
    if options.fail_on is None:
        return _code_of(ended)
    grave = _ORDER.index(options.fail_on)
    return int(any(_ORDER.index(finding.severity) >= grave for finding in verdict.findings))


def _code_of(ended: "Ended") -> int:
    if ended.signal is None:
        return ended.exit_code or 0
    if ended.signal in signal.Signals.__members__:
        return _BY_SIGNAL + signal.Signals[ended.signal].value
    return _BY_SIGNAL + int(ended.signal.removeprefix("signal "))


def _read(folder: Path) -> "RunRecord | None":
    from pitstop.records.store import read_run

    return read_run(folder) if any(folder.glob("rank-*.jsonl")) else None


def _judge(record: "RunRecord", folder: Path, json_path: str | None) -> "Verdict":
    from rich.console import Group

    from pitstop.doctor.examine import examine
    from pitstop.records.summary import summarise
    from pitstop.report.terminal import make_console, run_report, verdict_report

    verdict = examine(record)
    write_record(verdict, json_path)
    summary = summarise(next(rank for rank in record.ranks if rank.rank == verdict.rank))
    words = Group("", verdict_report(verdict), "", run_report(summary), f"record: {folder}")
    make_console(sys.stderr).print(words)
    return verdict


def _say_nothing_seen(folder: Path, ended: "Ended", json_path: str | None) -> None:
    from pitstop.measure.launch import seen_without_steps
    from pitstop.records.verdict import Verdict
    from pitstop.report.script import nothing_seen
    from pitstop.report.terminal import make_console, verdict_report

    seen = [(process.command, process.torch) for process in seen_without_steps(folder)]
    sentence, notes = nothing_seen(ended, seen)
    verdict = Verdict(outcome="not enough evidence", sentence=sentence, findings=(), notes=notes)
    write_record(verdict, json_path)
    make_console(sys.stderr).print(verdict_report(verdict))


def _test_bound(
    command: Sequence[str], verdict: "Verdict", options: ScriptOptions, folder: Path
) -> None:
    from pitstop.measure.launch import run_script
    from pitstop.report.script import bound_report
    from pitstop.report.terminal import make_console

    part = options.bound
    assert part is not None
    console = make_console(sys.stderr)
    console.print(f"\nrunning again without {part}, to measure what that could give", style="dim")
    without = folder / f"without-{part}"
    run_script(command, without, steps=options.steps, without=part, quiet_stdout=True)
    console.print(bound_report(part, verdict, _read(folder), _read(without)))
