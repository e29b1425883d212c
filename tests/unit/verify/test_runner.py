"""Trials in child processes: every way to end is a result, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pitstop.records.verify.trial import TrialEnd
from pitstop.verify.runner import OUTPUT, ChildRunner, Program


def run(folder: Path, code: str, *, limit_s: float | None = None) -> TrialEnd:
    program = Program(arguments=(sys.executable, "-c", code), folder=folder, limit_s=limit_s)
    return ChildRunner().run(program)


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("print('loss 0.5')", "finished", ""),
        ("import sys; print('oh'); sys.exit(3)", "crashed", "exit code 3: oh"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
        ("raise MemoryError('too much')", "out of memory", "too much"),
        ("raise RuntimeError('CUDA out of memory. Tried')", "out of memory", "Tried"),
        ("raise ValueError('the loss was not finite at step 3')", "not finite", "step 3"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256))); sys.exit(1)", "crashed", "code"),
    ],
)
def test_every_end_is_a_result(tmp_path: Path, code: str, status: str, said: str) -> None:
    ended = run(tmp_path, code)
    assert ended.status == status
    assert said in ended.reason
    assert (tmp_path / OUTPUT).exists()


# Writes the process ids of itself and of a child that ignores everything, then hangs.
HANGS = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])
print(os.getpid(), child.pid, flush=True)
child.wait()
"""


def pids_in(folder: Path) -> list[int]:
    return [int(word) for word in (folder / OUTPUT).read_text().split()]


def is_gone(pid: int) -> bool:
    """Whether it ended; where nobody reaps, as in some containers, it stays as a zombie."""
    try:
        gone, _ = psutil.wait_procs([psutil.Process(pid)], timeout=60)
        return bool(gone) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_a_hang_ends_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    ended = run(tmp_path, HANGS, limit_s=6.0)
    assert (ended.status, ended.reason) == ("timed out", "ended after its limit of 6 s")
    assert all(is_gone(pid) for pid in pids_in(tmp_path))


RUNNER = """
import sys
from pathlib import Path
from pitstop.verify.runner import ChildRunner, Program
folder = Path(sys.argv[1])
ChildRunner().run(Program(arguments=(sys.executable, '-c', sys.argv[2]), folder=folder))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("with_signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_the_runner_ends_the_trial(tmp_path: Path, number: signal.Signals) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path), HANGS], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    output = tmp_path / OUTPUT
    while not (output.exists() and output.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "the trial never began"
        assert runner.poll() is None
    os.kill(runner.pid, number)
    runner.wait(60)
    assert all(is_gone(pid) for pid in pids_in(tmp_path))


@pytest.mark.slow
def test_a_program_that_holds_too_much_is_ended(tmp_path: Path) -> None:
    code = "held = bytearray(b'1' * (300 << 20)); import signal; signal.pause()"
    arguments = (sys.executable, "-c", code)
    program = Program(arguments=arguments, folder=tmp_path, memory_limit_bytes=200 << 20)
    ended = ChildRunner().run(program)
    assert (ended.status, ended.reason) == ("out of memory", "ended with more than 200 MiB")


def test_a_program_has_the_environment_it_was_given(tmp_path: Path) -> None:
    code = "import os; print(os.environ['NAME'], os.environ.get('HOME'))"
    arguments = (sys.executable, "-c", code)
    environment = {"NAME": "value"}
    ChildRunner().run(Program(arguments=arguments, folder=tmp_path, environment=environment))
    assert (tmp_path / OUTPUT).read_text() == "value None\n"


def test_a_program_that_is_not_there_is_a_result(tmp_path: Path) -> None:
    ended = ChildRunner().run(Program(arguments=("no-such-program",), folder=tmp_path))
    assert ended.status == "crashed"
    assert "no-such-program" in ended.reason
