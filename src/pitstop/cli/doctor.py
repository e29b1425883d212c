"""``pitstop doctor``: a verdict on a run's record."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import JsonPath, show


def doctor(
    run: Annotated[Path, typer.Argument(help="Folder or file that a measured run wrote.")],
    json: JsonPath = None,
) -> None:
    """Say what holds a run back, how that is known, and the most that mending it can give."""
    from rich.console import Group

    from pitstop.doctor.examine import examine
    from pitstop.records.store import read_run
    from pitstop.records.summary import summarise
    from pitstop.report.terminal import run_report, verdict_report

    record = read_run(run)
    verdict = examine(record)
    summary = summarise(next(rank for rank in record.ranks if rank.rank == verdict.rank))
    show(verdict, lambda: Group(verdict_report(verdict), "", run_report(summary)), json)
    raise typer.Exit(1 if verdict.outcome == "bottleneck" else 0)
