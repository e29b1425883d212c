"""``pitstop machine``: measured ceilings of this host, and what follows for loader and cache."""

from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.output import JsonPath, require_place, show

Data = Annotated[
    Path | None,
    typer.Option(help="Folder or file of a dataset, whose volume is read (never written)."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer repeats and smaller blocks, in about 2 s.")
]


def machine(*, data: Data = None, quick: Quick = False, json: JsonPath = None) -> None:
    """Measure how fast this machine's parts are, and advise on loader workers and cache."""
    from pitstop.measure.machine.describe import measure_machine
    from pitstop.report.machine import machine_report

    require_place(json)
    record = measure_machine(data, quick=quick)
    show(record, lambda: machine_report(record), json)
