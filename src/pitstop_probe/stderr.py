"""One line to whoever runs the script; where nobody takes it, the script goes on all the same."""

import contextlib
import sys


def say(text: str) -> None:
    """Write a line to stderr that names us."""
    # Closed, full, gone or never there.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("pitstop: {}\n".format(text.replace("\n", " ")))
