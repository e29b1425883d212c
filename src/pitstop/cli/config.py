"""``pitstop config``: convert, check and show configurations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pitstop.cli.output import JsonPath, Overrides, write_record
from pitstop.cli.output import show as show_record

if TYPE_CHECKING:
    from pitstop.config.sections import RunConfig

app = typer.Typer(
    help="Convert, check and show configurations.", no_args_is_help=True, add_completion=False
)

Old = Annotated[
    Path, typer.Argument(help="YAML, JSON with comments, or Python; it is read, never executed.")
]
Output = Annotated[Path | None, typer.Option(help="Write the new YAML there.")]
As = Annotated[
    Literal["ran", "wanted"],
    typer.Option("--as", help="Write what the old code did, or what was wanted from it."),
]


@app.command("import")
def import_config(
    old: Old, *, column: As = "ran", output: Output = None, json_path: JsonPath = None
) -> None:
    """Convert a guide's configuration, with an account of every key."""
    from pitstop.config.legacy.convert import import_legacy, refuse_to_overwrite
    from pitstop.records.store import write_text
    from pitstop.report.config import import_report, print_text

    result = import_legacy(old, column=column)
    if output is not None:
        refuse_to_overwrite(output)
        write_text(output, result.yaml)
    taken = write_record(result, json_path)
    if output is None and not taken:
        typer.echo(result.yaml)
    print_text(import_report(result, written_to=output), stderr=output is None or taken)


@app.command()
def check(config: Path, overrides: Overrides = None, *, json_path: JsonPath = None) -> None:
    """Say whether a configuration can be used; every mistake at once."""
    from pitstop.config.load import load_config
    from pitstop.config.problems import ConfigCheck, ConfigProblems
    from pitstop.measure.host.limits import read_host_limits
    from pitstop.report.config import check_report
    from pitstop.report.printable import literal_lines

    source = str(config)
    try:
        loaded = load_config(config, overrides or (), host=read_host_limits(), to_run=True)
        was_tried = _rehearse(loaded.config, source)
    except ConfigProblems as error:
        found = ConfigCheck(source=source, is_sound=False, problems=error.problems, warnings=())
        write_record(found, json_path)
        typer.echo(literal_lines(str(error)), err=True)
        raise typer.Exit(1) from None
    found = ConfigCheck(source=source, is_sound=True, problems=(), warnings=loaded.warnings)
    show_record(found, lambda: check_report(config, loaded, was_tried=was_tried), json_path)


def _rehearse(config: "RunConfig", source: str) -> bool:
    """Prepare the run without a step, where torch is installed; tell whether it is.

    Raises:
        ConfigProblems: Where it could not begin.
    """
    from pitstop.config.problems import ConfigProblems, Problem

    try:
        from pitstop.train.rehearsal import rehearse
        from pitstop.workloads.catalogue import build_task
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return False

    obstacles = rehearse(config, build_task)
    if obstacles:
        raise ConfigProblems(
            source, (Problem(key=one.section, message=one.message) for one in obstacles)
        )
    return True


@app.command()
def show(config: Path, overrides: Overrides = None, *, json_path: JsonPath = None) -> None:
    """Print a configuration with bases, overrides and defaults filled in, as YAML."""
    from pitstop.config.dump import to_yaml
    from pitstop.config.load import load_config

    loaded = load_config(config, overrides or ())
    show_record(loaded.config, lambda: to_yaml(loaded.config).rstrip(), json_path)
