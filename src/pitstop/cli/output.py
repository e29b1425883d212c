"""What commands share: arguments; results as text on stdout, the record as JSON where asked."""

import json
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.errors import MissingPackage, PitstopError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from rich.console import RenderableType

Config = Annotated[Path, typer.Argument(help="YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")]
LogFormat = Annotated[
    str | None, typer.Option("--format", help="With logs: their format, if not recognised.")
]
LogBatchSizes = Annotated[
    list[int] | None,
    typer.Option(help="With logs: samples a step on one rank; once, or once for each source."),
]
LogWorldSizes = Annotated[
    list[int] | None,
    typer.Option(help="With logs: ranks of the run; once, or once for each source."),
]
JsonPath = Annotated[
    str | None,
    typer.Option("--json", metavar="PATH", help="Write the record as JSON; - for stdout."),
]

Language = Annotated[str, typer.Option("--lang", metavar="en|zh", help="Language of the text.")]


def require_place(json_path: str | None) -> None:
    """Refuse a path that can take no record, before the work that is to go into it.

    Raises:
        RecordError: It cannot be written to.
    """
    from pitstop.records.store import require_writable

    if json_path not in (None, "-"):
        require_writable(Path(json_path))


def silence(stream: "TextIO") -> None:
    """Let what a stream still holds go nowhere: at the end writing it would fail again."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def refuse_given(ctx: typer.Context, options: "Mapping[str, str]", purpose: str) -> None:
    """Refuse options of a command that would do nothing, by parameter and spelling.

    Raises:
        PitstopError: The user gave one of them.
    """
    given = [
        option
        for name, option in options.items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    refuse_options(given, purpose)


def write_record(record: object, json_path: str | None) -> bool:
    """Write the record as JSON where asked; tell whether stdout is taken by it."""
    from pitstop.records.store import to_json, write_json

    if json_path == "-":
        typer.echo(_showable(to_json(record)))
    elif json_path is not None:
        write_json(record, Path(json_path))
    return json_path == "-"


def _showable(text: str) -> str:
    """Escape what stdout cannot show: a replaced letter would be another record."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), indent=2)
    return text


def show(
    record: object,
    text: "Callable[[], RenderableType]",
    json_path: str | None,
    *,
    language: str = "en",
) -> None:
    """Write the record where asked, and print the text unless stdout carries the record."""
    if write_record(record, json_path):
        return
    from pitstop.report.terminal import make_console

    make_console(language=language).print(text())


def refuse_options(given: "Sequence[str]", purpose: str) -> None:
    """Refuse options that would do nothing.

    Raises:
        PitstopError: There are some; names them.
    """
    if given:
        verb = "is" if len(given) == 1 else "are"
        raise PitstopError(f"{', '.join(given)} {verb} for {purpose}; leave it out")


def require_torch(purpose: str) -> None:
    """Refuse in one line where torch is not installed.

    Raises:
        MissingPackage: Says how to get it.
    """
    if find_spec("torch") is None:
        raise MissingPackage("torch", purpose=purpose)
