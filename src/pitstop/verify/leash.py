"""Puts a program in this process's place, one that ends when whoever started it is killed.

``python leash.py DESCRIPTOR PROGRAM ...``. A runner that is killed outright cannot
clean up. The kernel then ends the program, and a guard ends what the program has started: it waits
at a pipe whose other end only the runner has. Standard library alone: it must start in a moment.
"""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    """Leave a guard, ask the kernel for the signal where there is such a thing, and become it."""
    descriptor, program = int(sys.argv[1]), sys.argv[2:]
    if hasattr(os, "fork"):
        _leave_guard(descriptor)
    os.close(descriptor)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        # The runner may have been killed before the line above.
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(program[0], program)  # noqa: S606 - the program that the user named
    except OSError as error:
        sys.exit(f"cannot run {program[0]}: {error.strerror}")


def _leave_guard(descriptor: int) -> None:
    """Start a process that ends the group once the runner is gone.

    Its parent ends at once, so that the program does not find a child that it never had.
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    if os.fork() == 0:
        os.read(descriptor, 1)  # nobody writes: it returns when the other end is closed
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
