"""``pitstop config``: convert, check and show configurations."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import JsonPath

app = typer.Typer(
    help="Convert, check and show configurations.", no_args_is_help=True, add_completion=False
)

Old = Annotated[Path, typer.Argument(help="A guide's YAML; it is read, never executed.")]
Output = Annotated[Path | None, typer.Option(help="Write the new YAML there.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]


@app.command("import")
def import_config(old: Old, *, output: Output = None, json_path: JsonPath = None) -> None:
    """Convert a guide's configuration, with an account of every key."""
    from pitstop.config.legacy import import_legacy, refuse_to_overwrite
    from pitstop.records.store import to_json, write_json, write_text
    from pitstop.report.config import import_report, print_text

    result = import_legacy(old)
    if output is not None:
        refuse_to_overwrite(output)
        write_text(output, result.yaml)
    if json_path is not None and json_path != "-":
        write_json(result, Path(json_path))
    if output is None or json_path == "-":
        typer.echo(to_json(result) if json_path == "-" else result.yaml)
    print_text(import_report(result, written_to=output), stderr=output is None or json_path == "-")


@app.command()
def check(config: Path, overrides: Overrides = None) -> None:
    """Say whether a configuration can be used; every mistake at once."""
    from pitstop.config.load import load_config
    from pitstop.config.problems import ConfigProblems
    from pitstop.measure.limits import read_host_limits
    from pitstop.report.config import check_report, print_text

    try:
        loaded = load_config(config, overrides or (), host=read_host_limits())
    except ConfigProblems as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    print_text(check_report(config, loaded))


@app.command()
def show(config: Path, overrides: Overrides = None) -> None:
    """Print a configuration with bases, overrides and defaults filled in, as YAML."""
    from pitstop.config.dump import to_yaml
    from pitstop.config.load import load_config

    typer.echo(to_yaml(load_config(config, overrides or ()).config), nl=False)
