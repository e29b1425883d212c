"""Runs under the doctor that several tests read: each script runs once in a session."""

from collections.abc import Sequence
from functools import cache

from tests.scripts.run_corpus import Said, doctor


def shared_doctor(command: Sequence[str], *, steps: int) -> Said:
    """Give what the doctor said of a command, which runs only for the first who asks."""
    return _said(tuple(command), steps)


@cache
def _said(command: tuple[str, ...], steps: int) -> Said:
    return doctor(command, steps=steps)
