"""``pitstop doctor -- CMD``: somebody's script under measurement, then a verdict."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pitstop.cli.output import require_place, silence, write_record
from pitstop.errors import PitstopError, RecordError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pitstop.measure.script.launch import Part
    from pitstop.records.run import RunRecord
    from pitstop.records.script import Ended
    from pitstop.records.verdict import Severity, Verdict

_ORDER = ("info", "warning", "critical")
_ENDED_EARLY = 3
_BY_SIGNAL = 128  # what a shell adds to the number of the signal that ended a command


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What the user asked for beside the command."""

    steps: int
    detach: bool
    ablate: "Part | None"
    folder: Path | None
    fail_on: "Severity | None"
    json_path: str | None
    language: str = "en"


def diagnose_script(command: Sequence[str], options: ScriptOptions) -> int:
    """Run a command under measurement and judge it; give the exit code.

    The command's output is its own, so ours goes to stderr.
    """
    from pitstop.measure.script.launch import run_script

    with _folder_for(options) as folder:
        require_place(options.json_path)
        ended = run_script(
            command,
            folder,
            steps=options.steps,
            detach=options.detach,
            stdout=sys.stderr.fileno() if options.json_path == "-" else None,
        )
        verdict = _judge(folder, ended, options.language)
        if options.ablate is not None and verdict.steps and not ended.interrupted:
            verdict = _with_ablation(command, verdict, options, folder)
        if verdict.steps:
            _say_next(folder, verdict, options.language)
    _write(verdict, options)
    return int(_is_severe(verdict, options.fail_on)) or _code_of(ended)


def _is_severe(verdict: "Verdict", fail_on: "Severity | None") -> bool:
    """Whether a finding is as severe as the user named, or more."""
    if fail_on is None:
        return False
    least = _ORDER.index(fail_on)
    return any(_ORDER.index(finding.severity) >= least for finding in verdict.findings)


@contextmanager
def _folder_for(options: ScriptOptions) -> Iterator[Path]:
    """Give the folder that was named, or one that goes again where it holds no step."""
    from pitstop.measure.script.record_folder import fresh_folder

    if options.folder is not None:
        yield fresh_folder(options.folder)
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="pitstop-doctor-"))
    except OSError as error:
        raise PitstopError(
            f"nowhere to write a record: {error}; name a folder with --record"
        ) from error
    try:
        yield folder
    finally:
        if not _has_run(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _code_of(ended: "Ended") -> int:
    """Give the command's own code, but for one that was ended before it could come to its end."""
    if ended.stopped_by_us:
        return _ENDED_EARLY
    if ended.signal is None:
        return ended.exit_code or 0
    if ended.signal in signal.Signals.__members__:
        return _BY_SIGNAL + signal.Signals[ended.signal].value
    return _BY_SIGNAL + int(ended.signal.removeprefix("signal "))


def _has_run(folder: Path) -> bool:
    """Whether there is a record; a command that never trained may leave no folder at all."""
    from pitstop.records.store import is_run

    return folder.is_dir() and is_run(folder)


def _read(folder: Path) -> "RunRecord | None":
    from pitstop.records.store import read_run

    return read_run(folder) if _has_run(folder) else None


def _judge(folder: Path, ended: "Ended", language: str) -> "Verdict":
    from rich.console import Group

    from pitstop.doctor.judge import judge_run
    from pitstop.report.script import ended_early
    from pitstop.report.terminal import run_report, verdict_report

    if not _has_run(folder):
        return _unjudged(*_nothing_seen(folder, ended), language=language)
    try:
        judged = judge_run(folder)
    except RecordError as error:
        return _unjudged(f"its record cannot be read: {error}", language=language)
    verdict = judged.verdict
    first = ended_early(verdict.steps) if ended.stopped_by_us else ""
    report = Group(first, verdict_report(verdict), "", run_report(judged.summary))
    _say(report, language)
    return verdict


def _nothing_seen(folder: Path, ended: "Ended") -> tuple[str, tuple[str, ...]]:
    from pitstop.measure.script.launch import first_failure, seen_without_steps
    from pitstop.report.script import nothing_seen

    return nothing_seen(ended, seen_without_steps(folder), failure=first_failure(folder))


def _unjudged(message: str, notes: tuple[str, ...] = (), *, language: str) -> "Verdict":
    from pitstop.records.verdict import Verdict
    from pitstop.report.terminal import verdict_report

    verdict = Verdict(outcome="not enough evidence", message=message, findings=(), notes=notes)
    _say(verdict_report(verdict), language)
    return verdict


def _say_next(folder: Path, verdict: "Verdict", language: str) -> None:
    from pitstop.report.script import next_command

    worth = (found.code for found in verdict.findings if found.severity != "info")
    _say(next_command(folder, code=next(worth, None)), language)


def _say(text: "RenderableType", language: str) -> None:
    """Print to stderr; where nobody takes it, the command's exit code counts all the same."""
    from pitstop.report.terminal import make_console

    try:
        make_console(sys.stderr, language=language).print(text)
    except OSError:
        silence(sys.stderr)


def _write(verdict: "Verdict", options: ScriptOptions) -> None:
    try:
        write_record(verdict, options.json_path)
    except RecordError as error:
        _say(f"error: {error}", options.language)
    except OSError as error:
        silence(sys.stdout)
        said = f"error: cannot write the verdict to stdout: {error.strerror}"
        _say(said, options.language)


def _with_ablation(
    command: Sequence[str], verdict: "Verdict", options: ScriptOptions, folder: Path
) -> "Verdict":
    """Run the command once more without a part; add what that gave to the verdict."""
    from pitstop.doctor.ablation import judge_ablation
    from pitstop.measure.script.launch import run_script
    from pitstop.report.script import ablation_report

    part = options.ablate
    assert part is not None
    said = f"\nrunning again without {part}, to measure the gain (ablation)"
    _say(said, options.language)
    without = folder / f"without-{part}"
    try:
        run_script(command, without, steps=options.steps, ablate=part, stdout=sys.stderr.fileno())
    except PitstopError as error:
        _say(f"error: {error}", options.language)
    test = judge_ablation(part, verdict, _read(folder), _read(without))
    _say(ablation_report(test), options.language)
    return replace(verdict, ablation=test)
