"""The Python between two observed points: divided by what stack samples found there."""

import random

import pytest

from pitstop_probe.steps.gaps import Gaps, LearntNames, name_blind_gap
from pitstop_probe.steps.parts import CLOSURE, Noted, name_gap

LOSS_GAP = ("forward", "backward")


def noted(kind: str, start: int, end: int) -> Noted:
    return [kind, start, end, None, None, None]


STEP = [noted("forward", 0, 100), noted("backward", 1100, 2000)]


def shares(gaps: Gaps) -> dict[str, float]:
    return shares_in(gaps.names, LOSS_GAP)


def shares_in(names: LearntNames, gap: tuple[str, str]) -> dict[str, float]:
    name = names[gap]
    return {name: 1.0} if isinstance(name, str) else dict(name)


def test_without_samples_a_gap_is_named_by_its_neighbours() -> None:
    gaps = Gaps()
    assert gaps.names[LOSS_GAP] == "loss"
    assert gaps.blind_names[None, "backward"] == "forward"
    assert not gaps.summary()


def test_where_one_thing_ends_and_another_begins_is_found_by_few_samples() -> None:
    """Batches are made in the last 70 % of the gap; most samples fall into the rest."""
    gaps = Gaps()
    for step in range(20):
        place = 0.3 * step / 16 if step < 16 else 0.4 + 0.1 * (step - 16)
        purpose = "loss" if place < 0.3 else "data"
        gaps.add_sample(step, 100 + int(1000 * place), "forward", purpose)
    for step in range(20):
        gaps.place(step, STEP, (0, 2000), gaps.names)
    assert shares(gaps) == pytest.approx({"data": 0.66, "loss": 0.34}, abs=0.02)
    (summary,) = gaps.summary()
    assert summary["samples"] == 20


def test_a_sample_inside_a_region_or_in_another_step_is_no_sample_at_a_gap() -> None:
    gaps = Gaps()
    for step in range(10):
        gaps.add_sample(step, 50, "forward", "data")
    gaps.add_sample(10, 600, "forward", "data")
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
    for step in range(12):
        gaps.add_sample(step, 700, "forward", "host")
        gaps.add_sample(step, 2700, "backward", "host")
        gaps.place(step, regions, (0, 3000), gaps.names)
    assert shares(gaps) == {"host": 1.0}
    assert set(gaps.names) == {LOSS_GAP}


def test_of_steps_that_were_not_noted_samples_are_counted() -> None:
    gaps = Gaps()
    for step, purpose in enumerate(["data"] * 9 + ["loss"] * 3):
        gaps.add_sample(step, 0, "forward", purpose)
    gaps.pass_by(1)
    assert shares(gaps) == {"loss": 1.0}
    gaps.pass_by(11)
    assert shares(gaps) == {"data": 0.75, "loss": 0.25}


def test_few_placed_samples_that_disagree_are_counted_with_the_loose_ones() -> None:
    gaps = Gaps()
    for step in range(24):
        purpose = "loss" if step in (1, 5, 9, 13, 17) else "data"
        gaps.add_sample(step, 100 + 40 * step, "forward", purpose)
    for step in range(4):
        gaps.place(step, STEP, (0, 2000), gaps.names)
    assert shares(gaps) == {"loss": 1.0}
    gaps.pass_by(23)
    assert shares(gaps) == pytest.approx({"data": 19 / 24, "loss": 5 / 24})
    (summary,) = gaps.summary()
    assert summary["samples"] == 24


def test_what_follows_from_the_model_is_loss_only_before_gradients() -> None:
    names = LearntNames(name_gap)
    for place in range(12):
        names.add(("forward", "forward"), place / 12, "loss")
        names.add(LOSS_GAP, place / 12, "")
    assert names["forward", "forward"] == "host"
    assert names[LOSS_GAP] == "loss"
    assert name_blind_gap("forward", "optimizer") == "host"


def test_few_samples_do_not_divide_a_gap() -> None:
    """The first sample of three on a short line would be worth a third of the gap."""
    names = LearntNames(name_gap)
    for number in range(4):
        names.add(("backward", "forward"), number / 4, "data" if number < 2 else "host")
    assert names["backward", "forward"] == "host"
    names.add(("backward", "forward"), 0.95, "host")
    assert shares_in(names, ("backward", "forward")).keys() == {"data", "host"}


def test_a_division_hardly_ever_errs_by_more_than_the_share_of_two_samples() -> None:
    """Samples fall at random into a gap a fifth of which makes batches."""
    chance = random.Random(0)
    for samples in (12, 40, 160):
        outside = 0
        for _ in range(300):
            names = LearntNames(name_gap)
            for _ in range(samples):
                place = chance.random()
                names.add(("backward", "forward"), place, "data" if place < 0.2 else "host")
            share = shares_in(names, ("backward", "forward")).get("data", 0.0)
            outside += abs(share - 0.2) > 2.5 / samples
        assert outside <= 0.1 * 300
