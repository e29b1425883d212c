"""Programs forked from the server, and the same programs in an interpreter of their own."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.fork_server import client
from tests.fork_server.client import ForkServer, run_python, the_server

ROOT = Path(__file__).parents[2]

LOOKS = """
import __main__, os, signal, sys
print(__name__, __main__.__dict__["__name__"], sys.argv, sys.path, sys.orig_argv)
print(os.getcwd(), sorted(name for name in os.environ if not name.startswith("OPENBLAS")))
print(sys.stdin.read(), sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering)
print(os.getpgrp() == os.getpid(), signal.getsignal(signal.SIGINT))
print(sorted(os.listdir("/proc/self/fd")))
print("said", file=sys.stderr)
def called():
    print(where)
where = "in its own module"
called()
"""

ENDS = {
    "by itself": "print('end')",
    "with a number": "import sys; sys.exit(7)",
    "with a text": "import sys; sys.exit('no')",
    "by an error": "def fails():\n    return 1 / 0\nfails()",
    "by an error of its text": "def",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "by an interrupt": "import os, signal; print('a'); os.kill(os.getpid(), signal.SIGINT)",
    "by an interrupt of its own": "print('a'); raise KeyboardInterrupt",
    "after its exit handlers": "import atexit; atexit.register(print, 'left'); raise OSError('x')",
    "after its threads": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.01), print('late'))).start()",
    "with words that a library kept back": "import ctypes; ctypes.CDLL(None).puts(b'late')",
    "at once": "import os; print('lost'); os._exit(3)",
}


def interpreter(
    *arguments: str, folder: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},  # noqa: TID251 - handed on
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_same(*arguments: str, folder: Path | None = None) -> None:
    assert the_server().takes(arguments, os.environ)  # noqa: TID251 - handed on
    forked, started = (run(*arguments, folder=folder) for run in (run_python, interpreter))
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)
    assert forked.returncode == started.returncode


def test_a_script_sees_what_it_would_see_in_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    (tmp_path / "below").mkdir()
    assert_same("looks.py", "a", "b c", folder=tmp_path)
    assert_same("../looks.py", folder=tmp_path / "below")
    assert_same("-m", "looks", "a", folder=tmp_path)
    assert_same("-c", LOOKS, "-x", "a", folder=tmp_path)


@pytest.mark.slow
def test_torch_has_its_threads() -> None:
    assert_same("-c", "import torch as t; print(t.get_num_threads(), t.get_num_interop_threads())")


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_it_would_end_in_an_interpreter(tmp_path: Path, code: str) -> None:
    (tmp_path / "ends.py").write_text(code)
    assert_same("ends.py", folder=tmp_path)


def test_a_module_that_fails_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS["by an error"])
    assert_same("-m", "ends", folder=tmp_path)
    assert_same("-m", "no_such_module", folder=tmp_path)
    assert_same("nothing.py", folder=tmp_path)


def test_processes_that_a_program_starts_find_its_main(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import multiprocessing, sys\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    for method in ("fork", "spawn"):
        assert_same("starts.py", method, folder=tmp_path)
    assert_same("-m", "starts", "spawn", folder=tmp_path)


def test_a_command_of_ours_says_the_same() -> None:
    logs = sorted((ROOT / "tests/data/logs").glob("kair*.log"))
    assert_same("-m", "pitstop", "doctor", str(logs[0]))
    assert_same("-m", "pitstop", "doctor", "nothing.log")


def test_what_counts_at_the_start_of_an_interpreter_starts_one() -> None:
    asks = "import sys; print(sys.flags.dev_mode)"
    assert run_python("-X", "dev", "-c", asks).stdout == "True\n"
    assert run_python("-c", asks, PYTHONDEVMODE="1").stdout == "True\n"
    assert run_python("-c", asks).stdout == "False\n"


@pytest.mark.parametrize("name", ["PYTHONPATH", "OMP_NUM_THREADS", "TRITON_INTERPRET", "LANG"])
def test_a_variable_that_is_read_once_must_be_the_servers(name: str) -> None:
    here = dict(os.environ)  # noqa: TID251 - handed on
    assert the_server().takes(("a.py",), {**here, "ANY": "x"})
    assert not the_server().takes(("a.py",), {**here, name: "x"})


def test_a_child_leads_a_session_where_asked_and_hears_signals(tmp_path: Path) -> None:
    code = "import os, time; print(os.getsid(0) == os.getpid(), flush=True); time.sleep(60)"
    ours, theirs = os.pipe()
    with os.fdopen(ours) as out:
        child = the_server().start(
            ("-c", code),
            environment=os.environ,  # noqa: TID251 - handed on
            folder=tmp_path,
            streams=(theirs, theirs, theirs),
            new_session=True,
        )
        os.close(theirs)
        assert out.readline() == "True\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert out.read() == ""


def test_children_draw_different_numbers() -> None:
    code = "import random, numpy, torch\n"
    code += "print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    first, second = (run_python("-c", code).stdout.split() for _ in range(2))
    assert len(first) == len(second) == 3
    assert not set(first) & set(second)


def test_a_server_that_was_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that has imported nothing, and so begins at once; that of the other tests goes on.
    monkeypatch.setattr(client, "PRELOADED", ())
    monkeypatch.setattr(client, "the_server", cache(ForkServer))
    ended = client.the_server()
    ended.kill()
    assert run_python("-c", "print(1)").stdout == "1\n"
    replacement = client.the_server()
    assert replacement is not ended
    assert run_python("-c", "print(2)").stdout == "2\n"
    assert client.the_server() is replacement
    for server in (ended, replacement):
        server.close()
