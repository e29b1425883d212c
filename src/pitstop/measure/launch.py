"""Runs somebody's training script under measurement, in their environment and with their output.

The probe goes in through the interpreter's start-up (PYTHONPATH), so it reaches whichever Python
the command ends up running, and all that one starts. From here, outside, the process tree's memory
and the load of the host are read.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
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
_OF_A_RUN: Final = (
    "rank-*.jsonl",
    "worker-*.jsonl",
    "seen-*.json",
    "without-*",
    OUTSIDE,
    _ENDED_BY_US,
)
_TERMINAL: Final = "/dev/tty"


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
        PitstopError: There is no such command or it cannot be run, or the folder holds the record
            of another run or cannot be written to.
    """
    _require_command(command[0])
    folder = _fresh(folder)
    settings = {"folder": str(folder), "steps": steps, "detach": detach, "without": without}
    begun_s = time.monotonic()
    with _interrupts_passed_on() as interrupts:
        process = _started(command, _environment(settings), quiet_stdout=quiet_stdout)
        interrupts.reach(process)
        with _watched(process.pid, folder) as writer:
            code = _wait(process)
            ended = Ended(
                exit_code=code if code >= 0 else None,
                signal=_signal_name(-code) if code < 0 else None,
                wall_s=time.monotonic() - begun_s,
                interrupted=interrupts.count > 0,
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


def _require_command(name: str) -> None:
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).is_file():
        raise PitstopError(
            f"cannot run {name!r}: it is not executable; run it with its interpreter, or chmod +x"
        )
    raise PitstopError(f"there is no command {name!r} to run; write it as in a shell")


def _fresh(folder: Path) -> Path:
    """Make the folder, or see that nothing of another run is in it.

    Absolute, for the command may change its directory before it writes.
    """
    try:
        folder = folder.absolute()
        if folder.exists() and not folder.is_dir():
            raise PitstopError(f"cannot write a record to {folder}: it is a file, not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        old = next((path for name in _OF_A_RUN for path in sorted(folder.glob(name))), None)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise PitstopError(f"cannot write a record to {folder}: {why}") from error
    if old is not None:
        raise PitstopError(f"{folder} holds {old.name} of another run; name a new or empty folder")
    return folder


def _started(
    command: Sequence[str], environment: Mapping[str, str], *, quiet_stdout: bool
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - running what the user asked for is the purpose
            list(command),
            env=environment,
            stdout=sys.stderr.fileno() if quiet_stdout else None,
        )
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.ENOEXEC:
            why += "; it has no #! line: run it with its interpreter, such as python or sh"
        raise PitstopError(f"cannot run {command[0]!r}: {why}") from error


def _signal_name(number: int) -> str:
    """Name a signal; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


class _Interrupts:
    """Counts interrupts and passes on those that the command did not get from the terminal."""

    def __init__(self) -> None:
        self.count = 0
        self._process: subprocess.Popen[bytes] | None = None

    def reach(self, process: "subprocess.Popen[bytes]") -> None:
        """Name the command, which missed what came before it was there."""
        self._process = process
        if self.count:
            process.send_signal(signal.SIGINT)

    def take(self, number: int, _: object) -> None:
        """Handle the signal."""
        self.count += 1
        if self._process is not None and not _is_in_foreground(self._process.pid):
            self._process.send_signal(number)


def _is_in_foreground(pid: int) -> bool:
    """Whether the terminal's Ctrl-C goes to a process itself."""
    try:
        terminal = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgid(pid)
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _interrupts_passed_on() -> Iterator[_Interrupts]:
    """See to it that an interrupt reaches the command, once, and does not end us.

    A handler and not "ignore": that would be inherited.
    """
    interrupts = _Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.take)
    try:
        yield interrupts
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
