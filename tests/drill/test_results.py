"""Counts of several drills add up in one file."""

import json
from pathlib import Path

from tests.drill.results import Tally, add


def a_tally(troubles: list[str]) -> Tally:
    tally = Tally(peak_bytes=100)
    tally.count("SIGKILL", troubles)
    tally.recovered(1.5)
    tally.took("SIGTERM", 0.5)
    return tally


def test_a_second_drill_adds_to_the_first(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    add("kills", a_tally([]), results, seconds=2.0)
    add("kills", a_tally(["lost"]), results, seconds=3.0)
    found = json.loads(results.read_text())["parts"]["kills"]
    assert (found["runs"], found["seconds"]) == (2, 5.0)
    assert (found["tried"], found["survived"]) == ({"SIGKILL": 2}, {"SIGKILL": 1})
    assert found["troubles"] == {"SIGKILL: lost": 1}
    assert (found["recovery_s"], found["times_s"]) == ([1.5, 1.5], {"SIGTERM": [0.5, 0.5]})
    assert found["peak_bytes"] == 100
