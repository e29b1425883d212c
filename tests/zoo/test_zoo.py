"""Our own scripts in the shapes of public ones: watched, none behaves differently."""

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.zoo.generate import generate
from tests.zoo.run import Result, Zoo, judge
from tests.zoo.table import OURS, Row, read_table

ROWS = {row.name: row for row in read_table(OURS) if "cpu" in row.devices}
CLAIMS = ("steps", "parts", "first")


@cache
def result_of(name: str) -> Result:
    zoo, row = Zoo(device="cpu", public=None, python=sys.executable), ROWS[name]
    generate(row.data, row.working_folder(None), python=sys.executable)
    return judge(zoo, row, runs=())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_watched_script_behaves_as_bare(name: str) -> None:
    result = result_of(name)
    assert result.bare_code == 0, result.trouble
    assert result.same_code, result.trouble
    assert result.same_output is not False
    assert result.same_losses is not False
    assert result.losses > 0


def _claims() -> list[object]:
    cases: list[object] = []
    for row in ROWS.values():
        for claim in CLAIMS:
            reason = row.open.get(claim)
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]
            if _is_made(row, claim):
                cases.append(pytest.param(row.name, claim, marks=marks, id=f"{row.name}, {claim}"))
    return cases


def _is_made(row: Row, claim: str) -> bool:
    made = {"steps": row.steps, "parts": row.shares or row.stopwatch, "first": row.first}
    return bool(made[claim])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claim"), _claims())
def test_what_the_doctor_says_holds(name: str, claim: str) -> None:
    result = result_of(name)
    seen = {
        "steps": (result.steps_right, result.steps, result.true_steps),
        "parts": (result.parts_right, result.said, result.timed),
        "first": (result.first_right, result.first, result.expected),
    }
    right, *shown = seen[claim]
    assert right, shown


def test_the_stopwatch_knows_how_a_step_is_spent(tmp_path: Path) -> None:
    zoo = Zoo(device="cpu", public=None, python=sys.executable)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    seen = zoo.stopwatch(Row(name="any", script=str(script), timed={"data": ("batch",)}))
    assert seen["steps"] == 30
    assert seen["clean"] == 18  # ten to warm up, and two after which something was evaluated
    assert set(seen["shares"]) >= {"data", "forward", "backward", "optimizer"}
    assert seen["shares"]["data"] > 0.5
    assert sum(seen["shares"].values()) <= 1.0
    assert json.dumps(seen)


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
