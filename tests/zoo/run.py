"""Runs the zoo: every script bare and under the doctor, and what differs.

    python -m tests.zoo.run --json zoo.json --only lbfgs
    python -m tests.zoo.run --public /path/to/checkouts --python /path/to/python
    python -m tests.zoo.run --public /path/to/checkouts --device cuda --together 8 --jobs 3

A script runs twice bare, once watched to its end, once with ``--detach``, once with the default,
which ends it after its steps, and once under a stopwatch that knows nothing of pitstop.

With ``--together`` the runs whose times do not matter (bare, ``--detach``, the default) come first,
so many scripts at a time. The stopwatch and the run that is judged come after them; on a GPU each
has it to itself, by ``turns``, however many are started at a time. With ``--journal`` every run is
kept as it ends, so that several short calls do what one long one does.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.zoo.compare import (
    grouped,
    losses,
    same_losses,
    same_output,
    stopwatch_groups,
    true_steps,
    worst_difference,
)
from tests.zoo.expected import expected_first
from tests.zoo.generate import generate
from tests.zoo.runs import DOCTOR_OPTIONS, UNTIMED, Journal, Kind, NoTimeLeftError, Run, Zoo
from tests.zoo.table import OURS, PUBLIC, Device, Row, chosen, read_table

POINTS = 5.0
"""A share may differ from the stopwatch's by this many points."""
ENDED_EARLY = 3
"""Exit code of the doctor where it ended the script."""


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


def judge(zoo: Zoo, row: Row, *, runs: Sequence[str]) -> Result:
    """Run one row in every way and compare; the stopwatch runs before what it is to judge.

    Raises:
        NoTimeLeftError: A run did not end in time.
    """
    untimed = [zoo.run(row, kind) for kind in untimed_kinds(runs)]
    timed = zoo.run(row, "stopwatch").timed if row.stopwatch and "stopwatch" in runs else {}
    last: list[Run] = [zoo.run(row, "whole")] if "no whole" not in runs else []
    bare = [run for run in untimed if run.kind.startswith("bare")]
    watched = [run for run in (*last, *untimed) if run.kind in DOCTOR_OPTIONS]
    said: dict[Kind, Run] = {run.kind: run for run in watched}
    return _with_trouble(compared(row, zoo.device, bare, said, timed), bare, said)


def untimed_kinds(runs: Sequence[str]) -> list[Kind]:
    """Runs whose times do not matter, by what was asked for."""
    asked = {"bare", *runs, *(("bare again",) if "twice" in runs else ())}
    return [kind for kind in UNTIMED if kind in asked]


def compared(
    row: Row, device: Device, bare: Sequence[Run], said: Mapping[Kind, Run], timed: dict[str, Any]
) -> Result:
    """Set what was seen against what is true."""
    whole = said.get("whole") or said["detach"]
    to_its_end = [run for kind, run in said.items() if kind in ("whole", "detach")]
    true = row.cuda_steps if device == "cuda" and row.cuda_steps else row.steps
    if row.steps_pattern:
        true = true_steps(row.steps_pattern, bare[0].stdout)
    groups, clock = _parts(row, whole, timed)
    difference = worst_difference(groups, clock) if clock else None
    bare_losses = [_losses(row, ran) for ran in bare]
    firsts: dict[str, str] = {kind: run.first for kind, run in said.items()}
    codes: dict[str, int] = {kind: run.code for kind, run in said.items()}
    expected = (row.first if device == "cpu" else ()) or expected_first(timed)
    return Result(
        name=row.name,
        device=device,
        bare_code=bare[0].code,
        codes=codes,
        same_code=_same_codes(bare[0].code, codes),
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
        expected=expected,
        first_right=_firsts_right(row, device, expected, firsts) if expected else None,
        message=whole.verdict.get("message", ""),
        shares=whole.verdict.get("shares", {}),
        findings=[
            {key: finding[key] for key in ("code", "severity", "summary", "evidence", "bound")}
            for finding in whole.verdict.get("findings", [])
        ],
        wall_s={"bare": bare[0].wall_s, **{kind: run.wall_s for kind, run in said.items()}},
    )


def _firsts_right(
    row: Row, device: Device, expected: Sequence[str], firsts: dict[str, str]
) -> bool:
    """Whether each run says first what its steps show; on a GPU, the one that had it to itself."""
    if device == "cuda":
        return firsts.get("whole") in expected
    short = row.first_default or expected
    return all(first in (expected if kind == "whole" else short) for kind, first in firsts.items())


def _losses(row: Row, run: Run) -> list[float]:
    found = losses(run.stdout, row.losses)
    return sorted(found) if row.unordered else found


def _parts(
    row: Row, whole: Run, timed: dict[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """What the doctor said of the parts, and what a clock said of the same ones."""
    groups = grouped(whole.verdict.get("shares", {}))
    if row.shares:
        own = {
            part: (true_share(pattern, whole.stdout) or 0.0) for part, pattern in row.shares.items()
        }
        return groups, own
    if not timed.get("shares"):
        return groups, {}
    return grouped(whole.ordinary) if whole.ordinary else groups, stopwatch_groups(timed["shares"])


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


def _with_trouble(result: Result, bare: Sequence[Run], said: Mapping[Kind, Run]) -> Result:
    """Say in words what is wrong, with the end of what was printed."""
    trouble: list[str] = []
    if result.bare_code != 0:
        trouble.append(f"bare, it ends with {result.bare_code}: {bare[0].stderr[-600:]}")
    for kind, each in said.items():
        if each.code not in (result.bare_code, ENDED_EARLY):
            trouble.append(f"{kind}: {each.code}: {each.stderr[-600:]}")
        if "Traceback" in each.stderr and "Traceback" not in bare[0].stderr:
            trouble.append(f"{kind}: {each.stderr[-600:]}")
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
        "--together",
        type=int,
        default=0,
        help="first, so many at a time, all runs whose times do not matter",
    )
    parser.add_argument(
        "--journal", type=Path, help="a line for each run that ends; none of these is made again"
    )
    parser.add_argument(
        "--within-s", type=float, default=float("inf"), help="no run goes on after this long"
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, help="times the limits, on cores that others use"
    )
    parser.add_argument(
        "--runs",
        nargs="*",
        default=["twice", "detach", "default", "stopwatch"],
        help="beside one bare run and one watched to its end; `no whole` leaves that one out",
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
    rows = chosen(read_table(table), args.only, args.device)
    zoo = Zoo(
        device=args.device,
        public=args.public,
        python=args.python,
        journal=Journal(args.journal),
        end_s=time.monotonic() + args.within_s,
        patience=args.patience,
    )
    generate_for(zoo, rows, at_a_time=args.together or args.jobs)
    if args.together:
        zoo.run_together(rows, untimed_kinds(args.runs), at_a_time=args.together)
        zoo.turn = Path(tempfile.gettempdir()) / "zoo-turn" if args.device == "cuda" else None
    results: list[Result] = []

    def one(row: Row) -> Result | NoTimeLeftError:
        try:
            return judge(zoo, row, runs=args.runs)
        except NoTimeLeftError as error:
            return error

    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(one, rows):
            if isinstance(result, NoTimeLeftError):
                print(result, flush=True)
                continue
            results.append(result)
            _show(results, args.json)
    broken = [r for r in results if not r.same_code or r.same_output is False]
    return 1 if broken else 0


def generate_for(zoo: Zoo, rows: Sequence[Row], *, at_a_time: int) -> None:
    """Make the data of all rows."""

    def one(row: Row) -> None:
        generate(row.data, row.working_folder(zoo.public), python=zoo.python)

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(one, rows))


if __name__ == "__main__":
    sys.exit(main())
