"""Processes that prepare side by side and are timed by turns.

While one is timed, the others and all that they started are stopped by a signal: what they had
given to the device ends within milliseconds, and the host's cores are free.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def family(root: int) -> list[int]:
    """List a process and all that descend from it, the youngest last."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                said = (entry / "stat").read_text()
            except OSError:
                continue
            # The name in parentheses may hold blanks.
            parent = int(said.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def send(pids: Iterable[int], what: signal.Signals) -> None:
    """Send a signal to all of them that still live."""
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue


@contextmanager
def stopped(roots: Iterable[int]) -> Iterator[None]:
    """Stop processes and their families meanwhile."""
    pids = [pid for root in roots for pid in family(root)]
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        # The youngest first: whoever waits for them finds them awake.
        send(reversed(pids), signal.SIGCONT)


def end(root: int) -> None:
    """End a process and its family."""
    send(family(root), signal.SIGKILL)
