"""Signals to stop: noted when they come, acted on at the border of a step."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pitstop.data.loader.worker_ends import signal_at_parent_death
from pitstop.errors import PitstopError

# A lost terminal (SIGHUP, which Windows does not have) is a reason to save, too.
_HANDLED: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

# A Ctrl-C that a launcher passes on comes within this time; a person's second one, later.
_PASSED_ON_WITHIN_S: Final = 1.0


class StopSignals:
    """The first signal to stop that this process received."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Its name; None before one came."""
        self._parent = os.getppid()
        self._interrupted_s = math.inf

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals to stop inside this context; a second Ctrl-C is final.

        A second SIGTERM or SIGHUP is not: a launcher passes on what the whole process group
        received, and whoever means it sends SIGKILL.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in _HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.reason is None:
            self.reason = signal.Signals(number).name
            if os.getppid() != self._parent:
                self.reason += " (the launcher of this run has ended)"
        if number != signal.SIGINT:
            return
        now_s = time.monotonic()
        if now_s - self._interrupted_s > _PASSED_ON_WITHIN_S:
            raise KeyboardInterrupt
        self._interrupted_s = min(self._interrupted_s, now_s)


def stop_with_launcher(launcher: int | None = None) -> None:
    """Have a rank of a launch receive SIGTERM when its launcher is gone: nobody else would end it.

    The system sends it; Linux only.

    Args:
        launcher: The process that started this one, as it was when this one began.

    Raises:
        PitstopError: It is gone already, and the system would send nothing.
    """
    signal_at_parent_death(signal.SIGTERM)
    if launcher not in (None, os.getppid()):
        raise PitstopError(
            "the launcher of this run has ended while its ranks were starting; start it again"
        )
