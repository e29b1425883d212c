"""Processes of their own for tests of Triton's kernels."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def in_a_process_of_its_own(*arguments: str, **environment: str) -> str:
    """Run Python on something, which must succeed, and give what it said.

    Whoever imports Triton first decides for the whole process whether kernels are interpreted.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},  # noqa: TID251 - handed on
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def assert_cases_hold_under_the_interpreter(cases: Path) -> None:
    """Run a file of tests with kernels interpreted."""
    said = in_a_process_of_its_own(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases), TRITON_INTERPRET="1"
    )
    assert " passed" in said


def said_by_the_compiler(script: Path, *arguments: str) -> str:
    """Run a script that compiles kernels for GPUs that are not here, and give what it said.

    Triton keeps what it compiled, by a hash of the source, the settings and its own version: a
    kernel that nobody has changed since is not compiled again.
    """
    return in_a_process_of_its_own(str(script), *arguments, TRITON_INTERPRET="0")
