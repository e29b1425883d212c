"""``pitstop tune``: the fastest settings of a configuration or of a script, with their gains."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.doctor import command_after_dashes, words_before_dashes
from pitstop.cli.entrances import refuse_unrunnable
from pitstop.cli.output import JsonPath, Overrides, require_place, require_torch, show, write_record
from pitstop.errors import PitstopError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pitstop.records.tuning.study import Tuning
    from pitstop.records.verify.verification import Claim
    from pitstop.tune.cluster import Cluster
    from pitstop.tune.configured import TuningRequest
    from pitstop.tune.script.study import ScriptStudy

_EXACT: "frozenset[Claim]" = frozenset({"exact"})
_USUAL: "frozenset[Claim]" = frozenset({"exact", "rounding"})
_ALL: "frozenset[Claim]" = frozenset({"exact", "rounding", "training"})
_OF_CONFIGS = {"seconds": "--seconds", "turns": "--turns"}
_DIFFS = (".diff", ".patch")


def tune(  # noqa: PLR0913 - one parameter an option
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG | -- CMD ...]", help="YAML file.")
    ] = None,
    overrides: Overrides = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The tuned file, CONFIG-tuned by default; of CMD lines or diff."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Most trials of the search.")] = 24,
    minutes: Annotated[float, typer.Option(min=0, help="Most time of the search.")] = 30.0,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps of a trial.")] = 40,
    seconds: Annotated[
        float,
        typer.Option(
            min=1, help="A configuration's steps that took so long are enough of a trial."
        ),
    ] = 20.0,
    turns: Annotated[
        int, typer.Option(min=1, help="Trials of each row of a configuration's table of gains.")
    ] = 3,
    trial_minutes: Annotated[float, typer.Option(min=0.1, help="Longest trial.")] = 5.0,
    allow_training: Annotated[
        bool, typer.Option("--allow-training", help="Also change what is trained, not only how.")
    ] = False,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="Only what leaves every bit as it is.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also write the gains as one HTML page with a plot.")
    ] = None,
    work_dir: Annotated[
        Path, typer.Option(help="Folder of journals: a study that was killed goes on from there.")
    ] = Path("runs/tune"),
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="ray", help="Run trials on a Ray cluster, not here."),
    ] = None,
    json: JsonPath = None,
) -> None:
    """Tune a configuration or a script: try changes in short runs, keep what is faster."""
    if allow_training and exact_only:
        raise PitstopError("--allow-training and --exact-only exclude each other; leave one out")
    from pitstop.tune.tuning import Budget

    allowed = _EXACT if exact_only else _ALL if allow_training else _USUAL
    budget = Budget(most_trials=trials, most_s=60 * minutes)
    command = command_after_dashes(ctx)
    _require_place_of_trials(on, command)
    if command is not None:
        from pitstop.cli.output import refuse_given
        from pitstop.tune.script.study import ScriptStudy

        refuse_given(ctx, _OF_CONFIGS, "a configuration, not for a command")
        _require_script(ctx, command, config)
        script = ScriptStudy(
            command=tuple(command),
            folder=work_dir / _name_of(command),
            allowed=allowed,
            steps=steps,
            trial_limit_s=60 * trial_minutes,
            budget=budget,
        )
        _tune_script(script, _Outputs(file=output, page=page, json=json))
        return
    if config is None:
        raise typer.BadParameter("name a configuration, or a command after --")
    require_torch("tuning")
    from pitstop.tune.configured import TuningRequest

    study = TuningRequest(
        config=config,
        overrides=tuple(overrides or ()),
        # With its folder: presets of several workloads have the same name.
        folder=work_dir / "-".join((*config.parent.parts[-1:], config.stem)),
        allowed=allowed,
        steps=steps,
        trial_limit_s=60 * trial_minutes,
        budget=budget,
        enough_s=seconds,
        turns=turns,
        cluster=None if on is None else _ray_cluster(),
    )
    tuned = output or config.with_name(f"{config.stem}-tuned.yaml")
    _tune_config(study, _Outputs(file=tuned, page=page, json=json))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outputs:
    """Where a study is written."""

    file: Path | None
    page: Path | None
    json: str | None

    def require_writable(self) -> None:
        """Refuse a place that cannot be written, before anything is run."""
        from pitstop.records.store import require_writable

        require_place(self.json)
        for path in (self.file, self.page):
            if path is not None:
                require_writable(path)

    def write_page(self, tuning: "Tuning") -> None:
        """Write the page, where one is wanted."""
        if self.page is not None:
            from pitstop.report.tuning_page import write_tuning_page

            write_tuning_page(tuning, self.page)


def _require_place_of_trials(on: str | None, command: "Sequence[str] | None") -> None:
    """Refuse a place of trials that is not known, or that a script cannot go to."""
    if on not in (None, "ray"):
        raise typer.BadParameter(f"--on {on}: trials run here, or --on ray")
    if on is not None and command is not None:
        raise PitstopError("--on ray is for a configuration, not for a command")


def _ray_cluster() -> "Cluster":
    from pitstop.tune.ray_cluster import RayCluster

    return RayCluster()


def _require_script(ctx: typer.Context, command: "Sequence[str]", config: Path | None) -> None:
    """Refuse what does not go with a command, or is none, before anything is run."""
    if config is not None or not command:
        raise typer.BadParameter("give either a configuration, or a command after --")
    refuse_unrunnable(words_before_dashes(ctx), command, of="tune")
    from pitstop.measure.script.launch import require_command

    require_command(command[0])


def _name_of(command: "Sequence[str]") -> str:
    """Name a study after the script; after the program where there is none."""
    scripts = [word for word in command if Path(word).suffix in (".py", ".sh")]
    return Path(scripts[0] if scripts else command[0]).stem


@contextmanager
def _going_on(folder: Path) -> "Iterator[None]":
    """Tell who interrupts a study that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"finished trials are kept in {folder}; the same command goes on from there"
        typer.echo(text, err=True)
        raise


def _tune_script(study: "ScriptStudy", outputs: _Outputs) -> None:
    from pitstop.records.store import write_text
    from pitstop.report.script_tuning import change_lines, script_tuning_report
    from pitstop.report.terminal import make_console
    from pitstop.report.tuning import trial_line
    from pitstop.tune.script.study import run_script_study

    outputs.require_writable()
    console = make_console(sys.stderr)
    with _going_on(study.folder):
        found = run_script_study(study, lambda trial: console.print(trial_line(trial, of="steps")))
    if outputs.file is not None:
        is_diff = outputs.file.suffix in _DIFFS
        lines = "".join(f"{line}\n" for line in change_lines(found))
        write_text(outputs.file, found.diff if is_diff else lines)
    outputs.write_page(found.tuning)
    show(found, lambda: script_tuning_report(found), outputs.json)


def _tune_config(study: "TuningRequest", outputs: _Outputs) -> None:
    from pitstop.report.terminal import make_console
    from pitstop.report.tuning import trial_line, tuning_report
    from pitstop.tune.configured import run_study, write_tuned

    outputs.require_writable()
    console = make_console(sys.stderr)
    with _going_on(study.folder):
        tuning = run_study(study, lambda trial: console.print(trial_line(trial)))
    written = outputs.file if len(tuning.rows) > 1 else None
    if written is not None:
        write_tuned(tuning, study, written)
    outputs.write_page(tuning)
    if not write_record(tuning, outputs.json):
        make_console().print(tuning_report(tuning, None if written is None else str(written)))
