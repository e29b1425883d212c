"""Verdicts on generated runs of 8 to 256 ranks: who is named, processor time, peak memory.

Runs are generated (`tests/many_ranks.py`) with a planted straggler of each kind, and twenty without
one. Each is judged and turned into a page in a process of its own.

    python -m benchmarks.many_ranks --hardware "2-core AMD EPYC"
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.many_ranks import Slow, slow_host, write_ranks

RESULT: Final = Path(__file__).parent / "results" / "many_ranks_epyc_cpu.json"
STEPS: Final = 4_000
QUIET_RUNS: Final = 20

# From /proc: what rusage gives begins with the size of whoever started it.
CHILD: Final = """
import json, sys, time
from pathlib import Path
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
from pitstop.doctor.judge import judge
judged = judge([sys.argv[1]])
found = {"verdict_cpu_s": time.process_time(), "verdict_peak_bytes": peak()}
from pitstop.report.page.html import write_page
page = write_page(judged, Path(sys.argv[2]))
found |= {"page_cpu_s": time.process_time(), "page_peak_bytes": peak()}
verdict = judged.runs[0].verdict
codes = {f.code: [f.severity, f.summary] for f in verdict.findings}
json.dump({**found, "page_bytes": page.size_bytes, "message": verdict.message,
           "straggler": codes.get("COMM002")}, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A generated run."""

    name: str
    ranks: int
    slow: tuple[Slow, ...]
    named: str
    """What the finding must begin with."""


def cases() -> list[Case]:
    """One of each kind at each size; a host needs others beside it."""
    found = []
    for ranks in (8, 64, 256):
        rank = ranks * 137 // 256
        where = f" (host node-{rank // 8:02d})" if ranks > 8 else ""
        found += [
            Case(
                name="a rank always",
                ranks=ranks,
                slow=(Slow(ranks=(rank,), part="data", excess_us=60_000),),
                named=f"rank {rank}{where} is slower",
            ),
            Case(
                name="a rank at first",
                ranks=ranks,
                slow=(Slow(ranks=(rank,), part="data", excess_us=200_000, last=1_535),),
                named="until step 1,5",
            ),
        ]
        if ranks > 8:
            host = ranks // 8 * 2 // 3
            late = slow_host(host, part="forward", excess_us=45_000, first=2_304)
            named = f"from step 2,304 on, all 8 ranks of host node-{host:02d} are slower"
            found.append(Case(name="a host from half on", ranks=ranks, slow=(late,), named=named))
    return found


def judged(folder: Path) -> dict[str, Any]:
    """Judge a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(folder.parent / "page.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    """Judge all cases and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hardware", required=True)
    hardware = parser.parse_args().hardware
    rows = []
    for number, case in enumerate(cases()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            write_ranks(folder, ranks=case.ranks, steps=STEPS, slow=case.slow, seed=number)
            size = sum(file.stat().st_size for file in folder.iterdir())
            found = judged(folder)
        is_named = found["straggler"] is not None and found["straggler"][1].startswith(case.named)
        rows.append({"case": case.name, "ranks": case.ranks, "steps": STEPS,
                     "record_bytes": size, "named": is_named, **found})  # fmt: skip
        print(json.dumps(rows[-1]))
    false = 0
    sizes = [(8, 64, 256)[number % 3] for number in range(QUIET_RUNS)]
    for seed, ranks in enumerate(sizes):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            write_ranks(folder, ranks=ranks, steps=STEPS // 2, seed=1_000 + seed)
            false += judged(folder)["straggler"] is not None
    result = {
        "hardware": hardware,
        "what": "generated records; processor seconds of a process, imports included",
        "rows": rows,
        "runs_without_straggler": {"ranks": sizes, "steps": STEPS // 2, "false_findings": false},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result["runs_without_straggler"]))


if __name__ == "__main__":
    main()
