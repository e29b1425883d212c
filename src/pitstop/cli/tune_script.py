"""``pitstop tune -- CMD``: somebody's script made faster from outside, and the lines to change."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pitstop.cli.output import require_place, show

if TYPE_CHECKING:
    from pitstop.records.verify.verification import Claim
    from pitstop.tune.tuning import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What the user asked for beside the command."""

    allowed: "frozenset[Claim]"
    budget: "Budget"
    steps: int
    trial_limit_s: float
    work_dir: Path
    output: Path | None
    json_path: str | None


def tune_script(command: tuple[str, ...], options: ScriptOptions) -> None:
    """Search, then print the lines to change with what each gained."""
    from pitstop.measure.script.launch import require_command
    from pitstop.records.store import require_writable, write_text
    from pitstop.report.script_tuning import change_lines, script_tuning_report
    from pitstop.report.terminal import make_console
    from pitstop.report.tuning import trial_line
    from pitstop.tune.script.study import ScriptStudy, run_script_study

    require_command(command[0])
    require_place(options.json_path)
    if options.output is not None:
        require_writable(options.output)
    study = ScriptStudy(
        command=command,
        folder=options.work_dir / _name_of(command),
        allowed=options.allowed,
        steps=options.steps,
        trial_limit_s=options.trial_limit_s,
        budget=options.budget,
    )
    console = make_console(sys.stderr)
    found = run_script_study(study, lambda trial: console.print(trial_line(trial, of="steps")))
    if options.output is not None:
        write_text(options.output, "".join(f"{line}\n" for line in change_lines(found)))
    show(found, lambda: script_tuning_report(found), options.json_path)


def _name_of(command: tuple[str, ...]) -> str:
    """Name the study after the script; after the program where there is none."""
    scripts = [word for word in command if Path(word).suffix in (".py", ".sh")]
    return Path(scripts[0] if scripts else command[0]).stem
