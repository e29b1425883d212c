"""Two nodes in short: their cable is pulled, and the run ends as one host's, in every bit."""

from typing import Any

import pytest

from tests.drill.nodes import can_have_nodes, run_drill, seen_samples, written


@pytest.mark.slow
def test_a_run_over_two_nodes_survives_a_pulled_cable() -> None:
    if why_not := can_have_nodes():
        pytest.skip(why_not)
    [found] = run_drill(short=True).values()
    assert found["ranks"] == 4
    assert found["all ranks gone after s"] is not None
    assert [len(sentences) for sentences in found["sentences"]] == [2, 2]
    assert found["went on from"] >= found["saved before the cut"]
    assert found["bit-equal to one host"]


def note(step: int, rank: int, world_size: int, *indices: int, at: int) -> dict[str, Any]:
    places = [[0, index] for index in indices]
    return {"step": step, "rank": rank, "world_size": world_size, "at": at, "places": places}


def test_of_a_step_made_twice_the_last_time_counts() -> None:
    notes = [
        note(0, 0, 2, 1, at=1),
        note(0, 1, 2, 2, at=2),
        note(1, 0, 2, 3, at=3),
        note(1, 1, 2, 4, at=4),
        note(1, 0, 1, 3, at=9),
    ]
    found = seen_samples(notes)
    assert found["ranks step by step"] == ["1 steps of 2 ranks", "1 steps of 1 ranks"]
    assert found["epochs"][0]["samples"] == 3
    assert found["epochs"][0]["twice"] == 0


def test_a_sample_that_comes_twice_is_counted() -> None:
    notes = [note(0, 0, 1, 1, 1, at=1), note(1, 0, 1, 2, at=2)]
    assert seen_samples(notes)["epochs"][0]["twice"] == 1


def test_the_recipe_stands_on_the_page() -> None:
    assert "torchrun --nnodes" in written("ssh")
