"""Garbage does not wait for a full collection that never comes."""

import gc
from collections import deque

import pytest

from pitstop.measure.host.garbage import long_lived_frozen

pytestmark = pytest.mark.usefixtures("nothing_frozen")


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def live_rings() -> int:
    return sum(isinstance(thing, Ring) for thing in gc.get_objects())


def test_garbage_of_a_long_loop_is_given_back() -> None:
    # As torch and its modules: a quarter of these is what a full collection waits for.
    ballast = [[] for _ in range(400_000)]
    kept = 2_000
    with long_lived_frozen():
        # Kept long enough to be taken for long-lived by the frequent collections.
        latest: deque[Ring] = deque(maxlen=kept)
        for _ in range(300_000):
            latest.append(Ring())
        left_behind = live_rings() - kept
    # A quarter of them outlives the frequent collections; a full one comes every 85,000 or so.
    assert left_behind < 30_000
    assert len(ballast) == 400_000


def test_what_was_there_is_frozen_and_freed_again() -> None:
    before = gc.get_freeze_count()
    with long_lived_frozen():
        assert gc.get_freeze_count() > 10_000
        with long_lived_frozen():  # by whoever is called: nothing changes, in or after it
            frozen = gc.get_freeze_count()
            new: list[list[int]] = [[] for _ in range(1_000)]
        # What is frozen may end; what is new is frozen by neither.
        assert frozen - 500 < gc.get_freeze_count() <= frozen
        assert len(new) == 1_000
    assert gc.get_freeze_count() == before
