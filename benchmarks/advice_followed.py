"""The doctor's advice, followed: time saved over the time that its bound says can be saved.

    python -m benchmarks.advice_followed [--device cpu|cuda] [--pairs 5] [--json FILE.json]
                                         [--turns FILE.jsonl]

`TEN` names the scripts, and for each what the advice says and the script in which somebody has
done it; it was written down before any of them was run. In each pair the doctor judges the slow
script, and the slow and the fixed one run bare, one after the other. With r the ratio of their
samples/s, following the advice saved 1 - 1/r of the time; the finding's bound says that it can save
`share + cpu_headroom_share` of it. Their quotient is 1 where the bound is reached.

Its error comes from the pairs: Student's interval, 95 %. A quotient above 1 by more than that is a
bound that was too low; one below 0.5 is to be explained. With `--turns` every pair is kept as it
ends, and a later call makes only those that are missing. A machine that is busy with other things
spoils all of it, so each row says how many cores others kept busy.
"""

import argparse
import contextlib
import json
import math
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.scripts.corpus import ON_GPU, SLOW, Case
from tests.scripts.run_corpus import Said, alone, bare_rate, doctor

# Student's t, two-sided 95 %, for one less than the number of pairs.
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A script, and a piece of advice that its fixed version follows."""

    case: str
    """Name in tests/scripts/corpus.py, which has both scripts."""
    advice: str
    """Words that must stand in what the finding advises; else nobody would have come to it."""


TEN: tuple[Followed, ...] = (
    Followed(case="no workers", advice="num_workers="),
    Followed(case="workers restarted", advice="persistent_workers=True"),
    Followed(case="logging", advice="if step % 50 == 0"),
    Followed(case="metric in Python", advice="operations on whole tensors"),
    Followed(case="evaluation", advice="evaluate less often"),
    Followed(case="optimizer loop", advice="fused=True"),
    Followed(case="recompute", advice="remove torch.utils.checkpoint"),
    Followed(case="launches", advice='mode="reduce-overhead"'),
    Followed(case="syncs", advice=".item() once every 50 steps"),
    Followed(case="precision", advice="dtype=torch.bfloat16"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One pair."""

    bound_share: float
    """Of the time, that the bound says can be saved."""
    slow_per_s: float
    fixed_per_s: float
    advised: bool
    """Whether the finding gave the advice."""
    others_cores: float
    evidence: tuple[str, ...] = ()
    """Of the finding: where more was saved than its bound allows, it says which figure was off."""

    @property
    def saved_share(self) -> float:
        """Of the time, that was saved."""
        return 1 - self.slow_per_s / self.fixed_per_s

    @property
    def quotient(self) -> float:
        """1 where the bound was reached."""
        return self.saved_share / self.bound_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A script over all its pairs."""

    case: str
    code: str
    advice: str
    advised: bool
    """In every pair."""
    quotient: float
    """Mean over the pairs."""
    low: float
    high: float
    """Ends of its interval, 95 %."""
    saved_share: float
    bound_share: float
    others_cores: float
    turns: list[Turn]

    @property
    def is_beyond_bound(self) -> bool:
        """Whether more was saved than the bound allows, beyond the error of measuring."""
        return self.low > 1


def case_of(name: str) -> Case:
    """Find a case of the corpus by its name."""
    return next(case for case in (*SLOW, *ON_GPU) if case.name == name)


def turn_of(said: Said, case: Case, advice: str, rates: tuple[float, float, float]) -> Turn | None:
    """Set what was saved against what the doctor said; None where it did not find the bottleneck.

    Args:
        said: The doctor's verdict on the slow script.
        case: Both scripts.
        advice: What the finding must advise.
        rates: Samples/s of the slow and of the fixed script, and cores that others kept busy.
    """
    found = [one for one in said.verdict.get("findings", ()) if one["code"] == case.code]
    if not found or found[0]["bound"] is None:
        return None
    bound = found[0]["bound"]
    return Turn(
        bound_share=bound["share"] + bound["cpu_headroom_share"],
        slow_per_s=rates[0],
        fixed_per_s=rates[1],
        advised=any(advice in line for line in found[0]["remedy"]),
        others_cores=rates[2],
        evidence=tuple(found[0].get("evidence", ())),
    )


def row_of(followed: Followed, turns: Sequence[Turn]) -> Row:
    """Sum up the pairs of one script."""
    quotients = [turn.quotient for turn in turns]
    mean, count = statistics.fmean(quotients), len(quotients)
    half = math.inf
    if count > 1:
        student = _STUDENT.get(count - 1, 1.96)
        half = student * statistics.stdev(quotients) / math.sqrt(count)
    return Row(
        case=followed.case,
        code=case_of(followed.case).code,
        advice=followed.advice,
        advised=all(turn.advised for turn in turns),
        quotient=mean,
        low=mean - half,
        high=mean + half,
        saved_share=statistics.fmean(turn.saved_share for turn in turns),
        bound_share=statistics.fmean(turn.bound_share for turn in turns),
        others_cores=max(turn.others_cores for turn in turns),
        turns=list(turns),
    )


def _turn(kept: dict[str, Any]) -> Turn:
    return Turn(**{**kept, "evidence": tuple(kept.get("evidence", ()))})


class Turns:
    """Pairs that have ended, by case; in a file, too, if one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, list[Turn | None]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ()
        for line in lines:
            with contextlib.suppress(ValueError):  # one that was being written when it was cut off
                found = json.loads(line)
                turn = None if found["turn"] is None else _turn(found["turn"])
                self._found.setdefault(found["case"], []).append(turn)

    def of(self, case: str) -> list[Turn | None]:
        """Pairs of a case, None where the bottleneck was not found."""
        return self._found.setdefault(case, [])

    def add(self, case: str, turn: Turn | None) -> None:
        """Keep a pair."""
        self.of(case).append(turn)
        if self._path is not None:
            entry = {"case": case, "turn": None if turn is None else asdict(turn)}
            with self._path.open("a", encoding="utf-8") as file:
                # First: the line before may have been cut off.
                file.write("\n" + json.dumps(entry))


def take_turn(followed: Followed, number: int, *, quiet_s: float) -> Turn | None:
    """Judge the slow script, and run it and the fixed one; None where it was not found."""
    case = case_of(followed.case)
    slow, fixed = case.command(fixed=False), case.command(fixed=True)
    said, busy = alone(lambda: doctor(slow, steps=case.watched_steps), quiet_s)
    order = (slow, fixed) if number % 2 == 0 else (fixed, slow)
    rates: dict[str, float] = {}
    for command in order:
        rate, others = alone(lambda command=command: bare_rate(command), quiet_s)
        rates["slow" if command is slow else "fixed"] = rate
        busy = max(busy, others)
    return turn_of(said, case, followed.advice, (rates["slow"], rates["fixed"], busy))


def measure(followed: Followed, taken: Turns, *, pairs: int, quiet_s: float) -> Row | None:
    """Run one script and its fixed version in turns; None where the bottleneck was not found."""
    while len(taken.of(followed.case)) < pairs:
        turn = take_turn(followed, len(taken.of(followed.case)), quiet_s=quiet_s)
        taken.add(followed.case, turn)
    found = [turn for turn in taken.of(followed.case) if turn is not None]
    return row_of(followed, found) if found else None


def line_of(row: Row) -> str:
    """A row as text."""
    advised = "" if row.advised else "; NOT ADVISED"
    beyond = "; BEYOND THE BOUND" if row.is_beyond_bound else ""
    explain = "; below 0.5: explain" if row.quotient < 0.5 else ""
    return (
        f"{row.case:20} {row.code:10} saved {row.saved_share:.2f} of {row.bound_share:.2f}: "
        f"{row.quotient:.2f} ({row.low:.2f} to {row.high:.2f}); others busy "
        f"{row.others_cores:.1f} cores{advised}{beyond}{explain}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run the rows of one device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--json", type=Path, help="where the table goes")
    parser.add_argument("--turns", type=Path, help="a line for each pair; none is made again")
    parser.add_argument(
        "--quiet-s", type=float, default=0.0, help="wait this long at most for others to be quiet"
    )
    args = parser.parse_args(words)
    rows: list[Row] = []
    taken = Turns(args.turns)
    for followed in TEN:
        if case_of(followed.case).device != args.device:
            continue
        if args.only and followed.case not in args.only:
            continue
        row = measure(followed, taken, pairs=args.pairs, quiet_s=args.quiet_s)
        if row is None:
            print(f"{followed.case:20} the bottleneck was not found", flush=True)
            continue
        rows.append(row)
        print(line_of(row), flush=True)
        if args.json is not None:
            about = {"host": platform.platform(), "python": sys.version.split()[0]}
            table = {**about, "device": args.device, "rows": [asdict(row) for row in rows]}
            args.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if rows:
        print(f"median {statistics.median(row.quotient for row in rows):.2f} of {len(rows)} rows")


if __name__ == "__main__":
    main()
