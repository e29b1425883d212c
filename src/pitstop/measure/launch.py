"""Runs somebody's training script under measurement, in their environment and with their output.

The probe goes in through the interpreter's start-up (PYTHONPATH), so it reaches whichever Python
the command ends up running, and all that one starts. From here, outside, the process tree's memory
and the load of the host are read.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pitstop_probe
from pitstop.errors import PitstopError
from pitstop.measure.host import LoadMeter
from pitstop.measure.memory import read_memory
from pitstop.records.script import Ended
from pitstop.records.store import OUTSIDE
from pitstop_probe import RecordWriter
from pitstop_probe.attach import VARIABLE

Part = Literal["data", "sync", "log"]

_PROBE: Final = Path(pitstop_probe.__file__).parent
_LOOK_EVERY_S: Final = 1.0
_ENDED_BY_US: Final = "ended-by-pitstop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A Python process of the command that imported torch and made no training step."""

    command: tuple[str, ...]
    torch: str
    loaders: int


def run_script(
    command: Sequence[str],
    folder: Path,
    *,
    steps: int | None,
    detach: bool = False,
    without: Part | None = None,
    quiet_stdout: bool = False,
) -> Ended:
    """Run a command to its end, or to the end of the measurement.

    Args:
        command: What to run, as in a shell.
        folder: Where its record goes.
        steps: Training steps to measure after warm-up; None measures all.
        detach: Let the command run on, unmeasured, after that.
        without: Leave a part out, to measure what the run would be without it.
        quiet_stdout: Send the command's output to stderr, for stdout carries something else.

    Raises:
        PitstopError: There is no such command.
    """
    if shutil.which(command[0]) is None:
        raise PitstopError(f"there is no command {command[0]!r} to run; write it as in a shell")
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"folder": str(folder), "steps": steps, "detach": detach, "without": without}
    begun_s = time.monotonic()
    with _interrupts_counted() as interrupts:
        process = subprocess.Popen(  # noqa: S603 - running what the user asked for is the purpose
            list(command),
            env=_environment(settings),
            stdout=sys.stderr.fileno() if quiet_stdout else None,
        )
        with _watched(process.pid, folder) as writer:
            code = _wait(process)
            ended = Ended(
                exit_code=code if code >= 0 else None,
                signal=signal.Signals(-code).name if code < 0 else None,
                wall_s=time.monotonic() - begun_s,
                interrupted=bool(interrupts),
                stopped_by_us=(folder / _ENDED_BY_US).exists(),
            )
            writer.reading("ended", asdict(ended))
    return ended


def seen_without_steps(folder: Path) -> tuple[Seen, ...]:
    """Tell which processes imported torch but never trained."""
    found: list[Seen] = []
    for path in sorted(folder.glob("seen-*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        if not values["worker"]:
            found.append(
                Seen(
                    command=tuple(values["command"]),
                    torch=values["torch"],
                    loaders=values["loaders"],
                )
            )
    return tuple(found)


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """The user's environment with the probe in it."""
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH")
    startup = str(_PROBE / "startup")
    environment["PYTHONPATH"] = startup if not before else startup + os.pathsep + before
    environment["PITSTOP_PROBE_PATH"] = str(_PROBE)
    environment[VARIABLE] = json.dumps(settings)
    return environment


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the command; whoever ends us ends it."""

    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_counted() -> Iterator[list[int]]:
    """Leave Ctrl-C to the command, which gets it from the terminal as we do.

    A handler and not "ignore": that would be inherited.
    """
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _watched(pid: int, folder: Path) -> Iterator[RecordWriter]:
    """Read memory and load of the command's processes until the end."""
    writer = RecordWriter(str(folder / OUTSIDE), {"name": "outside"})
    stop = threading.Event()
    thread = threading.Thread(target=_look, args=(pid, writer, stop), daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join()
        writer.close()


def _look(pid: int, writer: RecordWriter, stop: threading.Event) -> None:
    meter = LoadMeter()
    meter.read()
    while not stop.wait(_LOOK_EVERY_S):
        writer.reading("memory", asdict(read_memory(root=pid)))
        writer.reading("load", asdict(meter.read()))
