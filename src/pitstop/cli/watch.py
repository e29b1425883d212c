"""``pitstop watch``: a run while it goes on, in the terminal and as a page."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.output import JsonPath, show, write_record

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pitstop.report.live.view import LiveView
    from pitstop.report.live.watch import Watch

INTERVAL_S = 1.0
PORT = 8765


def watch(  # noqa: PLR0913 - one argument an option
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder or file that a run is writing.")
    ],
    *,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Time between two polls; 1 unless given."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show one view and leave.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a run that is not there yet.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the view as a page too, on this machine only.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port of the page, {PORT} unless given; 0: any."),
    ] = None,
    json: JsonPath = None,
) -> None:
    """Show a run while it goes on; it is only read, and goes on when the watching ends."""
    _require_sense(interval=interval, once=once, wait=wait, web=web, port=port)
    from pitstop.doctor.judge import verdict_of
    from pitstop.report.live.watch import watch_of

    pause_s = INTERVAL_S if interval is None else interval
    watched = watch_of(run, verdict_of)
    if once:
        view = _once(watched, pause_s, wait=wait)
        show(view, lambda: _report(view), json)
    else:
        address = None if not web else (PORT if port is None else port)
        view = _follow(watched, pause_s, wait=wait, port=address, quiet=json == "-")
        if view is not None:
            write_record(view, json)
    if view is not None and view.state in ("failed", "interrupted", "killed"):
        raise typer.Exit(1)


def _require_sense(
    *, interval: float | None, once: bool, wait: bool, web: bool, port: int | None
) -> None:
    """Refuse options that would do nothing."""
    if port is not None and not web:
        raise typer.BadParameter("there is no page without --web", param_hint="--port")
    if once and web:
        raise typer.BadParameter("a page needs a run that is followed", param_hint="--once")
    if once and interval is not None and not wait:
        raise typer.BadParameter("there is one poll only with --once", param_hint="--interval")


def _report(view: "LiveView") -> "RenderableType":
    from pitstop.report.live.terminal import live_report

    return live_report(view)


def _once(watched: "Watch", pause_s: float, *, wait: bool) -> "LiveView":
    from pitstop.report.live.watch import once

    return once(watched, pause=lambda: time.sleep(pause_s), wait=wait)


def _follow(
    watched: "Watch", pause_s: float, *, wait: bool, port: int | None, quiet: bool
) -> "LiveView | None":
    """Show the run until it is over; None where whoever watches had enough."""
    from pitstop.measure.host.garbage import long_lived_frozen
    from pitstop.report.live.server import serving
    from pitstop.report.live.terminal import shown_on
    from pitstop.report.live.watch import follow, to_all
    from pitstop.report.terminal import make_console

    console = make_console()
    console.quiet = quiet
    try:
        with ExitStack() as stack:
            stack.enter_context(long_lived_frozen())
            shows = []
            if port is not None:
                page = stack.enter_context(serving(port, refresh_s=pause_s))
                console.print(f"page: {page.address}")
                shows.append(page.publish)
            shows.append(stack.enter_context(shown_on(console)))
            view = follow(watched, to_all(shows), pause=lambda: time.sleep(pause_s), wait=wait)
    except KeyboardInterrupt:
        console.print("watching ended; the run was left alone")
        return None
    console.print(f"next: pitstop report {watched.run.source}", soft_wrap=True)
    return view
