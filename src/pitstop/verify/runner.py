"""Runs a trial in a child process. A crash, a hang, too little memory are results, not errors.

`Runner` is all that a study knows of how its trials are run: something else can stand behind it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from pitstop.measure.host.process_tree import tree_memory
from pitstop.records.units import bytes_text
from pitstop.records.verify.trial import TrialEnd, TrialStatus
from pitstop.verify import leash

OUTPUT: Final = "output.txt"
"""What the child printed, in its folder."""

# By its file and without site-packages: what the environment has for the program is not for it.
_LEASH: Final = (sys.executable, "-I", "-S", leash.__file__)
_POLL_S: Final = 0.1
_MEMORY_EVERY_S: Final = 1.0
_LEAVING_S: Final = 60.0
"""For the checkpoint that a stopped run saves."""
_LEAST_FREE: Final = 0.03
"""Share of the host's memory below which a trial is ended before the system ends something else."""
_TAIL_BYTES: Final = 64 << 10
_MOST_REASON: Final = 300
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|[Cc]annot allocate memory|can't allocate memory"
)
_NOT_FINITE: Final = re.compile(r"not finite|is nan\b|Loss is (nan|inf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and where what it prints goes."""

    arguments: tuple[str, ...]
    folder: Path
    """Exists; `OUTPUT` is written into it."""
    limit_s: float | None = None
    """Wall clock after which it is ended; None for no limit."""
    environment: Mapping[str, str] | None = None
    """All of it; None for ours."""
    memory_limit_bytes: int | None = None
    """Of all its processes; beyond it they are ended."""
    is_enough: Callable[[], bool] | None = None
    """Asked while it runs; once true, it is stopped by SIGTERM and counts as finished."""


class Runner(Protocol):
    """Runs programs to their end."""

    def run(self, program: Program) -> TrialEnd:
        """Run it and say how it ended; leaves nothing running, also on an interrupt."""
        ...


class ChildRunner:
    """Runs each program as a process group of its own on this host."""

    def run(self, program: Program) -> TrialEnd:
        """Run it and say how it ended."""
        begun = time.monotonic()
        output = program.folder / OUTPUT
        with output.open("wb") as file, _lifeline() as descriptor:
            process = subprocess.Popen(  # noqa: S603 - running it is what the user asked for
                [*_LEASH, str(descriptor), *program.arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=program.environment,
                start_new_session=True,
                pass_fds=(descriptor,),
            )
            try:
                stopped = _wait(process, program)
            finally:
                # Also what it started and left behind, and also where we are interrupted.
                _end_group(process)
        wall_s = time.monotonic() - begun
        if stopped is not None:
            return TrialEnd(status=stopped[0], reason=stopped[1], wall_s=wall_s)
        return _ended(process.returncode, _tail(output), wall_s)


@contextmanager
def _lifeline() -> Iterator[int]:
    """Give the end of a pipe whose other end is closed when we are done, or gone."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _wait(process: "subprocess.Popen[bytes]", program: Program) -> tuple[TrialStatus, str] | None:
    """Wait for its end; say why it had to be ended, None where it ended by itself."""
    limits = _Limits(process.pid, program)
    while not _has_left(process, _POLL_S):
        if program.is_enough is not None and program.is_enough():
            process.terminate()
            if _has_left(process, _LEAVING_S):
                return "finished", ""
            return "timed out", f"did not leave within {_LEAVING_S:.0f} s of SIGTERM"
        exceeded = limits.exceeded()
        if exceeded is not None:
            return exceeded
    return None


class _Limits:
    """What a program may take, of time and of memory."""

    def __init__(self, pid: int, program: Program) -> None:
        self._pid = pid
        self._program = program
        self._begun_s = time.monotonic()
        self._next_s = 0.0

    def exceeded(self) -> tuple[TrialStatus, str] | None:
        """Say which limit it has reached, if any."""
        limit_s, now_s = self._program.limit_s, time.monotonic()
        if limit_s is not None and now_s - self._begun_s > limit_s:
            return "timed out", f"ended after its limit of {limit_s:.0f} s"
        memory = psutil.virtual_memory()
        if memory.available < _LEAST_FREE * memory.total:
            return "out of memory", "the host's memory was full, and it was ended"
        limit_bytes = self._program.memory_limit_bytes
        if limit_bytes is not None and self._held_bytes(now_s) > limit_bytes:
            return "out of memory", f"ended with more than {bytes_text(limit_bytes)}"
        return None

    def _held_bytes(self, now_s: float) -> int:
        """Sum up its processes now and then: asking takes a few milliseconds."""
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + _MEMORY_EVERY_S
        held = tree_memory(self._pid)
        return 0 if held is None else held.tree_bytes


def _has_left(process: "subprocess.Popen[bytes]", limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _ended(code: int, tail: str, wall_s: float) -> TrialEnd:
    if code == 0:
        return TrialEnd(status="finished", reason="", wall_s=wall_s)
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
    last = lines[-1][:_MOST_REASON] if lines else "it printed nothing"
    return TrialEnd(status=_status(code, lines), reason=f"{how}: {last}", wall_s=wall_s)


def _status(code: int, lines: Sequence[str]) -> TrialStatus:
    """Judge by the last lines; a kernel that is short of memory ends processes by SIGKILL."""
    end = "\n".join(lines[-20:])
    if _OUT_OF_MEMORY.search(end) or code == -signal.SIGKILL:
        return "out of memory"
    return "not finite" if _NOT_FINITE.search(end) else "crashed"
