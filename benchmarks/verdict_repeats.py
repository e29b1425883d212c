"""Whether runs of one training get one verdict: first finding, order, modules, headroom.

    python benchmarks/verdict_repeats.py --authors CHECKOUT [--steps 41 60 60]
                                          [--output FILE.json] [--record FOLDER]

Trains VRT by its authors' file (`tests/scripts/gpu/authors_vrt.py`) under the doctor once for each
number of steps. The first findings must agree, and the order of all findings whose bounds differ by
more than their intervals, which are those of the doctor: twice the error and a twentieth. A verdict
that FILE.json has already is not asked for again.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from progress import say, write

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "scripts" / "gpu" / "authors_vrt.py"
SCALES = 7


def verdict_on(words: Sequence[str], record: Path | None = None) -> dict[str, Any]:
    """Run a script to its end under the doctor; keep its record where one is named."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "verdict.json"
        options = ("--steps", "1000000", "--json", str(out), "--record", record or f"{folder}/it")
        done = subprocess.run(
            [sys.executable, "-m", "pitstop", "doctor"]
            + [str(word) for word in (*options, "--", sys.executable, *words)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        return {**found, "exit_code": done.returncode, "printed": done.stdout[-12000:]} | (
            {} if found else {"stderr": done.stderr[-3000:]}
        )


def bounds_of(verdict: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Share and half of its interval by code, in the order of the verdict."""
    found = [
        (one["code"], one["bound"])
        for one in verdict.get("findings", ())
        if one["severity"] != "info" and one["bound"]
    ]
    return {
        code: (bound["share"], math.hypot(2 * bound.get("error", 0.0), 0.05 * bound["share"]))
        for code, bound in found
    }


def swapped(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Pairs of findings that stand in another order though their bounds are far apart."""
    first, second = bounds_of(one), bounds_of(other)
    both = [code for code in first if code in second]
    return [
        f"{a}, {b}"
        for a, b in itertools.combinations(both, 2)
        if list(second).index(a) > list(second).index(b)
        and all(abs(each[a][0] - each[b][0]) > each[a][1] + each[b][1] for each in (first, second))
    ]


def summary_of(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What must hold of all of them."""
    firsts = [next(iter(bounds_of(one)), one.get("outcome")) for one in verdicts]
    rows = [(one.get("modules") or {}).get("rows", ()) for one in verdicts]
    return {
        "first": firsts,
        "one_first_finding": len(set(firsts)) == 1,
        "bounds": [bounds_of(one) for one in verdicts],
        "swapped": [
            pair for one, two in itertools.combinations(verdicts, 2) for pair in swapped(one, two)
        ],
        "scales_shown": [
            sum(any(f"stage{n}" in str(row) for row in each) for n in range(1, SCALES + 1))
            for each in rows
        ],
        "headroom_shown": [one.get("headroom") is not None for one in verdicts],
    }


def kept(output: Path | None) -> list[dict[str, Any]]:
    """Verdicts of a call that was cut off."""
    if output is None or not output.exists():
        return []
    return json.loads(output.read_text(encoding="utf-8"))["verdicts"]


def main() -> None:
    """Run, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--authors", required=True)
    parser.add_argument("--steps", type=int, nargs="+", default=[41, 60, 60])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--record", type=Path, help="folder for the record of the last run")
    options = parser.parse_args()
    verdicts = kept(options.output)
    for number, steps in list(enumerate(options.steps))[len(verdicts) :]:
        words = [str(SCRIPT), options.authors, "--steps", str(steps), "--device", options.device]
        last = number == len(options.steps) - 1
        verdicts.append(verdict_on(words, options.record if last else None))
        report = {
            "what": "the authors' VRT, 6x64x64, fp32, recomputed: one verdict on several runs",
            "steps": options.steps,
            "summary": summary_of(verdicts),
            "verdicts": verdicts,
        }
        say(json.dumps(report["summary"]))
        write(report, options.output)


if __name__ == "__main__":
    main()
