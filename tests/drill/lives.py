"""Commands of pitstop as processes that begin at once: forked from one that has imported torch.

What runs in them is the command itself, from the parsing of its arguments to its exit code; only
the seconds of importing are spent once for all lives.
"""

import ctypes
import gc
import importlib
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

import pitstop
from pitstop.cli.main import main
from pitstop.data.loader.worker_ends import signal_at_parent_death

_ROOT = Path(__file__).parents[2]
_PARENT_DEATH_SIGNAL = 1

POLL_S = 0.005
LIMIT_S = 30.0
"""What may take no longer; on a machine that is slower than usual, by a ratio to its own pace."""


def preload() -> None:
    """Import all of pitstop once, so that no life has to."""
    gc.disable()  # its visits would copy what lives share
    for module in pkgutil.walk_packages(pitstop.__path__, "pitstop."):
        with suppress(ImportError):  # of an extra that is not installed
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    gc.freeze()


@dataclass(slots=True, kw_only=True)
class Life:
    """One process group that runs one command."""

    pid: int
    log: Path
    begun_s: float
    code: int | None = None
    """How it ended: an exit code, or minus the signal; None while it runs."""
    peak_bytes: int = 0
    """Most memory it had, known at its end."""
    ended_s: float | None = None

    def poll(self) -> bool:
        """Tell whether it has ended."""
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.peak_bytes = usage.ru_maxrss * 1024
                self.ended_s = time.monotonic()
        return self.code is not None

    def wait(self, limit_s: float) -> bool:
        """Wait for its end; False where it did not come in time, and the process was killed."""
        until_s = time.monotonic() + limit_s
        while not self.poll():
            if time.monotonic() > until_s:
                self.kill_group()
                while not self.poll():
                    time.sleep(POLL_S)
                return False
            time.sleep(POLL_S)
        return True

    def members(self) -> list[int]:
        """List the living processes of its session, the first among them."""
        names = (path.name for path in Path("/proc").iterdir())
        return [int(name) for name in names if name.isdigit() and self._owns(name)]

    def _owns(self, pid: str) -> bool:
        try:
            _, _, rest = Path("/proc", pid, "stat").read_text().rpartition(")")
        except OSError:
            return False  # gone by now
        state, _, _, session = rest.split()[:4]
        return int(session) == self.pid and state not in "ZX"

    def workers(self) -> list[int]:
        """List the processes beside the first."""
        return [pid for pid in self.members() if pid != self.pid]

    def kill_group(self) -> None:
        """End everything that is left of it."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def orphans(self, limit_s: float) -> int:
        """Count what outlives its end by more than a moment; it is killed."""
        until_s = time.monotonic() + limit_s
        while left := self.workers():
            if time.monotonic() > until_s:
                self.kill_group()
                return len(left)
            time.sleep(0.05)
        return 0

    @property
    def text(self) -> str:
        """What it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def begin(
    arguments: Sequence[str],
    log: Path,
    *,
    before: Callable[[], None] | None = None,
    folder: Path | None = None,
) -> Life:
    """Start a command in a session of its own; it ends with this process.

    Args:
        arguments: Of ``pitstop``.
        log: Where its output goes.
        before: Called in the new process, to make its world worse.
        folder: Where it runs.
    """

    def run() -> None:
        gc.enable()
        torch.set_num_threads(1)
        if before is not None:
            before()
        sys.argv = ["pitstop", *arguments]
        main()

    return _fork(run, log, folder)


def begin_program(
    arguments: Sequence[str], log: Path, *, before: Callable[[], None] | None = None
) -> Life:
    """Start Python anew, as a shell does: it shares no page of memory with this process.

    Args:
        arguments: Of ``python``.
        log: Where its output goes.
        before: Called in the new process, to make its world worse.
    """

    def run() -> None:
        if before is not None:
            before()
        os.execve(sys.executable, [sys.executable, *arguments], _environment())

    return _fork(run, log, None)


def begin_shell(text: str, log: Path, *, tools: Path) -> Life:
    """Start a shell with some lines, as somebody types them.

    Args:
        text: What is typed.
        log: Where its output goes; the shell runs in the same folder.
        tools: Folder of commands that come before all others; ours and those of this Python follow.
    """

    def run() -> None:
        os.execve("/bin/bash", ["bash", "-c", text], shell_environment(tools))

    return _fork(run, log, log.parent)


def shell_environment(tools: Path) -> dict[str, str]:
    """Give what a shell knows that finds `tools`, this Python's commands and all others."""
    environment = _environment()
    own = [str(tools), str(Path(sys.executable).parent), environment.get("PATH", "")]
    return environment | {"PATH": os.pathsep.join(own)}


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path}  # noqa: TID251 - handed on


def _fork(run: Callable[[], None], log: Path, folder: Path | None) -> Life:
    begun_s = time.monotonic()
    log.write_bytes(b"")  # what an earlier life said is not this one's
    pid = os.fork()
    if pid == 0:
        _live(run, log, folder)
    return Life(pid=pid, log=log, begun_s=begun_s)


def _live(run: Callable[[], None], log: Path, folder: Path | None) -> NoReturn:
    code = 70
    try:
        # A drill that is killed must not leave a training without end behind.
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        os.setsid()
        signal_at_parent_death(signal.SIGKILL)  # a drill that fails leaves nothing behind
        with log.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if folder is not None:
            os.chdir(folder)
        run()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody caught
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        # As after a command: threads that write a checkpoint are waited for by its own code.
        os._exit(code)
