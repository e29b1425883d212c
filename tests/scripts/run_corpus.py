"""Runs the corpus: what the doctor says of every slow script, beside what its fix really gives.

    python -m tests.scripts.run_corpus --pairs 3 --json table.json --only generator logging

In each pair the doctor looks at the slow script and at the fixed one, and both run bare, in turns.
The gain is that of the bare scripts, by the samples/s which they print. A machine that is busy with
other things spoils all of it, so every pair says how many cores others kept busy meanwhile. So does
the allocator, whose luck `KEEPS_MEMORY` takes away.
"""

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.scripts.corpus import HEALTHY, ON_GPU, SLOW, Case, Healthy

ROOT = Path(__file__).parents[2]

T = TypeVar("T")

LONGEST_S = 180.0
"""By when a script must have ended; far more than it takes."""

KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_TRIM_THRESHOLD_": 4 << 30,
    "MALLOC_TOP_PAD_": 64 << 20,
}
"""Makes glibc keep what a step gives back. By default it depends on how the heap of a process came
to lie whether large tensors go back to the system in every step, and the next one pays for its
pages anew: two lives of one script differ by a quarter in forward and backward, so that the ratio
of two scripts would tell of luck."""

_RATE = re.compile(r"loss ([\d.]+), ([\d.]+) s after warm-up, ([\d.]+) samples/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the doctor said of one run."""

    exit_code: int
    verdict: dict[str, Any]
    """As written by ``--json``; empty where nothing was written."""
    stdout: str
    stderr: str
    samples_per_s: float | None
    """By the script's own line, where it came to its end."""

    @property
    def outcome(self) -> str | None:
        """Bottleneck, healthy, or not enough evidence."""
        return self.verdict.get("outcome")

    @property
    def codes(self) -> list[str]:
        """Of the findings that are more than information, the primary one first."""
        found = self.verdict.get("findings", [])
        return [finding["code"] for finding in found if finding["severity"] != "info"]

    def bound(self, code: str) -> float | None:
        """How many times as fast the run becomes at most, by the finding of this code."""
        for finding in self.verdict.get("findings", []):
            if finding["code"] == code and finding["bound"] is not None:
                return finding["bound"]["speedup"]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One turn over a case."""

    named: list[str]
    """Codes found in the slow script, the primary one first."""
    named_in_fixed: list[str]
    bound: float | None
    """Of the expected finding."""
    slow_per_s: float
    """Samples, bare."""
    fixed_per_s: float
    measured_slow_per_s: float | None
    """Samples, of the slow script under measurement."""
    others_cores: float
    """Cores that others kept busy, at most in one of the runs."""
    shares: dict[str, float]

    @property
    def gain(self) -> float:
        """How many times as fast the fixed script is."""
        return self.fixed_per_s / self.slow_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case over all its pairs; medians."""

    name: str
    expected: str
    named: list[str | None]
    """First code of every pair."""
    named_in_fixed: list[str | None]
    bound: float | None
    gain: float
    gain_least: float
    gain_most: float
    ratio: float | None
    """Of gain and bound: 1 where the bound was reached."""
    others_cores: float
    pairs: list[Pair]


def doctor(
    command: Sequence[str], *, steps: int, python: str = sys.executable, path: str | None = None
) -> Said:
    """Run a command under ``pitstop doctor`` and read its verdict.

    Args:
        command: What a user would type.
        steps: Steps to measure.
        python: Interpreter of the doctor.
        path: Folder that its modules, and the command's, are looked for in first.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "verdict.json"
        done = _run(
            [
                *(python, "-m", "pitstop", "doctor", "--steps", str(steps)),
                *("--json", str(out), "--record", str(Path(folder) / "record"), "--", *command),
            ],
            {} if path is None else {"PYTHONPATH": path},
        )
        verdict = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return Said(
        exit_code=done.returncode,
        verdict=verdict,
        stdout=done.stdout,
        stderr=done.stderr,
        samples_per_s=printed_rate(done.stdout),
    )


def bare_rate(command: Sequence[str]) -> float:
    """Samples a second after warm-up, by the script's own line."""
    done = _run(command)
    rate = printed_rate(done.stdout)
    if rate is None:
        raise RuntimeError(f"{' '.join(command)} gave no rate:\n{done.stdout}\n{done.stderr}")
    return rate


def printed_rate(output: str) -> float | None:
    """Find the line with which every script of a pair ends."""
    found = _RATE.search(output)
    return None if found is None else float(found[3])


def run_pair(case: Case, *, quiet_s: float = 0.0) -> Pair:
    """Take one turn: slow under the doctor, slow, fixed, fixed under the doctor."""
    slow, fixed = case.command(fixed=False), case.command(fixed=True)
    said, first = alone(lambda: doctor(slow, steps=case.watched_steps), quiet_s)
    slow_per_s, second = alone(lambda: bare_rate(slow), quiet_s)
    fixed_per_s, third = alone(lambda: bare_rate(fixed), quiet_s)
    after, fourth = alone(lambda: doctor(fixed, steps=case.watched_steps), quiet_s)
    return Pair(
        named=said.codes,
        named_in_fixed=after.codes,
        bound=said.bound(case.code),
        slow_per_s=slow_per_s,
        fixed_per_s=fixed_per_s,
        measured_slow_per_s=said.samples_per_s,
        others_cores=max(first, second, third, fourth),
        shares=said.verdict.get("shares", {}),
    )


def run_case(case: Case, *, pairs: int, quiet_s: float = 0.0) -> Row:
    """Take several turns over a case."""
    taken = [run_pair(case, quiet_s=quiet_s) for _ in range(pairs)]
    gains = [pair.gain for pair in taken]
    ratios = [pair.gain / pair.bound for pair in taken if pair.bound is not None]
    bounds = [pair.bound for pair in taken if pair.bound is not None]
    return Row(
        name=case.name,
        expected=case.code,
        named=[_first(pair.named) for pair in taken],
        named_in_fixed=[_first(pair.named_in_fixed) for pair in taken],
        bound=statistics.median(bounds) if bounds else None,
        gain=statistics.median(gains),
        gain_least=min(gains),
        gain_most=max(gains),
        ratio=statistics.median(ratios) if ratios else None,
        others_cores=max(pair.others_cores for pair in taken),
        pairs=taken,
    )


def wait_for_quiet(limit_s: float, *, cores: float = 0.4) -> None:
    """Wait until others keep fewer cores busy than this, for as long as is allowed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        _, others = _with_others(lambda: time.sleep(0.5))
        if others < cores:
            return


def alone(act: Callable[[], T], quiet_s: float) -> tuple[T, float]:
    """Wait until others are quiet, for as long as is allowed, and then do something.

    Returns:
        What it gave, and how many cores others kept busy meanwhile.
    """
    wait_for_quiet(quiet_s)
    return _with_others(act)


def _with_others(act: Callable[[], T]) -> tuple[T, float]:
    """Do something; say how many cores were busy meanwhile with anything else."""
    before, own_before, start_s = _busy_s(), _own_s(), time.monotonic()
    result = act()
    wall_s = time.monotonic() - start_s
    others_s = _busy_s() - before - (_own_s() - own_before)
    return result, max(0.0, others_s / wall_s)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)


def _own_s() -> float:
    usages = (
        resource.getrusage(resource.RUSAGE_CHILDREN),
        resource.getrusage(resource.RUSAGE_SELF),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def doctor_by_hand(command: Sequence[str]) -> Said:
    """Run a command that writes its own record, and read the verdict on that."""
    with tempfile.TemporaryDirectory() as folder:
        out, record = Path(folder) / "verdict.json", Path(folder) / "record"
        record.mkdir()
        written = _run([*command, str(record)])
        if written.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{written.stderr}")
        done = _run([sys.executable, "-m", "pitstop", "doctor", str(record), "--json", str(out)])
        verdict = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return Said(
        exit_code=done.returncode,
        verdict=verdict,
        stdout=done.stdout,
        stderr=done.stderr,
        samples_per_s=None,
    )


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    settings = {**KEEPS_MEMORY, **(environment or {})}
    return subprocess.run(
        ["env", *(f"{name}={value}" for name, value in settings.items()), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
        cwd=ROOT,
    )


def _first(codes: Sequence[str]) -> str | None:
    return codes[0] if codes else None


def _chosen(cases: Sequence[Case | Healthy], only: Sequence[str]) -> list[Case | Healthy]:
    """Choose cases by parts of their names.

    Raises:
        ValueError: A part is in no name.
    """
    for word in only:
        if not any(word in case.name for case in cases):
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case has {word!r} in its name; there are: {names}")
    return [case for case in cases if not only or any(word in case.name for word in only)]


def _line(row: Row) -> str:
    bound = "none" if row.bound is None else f"{row.bound:.2f}x"
    ratio = "none" if row.ratio is None else f"{row.ratio:.2f}"
    named = ", ".join(str(code) for code in row.named)
    fixed = ", ".join(str(code) for code in row.named_in_fixed)
    return (
        f"{row.name:30} {row.expected:10} named {named}; bound {bound}, "
        f"gain {row.gain:.2f}x ({row.gain_least:.2f} to {row.gain_most:.2f}), ratio {ratio}; "
        f"fixed: {fixed}; others busy {row.others_cores:.1f} cores"
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where the table goes")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the cases' names")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--quiet-s", type=float, default=0.0, help="wait this long at most for others to be quiet"
    )
    args = parser.parse_args(words)
    if args.device == "cuda":
        print("the healthy scripts train on a CPU: left out", flush=True)
    try:
        chosen = _chosen((*SLOW, *HEALTHY) if args.device == "cpu" else ON_GPU, args.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    table: list[dict[str, object]] = []
    for case in chosen:
        if isinstance(case, Case):
            row = run_case(case, pairs=args.pairs, quiet_s=args.quiet_s)
            table.append(asdict(row))
            print(_line(row), flush=True)
        else:
            wait_for_quiet(args.quiet_s)
            said = doctor(case.command(), steps=case.steps)
            table.append({"name": case.name, "expected": None, "named": said.codes})
            print(f"{case.name:30} healthy    {said.outcome}: {said.codes}", flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
