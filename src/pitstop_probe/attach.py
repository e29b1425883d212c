"""Attaches the probe to a training process: from its start-up, or by a call.

From start-up: the folder ``inject`` stands first in PYTHONPATH and its ``sitecustomize`` calls
`from_environment`, in the script's process and in every Python it starts. Nothing happens until
the script imports torch; then torch's own entry points are observed.
"""

import atexit
import contextlib
import functools
import json
import os
import sys
from typing import Any, Callable, Dict, Optional

from pitstop_probe.clock import monotonic_us
from pitstop_probe.doctor import doctor_of
from pitstop_probe.failures import note_failures
from pitstop_probe.hooks.imports import when_imported
from pitstop_probe.hooks.patches import replace
from pitstop_probe.hooks.start_up import ImportClock
from pitstop_probe.measurement import Measurement, Settings, was_measured

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
    started_us = monotonic_us()  # the interpreter is starting
    values: Dict[str, Any] = json.loads(text)
    settings = Settings(
        values["folder"],
        values.get("steps"),
        detach=bool(values.get("detach")),
        ablate=values.get("ablate"),
        started_us=started_us,
        imports=ImportClock(),
    )
    settings.doctor = doctor_of(values)
    settings.loss_every = values.get("loss_every")
    wanted = values.get("interventions")
    if wanted is not None:  # before the measurement, which observes what is there then
        from pitstop_probe.interventions.apply import intervene

        when_imported("torch", lambda torch: intervene(torch, wanted, settings.folder))
    begin = _record_memory if values.get("memory") else start
    if _is_wanted(settings):
        note_failures(values["folder"])
        when_imported("torch", lambda torch: _is_wanted(settings) and begin(torch, settings))


def _is_wanted(settings: Settings) -> bool:
    """Whether somebody waits for a record, and has none yet."""
    is_awaited = settings.doctor is None or settings.doctor.is_alive
    return is_awaited and not was_measured(settings.folder)


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


def _record_memory(torch: Any, settings: Settings) -> None:
    """Record what the first steps hold, and nothing else; written at the end at the latest."""
    from pitstop_probe.step_memory.recorder import StepMemory

    atexit.register(StepMemory(torch, settings).close)


def start(torch: Any, settings: Settings) -> Measurement:
    """Begin to observe, and see to it that whatever was observed is written at the end."""
    global _current  # noqa: PLW0603 - a process has one torch, so it has one measurement
    is_first = _current is None
    measurement = _current = Measurement(torch, settings)
    if is_first:
        # Hooks of a fork cannot be taken back: those of the first measurement serve all.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_forking, after_in_child=_forked)
        atexit.register(_end)
    measurement.until_closed += [
        replace(sys, "excepthook", lambda hook: _noting_exceptions(measurement, hook)),
        # All other ways to become another program end in one of these.
        replace(os, "execv", lambda execute: _closing_first(measurement, execute)),
        replace(os, "execve", lambda execute: _closing_first(measurement, execute)),
    ]
    return measurement


def _forking() -> None:
    if _current is not None:
        _current.forking()


def _forked() -> None:
    if _current is not None:
        _current.forked()


def _end() -> None:
    measurement = _current
    if measurement is None:
        return
    if measurement.has_record:
        measurement.close()
    elif not measurement.is_child:
        with contextlib.suppress(OSError):
            measurement.write_seen()


def _noting_exceptions(measurement: Measurement, before: Callable[..., Any]) -> Callable[..., Any]:
    """Close the record as failed when an exception ends the script; it is shown as ever."""

    def hook(kind: Any, error: Any, trace: Any) -> None:
        status = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        measurement.close(status, "{}: {}".format(kind.__name__, error)[:500])
        before(kind, error, trace)

    return hook


def _closing_first(measurement: Measurement, execute: Callable[..., Any]) -> Callable[..., Any]:
    """Close the record before the process becomes another program, which ends nothing itself."""

    @functools.wraps(execute)
    def closing(*args: Any, **kwargs: Any) -> Any:
        if measurement.has_record:
            measurement.close()
        return execute(*args, **kwargs)

    return closing
