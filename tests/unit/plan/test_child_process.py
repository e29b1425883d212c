"""Children of a plan: none outlives whoever asked."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pitstop.plan.child_process import ask_child, children_end_with_us
from pitstop.plan.dry_run import request

STUCK = """
import os, subprocess, sys, threading
below = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open(os.environ["PIDS"], "w").write(f"{os.getpid()} {below.pid}\\n")
threading.Event().wait()
"""


@dataclass(frozen=True)
class Question:
    """Anything."""

    number: int = 0


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stuck_child.py").write_text(STUCK)
    path = tmp_path / "pids"
    monkeypatch.setenv("PIDS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return path


def started(path: Path) -> list[psutil.Process]:
    """The child and the one below it, once both are there."""
    waiting = threading.Event()
    while not (path.exists() and path.read_text().endswith("\n")):
        waiting.wait(0.01)
    return [psutil.Process(int(pid)) for pid in path.read_text().split()]


class EndedError(Exception):
    """Stands for Ctrl-C or SIGTERM."""


def test_leaving_ends_children_what_they_started_and_what_was_still_to_ask(pids: Path) -> None:
    below: list[psutil.Process] = []
    asked: list[Future[Question | str]] = []
    with suppress(EndedError), ThreadPoolExecutor(1) as pool, children_end_with_us():
        asked += [pool.submit(ask_child, "stuck_child", Question(), Question) for _ in range(3)]
        below = started(pids)
        raise EndedError
    _, alive = psutil.wait_procs(below, timeout=60)
    assert (len(below), len(asked)) == (2, 3)
    assert alive == []
    assert all("SIGKILL" in str(one.result()) for one in asked)


def test_after_that_another_plan_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = '{"kind": "Question", "schema": 1, "number": 7}'
    (tmp_path / "quick_child.py").write_text(
        f"import sys\nopen(sys.argv[2], 'w').write('{answer}')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with children_end_with_us():
        assert ask_child("quick_child", Question(), Question) == Question(number=7)


def test_no_child_is_started_where_an_interrupt_could_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_from: list[threading.Thread] = []

    def ask(*_: object, **__: object) -> str:
        asked_from.append(threading.current_thread())
        return "nothing to run"

    monkeypatch.setattr(request, "ask_child", ask)
    answers = request.trace_all([request.Request(), request.Request()])
    assert [answer.error for answer in answers] == ["nothing to run"] * 2
    assert threading.main_thread() not in asked_from
    assert asked_from != []
