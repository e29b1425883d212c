"""Runs a trial in a child process. A crash, a hang, too little memory are results, not errors.

`Runner` is all that a study knows of how its trials are run: something else can stand behind it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pitstop.records.verify.trial import Ended, TrialStatus

OUTPUT: Final = "output.txt"
"""What the child printed, in its folder."""
LEASH: Final = "pitstop.verify.leash"

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


class Runner(Protocol):
    """Runs programs to their end."""

    def run(self, program: Program) -> Ended:
        """Run it and say how it ended; leaves nothing running, also on an interrupt."""
        ...


class ChildRunner:
    """Runs each program as a process group of its own on this host."""

    def run(self, program: Program) -> Ended:
        """Run it and say how it ended."""
        begun = time.monotonic()
        output = program.folder / OUTPUT
        with output.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - running it is what the user asked for
                [sys.executable, "-m", LEASH, *program.arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            is_late = False
            try:
                process.wait(program.limit_s)
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                # Also what it started and left behind, and also where we are interrupted.
                _end_group(process)
        wall_s = time.monotonic() - begun
        if is_late:
            reason = f"ended after its limit of {program.limit_s:.0f} s"
            return Ended(status="timed out", reason=reason, wall_s=wall_s)
        return _ended(process.returncode, _tail(output), wall_s)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _ended(code: int, tail: str, wall_s: float) -> Ended:
    if code == 0:
        return Ended(status="finished", reason="", wall_s=wall_s)
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
    last = lines[-1][:_MOST_REASON] if lines else "it printed nothing"
    return Ended(status=_status(code, lines), reason=f"{how}: {last}", wall_s=wall_s)


def _status(code: int, lines: Sequence[str]) -> TrialStatus:
    """Judge by the last lines; a kernel that is short of memory ends processes by SIGKILL."""
    end = "\n".join(lines[-20:])
    if _OUT_OF_MEMORY.search(end) or code == -signal.SIGKILL:
        return "out of memory"
    return "not finite" if _NOT_FINITE.search(end) else "crashed"
