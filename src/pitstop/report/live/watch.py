"""Watching a run: poll, view, show, until the run is over; verdicts are made beside it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from pitstop.errors import RecordError
from pitstop.records.host.nodes import RANK_FILES
from pitstop.records.run import RunRecord
from pitstop.report.live.process import IsAlive, is_alive
from pitstop.report.live.tail import RunTail
from pitstop.report.live.view import LiveView, live_view, recent_run

if TYPE_CHECKING:
    from pitstop.records.verdict import Verdict

VERDICT_EVERY_S: Final = 5.0

Clock = Callable[[], float]
Show = Callable[[LiveView], None]
Examine = Callable[[RunRecord], "Verdict"]
Start = Callable[[Callable[[], None]], None]


def to_all(shows: Sequence[Show]) -> Show:
    """Show a view in several places."""

    def show(view: LiveView) -> None:
        for one in shows:
            one(view)

    return show


def in_a_thread(work: Callable[[], None]) -> None:
    """Do some work beside the display, which does not wait for it."""
    Thread(target=work, daemon=True).start()


class Judge:
    """Asks the doctor about the last steps: not too often, and never twice at once.

    Args:
        examine: Gives the verdict on a record.
        every_s: Least time between two examinations.
        start: How the work is begun.
    """

    def __init__(
        self, examine: Examine, *, every_s: float = VERDICT_EVERY_S, start: Start = in_a_thread
    ) -> None:
        self._verdict_on = examine
        self._every_s = every_s
        self._start = start
        self._is_busy = False
        self._asked_at_s: float | None = None
        self.verdict: Verdict | None = None

    def offer(self, run: RunTail, now_s: float) -> bool:
        """Have the present state examined if it is time; tell whether it was taken."""
        due = self._asked_at_s is None or now_s - self._asked_at_s >= self._every_s
        record = recent_run(run) if due and not self._is_busy else None
        if record is None:
            return False
        self._asked_at_s = now_s
        self._is_busy = True
        self._start(lambda: self._examine(record))
        return True

    def settle(self, run: RunTail) -> None:
        """Examine the present state at once."""
        record = recent_run(run)
        self.verdict = None if record is None else self._verdict_on(record)

    def _examine(self, record: RunRecord) -> None:
        try:
            self.verdict = self._verdict_on(record)
        finally:
            self._is_busy = False


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """A run that is polled; the run itself is left alone."""

    run: RunTail
    judge: Judge
    now_s: Clock = time.monotonic
    alive: IsAlive = is_alive
    _is_new: bool = False

    def look(self, *, settle: bool = False) -> LiveView:
        """Take in what is new and lay it out.

        Args:
            settle: Whether to wait for a verdict on exactly this.

        Raises:
            RecordError: A file is something else than a record.
        """
        now_s = self.now_s()
        self._is_new = self.run.poll(now_s) or self._is_new
        if settle:
            self.judge.settle(self.run)
        elif self._is_new and self.judge.offer(self.run, now_s):
            self._is_new = False
        return live_view(self.run, now_s=now_s, is_alive=self.alive, verdict=self.judge.verdict)


def watch_of(source: Path, examine: Examine) -> Watch:
    """Begin to watch a run's folder or file, which need not be there yet."""
    return Watch(run=RunTail(source), judge=Judge(examine))


def follow(watch: Watch, show: Show, *, pause: Callable[[], None], wait: bool) -> LiveView:
    """Show the run until it is over; give the last view.

    Raises:
        RecordError: There is no record and it is not waited for, or it is something else.
    """
    view = watch.look()
    require_record(view, wait=wait)
    while not view.is_over:
        show(view)
        pause()
        view = watch.look()
    view = watch.look(settle=True)
    show(view)
    return view


def once(watch: Watch, *, pause: Callable[[], None], wait: bool) -> LiveView:
    """Look at a run a single time, with a verdict; waits only for its begin, where asked.

    Raises:
        RecordError: There is no record and it is not waited for, or it is something else.
    """
    view = watch.look(settle=True)
    require_record(view, wait=wait)
    while view.state == "waiting":
        pause()
        view = watch.look(settle=True)
    return view


def require_record(view: LiveView, *, wait: bool) -> None:
    """Refuse a run that is not there, unless it is waited for.

    Raises:
        RecordError: Says what is missing and how to wait for it.
    """
    if view.state == "waiting" and not wait:
        raise RecordError(
            f"there is no run record in {view.source} (no {RANK_FILES}); "
            "name the folder that a measured run writes, or wait for it with --wait"
        )
