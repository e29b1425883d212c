"""Entry point: one command a file, one format for errors, exit codes 0, 1 and 2."""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import pitstop
from pitstop.cli import (
    config,
    data,
    doctor,
    evaluate,
    explain,
    export,
    infer,
    machine,
    plan,
    report,
    train,
    tune,
    verify,
    watch,
)
from pitstop.cli.demo import command as demo
from pitstop.cli.output import silence
from pitstop.errors import PitstopError

INTERRUPTED = 130
_MOST_SIZE_DIGITS = 6
_MOST_NAME = 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="pitstop",
    help="Makes PyTorch training fast and proves it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command(cls=doctor.CommandAfterDashes)(doctor.doctor)
app.command()(explain.explain)
app.command()(report.report)
app.command()(export.export)
app.command()(watch.watch)
app.command()(machine.machine)
app.command(cls=doctor.CommandAfterDashes)(plan.plan)
app.command()(train.train)
app.command(cls=doctor.CommandAfterDashes)(tune.tune)
app.command(cls=verify.CommandsAfterDashes)(verify.verify)
app.command("eval")(evaluate.evaluate)
app.command()(infer.infer)
app.command("export-model")(export.export_model)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer hands it over by position
    if asked:
        typer.echo(f"pitstop {pitstop.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Makes PyTorch training fast and proves it."""
    del version


def _prepare_streams() -> None:
    """Let a terminal that lacks a letter show a question mark, and a closed stream take all."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - stays to the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - stays to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in ("COLUMNS", "LINES"):
        # Rich turns any digits into a number, and Python refuses thousands of them.
        if len(os.environ.get(name, "")) > _MOST_SIZE_DIGITS:  # noqa: TID251 - rich reads it there
            del os.environ[name]  # noqa: TID251


def main() -> None:
    """Run a command; a user's mistake becomes one paragraph, never a traceback."""
    _prepare_streams()
    try:
        app()
    except PitstopError as error:
        _say_error(str(error))
        if error.ends_at_once:
            _end_at_once()
        sys.exit(2)
    except SystemExit as leaving:
        # An interrupt comes out of the framework as this code, without a word.
        if leaving.code == INTERRUPTED:
            typer.echo("interrupted", err=True)
        raise
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        _end_unwritten(error)


def _end_at_once() -> NoReturn:
    """End without the interpreter's clean-up: records and checkpoints are closed by now."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(2)


def _end_unwritten(error: OSError) -> NoReturn:
    """End where something could not be written or used; any other error goes its way."""
    if error.errno not in (errno.EPIPE, *_NO_ROOM):
        if error.filename is None:
            raise error
        # A name too long, a link to itself, no permission: the system says which file and why.
        _say_error(f"cannot use {str(error.filename)[:_MOST_NAME]}: {error.strerror}")
        sys.exit(2)
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    if error.errno == errno.EPIPE:
        sys.exit(1)  # the reader of a pipe left, and knows
    _say_error(f"cannot write: {error.strerror}")
    sys.exit(2)


def _say_error(text: str) -> None:
    from pitstop.report.printable import literal_lines

    typer.echo(f"error: {literal_lines(text)}", err=True)


if __name__ == "__main__":
    main()
