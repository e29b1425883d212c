"""Looks at the training thread: as far apart as they are dear."""

import pytest

from pitstop_probe.looks import EVERY_S, Looks
from pitstop_probe.watch import Watch
from tests.fakes import ListSink


def looks_that_cost(watch: Watch, *costs_s: float) -> Looks:
    looks = Looks(watch)
    for cost_s in costs_s:
        looks.remember_cost(cost_s)
    return looks


@pytest.fixture
def watch() -> Watch:
    return Watch(ListSink())


def test_cheap_looks_are_a_hundredth_of_a_second_apart(watch: Watch) -> None:
    assert Looks(watch).distance_s == EVERY_S
    assert looks_that_cost(watch, *[20e-6] * 9).distance_s == EVERY_S


def test_dear_looks_take_a_quarter_of_a_percent_of_the_time(watch: Watch) -> None:
    looks = looks_that_cost(watch, *[60e-6] * 100)
    assert looks.distance_s == pytest.approx(400 * 60e-6)
    assert looks.summary()["every_us"] == 24_000


def test_one_interrupted_look_delays_the_next_ones_and_is_forgotten(watch: Watch) -> None:
    looks = looks_that_cost(watch, 0.5)
    assert looks.distance_s == pytest.approx(10 * EVERY_S)
    for _ in range(200):
        looks.remember_cost(20e-6)
    assert looks.distance_s == EVERY_S
