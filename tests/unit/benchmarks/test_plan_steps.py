"""Constants of planned steps, fitted to steps that were made with known ones."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pitstop.plan.speed import FITTED
from tests.unit.plan.test_table import trace


@pytest.fixture
def plan_steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which is run as a script beside others."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("plan_steps")


def test_a_fit_plans_a_step_that_it_has_not_seen(plan_steps: ModuleType) -> None:
    step_ms = plan_steps.step_ms
    true = replace(FITTED, launch_s=2.5 * FITTED.launch_s, recomputed_s=3 * FITTED.recomputed_s)
    mm, update = trace().operations
    small = replace(mm, flops=10**7, num_bytes=10**5, count=4000)
    steps = [
        trace(operations=(replace(mm, count=count), replace(small, count=fine), update))
        for count in (10, 100)
        for fine in (10, 1000, 8000)
    ]
    steps += [replace(one, recomputed_places=100) for one in steps]
    unseen = trace(
        operations=(replace(mm, count=40), replace(small, count=3000)), recomputed_places=50
    )
    made = [(one, step_ms(one, true)) for one in steps]
    found = plan_steps.fit(made, np.log(plan_steps.START), rounds=10)
    assert step_ms(unseen, plan_steps.costs_of(found)) == pytest.approx(
        step_ms(unseen, true), rel=0.05
    )
    assert step_ms(unseen, FITTED) < 0.8 * step_ms(unseen, true)


def test_what_was_measured_names_dry_runs_and_neighbours_that_are_there(
    plan_steps: ModuleType,
) -> None:
    measured = plan_steps.MEASURED
    names = {one.name for one in measured}
    assert len(names) == len(measured)
    assert {one.dry_run for one in measured} <= set(plan_steps.TRACED)
    assert {one.neighbour for one in measured} <= {None, *names}


def test_a_second_blind_run_joins_the_steps(plan_steps: ModuleType, tmp_path: Path) -> None:
    def ran(name: str, neighbour: str | None = None, **more: bool) -> dict[str, object]:
        return {"name": name, "neighbour": neighbour, "measured": {"step_ms": 10.0}, **more}

    known, new = "vrt 256 bf16 fused recomputed", "vrt 256 2 bf16 fused recomputed"
    missing = {**ran("mono 6 tf32"), "measured": {}}
    second = [
        ran(known, measured_before=True),
        ran(f"{known}, all collected", measured_before=True, collects_all=True),
        ran(new, known),
        missing,
        ran("mono 20 tf32", "mono 6 tf32"),
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"rows": [ran(known)]}))
    (tmp_path / "plan_second.json").write_text(json.dumps({"rows": second}))
    found = {one.name: (one.dry_run, one.neighbour) for one in plan_steps.blind_steps(tmp_path)}
    assert found == {
        known: (known, None),
        f"{known}, measured again": (known, None),
        new: (new, f"{known}, measured again"),
        "mono 20 tf32": ("mono 20 tf32", None),
    }
