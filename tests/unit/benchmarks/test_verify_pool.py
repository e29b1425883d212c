"""The recorded pool of runs, judged again by today's code: three draws of every change."""

import json

import pytest
from benchmarks.verify_pool import BASE, RESULT, draw, variants

from tests.unit.verify.workload import HARMLESS, HARMS

POOL = json.loads(RESULT.read_text(encoding="utf-8"))
DRAWN = draw(POOL, 3)


def test_the_pool_has_every_change_with_as_many_seeds() -> None:
    assert set(POOL["runs"]) == set(variants()) == {BASE, *HARMS, *HARMLESS}
    assert len({len(runs) for runs in POOL["runs"].values()}) == 1


@pytest.mark.parametrize("name", HARMS)
def test_a_planted_harm_never_passes(name: str) -> None:
    assert DRAWN[name]["outcome"] == {"fails": 3}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_passes(name: str) -> None:
    assert DRAWN[name]["outcome"] == {"passes": 3}


def test_a_test_of_the_metric_alone_would_miss_harms() -> None:
    """Why there are levels before it: the metric of this task does not show everything."""
    missed = [name for name in HARMS if "passes" in DRAWN[name]["statistical alone"]]
    assert missed
