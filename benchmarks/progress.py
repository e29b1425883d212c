"""How long-running benchmarks tell how far they are: a line, and results so far in a file."""

import json
import sys
from pathlib import Path
from typing import Any


def write(report: dict[str, Any], output: Path | None) -> None:
    """Write what is known so far."""
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)
