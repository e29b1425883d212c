"""Runs the zoo: every script bare and under the doctor, and what differs.

    python -m tests.zoo.run --json zoo.json --only lbfgs
    python -m tests.zoo.run --public /path/to/checkouts --python /path/to/python

A script runs twice bare, once watched to its end, once with ``--detach``, once with the default,
which ends it after its steps, and once under a stopwatch that knows nothing of pitstop.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pitstop.records.store import read_run
from tests.zoo.compare import (
    grouped,
    losses,
    same_losses,
    same_output,
    stopwatch_groups,
    true_steps,
    worst_difference,
)
from tests.zoo.generate import generate
from tests.zoo.table import OURS, PUBLIC, STANDINS, Device, Row, chosen, read_table

ROOT = Path(__file__).parents[2]
POINTS = 5.0
"""A share may differ from the stopwatch's by this many points."""
ENDED_EARLY = 3
"""Exit code of the doctor where it ended the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of a script."""

    code: int
    stdout: str
    stderr: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the doctor said of one run."""

    ran: Ran
    verdict: dict[str, Any]
    steps: int | None

    @property
    def first(self) -> str:
        """The first finding that is more than information, or the outcome."""
        for finding in self.verdict.get("findings", []):
            if finding["severity"] != "info":
                return finding["code"]
        return self.verdict.get("outcome", "nothing said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A script, compared. None where a thing could not be compared."""

    name: str
    device: Device
    bare_code: int
    codes: dict[str, int]
    same_code: bool
    same_output: bool | None
    same_losses: bool | None
    losses: int
    true_steps: int | None
    steps: int | None
    steps_right: bool | None
    said: dict[str, float]
    timed: dict[str, float]
    stopwatch: dict[str, Any]
    """All that the stopwatch saw: steps, shares, what lay outside them."""
    difference: float | None
    """From the stopwatch at most, in points."""
    parts_right: bool | None
    first: dict[str, str]
    expected: tuple[str, ...]
    first_right: bool | None
    message: str
    shares: dict[str, float]
    findings: list[dict[str, Any]]
    """Code, severity, evidence and bound of what was found in the run watched to its end."""
    wall_s: dict[str, float]
    trouble: list[str] = field(default_factory=list)


class Zoo:
    """Runs rows on one device."""

    def __init__(self, *, device: Device, public: Path | None, python: str) -> None:
        self.device: Device = device
        self.public = public
        self.python = python

    def bare(self, row: Row) -> Ran:
        """Run the script as it is."""
        return self._run(row, [self.python, *row.words(self.device)])

    def watched(self, row: Row, *options: str) -> Said:
        """Run the script under the doctor."""
        with tempfile.TemporaryDirectory(prefix="zoo-") as name:
            folder = Path(name)
            out, record = folder / "verdict.json", folder / "record"
            doctor = (sys.executable, "-m", "pitstop", "doctor", *options)
            where = ("--json", str(out), "--record", str(record), "--")
            ran = self._run(row, [*doctor, *where, self.python, *row.words(self.device)])
            verdict = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
            return Said(ran=ran, verdict=verdict, steps=_steps(record))

    def stopwatch(self, row: Row) -> dict[str, Any]:
        """Time the parts of the script's steps from outside."""
        with tempfile.TemporaryDirectory(prefix="zoo-") as name:
            out = Path(name) / "stopwatch.json"
            timer = (str(Path(__file__).with_name("stopwatch.py")), str(out))
            words = row.words(self.device)[len(row.launcher) :]
            timer = (*row.launcher, *timer, json.dumps(dict(row.timed)))
            self._run(row, [self.python, *timer, *words])
            return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}

    def _run(self, row: Row, command: Sequence[str]) -> Ran:
        folder = row.working_folder(self.public)
        paths = [str(folder / path) for path in row.python_path]
        if row.repository and row.standins:  # what our own scripts import is installed
            paths.append(str(STANDINS))
        env = {
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "ZOO_SEED": "0",
            **row.env,
            **(row.cuda_env if self.device == "cuda" else {}),
            "PYTHONPATH": ":".join([*paths, str(ROOT / "src"), *_outer_path()]),
        }
        start_s = time.monotonic()
        try:
            done = subprocess.run(
                ["env", *(f"{name}={value}" for name, value in env.items()), *command],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=row.limit_s,
                cwd=folder,
            )
        except subprocess.TimeoutExpired as error:
            stdout, stderr = (_text(part) for part in (error.stdout, error.stderr))
            return Ran(code=124, stdout=stdout, stderr=stderr, wall_s=row.limit_s)
        wall_s = time.monotonic() - start_s
        return Ran(code=done.returncode, stdout=done.stdout, stderr=done.stderr, wall_s=wall_s)


def _outer_path() -> list[str]:
    """Folders that the runner itself was told to import from."""
    outer = os.environ.get("PYTHONPATH", "")  # noqa: TID251 - it is handed on, not read as a setting
    return [outer] if outer else []


def _text(part: bytes | str | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""


def _steps(record: Path) -> int | None:
    """Steps that were found: those of the record, the slowed-down ones, the first.

    The first ends the start-up, which is told apart from the steps.
    """
    try:
        rank = read_run(record).first
    except Exception:  # noqa: BLE001 - whatever is wrong with a record, no steps were found
        return None
    first = any(event.name == "start-up" for event in rank.events)
    return max((step.index for step in rank.steps or ()), default=-1) + 1 + first


def judge(zoo: Zoo, row: Row, *, runs: Sequence[str]) -> Result:
    """Run one row in every way and compare."""
    bare = [zoo.bare(row) for _ in range(2 if "twice" in runs else 1)]
    said = {"whole": zoo.watched(row, "--steps", "1000000")}
    if "detach" in runs:
        said["detach"] = zoo.watched(row, "--detach")
    if "default" in runs:
        said["default"] = zoo.watched(row)
    timed = zoo.stopwatch(row) if row.stopwatch and "stopwatch" in runs else {}
    return _with_trouble(compared(row, zoo.device, bare, said, timed), bare, said)


def compared(
    row: Row, device: Device, bare: Sequence[Ran], said: dict[str, Said], timed: dict[str, Any]
) -> Result:
    """Set what was seen against what is true."""
    whole = said["whole"]
    to_its_end = [said[kind].ran for kind in ("whole", "detach") if kind in said]
    true = row.cuda_steps if device == "cuda" and row.cuda_steps else row.steps
    if row.steps_pattern:
        true = true_steps(row.steps_pattern, bare[0].stdout)
    groups, clock = _parts(row, bare, whole, timed)
    difference = worst_difference(groups, clock) if clock else None
    bare_losses = [_losses(row, ran) for ran in bare]
    firsts = {kind: each.first for kind, each in said.items()}
    return Result(
        name=row.name,
        device=device,
        bare_code=bare[0].code,
        codes={kind: each.ran.code for kind, each in said.items()},
        same_code=_same_codes(bare[0].code, {kind: each.ran.code for kind, each in said.items()}),
        same_output=_all(same_output([b.stdout for b in bare], ran.stdout) for ran in to_its_end),
        same_losses=_all(same_losses(bare_losses, _losses(row, ran)) for ran in to_its_end),
        losses=len(bare_losses[0]),
        true_steps=true,
        steps=whole.steps,
        steps_right=None if true is None else whole.steps == true,
        said=groups,
        timed=clock,
        stopwatch=timed,
        difference=difference,
        parts_right=None if difference is None else difference <= POINTS,
        first=firsts,
        expected=row.first,
        first_right=_firsts_right(row, firsts) if row.first else None,
        message=whole.verdict.get("message", ""),
        shares=whole.verdict.get("shares", {}),
        findings=[
            {key: finding[key] for key in ("code", "severity", "summary", "evidence", "bound")}
            for finding in whole.verdict.get("findings", [])
        ],
        wall_s={"bare": bare[0].wall_s, **{k: s.ran.wall_s for k, s in said.items()}},
    )


def _firsts_right(row: Row, firsts: dict[str, str]) -> bool:
    """Whether each run says first what its steps show."""
    short = row.first_default or row.first
    return all(first in (row.first if kind == "whole" else short) for kind, first in firsts.items())


def _losses(row: Row, ran: Ran) -> list[float]:
    found = losses(ran.stdout, row.losses)
    return sorted(found) if row.unordered else found


def _parts(
    row: Row, bare: Sequence[Ran], whole: Said, timed: dict[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """What the doctor said of the parts, and what a clock said of the same ones."""
    groups = grouped(whole.verdict.get("shares", {}))
    if row.shares:
        own = {
            part: (true_share(pattern, whole.ran.stdout) or 0.0)
            for part, pattern in row.shares.items()
        }
        return groups, own
    return groups, stopwatch_groups(timed["shares"]) if timed.get("shares") else {}


def true_share(pattern: str, output: str) -> float | None:
    """The share that the script's own stopwatch printed last."""
    percent = [line for line in output.splitlines() if line]
    for line in reversed(percent):
        value = losses(line, pattern)
        if value:
            return value[-1] / 100
    return None


def _same_codes(bare: int, codes: dict[str, int]) -> bool:
    allowed = {bare, ENDED_EARLY}
    return all(
        code == bare or (kind == "default" and code in allowed) for kind, code in codes.items()
    )


def _all(values: Any) -> bool | None:
    known = [value for value in values if value is not None]
    return all(known) if known else None


def _with_trouble(result: Result, bare: Sequence[Ran], said: dict[str, Said]) -> Result:
    """Say in words what is wrong, with the end of what was printed."""
    trouble: list[str] = []
    if result.bare_code != 0:
        trouble.append(f"bare, it ends with {result.bare_code}: {bare[0].stderr[-600:]}")
    for kind, each in said.items():
        if each.ran.code not in (result.bare_code, ENDED_EARLY):
            trouble.append(f"{kind}: {each.ran.code}: {each.ran.stderr[-600:]}")
        if "Traceback" in each.ran.stderr and "Traceback" not in bare[0].stderr:
            trouble.append(f"{kind}: {each.ran.stderr[-600:]}")
    return replace(result, trouble=trouble)


def line(result: Result) -> str:
    """One line for a terminal."""
    marks = {True: "ok", False: "WRONG", None: "-"}
    steps = f"{result.steps}/{result.true_steps}"
    points = "" if result.difference is None else f" {result.difference:.1f}"
    firsts = ",".join(dict.fromkeys(result.first.values()))
    return (
        f"{result.name:24} {result.device:4} code {marks[result.same_code]:5} "
        f"output {marks[result.same_output]:5} losses {marks[result.same_losses]:5} "
        f"steps {marks[result.steps_right]:5} {steps:11} "
        f"parts {marks[result.parts_right]:5}{points} "
        f"first {marks[result.first_right]:5} {firsts}; "
        f"{', '.join(f'{kind} {wall_s:.0f} s' for kind, wall_s in result.wall_s.items())}"
    )


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, help="rows; ours unless --public is given")
    parser.add_argument("--public", type=Path, help="folder of checkouts, named OWNER+NAME")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    parser.add_argument(
        "--within-s", type=float, default=float("inf"), help="begin no script after this long"
    )
    parser.add_argument(
        "--runs",
        nargs="*",
        default=["twice", "detach", "default", "stopwatch"],
        help="beside one bare run and one watched to its end",
    )
    return parser.parse_args(words)


def _show(results: Sequence[Result], path: Path | None) -> None:
    """Print the newest result; write all of them."""
    print(line(results[-1]), flush=True)
    for trouble in results[-1].trouble:
        print(f"    {trouble}", flush=True)
    if path is not None:
        written = json.dumps([asdict(each) for each in results], indent=1)
        path.write_text(written + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    args = _arguments(words)
    table = args.table or (PUBLIC if args.public else OURS)
    zoo = Zoo(device=args.device, public=args.public, python=args.python)
    results: list[Result] = []
    end_s = time.monotonic() + args.within_s

    def one(row: Row) -> Result | None:
        if time.monotonic() > end_s:
            return None
        generate(row.data, row.working_folder(args.public), python=args.python)
        return judge(zoo, row, runs=args.runs)

    rows = chosen(read_table(table), args.only, args.device)
    with ThreadPoolExecutor(args.jobs) as pool:
        for row, result in zip(rows, pool.map(one, rows), strict=True):
            if result is None:
                print(f"{row.name:24} not run: no time left", flush=True)
                continue
            results.append(result)
            _show(results, args.json)
    broken = [r for r in results if not r.same_code or r.same_output is False]
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
