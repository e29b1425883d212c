"""Runs the command line: ``python -m pitstop``."""

import atexit
import gc
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interrupt while it loads ends it without a traceback."""
    # All that was imported lives to the end; collections at the end would visit it for nothing.
    # Registered first, so called after every other handler.
    atexit.register(gc.freeze)
    try:
        from pitstop.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
