"""Somebody's own network, unchanged: its scales, its alignment and its reconstruction are timed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts" / "frameworks" / "stages.py"


def verdict_of(steps: int, folder: Path) -> tuple[dict[str, Any], str]:
    script = [sys.executable, str(SCRIPT), str(steps)]
    place = folder / "verdict.json"
    doctor = [sys.executable, "-m", "pitstop", "doctor", "--detach", "--json", str(place), "--"]
    said = subprocess.run([*doctor, *script], capture_output=True, text=True, check=True)
    bare = subprocess.run(script, capture_output=True, text=True, check=True)
    assert said.stdout == bare.stdout, "to the last bit of the loss"
    return json.loads(place.read_text()), said.stderr


def test_a_stage_table_of_a_network_nobody_changed(tmp_path: Path) -> None:
    verdict, shown = verdict_of(45, tmp_path)
    table = verdict["modules"]
    outermost = {row["name"]: row for row in table["rows"] if row["depth"] == 0}
    assert {*(f"stage{n}" for n in range(1, 8)), "reconstruction"} <= set(outermost)
    for number in range(1, 8):
        stage = outermost[f"stage{number}"]
        assert 0 < stage["recompute_us"] < stage["backward_us"]
    assert table["covers_forward"] > 0.9
    assert table["covers_backward"] > 0.9
    assert {"kind": "Alignment", "places": 7}.items() <= _kind(table, "Alignment").items()
    assert "of backward" in shown
    parts = verdict["start_up_parts_s"]
    assert sum(parts.values()) == pytest.approx(verdict["start_up_s"])
    assert parts["imports"] > 0
    assert not any(what.startswith("modules") for what in verdict["not_sampled"])


def _kind(table: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((each for each in table["kinds"] if each["kind"] == kind), {})
