"""``pitstop report``: one self-contained page about a run, a log, or several compared."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import JsonPath, show


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN | LOG ...",
            help="Folder or file that a measured run wrote, or a training log; several to compare.",
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="The page to write.")
    ] = Path("report.html"),
    json: JsonPath = None,
) -> None:
    """Write one HTML page that tells a run's story: opens from disk, needs no network."""
    from pitstop.report.html import write_page
    from pitstop.report.written import written_report

    written = write_page(sources, output)
    show(written, lambda: written_report(written), json)
