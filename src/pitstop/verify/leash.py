"""Puts a program in this process's place, one that ends when whoever started it is killed.

``python -m pitstop.verify.leash PROGRAM ...``. A runner that is killed outright cannot clean up;
the kernel then ends what it started. Standard library alone: it must start in a moment.
"""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    """Ask the kernel for the signal, where there is such a thing, and become the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        # The runner may have been killed before the line above.
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the program that the user named
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
