"""Runs the command line: ``python -m pitstop``."""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interrupt while it loads ends it without a traceback."""
    try:
        from pitstop.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
