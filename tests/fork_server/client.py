"""Starts Python programs for tests by fork from a process that has imported torch and pitstop.

Starting and ending one takes 0.2 s; importing both takes an interpreter 4 s.

A child of the server is like a started interpreter but for what was imported before it, and is
frozen: kept from collections of garbage. Tests of how processes start, of memory, of what is
imported, of command lines that others read, and of the probe, which comes in by the environment,
start interpreters of their own.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from tests.fork_server.server import STATUS

PRELOADED: Final = (
    "pitstop.train.run",
    "pitstop.workloads.catalogue",
    "pitstop.cli.main",
    "pitstop.cli.train",
    "pitstop.doctor.judge",
    "pitstop.report.terminal",
    "pitstop.measure.script.launch",
)
"""Whatever takes long to import and starts no thread."""

_READ_AT_START: Final = (
    *("PYTHON", "LC_", "LANG", "TZ", "LD_", "MALLOC_", "COVERAGE_"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_"),
    *("TORCH", "PYTORCH", "TRITON", "CUDA", "NVIDIA_", "ATEN_"),
)
"""How variables begin that the interpreter, or a library on its import, reads once."""
_SET_BY_TORCH: Final = "TORCHINDUCTOR_CACHE_DIR"
"""By its compiler, once that is imported, to what a program of its own would choose as well."""
_SERVER: Final = Path(__file__).with_name("server.py")
_ENVIRONMENT: Final = dict(os.environ)  # noqa: TID251 - handed on, before any test changes it


class EndedError(RuntimeError):
    """The server ended before it answered."""


class Child:
    """A program that was forked; what `subprocess.Popen` has that tests use."""

    def __init__(self, status: IO[bytes]) -> None:
        self._status = status
        self.pid = self._read()
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end: the exit code, or minus the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: It has not ended after so many seconds.
        """
        if self.returncode is None:
            if timeout is not None and not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("python", timeout)
            with self._status:
                self.returncode = os.waitstatus_to_exitcode(self._read())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it was waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int:
        number = self._status.read(STATUS.size)
        if not number:
            raise EndedError("the fork server has ended")
        return STATUS.unpack(number)[0]


class ForkServer:
    """One process that has imported torch, and the way to ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno()), *PRELOADED],
                pass_fds=[theirs.fileno()],
                cwd=_SERVER.parents[2],
                # A pool of threads would not be there in a child. torch has its pools elsewhere.
                env={**_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"},
            )

    def takes(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> bool:
        """Whether a child would do what an interpreter started for it does.

        Options of the interpreter, and variables that it or a library reads once, come too late.
        """
        is_program = arguments[0] in ("-c", "-m") or arguments[0].endswith(".py")
        return is_program and _at_start(environment) == _at_start(_ENVIRONMENT)

    def start(
        self,
        arguments: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        folder: Path,
        streams: tuple[int, int, int],
        new_session: bool = False,
    ) -> Child:
        """Start what ``python ARGUMENTS`` would start.

        Args:
            arguments: A script, or ``-m`` or ``-c`` with what follows it.
            environment: Of the program, whole.
            folder: It runs in.
            streams: Descriptors that are its stdin, stdout and stderr.
            new_session: Whether it leads a session of its own.
        """
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder.absolute()),
            "new_session": new_session,
        }
        ours, theirs = os.pipe()
        try:
            with self._lock:
                message = json.dumps(request).encode()
                socket.send_fds(self._requests, [message], [theirs, *streams])
        finally:
            os.close(theirs)
        return Child(os.fdopen(ours, "rb", buffering=0))

    def kill(self) -> None:
        """End the server as a test might that ends all it finds."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the server; its children go on."""
        self._requests.close()
        self._process.wait()


@cache
def the_server() -> ForkServer:
    """Give the one server of this process, which starts with whoever asks first."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def start_python(
    *arguments: str,
    folder: Path | None = None,
    streams: tuple[int, int, int] = (0, 1, 2),
    **environment: str,
) -> "Child | subprocess.Popen[bytes]":
    """Start ``python ARGUMENTS``, by the server where that makes no difference.

    Args:
        arguments: Words after ``python``.
        folder: To run in; this process's by default.
        streams: Descriptors that are its stdin, stdout and stderr; this process's by default.
        environment: Variables beside those of this process.
    """
    variables = {**os.environ, **environment}  # noqa: TID251 - handed on
    where = folder or Path.cwd()
    if the_server().takes(arguments, variables):
        try:
            return the_server().start(
                arguments, environment=variables, folder=where, streams=streams
            )
        except (BrokenPipeError, EndedError):
            # Some test has ended it: whoever asks next starts another.
            the_server.cache_clear()
            return start_python(*arguments, folder=folder, streams=streams, **environment)
    stdin, stdout, stderr = streams
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=where, env=variables, stdin=stdin, stdout=stdout, stderr=stderr
    )


def run_python(
    *arguments: str, folder: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``python ARGUMENTS`` with nothing to read, and give its code and what it said.

    What it started and left behind is not waited for. Arguments as for `start_python`.
    """
    # Into files, not pipes: nobody has to read while it runs.
    with TemporaryFile() as out, TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        child = start_python(*arguments, folder=folder, streams=streams, **environment)
        code = child.wait()
        said = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess([sys.executable, *arguments], code, *said)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != _SET_BY_TORCH
    }
