r"""Recompute what a log says, without pitstop, and hold pitstop's answer against it.

A person looks at the raw text of a log and describes its training lines: one regular expression
with named groups. From that and the standard library alone come the number of records, the first
and last step, epochs, how often the count goes back, and the time of a step by the log's own clock.
The comparison with ``pitstop doctor LOG --json`` is this program's, not the eye's.

    python benchmarks/log_corpus.py DESCRIPTIONS.toml --logs FOLDER [--pitstop "python -m pitstop"]

A description:

    [[log]]
    file = "train.log"          # in the folder; its text is never committed
    line = 'Epoch (?P<epoch>\d+) step (?P<step>\d+)/(?P<total>\d+) took (?P<step_s>[\d.]+)'
    counts = "epoch"            # the step begins anew in each epoch; "run" where it does not
    first_epoch = 1             # number of the run's first epoch, where counts = "epoch"
    zero = true                 # the first step of an epoch is printed as 0
    clock = "%Y-%m-%d %H:%M:%S,%f"   # format of the group "stamp"
    evaluates = 'Test:'         # between two records: their difference is no step's time

Groups: ``step``, ``total``, ``epoch``, ``epochs``, ``stamp``, ``elapsed`` (seconds or H:MM:SS),
``step_s``, ``step_ms`` (a printed time of one step), ``data_s``, ``data_ms`` (a printed wait for
data), ``rate`` (printed samples/s), ``steps_per_s``. ``batch`` and ``ranks`` are of the run where
the text names them; ``known`` holds facts that other lines of the text give, with a comment on how.
What pitstop states and the description does not have is wrong. Of a format that no tool defines it
quotes lines: some of them must be those of the description, by their number and the first and last
count on them, else the log was not read. A log without training records that count anything has
``nothing = true``: there, no time of a step and no number of records is right.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ENDS = re.compile(r"[\r\n\x08]+")
_NEAR = 0.05
_COARSE = 0.1
_LONG_BREAK = 10.0
_LONG_SECONDS = 20.0


@dataclass
class Facts:
    """What the raw text says."""

    records: int = 0
    first_step: float | None = None
    last_step: float | None = None
    total_steps: int | None = None
    total_epochs: int | None = None
    first_epoch: float | None = None
    last_epoch: float | None = None
    attempts: int = 1
    step_s: float | None = None
    source: str = ""
    is_coarse: bool = False
    data_s: float | None = None
    rate: float | None = None
    printed: list[tuple[float, float]] = field(default_factory=list)
    """First and last count as printed, of the step and of the epoch."""
    batch_size: int | None = None
    world_size: int | None = None
    doubts: list[str] = field(default_factory=list)


def seconds(text: str) -> float:
    """Read ``1:02:03``, ``02:03`` or a plain number as seconds."""
    value = 0.0
    for part in text.split(":"):
        value = 60 * value + float(part)
    return value


def recompute(path: Path, description: dict[str, Any]) -> Facts:
    """Work out the facts of a log from its raw text and a description of its lines."""
    text = _COLOUR.sub("", path.read_bytes().decode("utf-8", "replace"))
    pattern = re.compile(description["line"])
    between = re.compile(description["evaluates"]) if "evaluates" in description else None
    rows: list[dict[str, Any]] = []
    is_broken = True
    last = ""
    for line in _ENDS.split(text)[:-1]:  # a last line without its end may be cut off
        if line == last:  # printed to the console and to the file
            continue
        last = line
        found = pattern.search(line)
        if found is None:
            is_broken = is_broken or (between is not None and between.search(line) is not None)
            continue
        row: dict[str, Any] = {k: v for k, v in found.groupdict().items() if v is not None}
        row["goes on"] = not is_broken
        is_broken = False
        rows.append(row)
    return _facts(rows, description)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _facts(rows: list[dict[str, Any]], description: dict[str, Any]) -> Facts:
    facts = Facts(records=len(rows))
    facts.batch_size, facts.world_size = description.get("batch"), description.get("ranks")
    if not rows:
        facts.doubts.append("the description matches no line")
        return facts
    facts.total_epochs = _common(rows, "epochs")
    for name in ("step", "epoch"):
        if name in rows[0]:
            facts.printed.append((_number(rows[0][name]), _number(rows[-1][name])))
    epochs = [_number(row["epoch"]) for row in rows if "epoch" in row]
    if epochs:
        facts.first_epoch, facts.last_epoch = min(epochs), max(epochs)
    facts.rate = _middle(rows, "rate")
    facts.data_s = _middle(rows, "data_s")
    if (wait_ms := _middle(rows, "data_ms")) is not None:
        facts.data_s = wait_ms / 1000
    if "step" not in rows[0]:
        facts.attempts = 1 + sum(b <= a for a, b in pairwise(epochs))
        steps_per_s = _middle(rows, "steps_per_s")
        facts.step_s = None if steps_per_s is None else 1 / steps_per_s
        return facts
    _count(rows, description)
    steps = [row["at step"] for row in rows]
    facts.first_step, facts.last_step = min(steps), max(steps)
    facts.attempts = 1 + sum(_begins(one, two, description) for one, two in pairwise(rows))
    facts.total_steps = _common(rows, "total")
    if description.get("counts", "run") == "epoch" and facts.total_steps is not None:
        known = facts.total_epochs
        facts.total_steps = None if known is None else facts.total_steps * known
    _time(rows, description, facts)
    return facts


def _middle(rows: list[dict[str, Any]], name: str) -> float | None:
    found = [_number(row[name]) for row in rows if name in row]
    return statistics.median(found) if found else None


def _begins(one: dict[str, Any], two: dict[str, Any], description: dict[str, Any]) -> bool:
    """Whether another process begins: the step goes back, or comes again much later."""
    stamp = _stamp(description)
    if one["at step"] != two["at step"] or stamp is None:
        return two["at step"] < one["at step"]
    return stamp(two["stamp"]) - stamp(one["stamp"]) > _LONG_BREAK


def _common(rows: list[dict[str, Any]], name: str) -> int | None:
    found = {row.get(name) for row in rows}
    text = found.pop() if len(found) == 1 else None
    return None if text is None else int(_number(text))


def _count(rows: list[dict[str, Any]], description: dict[str, Any]) -> None:
    """Give each row its step over the run."""
    extra = 1 if description.get("zero") else 0
    done, before, epoch = 0.0, -1.0, 0.0
    for row in rows:
        step = _number(row["step"]) + extra
        if _number(row.get("epoch", "0")) < epoch:  # another run begins
            done, before = 0.0, -1.0
        epoch = _number(row.get("epoch", "0"))
        if description.get("counts", "run") == "run":
            row["at step"] = step - extra
        elif "total" in row and "epoch" in row and "first_epoch" in description:
            passed = _number(row["epoch"]) - description["first_epoch"]
            row["at step"] = passed * _number(row["total"]) + step
        else:
            if step < before:
                done += _number(row["total"]) if "total" in row else before
            row["at step"] = done + step
        before = step


def _time(rows: list[dict[str, Any]], description: dict[str, Any], facts: Facts) -> None:
    """Find the time of a step: by stamps, by elapsed times, else as printed."""
    for name, value in (("stamp", _stamp(description)), ("elapsed", seconds)):
        if name in rows[0] and value is not None and (spent := _spent(rows, name, value)):
            facts.source = name
            facts.is_coarse = all(float(passed).is_integer() for passed, _ in spent)
            if facts.is_coarse:
                spent = _joined(spent)
            facts.step_s = statistics.median(passed / steps for passed, steps in spent)
            return
    for name, unit in (("step_s", 1.0), ("step_ms", 1e-3)):
        if name in rows[0]:
            facts.source = "printed"
            facts.step_s = statistics.median(_number(row[name]) * unit for row in rows)


def _spent(rows: list[dict[str, Any]], name: str, value: Any) -> list[tuple[float, float]]:
    """Give seconds and steps between records that follow each other, without long breaks.

    Of a count that is drawn again and again, the first counts.
    """
    drawn = [two for one, two in pairwise([{}, *rows]) if one.get("at step") != two["at step"]]
    found = [
        (value(two[name]) - value(one[name]), two["at step"] - one["at step"])
        for one, two in pairwise(drawn)
        if two["goes on"]
    ]
    found = [(passed, steps) for passed, steps in found if steps > 0 and passed >= 0]
    if not found:
        return []
    usual = statistics.median(passed / steps for passed, steps in found) or 1.0
    return [(passed, steps) for passed, steps in found if passed / steps <= _LONG_BREAK * usual]


def _joined(spent: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join differences of whole seconds until rounding matters little."""
    found = [(0.0, 0.0)]
    for passed, steps in spent:
        if found[-1][0] >= _LONG_SECONDS:
            found.append((0.0, 0.0))
        found[-1] = (found[-1][0] + passed, found[-1][1] + steps)
    whole = (sum(passed for passed, _ in spent), sum(steps for _, steps in spent))
    return [one for one in found if one[0] >= _LONG_SECONDS] or [whole]


def _stamp(description: dict[str, Any]) -> Any:
    form = description.get("clock")
    if form is None:
        return None
    return lambda text: datetime.strptime(text, form).timestamp()  # noqa: DTZ007 - differences only


def answer(path: Path, command: str) -> dict[str, Any] | str:
    """Ask pitstop; its refusal as text."""
    asked = subprocess.run(
        [*shlex.split(command), "doctor", str(path), "--json", "-"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Traceback" in asked.stderr:
        raise RuntimeError(f"{path}: a crash is no refusal\n{asked.stderr}")
    try:
        return json.loads(asked.stdout)["summary"]
    except (ValueError, KeyError, TypeError):
        return (asked.stderr or asked.stdout).strip()[:300]


def compare(facts: Facts, said: dict[str, Any]) -> list[str]:
    """List what pitstop states and the raw text contradicts."""
    wrong = []
    names = (
        ("first_step", "last_step", "total_steps") if facts.last_step is not None else ("records",)
    )
    is_least = any("the least it can be" in note for note in said.get("notes", ()))
    for name in names:
        stated, known = said.get(name), getattr(facts, name)
        is_so = stated in (None, known) or (name == "last_step" and is_least and stated < known)
        if not is_so:
            wrong.append(f"{name}: says {stated}, the text {known}")
    if facts.last_step is None and said.get("last_step") is not None:
        wrong.append(f"last_step: says {said['last_step']}, the text counts no steps")
    is_mixed = any("several runs" in note for note in said.get("notes", ()))
    if said["attempts"] not in (None, facts.attempts) and not is_mixed:
        wrong.append(f"attempts: says {said['attempts']}, the text {facts.attempts}")
    step = said.get("step")
    if step is not None and step["unit"] == "s":
        if facts.step_s is None:
            wrong.append(f"step: says {step['middle']:.4g} s, the description has no time")
        elif abs(step["middle"] / facts.step_s - 1) > (_COARSE if facts.is_coarse else _NEAR):
            wrong.append(f"step: says {step['middle']:.4g} s, the text {facts.step_s:.4g} s")
    return wrong + _compare_rest(facts, said)


def _compare_rest(facts: Facts, said: dict[str, Any]) -> list[str]:
    """List what is stated beside steps and their time, and is not so or not in the text."""
    rate = facts.rate
    if rate is None and facts.batch_size and facts.step_s:
        rate = facts.batch_size * (facts.world_size or 1) / facts.step_s
    known = {"data_wait": facts.data_s, "rate": rate}
    wrong = []
    for name, value in known.items():
        stated = (said.get(name) or {}).get("middle")
        if stated is not None and (value is None or abs(stated - value) > _COARSE * value):
            wrong.append(f"{name}: says {stated:.4g}, the text {value}")
    counts = {"batch_size": facts.batch_size, "world_size": facts.world_size}
    return wrong + [
        f"{name}: says {said[name]}, the text {value}"
        for name, value in counts.items()
        if said.get(name) not in (None, value)
    ]


def is_quoted(facts: Facts, said: dict[str, Any]) -> bool:
    """Whether the lines of the description are among those quoted: as many, from and to the same.

    A few more or less are lines that one of the two takes for others: the head of a bar, a repeat.
    """
    near = _NEAR * facts.records + 2
    return any(
        abs(field["lines"] - facts.records) <= near
        and (field["first"], field["last"]) in facts.printed
        for kind in said["quoted"]
        for field in kind["fields"]
    )


def judge(path: Path, description: dict[str, Any], command: str) -> tuple[str, list[str]]:
    """Give a log's result: right, misread or refused, and why."""
    said = answer(path, command)
    if isinstance(said, str):
        return "refused", [said]
    if description.get("nothing"):
        is_stated = said["records"] is not None or said["step"] is not None
        return ("misread" if is_stated else "right"), ["nothing is counted there"]
    facts = recompute(path, description)
    for name, value in description.get("known", {}).items():
        setattr(facts, name, value)
    wrong = [*facts.doubts, *compare(facts, said)]
    shown = [
        f"says {said['format']}, {said['records']} records, last step {said['last_step']}, "
        f"total {said['total_steps']}, step {(said['step'] or {}).get('middle')}",
        f"text {facts}",
    ]
    if not wrong and said["quoted"] and not is_quoted(facts, said):
        return "refused", ["the lines of the description are not quoted", *shown]
    return ("misread" if wrong else "right"), [*wrong, *shown]


def main() -> int:
    """Judge every described log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("descriptions", type=Path)
    parser.add_argument("--logs", type=Path, required=True, help="folder of the raw logs")
    parser.add_argument("--pitstop", default=f"{sys.executable} -m pitstop")
    given = parser.parse_args()
    counts: dict[str, int] = {}
    for description in tomllib.loads(given.descriptions.read_text(encoding="utf-8"))["log"]:
        result, why = judge(given.logs / description["file"], description, given.pitstop)
        counts[result] = counts.get(result, 0) + 1
        print(f"{result:8} {description['file']}")
        for line in why:
            print(f"         {line}")
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
