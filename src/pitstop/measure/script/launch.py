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
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import pitstop_probe
from pitstop.errors import PitstopError
from pitstop.measure.host.load import LoadMeter
from pitstop.measure.host.memory import read_memory
from pitstop.measure.script.record_folder import ENDED_BY_US, MEASURED, cannot_write, fresh_folder
from pitstop.measure.script.source_code import source_of
from pitstop.records.script import Ended, Untrained
from pitstop.records.store import OUTSIDE
from pitstop_probe import RecordWriter
from pitstop_probe.attach import VARIABLE
from pitstop_probe.doctor import LOCK, hold

Part = Literal["data", "sync", "log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interventions:
    """Changes to a script from outside, as `pitstop_probe.interventions` takes them."""

    changes: tuple[str, ...] = ()
    """Settings as ``name=value``."""
    loaders: tuple[str, ...] | None = None
    """Lines whose DataLoaders are changed; None for all."""
    seed: int = 0
    """Added to every seed."""


_PROBE: Final = Path(pitstop_probe.__file__).parent
_READ_EVERY_S: Final = 1.0
_TERMINAL: Final = "/dev/tty"
# Not every system has all of them.
_PASSED_ON: Final = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    if name in signal.Signals.__members__
)


def run_script(
    command: Sequence[str],
    folder: Path,
    *,
    steps: int | None,
    detach: bool = False,
    ablate: Part | None = None,
    stdout: int | None = None,
) -> Ended:
    """Run a command to its end, or to the end of the measurement.

    Only what the command names is ended: see `pitstop_probe.doctor.Doctor.ends_this`.

    Args:
        command: What to run, as in a shell.
        folder: Where its record goes.
        steps: Training steps to measure after warm-up; None measures all.
        detach: Let the command run on, unmeasured, after that.
        ablate: Leave a part out, to measure what the run would be without it.
        stdout: Descriptor that takes the command's output; None lets it go where ours goes.

    Raises:
        PitstopError: There is no such command or it cannot be run, or the folder holds the record
            of another run or cannot be written to.
    """
    settings = {"steps": steps, "detach": detach, "ablate": ablate}
    return _run(command, folder, settings, stdout=stdout)


def record_memory(command: Sequence[str], folder: Path, *, stdout: int | None = None) -> Ended:
    """Run the first steps of a command, to record what they hold in memory and nothing else.

    Nothing is compiled on the way. What is ended, and what is raised, is as of `run_script`.

    Args:
        command: What to run, as in a shell.
        folder: Where its record goes.
        stdout: Descriptor that takes the command's output; None lets it go where ours goes.
    """
    return _run(command, folder, {"memory": True}, stdout=stdout)


def _run(
    command: Sequence[str], folder: Path, settings: Mapping[str, Any], *, stdout: int | None
) -> Ended:
    require_command(command[0])
    folder = fresh_folder(folder)
    begun_s = time.monotonic()
    with _signals_passed_on() as signals, _outside_record(folder) as writer, _alive(folder) as lock:
        sender = {"lock": lock, "pid": os.getpid(), "command": list(command)}
        environment = _environment({**settings, "folder": str(folder), "doctor": sender})
        process = _started(command, environment, stdout=stdout)
        signals.reach(process)
        with suppress(OSError):  # where the disk is full, the command still runs
            writer.reading("source", asdict(source_of(command)))
        with _watched(process.pid, writer):
            code = process.wait()
            ended = Ended(
                exit_code=code if code >= 0 else None,
                signal=_signal_name(-code) if code < 0 else None,
                wall_s=time.monotonic() - begun_s,
                interrupted=signals.interrupts > 0,
                stopped_by_us=(folder / ENDED_BY_US).exists(),
                ran_on=(folder / MEASURED).exists() and not (folder / ENDED_BY_US).exists(),
            )
            with suppress(OSError):  # where the disk is full, the command's end still counts
                writer.reading("ended", asdict(ended))
    return ended


@contextmanager
def probe_environment(
    command: Sequence[str],
    folder: Path,
    *,
    steps: int,
    loss_every: int,
    interventions: Interventions,
) -> Iterator[dict[str, str]]:
    """Give the environment in which a command that somebody else starts is measured and changed.

    It ends itself after so many steps, as under `run_script`.

    Args:
        command: What will be run.
        folder: Where its record goes; exists.
        steps: Training steps to measure after warm-up.
        loss_every: Steps from one kept loss to the next.
        interventions: What to change in it.

    Raises:
        PitstopError: The folder cannot be written to.
    """
    with _alive(folder) as lock:
        settings = {
            "folder": str(folder),
            "steps": steps,
            "loss_every": loss_every,
            "interventions": asdict(interventions),
            "doctor": {"lock": lock, "pid": os.getpid(), "command": list(command)},
        }
        yield _environment(settings)


def seen_without_steps(folder: Path) -> tuple[Untrained, ...]:
    """Tell which processes imported torch but never trained."""
    found: list[Untrained] = []
    for path in sorted(folder.glob("seen-*.json")):
        # A process that was killed while it wrote leaves half a file.
        with suppress(OSError, ValueError, LookupError, TypeError):
            values = json.loads(path.read_text(encoding="utf-8"))
            if not values["worker"]:
                found.append(
                    Untrained(
                        command=tuple(map(str, values["command"])),
                        torch=str(values["torch"]),
                        backward_passes=int(values["backward_passes"]),
                        compiled=bool(values["compiled"]),
                    )
                )
    return tuple(found)


def first_failure(folder: Path) -> str | None:
    """Give the exception that first ended a process of the command; None where none is known.

    The first, since those that waited for it fail after it, and say less.
    """
    # The clock of files is coarse: of two alike, the number decides, so that it is one each time.
    for path in sorted(folder.glob("failed-*.json"), key=lambda path: (path.stat().st_mtime, path)):
        with suppress(OSError, ValueError, LookupError, TypeError):
            return str(json.loads(path.read_text(encoding="utf-8"))["error"])
    return None


def require_command(name: str) -> None:
    """Refuse what is no command, before anything is prepared for it.

    Raises:
        PitstopError: It is not there, or cannot be run.
    """
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).is_file():
        raise PitstopError(
            f"cannot run {name!r}: it is not executable; run it with its interpreter, or chmod +x"
        )
    raise PitstopError(f"there is no command {name!r} to run; write it as in a shell")


def _started(
    command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - running what the user asked for is the purpose
            list(command),
            env=environment,
            stdout=stdout,
            close_fds=False,  # what a shell opened for the command reaches it through us
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
    inject = str(_PROBE / "inject")
    environment["PYTHONPATH"] = inject if not before else inject + os.pathsep + before
    environment["PITSTOP_PROBE_PATH"] = str(_PROBE)
    environment[VARIABLE] = json.dumps(settings)
    if settings.get("memory"):
        environment["TORCHDYNAMO_DISABLE"] = "1"  # inside compiled code nothing is seen
    return environment


class _Signals:
    """Counts interrupts and passes signals on, but for interrupts the terminal sent to both."""

    def __init__(self) -> None:
        self.interrupts = 0
        self._early: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def reach(self, process: "subprocess.Popen[bytes]") -> None:
        """Name the command, which missed what came before it was there."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def take(self, number: int, _: object) -> None:
        """Handle a signal."""
        self.interrupts += number == signal.SIGINT
        if self._process is None:
            self._early.append(number)
        elif number != signal.SIGINT or not _is_in_foreground(self._process.pid):
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
def _signals_passed_on() -> Iterator[_Signals]:
    """See to it that whoever ends us ends the command, and that we see its end.

    Handlers and not "ignore": that would be inherited. So is it where we were started with it, by
    nohup or in the background of a script, and there it stays.
    """
    signals = _Signals()
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    handled = [number for number in _PASSED_ON if before[number] != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, signals.take)
    try:
        yield signals
    finally:
        for number in handled:
            signal.signal(number, before[number])


@contextmanager
def _alive(folder: Path) -> Iterator[str]:
    """Show the probe, by a lock, that somebody waits for what it measures; give the lock's file.

    Raises:
        PitstopError: No file can be locked, in the folder or elsewhere.
    """
    try:
        lock = _locked(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield lock.name
    finally:
        with suppress(OSError):
            Path(lock.name).unlink()
        lock.close()


def _locked(folder: Path) -> IO[bytes]:
    try:
        return hold(str(folder / LOCK))
    except OSError:  # not every file system has locks; that of temporary files does
        descriptor, path = tempfile.mkstemp(prefix="pitstop-doctor-")
        os.close(descriptor)
        return hold(path)


@contextmanager
def _outside_record(folder: Path) -> Iterator[RecordWriter]:
    """Open the record of what is seen from outside; a command that cannot be run leaves none."""
    path = folder / OUTSIDE
    try:
        writer = RecordWriter(str(path), {"name": "outside"})
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield writer
    except PitstopError:
        path.unlink()
        raise
    finally:
        with suppress(OSError):  # the disk is full: what was written before stands
            writer.close()


@contextmanager
def _watched(pid: int, writer: RecordWriter) -> Iterator[None]:
    """Read memory and load of the command's processes until the end."""
    stop = threading.Event()
    thread = threading.Thread(target=_read_host, args=(pid, writer, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _read_host(pid: int, writer: RecordWriter, stop: threading.Event) -> None:
    meter = LoadMeter()
    meter.read()
    with suppress(OSError):  # the disk is full: there is nowhere to write readings
        while not stop.wait(_READ_EVERY_S):
            writer.reading("memory", asdict(read_memory(root=pid)))
            writer.reading("load", asdict(meter.read()))
