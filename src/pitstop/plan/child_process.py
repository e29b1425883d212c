"""Asks a module of ours in a process of its own: a request as JSON in, an answer as JSON out.

A child leads a process group, in which whatever it starts is too. Where the asking ends, by its
end, by time or by a signal to us, the whole group ends.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from pitstop.records.store import from_json, write_json

AnswerT = TypeVar("AnswerT")

LONGEST_S: Final = 600
"""Time for one answer."""
_BY_SIGNAL: Final = 128

_running: set["subprocess.Popen[str]"] = set()
_lock = threading.Lock()
# Threads may still have requests to ask when the one that waits for them leaves.
_is_leaving = threading.Event()


def ask_child(
    module: str, request: Any, answer_type: type[AnswerT], *, longest_s: int = LONGEST_S
) -> AnswerT | str:
    """Run `python -m MODULE REQUEST ANSWER`; give its answer, or a sentence on why there is none.

    Args:
        module: Takes two paths: reads the request from the first, writes to the second.
        request: A dataclass.
        answer_type: A dataclass.
        longest_s: After which it is ended.
    """
    with tempfile.TemporaryDirectory(prefix="pitstop-plan-") as name:
        asked, answered = Path(name) / "request.json", Path(name) / "answer.json"
        write_json(request, asked)
        with _child([sys.executable, "-m", module, str(asked), str(answered)]) as child:
            try:
                _, said = child.communicate(timeout=longest_s)
            except subprocess.TimeoutExpired:
                return f"the dry run took more than {longest_s} s and was ended"
        if answered.exists():
            return from_json(answered.read_text(encoding="utf-8"), answer_type)
        return how_it_ended(child.returncode, said)


@contextmanager
def children_end_with_us() -> Iterator[None]:
    """End all children where what is inside is left by an exception, and let SIGTERM be one.

    Ask from another thread: an interrupt reaches the main thread anywhere, also where a child has
    been started and nobody knows of it yet.
    """
    _is_leaving.clear()
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except BaseException:
        with _lock:
            _is_leaving.set()
            for child in _running:
                _end_group(child)
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(_BY_SIGNAL + number)


@contextmanager
def _child(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    with _lock:
        child = subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        _running.add(child)
        if _is_leaving.is_set():
            _end_group(child)
    try:
        yield child
    finally:
        with _lock:
            _running.discard(child)
            _end_group(child)
        child.wait()
        if child.stderr is not None:
            child.stderr.close()


def _end_group(child: "subprocess.Popen[str]") -> None:
    """End a child and what it started; a child that is gone may have left others behind."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def how_it_ended(code: int, said: str) -> str:
    """Give the last words of a process that gave no answer; its code is negative for a signal."""
    lines = said.strip().splitlines() or ["it said nothing"]
    if code == -signal.SIGKILL:
        return f"the dry run was ended by SIGKILL, as where memory runs out: {lines[-1]}"
    if code < 0:
        return f"the dry run was ended by signal {-code}: {lines[-1]}"
    return f"the dry run failed: {lines[-1]}"
