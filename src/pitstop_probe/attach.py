"""Attaches the probe to a training process: from its start-up, or by a call.

From start-up: the folder ``startup`` stands first in PYTHONPATH and its ``sitecustomize`` calls
`from_environment`, in the script's process and in every Python it starts. Nothing happens until
the script imports torch; then torch's own entry points are observed.
"""

import atexit
import json
import os
import sys
from typing import Any, Dict, Optional

from pitstop_probe.course import Measurement, Settings
from pitstop_probe.imports import when_imported

VARIABLE = "PITSTOP_PROBE"

_current: Optional[Measurement] = None


def current() -> Optional[Measurement]:
    """The measurement of this process, if one is under way."""
    return None if _current is None or _current.is_closed else _current


def from_environment() -> None:
    """Attach as the environment says; nothing where it says nothing."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    values: Dict[str, Any] = json.loads(text)
    settings = Settings(
        values["folder"],
        values.get("steps"),
        detach=bool(values.get("detach")),
        without=values.get("without"),
    )
    when_imported("torch", lambda torch: start(torch, settings))


def attach(folder: str, steps: Optional[int] = None) -> Measurement:
    """Attach to this process, whose torch is imported already.

    A process has one measurement at a time: a second call gives the one under way.
    """
    under_way = current()
    if under_way is not None:
        return under_way
    torch = sys.modules.get("torch")
    if torch is None:
        raise RuntimeError("import torch before attaching: there is nothing to observe yet")
    return start(torch, Settings(folder, steps, detach=True))


def start(torch: Any, settings: Settings) -> Measurement:
    """Begin to observe, and see to it that whatever was observed is written at the end."""
    global _current  # noqa: PLW0603 - a process has one torch, so it has one measurement
    measurement = _current = Measurement(torch, settings)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=measurement.forking, after_in_child=measurement.forked)
    atexit.register(_end, measurement)
    _note_exceptions(measurement)
    return measurement


def _end(measurement: Measurement) -> None:
    if measurement.has_steps:
        measurement.close()
        return
    if not measurement.is_child:
        measurement.write_seen()


def _note_exceptions(measurement: Measurement) -> None:
    """Close the record as failed when an exception ends the script; it is shown as ever."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        measurement.close(status, "{}: {}".format(kind.__name__, error)[:500])
        before(kind, error, trace)

    sys.excepthook = hook
