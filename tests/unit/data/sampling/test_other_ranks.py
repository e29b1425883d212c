"""An epoch that some ranks begin and others end: each sample once, and which ones never."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.sampling.grouped import SequenceBatches
from pitstop.data.sampling.pk_sampler import PKSampler
from pitstop.data.sampling.samplers import Batches, ShuffledBatches
from pitstop.errors import DataError

SAMPLES = 103
Make = Callable[[int, int], Batches]
"""From a rank and a number of ranks to its order."""


def shuffled(batch_size: int, *, drop_last: bool) -> Make:
    return lambda rank, world_size: ShuffledBatches(
        SAMPLES, batch_size, seed=3, rank=rank, world_size=world_size, drop_last=drop_last
    )


def by_sequence(batch_size: int, *, drop_last: bool) -> Make:
    return lambda rank, world_size: SequenceBatches(
        SAMPLES,
        batch_size,
        seed=3,
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
        sequences=np.arange(SAMPLES) // 9,
    )


def people(rank: int, world_size: int) -> PKSampler:
    ids = np.repeat(np.arange(30), 7)
    masks = np.where(np.arange(210) % 3, 1, 2)
    return PKSampler(
        ids,
        masks,
        identities_per_batch=2,
        records_per_identity=2,
        seed=5,
        rank=rank,
        world_size=world_size,
    )


def rounds_of(ranks: Sequence[Batches]) -> list[list[list[int]]]:
    """Every round that is left: the batches of all ranks, side by side."""
    return [list(together) for together in zip(*(rank.rest() for rank in ranks), strict=True)]


def walk(make: Make, launches: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[Batches]]:
    """Take some rounds with some ranks, then with others; give the batches, and the last ranks."""
    states: list[dict[str, int | bool | str]] = []
    taken: list[list[int]] = []
    ranks: list[Batches] = []
    for world_size, rounds in launches:
        ranks = [make(rank, world_size) for rank in range(world_size)]
        for rank, order in enumerate(ranks if states else ()):
            # What other ranks saved says the same of each; of one's own, one's own is asked for.
            order.load_state_dict(states[rank if len(states) == world_size else 0])
        going = rounds_of(ranks)[:rounds]
        taken += [batch for together in going for batch in together]
        for rank in ranks:
            rank.consumed += len(going)
        states = [order.state_dict() for order in ranks]
    return taken, ranks


LAUNCHES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=2, max_size=5)


@pytest.mark.parametrize("order", [shuffled, by_sequence])
@given(launches=LAUNCHES, batch_size=st.integers(1, 4))
def test_what_ranks_take_one_after_the_other_is_the_order_that_the_first_began(
    order: Callable[..., Make], launches: list[tuple[int, int]], batch_size: int
) -> None:
    make = order(batch_size, drop_last=True)
    began = next((world for world, rounds in launches if rounds), launches[-1][0])
    # The order without ranks, as slices: what the first launch of one rank would read.
    alone = make(0, began)
    whole = alone._order().tolist()  # type: ignore[attr-defined]
    taken, ranks = walk(make, launches)
    seen = [index for batch in taken for index in batch]
    assert seen == whole[: len(seen)]
    rest = [index for together in rounds_of(ranks) for batch in together for index in batch]
    left_out = whole[len(seen) + len(rest) :]
    assert seen + rest + left_out == whole
    # Stated exactly: less than one round of the last ranks is left out.
    assert len(left_out) < batch_size * len(ranks)


def test_without_dropping_every_sample_comes_exactly_once() -> None:
    make = shuffled(4, drop_last=False)
    taken, ranks = walk(make, [(4, 3), (2, 2), (3, 0)])
    # Uneven at its end: ranks without a batch in the last round end one earlier.
    rest = [index for rank in ranks for batch in rank.rest() for index in batch]
    assert sorted([index for batch in taken for index in batch] + rest) == list(range(SAMPLES))


@given(launches=LAUNCHES)
def test_batches_of_people_are_those_of_the_first_ranks_each_once(
    launches: list[tuple[int, int]],
) -> None:
    began = next((world for world, rounds in launches if rounds), launches[-1][0])
    whole = [
        batch for together in rounds_of([people(r, began) for r in range(began)])
        for batch in together
    ]  # fmt: skip
    taken, ranks = walk(people, launches)
    rest = [batch for together in rounds_of(ranks) for batch in together]
    assert taken + rest == whole[: len(taken) + len(rest)]
    assert len(whole) - len(taken) - len(rest) < len(ranks)


@pytest.mark.parametrize("make", [shuffled(4, drop_last=True), people])
def test_the_next_epoch_is_the_present_ranks_own(make: Make) -> None:
    _, ranks = walk(make, [(4, 2), (2, 1)])
    for rank, order in enumerate(ranks):
        order.set_epoch(1)
        own = make(rank, 2)
        own.set_epoch(1)
        assert list(order.rest()) == list(own.rest())
        assert order.state_dict() == own.state_dict()


def test_an_epoch_that_others_ended_has_nothing_left() -> None:
    taken, ranks = walk(shuffled(4, drop_last=True), [(2, 99), (4, 0)])
    assert [len(rank) for rank in ranks] == [0] * 4
    assert len(taken) == 2 * (SAMPLES // 8)


@pytest.mark.parametrize(
    "place", [{"world_size": 0}, {"world_size": 10**9}, {"skipped": -1}, {"begun_by": True}]
)
@pytest.mark.parametrize("make", [shuffled(4, drop_last=True), people])
def test_a_place_that_no_ranks_can_have_saved_is_refused(make: Make, place: dict[str, int]) -> None:
    state = make(0, 2).state_dict()
    with pytest.raises(DataError, match="cannot continue"):
        make(0, 2).load_state_dict({**state, **place})


def test_steps_of_one_size_are_the_same_whoever_takes_them() -> None:
    # Four ranks of two samples and two ranks of two: the second takes half of each window.
    four, _ = walk(shuffled(2, drop_last=True), [(4, 6)])
    mixed, _ = walk(shuffled(2, drop_last=True), [(4, 2), (2, 8)])
    assert four == mixed
    assert all(a != b for a, b in pairwise(mixed))
