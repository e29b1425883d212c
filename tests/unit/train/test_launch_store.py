"""Ranks of one attempt meet, whatever earlier attempts have left in the launcher's store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from pitstop.errors import PitstopError
from pitstop.train.launch_store import agree_on_name

LIMIT = timedelta(seconds=60)


def meet(store: HashStore, order: list[int]) -> set[str]:
    """Have ranks arrive one after the other: each begins when the one before has begun."""
    begun = [threading.Event() for _ in order]

    def join(place: int) -> str:
        if place:
            begun[place - 1].wait()
        begun[place].set()
        return agree_on_name(store, rank=order[place], world_size=len(order), limit=LIMIT)

    with ThreadPoolExecutor(len(order)) as pool:
        return set(pool.map(join, range(len(order))))


@settings(deadline=None, max_examples=15)
@given(attempts=st.lists(st.permutations(range(3)), min_size=1, max_size=3))
def test_each_attempt_has_one_name_of_its_own(attempts: list[list[int]]) -> None:
    store = HashStore()
    names = [meet(store, order) for order in attempts]
    assert [len(found) for found in names] == [1] * len(attempts)
    assert len(set.union(*names)) == len(attempts)


@pytest.mark.parametrize("last", [0, 1])
def test_what_a_killed_attempt_left_is_not_taken_for_an_answer(last: int) -> None:
    store = HashStore()
    first = meet(store, [0, 1])
    # Of an attempt that ended in its start, a rank had said hello and one had made an offer.
    store.set("hello/1", "0123")
    store.set("offer", '["4567", {"1": "0123"}]')
    second = meet(store, [last, 1 - last])
    assert len(second) == 1
    assert second.isdisjoint({"4567", *first})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_gives_up_at_the_limit(rank: int) -> None:
    with pytest.raises(PitstopError, match="did not come"):
        agree_on_name(HashStore(), rank=rank, world_size=2, limit=timedelta(0))
