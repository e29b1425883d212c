"""``pitstop tune``: the fastest settings of a configuration, found by trying, with their gains."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.entrances import is_command
from pitstop.cli.output import JsonPath, require_place, require_torch, write_record
from pitstop.cli.train import Config, Overrides
from pitstop.errors import PitstopError

if TYPE_CHECKING:
    from pitstop.records.verify.verification import Claim

_EXACT: "frozenset[Claim]" = frozenset({"exact"})
_USUAL: "frozenset[Claim]" = frozenset({"exact", "rounding"})
_ALL: "frozenset[Claim]" = frozenset({"exact", "rounding", "training"})


def tune(  # noqa: PLR0913 - one parameter an option
    config: Config,
    overrides: Overrides = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The tuned file; default CONFIG-tuned.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Most trials of the search.")] = 24,
    minutes: Annotated[float, typer.Option(min=0, help="Most time of the search.")] = 30.0,
    steps: Annotated[int, typer.Option(min=12, help="Optimizer steps of a trial.")] = 40,
    trial_minutes: Annotated[float, typer.Option(min=0.1, help="Longest trial.")] = 5.0,
    allow_training: Annotated[
        bool, typer.Option("--allow-training", help="Also change what is trained, not only how.")
    ] = False,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="Only what leaves every bit as it is.")
    ] = False,
    work_dir: Annotated[
        Path, typer.Option(help="Folder of journals: a study that was killed goes on from there.")
    ] = Path("runs/tune"),
    json: JsonPath = None,
) -> None:
    """Tune a configuration: try settings in short runs, keep what is faster, write it down."""
    _refuse_scripts(config)
    require_torch("tuning")
    require_place(json)
    tuned = output or config.with_name(f"{config.stem}-tuned.yaml")
    if allow_training and exact_only:
        raise PitstopError("--allow-training and --exact-only exclude each other; leave one out")
    from pitstop.report.terminal import make_console
    from pitstop.report.tuning import trial_line, tuning_report
    from pitstop.tune.configured import TuningRequest, run_study, write_tuned
    from pitstop.tune.tuning import Budget

    study = TuningRequest(
        config=config,
        overrides=tuple(overrides or ()),
        folder=work_dir / config.stem,
        allowed=_EXACT if exact_only else _ALL if allow_training else _USUAL,
        steps=steps,
        trial_limit_s=60 * trial_minutes,
        budget=Budget(most_trials=trials, most_s=60 * minutes),
    )
    console = make_console(sys.stderr)
    tuning = run_study(study, lambda trial: console.print(trial_line(trial)))
    gained = len(tuning.rows) > 1
    if gained:
        write_tuned(tuning, study, tuned)
    if not write_record(tuning, json):
        make_console().print(tuning_report(tuning, str(tuned) if gained else None))


def _refuse_scripts(target: Path) -> None:
    if is_command(str(target)):
        raise PitstopError(
            f"{target} is a script or a program, and only configurations are tuned; "
            "`pitstop doctor -- COMMAND` says what holds a script back"
        )
