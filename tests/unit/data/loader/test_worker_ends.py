"""The end of a worker is known by its closed files first and by its exit code a moment later."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pitstop.data.loader.worker_ends import ended_among

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


class Dying:
    """A process whose files are closed, and whose exit code is there for who waits for it."""

    def __init__(self, sentinel: int) -> None:
        self.sentinel = sentinel
        self.exitcode: int | None = None

    def join(self, timeout: float | None = None) -> None:
        del timeout
        self.exitcode = -9


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; who holds the second lives."""
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def test_a_worker_whose_files_are_closed_is_waited_for(pipe: tuple[int, int]) -> None:
    worker = cast("BaseProcess", Dying(pipe[0]))
    os.close(pipe[1])
    assert ended_among([worker], limit_s=5.0) == [worker]
    assert worker.exitcode == -9


def test_a_worker_that_lives_is_left_alone(pipe: tuple[int, int]) -> None:
    worker = cast("BaseProcess", Dying(pipe[0]))
    assert ended_among([worker], limit_s=0.0) == []
    assert worker.exitcode is None
    os.close(pipe[1])


LATE = """
import multiprocessing
import os
from pitstop.data.loader.worker_ends import stay_until_parent_ends

def work():
    print("began", flush=True)
    multiprocessing.parent_process().join()
    stay_until_parent_ends()
    print("outlived its trainer", flush=True)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
    os._exit(0)
"""


def test_a_worker_that_begins_after_its_trainers_end_ends_too(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    # All that holds the stream has ended when it is read to its end.
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "began\n", done.stderr
