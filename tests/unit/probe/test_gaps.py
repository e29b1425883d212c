"""The Python between two observed points: divided by what looks found there."""

import pytest

from pitstop_probe.gaps import Gaps, LearntNames, name_blind_gap
from pitstop_probe.parts import CLOSURE, Noted, name_gap

LOSS_GAP = ("forward", "backward")


def noted(kind: str, start: int, end: int) -> Noted:
    return [kind, start, end, None, None, None]


STEP = [noted("forward", 0, 100), noted("backward", 1100, 2000)]


def shares(gaps: Gaps) -> dict[str, float]:
    name = gaps.names[LOSS_GAP]
    return {name: 1.0} if isinstance(name, str) else dict(name)


def test_without_looks_a_gap_is_named_by_its_neighbours() -> None:
    gaps = Gaps()
    assert gaps.names[LOSS_GAP] == "loss"
    assert gaps.blind_names[None, "backward"] == "forward"
    assert not gaps.summary()


def test_where_one_thing_ends_and_another_begins_is_found_by_few_looks() -> None:
    """Batches are made in the last 70 % of the gap; most looks fall into the rest."""
    gaps = Gaps()
    for step in range(20):
        place = 0.3 * step / 16 if step < 16 else 0.4 + 0.1 * (step - 16)
        purpose = "loss" if place < 0.3 else "data"
        gaps.look(step, 100 + int(1000 * place), "forward", purpose)
    for step in range(20):
        gaps.place(step, STEP, (0, 2000), gaps.names)
    assert shares(gaps) == pytest.approx({"data": 0.66, "loss": 0.34}, abs=0.02)
    (summary,) = gaps.summary()
    assert summary["samples"] == 20


def test_a_look_inside_a_region_or_in_another_step_is_no_look_at_a_gap() -> None:
    gaps = Gaps()
    for step in range(10):
        gaps.look(step, 50, "forward", "data")
    gaps.look(10, 600, "forward", "data")
    for step in range(9):
        gaps.place(step, STEP, (0, 2000), gaps.names)
    gaps.place(11, STEP, (0, 2000), gaps.names)
    assert shares(gaps) == {"loss": 1.0}


def test_inside_a_closure_the_gap_is_its_own() -> None:
    gaps = Gaps()
    regions = [
        noted("data", 0, 10),
        noted("optimizer", 10, 3000),
        noted(CLOSURE, 20, 2500),
        noted("forward", 100, 200),
        noted("backward", 1200, 2000),
    ]
    for step in range(6):
        gaps.look(step, 700, "forward", "host")
        gaps.look(step, 2700, "backward", "host")
        gaps.place(step, regions, (0, 3000), gaps.names)
    assert shares(gaps) == {"host": 1.0}
    assert set(gaps.names) == {LOSS_GAP}


def test_of_steps_that_were_not_noted_looks_are_counted() -> None:
    gaps = Gaps()
    for step, purpose in enumerate(["data"] * 6 + ["loss"] * 2):
        gaps.look(step, 0, "forward", purpose)
    gaps.pass_by(1)
    assert shares(gaps) == {"loss": 1.0}
    gaps.pass_by(7)
    assert shares(gaps) == {"data": 0.75, "loss": 0.25}


def test_what_follows_from_the_model_is_loss_only_before_gradients() -> None:
    names = LearntNames(name_gap)
    for place in range(5):
        names.add(("forward", "forward"), place / 5, "loss")
        names.add(LOSS_GAP, place / 5, "")
    assert names["forward", "forward"] == "host"
    assert names[LOSS_GAP] == "loss"
    assert name_blind_gap("forward", "optimizer") == "host"
