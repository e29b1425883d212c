"""``pitstop doctor``: a verdict on a run, on foreign logs, or on any training script."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from pitstop.cli.entrances import refuse_unrunnable, refuse_without_dashes
from pitstop.cli.output import (
    JsonPath,
    Language,
    LogBatchSizes,
    LogFormat,
    LogWorldSizes,
    refuse_given,
    show,
)

if TYPE_CHECKING:
    from pitstop.records.verdict import Verdict

_COMMAND = "pitstop.command"
_OWN = "pitstop.own"
_MOST_RUNS = 2
_ONE_OF_BOTH = "give either runs or logs, or a command after --"
_NO_COMMAND = "no command follows --, such as: -- python train.py"
_OF_SCRIPTS = {
    "steps": "--steps",
    "detach": "--detach",
    "ablate": "--ablate",
    "record": "--record",
    "fail_on": "--fail-on",
}
_OF_LOGS = {
    "log_format": "--format", "batch_size": "--batch-size", "world_size": "--world-size",
    "explain": "--explain", "step": "--step", "time": "--time", "unit": "--unit",
}  # fmt: skip

Severity = Literal["info", "warning", "critical"]


class CommandAfterDashes(TyperCommand):
    """A command that keeps whatever follows ``--`` as it stands, for somebody else."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take off what follows the dashes before options are looked for."""
        refuse_without_dashes(args, self._takes_value(), of=self.name or "doctor")
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = args[place + 1 :]
            ctx.meta[_OWN] = args = args[:place]
        return super().parse_args(ctx, list(args))

    def _takes_value(self) -> dict[str, bool]:
        """The options, and whether each takes a value."""
        return {
            name: not getattr(option, "is_flag", False)
            for option in self.params
            for name in (*option.opts, *option.secondary_opts)
            if name.startswith("-")
        }


def command_after_dashes(ctx: typer.Context) -> list[str] | None:
    """Give what followed the dashes; None where there were none."""
    return ctx.meta.get(_COMMAND)


def words_before_dashes(ctx: typer.Context) -> list[str]:
    """Give our own arguments, as they were typed."""
    return ctx.meta[_OWN]


def doctor(  # noqa: PLR0913 - one parameter an option
    ctx: typer.Context,
    targets: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN | RUN_A RUN_B | LOG ... | -- CMD ...]",
            help="Folder or file that a measured run wrote, or its folders of several hosts; two "
            "runs to compare; or training logs.",
        ),
    ] = None,
    *,
    steps: Annotated[
        int, typer.Option(min=1, help="With -- CMD: steps to measure after warm-up.")
    ] = 200,
    detach: Annotated[
        bool, typer.Option("--detach", help="With -- CMD: let it run on, unmeasured.")
    ] = False,
    ablate: Annotated[
        Literal["data", "sync", "log"] | None,
        typer.Option(
            help="With -- CMD: run again without this part and measure the gain (ablation)."
        ),
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="With -- CMD: where its record goes.")
    ] = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="With -- CMD: exit 1 on a finding this severe, not with CMD's code."),
    ] = None,
    log_format: LogFormat = None,
    batch_size: LogBatchSizes = None,
    world_size: LogWorldSizes = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="With a log: which lines became what.")
    ] = False,
    step: Annotated[
        str | None, typer.Option(metavar="FIELD", help="With a log: the field that counts steps.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="FIELD", help="With a log: the time of one step.")
    ] = None,
    unit: Annotated[
        Literal["us", "ms", "s", "min"] | None, typer.Option(help="With --time: its unit.")
    ] = None,
    lang: Language = "en",
    json: JsonPath = None,
) -> None:
    """Name what slows a training down, with evidence and the most a fix can gain."""
    from pitstop.report.explain import require_language

    require_language(lang)
    command = command_after_dashes(ctx)
    if command is not None:
        from pitstop.cli.doctor_script import ScriptOptions, diagnose_script

        if targets or not command:
            raise typer.BadParameter(_ONE_OF_BOTH if targets else _NO_COMMAND)
        if record == "":
            raise typer.BadParameter("name a folder", param_hint="--record")
        refuse_given(ctx, _OF_LOGS, "a log, not for a command")
        refuse_unrunnable(words_before_dashes(ctx), command)
        options = ScriptOptions(
            steps=steps,
            detach=detach,
            ablate=ablate,
            folder=None if record is None else Path(record),
            fail_on=fail_on,
            json_path=json,
            language=lang,
        )
        raise typer.Exit(diagnose_script(command, options))
    if not targets:
        raise typer.BadParameter("name a run, logs, or a command after --")
    from pitstop.cli.doctor_logs import doctor_logs, explain_logs, is_log

    _refuse_source(targets, json)
    refuse_given(ctx, _OF_SCRIPTS, "a command after --, not for a run or a log")
    if any(is_log(target) for target in targets):
        if explain:
            raise typer.Exit(explain_logs(targets, step=step, time=time, unit=unit))
        sizes, worlds = batch_size or (), world_size or ()
        code = doctor_logs(
            targets, log_format=log_format, batch_sizes=sizes, world_sizes=worlds, json=json,
            fields=(step or "", time or "", unit or ""), language=lang,
        )  # fmt: skip
        raise typer.Exit(code)
    refuse_given(ctx, _OF_LOGS, "a log of another tool, not for a run that pitstop measured")
    raise typer.Exit(_diagnose_runs(targets, json, lang))


def _refuse_source(targets: list[Path], json_path: str | None) -> None:
    """Refuse to write the verdict over what it is about."""
    place = Path(json_path or "-").absolute()
    if any(place == target.absolute() for target in targets):
        raise typer.BadParameter(f"{place} is what is read; name another file", param_hint="--json")


def _diagnose_runs(targets: list[Path], json_path: str | None, language: str) -> int:
    """Judge one run, whose folders may be several, or compare two."""
    from pitstop.records.host.nodes import is_one_run

    if len(targets) == 1 or is_one_run(targets):
        return _diagnose_run(targets, json_path, language)
    if len(targets) > _MOST_RUNS:
        raise typer.BadParameter("two runs can be compared, not more")
    return _compare(targets, json_path, language)


def _diagnose_run(folders: list[Path], json_path: str | None, language: str) -> int:
    from rich.console import Group

    from pitstop.doctor.judge import judge_run
    from pitstop.report.terminal import run_report, verdict_report

    judged = judge_run(*folders)
    verdict, summary = judged.verdict, judged.summary
    text = Group(verdict_report(verdict), "", run_report(summary))
    show(verdict, lambda: text, json_path, language=language)
    return exit_code(verdict)


def _compare(runs: list[Path], json_path: str | None, language: str) -> int:
    from pitstop.doctor.judge import compare_runs
    from pitstop.report.comparison import comparison_report

    comparison = compare_runs(runs[0], runs[1])
    show(comparison, lambda: comparison_report(comparison), json_path, language=language)
    return int(comparison.change == "slower")


def exit_code(verdict: "Verdict") -> int:
    """0 where nothing was found, 1 where something holds the run back."""
    return 1 if verdict.outcome == "bottleneck" else 0
