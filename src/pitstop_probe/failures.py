"""Leaves word of an exception that ends a Python process, whether it ever imported torch or not.

A script that cannot import a package never meets the rest of the probe. What ended it is known here
alone, for its stderr is its own.
"""

import json
import os
import sys
from types import TracebackType
from typing import Callable, Optional, Type

from pitstop_probe.masking import mask_command, mask_text

PREFIX = "failed-"

_Hook = Callable[[Type[BaseException], BaseException, Optional[TracebackType]], object]


def note_failures(folder: str) -> None:
    """Write down an exception that nobody catches; it is shown as ever."""
    sys.excepthook = _noting(folder, sys.excepthook)


def _noting(folder: str, before: _Hook) -> _Hook:
    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            try:
                _write(folder, kind, error)
            except Exception:  # noqa: BLE001, S110 - its own traceback is what counts
                pass
        before(kind, error, trace)

    return hook


def _write(folder: str, kind: Type[BaseException], error: BaseException) -> None:
    name = "{}{}.json".format(PREFIX, os.getpid())
    last = (str(error).strip().splitlines() or [""])[-1]
    values = {
        "command": mask_command(sys.argv),
        "error": mask_text("{}: {}".format(kind.__name__, last)[:500]),
    }
    # Into the folder of a doctor that still lives; no other is made.
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(values, file)
