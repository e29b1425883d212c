"""``pitstop verify``: does a change harm the training, and does a run pass its checklist?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pitstop.cli.entrances import refuse_unrunnable
from pitstop.cli.output import JsonPath, refuse_given, require_place, require_torch, show
from pitstop.errors import PitstopError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pitstop.records.verify.verification import Verification
    from pitstop.verify.study import Study

_COMMANDS = "pitstop.commands"
_OF_CONFIGS = {"steps": "--steps", "check_steps": "--check-steps", "numbers_only": "--numbers-only"}
_OF_COMPARISONS = {
    **_OF_CONFIGS,
    "seeds": "--seeds",
    "metric": "--metric",
    "margin": "--margin",
    "limit": "--limit",
    "study": "--study",
}


class CommandsAfterDashes(TyperCommand):
    """A command that keeps whatever follows each ``--`` as it stands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take off the commands before options are looked for."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMANDS] = _split(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, list(args))


def _split(words: "Sequence[str]") -> list[tuple[str, ...]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            found.append([])
        else:
            found[-1].append(word)
    return [tuple(one) for one in found]


def verify(  # noqa: PLR0913 - one parameter an option
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN | BASE.yaml CANDIDATE.yaml | -- CMD_A -- CMD_B] [KEY=VALUE]...",
            help="A finished run; two configurations; or two commands. Settings are for both.",
        ),
    ] = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each side.")] = 5,
    steps: Annotated[
        int | None, typer.Option(min=2, help="Length of the runs whose metric is tested.")
    ] = None,
    check_steps: Annotated[
        int, typer.Option(min=2, help="Length of the runs whose losses and gradients are compared.")
    ] = 30,
    metric: Annotated[str | None, typer.Option(help="The metric that decides.")] = None,
    margin: Annotated[
        float | None, typer.Option(min=0, help="How much worse still counts as equal.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="Most time for one run.")
    ] = None,
    numbers_only: Annotated[
        bool,
        typer.Option("--numbers-only", help="Only compare losses and gradients of short runs."),
    ] = False,
    study: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Journal: runs in it are not repeated.")
    ] = Path("verify"),
    json: JsonPath = None,
) -> None:
    """Hold a change against what it must not harm; with one run, go through its checklist."""
    words = targets or []
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    named = [Path(word) for word in words if word not in settings]
    commands: list[tuple[str, ...]] | None = ctx.meta.get(_COMMANDS)
    require_place(json)
    if commands is not None:
        _require_two(commands, words)
        refuse_given(ctx, _OF_CONFIGS, "two configurations, not for commands")
        from pitstop.verify.commands import WantedCommands, verify_commands

        wanted = WantedCommands(
            base=commands[0],
            candidate=commands[1],
            seeds=seeds,
            metric=metric,
            margin=margin,
            limit_s=limit,
        )
        raise typer.Exit(_show(verify_commands(wanted, _study(study)), json))
    if len(named) == 1:
        refuse_given(ctx, _OF_COMPARISONS, "a comparison, not for the checklist of one run")
        raise typer.Exit(_check(named[0], settings, json))
    if len(named) != 2:
        raise typer.BadParameter("name one run, two configurations, or -- CMD_A -- CMD_B")
    require_torch("verifying configurations")
    from pitstop.verify.configs import Wanted, verify_configs

    found = verify_configs(
        Wanted(
            base=named[0],
            candidate=named[1],
            overrides=tuple(settings),
            seeds=seeds,
            steps=steps,
            check_steps=check_steps,
            metric=metric,
            margin=margin,
            limit_s=limit,
            numbers_only=numbers_only,
        ),
        _study(study),
    )
    raise typer.Exit(_show(found, json))


def _require_two(commands: "Sequence[tuple[str, ...]]", words: "Sequence[str]") -> None:
    """Refuse anything but two commands.

    Raises:
        PitstopError: There are fewer or more, or one cannot run as it stands.
    """
    if len(commands) != 2 or not all(commands) or words:
        raise PitstopError(
            "two commands are compared: pitstop verify [OPTIONS] -- CMD_A -- CMD_B; "
            f"{len([one for one in commands if one])} given"
            + (f", and {words[0]} before them" if words else "")
        )
    for command in commands:
        refuse_unrunnable([], command)


def _study(folder: Path) -> "Study":
    from pitstop.verify.runner import ChildRunner
    from pitstop.verify.study import Study

    return Study(folder, ChildRunner(), lambda line: typer.echo(line, err=True))


def _show(found: "Verification", json: str | None) -> int:
    from pitstop.report.verify import verification_report

    show(found, lambda: verification_report(found), json)
    return int(found.outcome != "passes")


def _check(run: Path, settings: "Sequence[str]", json: str | None) -> int:
    from pitstop.report.verify import checklist_report
    from pitstop.verify.checks import check_run

    found = check_run(run, _targets(settings))
    show(found, lambda: checklist_report(found), json)
    return int(found.outcome != "passes")


def _targets(settings: "Sequence[str]") -> dict[str, float]:
    """Read targets given as ``targets.samples_per_s=100``.

    Raises:
        PitstopError: One is no target, or its value is no number that it may have.
    """
    from pydantic import ValidationError

    from pitstop.config.sections import TargetsSection

    known = ", ".join(f"targets.{name}" for name in TargetsSection.model_fields)
    given = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        name = key.removeprefix("targets.")
        if name == key or name not in TargetsSection.model_fields:
            raise PitstopError(f"{key} is no target of a run; there is {known}")
        given[name] = value
    try:
        return TargetsSection.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise PitstopError(f"targets.{first['loc'][0]}: {first['msg']}") from error
