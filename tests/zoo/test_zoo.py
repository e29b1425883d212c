"""Our own scripts in the shapes of public ones: watched, none behaves differently."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.zoo.generate import generate
from tests.zoo.run import POINTS, Result, judge
from tests.zoo.runs import Zoo
from tests.zoo.table import OURS, Row, read_table

ROWS = {row.name: row for row in read_table(OURS) if "cpu" in row.devices}


def run_of(name: str) -> Result:
    zoo, row = Zoo(device="cpu", public=None, python=sys.executable), ROWS[name]
    generate(row.data, row.working_folder(None), python=sys.executable)
    return judge(zoo, row, runs=())


result_of = cache(run_of)


def _as_bare(result: Result) -> None:
    assert result.bare_code == 0, result.trouble
    assert result.same_code, result.trouble
    assert result.same_output is not False
    assert result.same_losses is not False
    assert result.losses > 0


def _steps(result: Result) -> None:
    assert result.steps_right, (result.steps, result.true_steps)


def _parts(result: Result) -> None:
    assert result.parts_right, (result.said, result.timed)


def _parts_roughly(result: Result) -> None:
    """What holds of an open claim: 15 points, by one of three runs, for few stack samples decide.

    Three runs of 120 steps, on cores that others may have used, were off by 1, 9 and 17 points.
    """
    for _ in range(2):
        if result.difference is None or result.difference > 3 * POINTS:
            result = run_of(result.name)
    assert result.difference is not None
    assert result.difference <= 3 * POINTS, (result.said, result.timed)


def _first(result: Result) -> None:
    assert result.first_right, (result.first, result.expected)


CLAIMS: dict[str, Callable[[Result], None]] = {
    "as bare": _as_bare,
    "steps": _steps,
    "parts": _parts,
    "parts, roughly": _parts_roughly,
    "first": _first,
}


def _claims() -> list[object]:
    """All of a row's in turn, so that one process makes them of one run."""
    cases: list[object] = []
    for row in ROWS.values():
        # These two compare times.
        quiet = [pytest.mark.quiet] if row.shares or row.stopwatch or row.first else []
        for claim in CLAIMS:
            reason = row.open.get(claim)
            # A number of steps that is open and holds is open no longer; which finding comes first
            # may also be luck, where another lies on its limit.
            strict = claim == "steps"
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=strict)]
            if _is_made(row, claim):
                case = pytest.param(
                    row.name, claim, marks=[*quiet, *marks], id=f"{row.name}, {claim}"
                )
                cases.append(case)
    return cases


def _is_made(row: Row, claim: str) -> bool:
    parts = row.shares or row.stopwatch
    made = {
        "as bare": True,
        "steps": row.steps,
        # Luck decides whether an open one holds: neither can be expected.
        "parts": parts and "parts" not in row.open,
        "parts, roughly": parts and "parts" in row.open,
        "first": row.first,
    }
    return bool(made[claim])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claim"), _claims())
def test_a_claim_about_a_watched_script_holds(name: str, claim: str) -> None:
    CLAIMS[claim](result_of(name))


def test_the_stopwatch_knows_how_a_step_is_spent(tmp_path: Path) -> None:
    zoo = Zoo(device="cpu", public=None, python=sys.executable)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    row = Row(name="any", script=str(script), timed={"data": ("batch",)})
    seen = zoo.run(row, "stopwatch").timed
    assert seen["steps"] == 30
    assert seen["clean"] == 18  # ten to warm up, and two after which something was evaluated
    assert set(seen["shares"]) >= {"data", "forward", "backward", "optimizer"}
    assert seen["shares"]["data"] > 0.5
    assert sum(seen["shares"].values()) <= 1.0
    assert json.dumps(seen)


def test_the_stopwatch_knows_steps_without_optimizer_in_a_forked_process(tmp_path: Path) -> None:
    zoo = Zoo(device="cpu", public=None, python=sys.executable)
    script = tmp_path / "train.py"
    script.write_text(BY_HAND, encoding="utf-8")
    seen = zoo.run(Row(name="any", script=str(script)), "stopwatch").timed
    assert seen["steps"] == 30
    assert seen["clean"] == 0  # each holds a checkpoint, so all count
    assert seen["counted"] == 20
    assert seen["outside"] == {}
    assert set(seen["shares"]) == {"forward", "backward", "evaluation", "save"}


BY_HAND = """
import io
import multiprocessing
import torch

def train():
    model = torch.nn.Linear(8, 8)
    for step in range(30):
        model.train()
        model(torch.randn(8, 8)).square().mean().backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
            weight.grad = None
        model.eval()
        model(torch.randn(8, 8)).square().mean().item()
        torch.save(model.state_dict(), io.BytesIO())

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
"""

SCRIPT = """
import torch

def batch():
    x = torch.randn(64, 64)
    for _ in range(60):
        x = x @ torch.randn(64, 64)
    return x / x.norm()

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x = batch()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step in (5, 15, 25):
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
"""
