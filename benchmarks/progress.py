"""How benchmarks tell how far they are and what they found: a line, a file, the machine's name."""

import json
import platform
import sys
from pathlib import Path
from typing import Any


def write(report: dict[str, Any], output: Path | None) -> None:
    """Write what is known so far."""
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")


def show(report: dict[str, Any], output: Path | None) -> None:
    """Print what was found, and write it where that is wanted."""
    print(json.dumps(report, indent=2))
    write(report, output)


def processor() -> str:
    """Name the processor as the kernel does."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)
