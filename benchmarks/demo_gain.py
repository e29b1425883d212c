"""The gain of the demo's script, again and again, alone and beside a process on every core.

    python benchmarks/demo_gain.py [--runs 10] [--hardware NAME] [--output FILE.json] [--page FILE]

Each run is what `pitstop demo` does with the script: a verdict with its bound, then slow and fixed
script in three pairs. In every second run a neighbour keeps all cores busy from before the verdict
until after the last pair. Written down are the bound that was predicted, the gain of each pair,
what page and terminal say of them, and all that the run with the median gain printed; its page
can be kept.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pitstop.cli.demo.command import demonstrate_script
from pitstop.cli.demo.folder import SCRIPT_PAGE

_BUSY = "while True: pass"


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep that many cores busy meanwhile."""
    with ExitStack() as stack:
        for _ in range(count):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            stack.callback(busy.kill)
        yield


def run(*, busy: bool) -> dict[str, Any]:
    """Show the script once, in a folder of its own."""
    lines: list[str] = []
    begun = time.perf_counter()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with neighbours((os.cpu_count() or 1) if busy else 0):
                turns = demonstrate_script(Path("demo"), lines.append)
            page = (Path("demo") / SCRIPT_PAGE).read_text(encoding="utf-8")
        finally:
            os.chdir(before)
    gain = turns.pairs.gain
    said = "\n".join(lines)
    bound = re.search(r"up to ([\d.]+)x faster", said)
    return {
        "neighbour": busy,
        "seconds": round(time.perf_counter() - begun, 1),
        "predicted": None if bound is None else float(bound[1]),
        "gain": median(gain.speedups),
        "pairs": gain.speedups,
        "before_s": gain.before_s,
        "after_s": gain.after_s,
        "same_losses": turns.printed_the_same,
        "page_says_the_same": gain.message in said and gain.message in page,
        "printed": lines,
        "page": page,
    }


def figures(one: dict[str, Any]) -> dict[str, Any]:
    """Give what is counted of a run, without what it showed."""
    return {key: value for key, value in one.items() if key not in ("printed", "page")}


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--hardware", default=platform.processor() or platform.machine())
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    runs = []
    for number in range(options.runs):
        runs.append(run(busy=number % 2 == 1))
        print(json.dumps(figures(runs[-1])), flush=True)
    gains = [one["gain"] for one in runs]
    middle = sorted(runs, key=lambda one: one["gain"])[(len(runs) - 1) // 2]
    if options.page is not None:
        options.page.write_text(middle["page"], encoding="utf-8")
    report = {
        "what": "the demo's script: slow against fixed, three pairs a run",
        "hardware": options.hardware,
        "least_gain": min(gains),
        "gain": {"median": median(gains), "low": min(gains), "high": max(gains)},
        "printed": middle["printed"],
        "runs": [figures(one) for one in runs],
    }
    text = json.dumps(report, indent=2) + "\n"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
