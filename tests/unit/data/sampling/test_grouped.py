"""Samples of a sequence come close together, and everything else is as for shuffled batches."""

import copy
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.sampling.grouped import SequenceBatches
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.errors import DataError

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=8)
batch_sizes = st.integers(1, 5)
worlds = st.integers(1, 4)


def sequences_of(lengths: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths)


def all_ranks(
    lengths: list[int],
    batch_size: int,
    world_size: int = 1,
    *,
    drop_last: bool = False,
    lanes: int | None = None,
    seed: int = 3,
) -> list[SequenceBatches]:
    sequences = sequences_of(lengths)
    return [
        SequenceBatches(
            len(sequences),
            batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sequences=sequences,
            lanes=lanes,
        )
        for rank in range(world_size)
    ]


@given(lengths, batch_sizes, worlds, st.one_of(st.none(), st.integers(1, 9)))
def test_ranks_share_every_sample_once(
    lengths: list[int], batch: int, world: int, lanes: int | None
) -> None:
    samplers = all_ranks(lengths, batch, world, lanes=lanes)
    taken = [list(sampler.rest()) for sampler in samplers]
    assert sorted(chain.from_iterable(chain.from_iterable(taken))) == list(range(sum(lengths)))
    assert [len(sampler) for sampler in samplers] == list(map(len, taken))


@given(lengths, batch_sizes, worlds, st.data())
def test_any_place_can_be_continued_from(
    lengths: list[int], batch: int, world: int, data: st.DataObject
) -> None:
    for rank, sampler in enumerate(all_ranks(lengths, batch, world)):
        sampler.set_epoch(2)
        whole = list(sampler.rest())
        taken = data.draw(st.integers(0, len(sampler)))
        head = [indices for _, indices in zip(range(taken), sampler, strict=False)]
        other = all_ranks(lengths, batch, world)[rank]
        other.load_state_dict(sampler.state_dict())
        assert head + list(other) == whole


def test_one_lane_walks_through_whole_sequences_one_after_the_other() -> None:
    lengths = [5, 7, 3, 9]
    [sampler] = all_ranks(lengths, 4, lanes=1)
    order = list(chain.from_iterable(sampler.rest()))
    sequences = sequences_of(lengths)[order]
    changes = sum(one != other for one, other in pairwise(sequences))
    assert changes == len(lengths) - 1
    for number in range(len(lengths)):
        own = [index for index in order if sequences_of(lengths)[index] == number]
        assert own == sorted(own)


def test_a_batch_has_one_sample_of_each_lane_and_the_next_has_its_neighbours() -> None:
    lengths = [50] * 12
    [sampler] = all_ranks(lengths, 4, drop_last=True)
    sequences = sequences_of(lengths)
    batches = list(sampler.rest())
    assert all(len(set(sequences[batch])) == 4 for batch in batches)
    neighbours = sum(
        after == before + 1
        for one, other in pairwise(batches)
        for before, after in zip(one, other, strict=True)
    )
    steps = 4 * (len(batches) - 1)
    # Only at the end of a sequence does a lane jump: 12 ends, one of them the end of the epoch.
    assert steps - neighbours <= 12
    assert steps > 500


def test_a_rank_stays_with_its_own_sequences() -> None:
    """So what one rank's host has in memory is of use to it in the next batch."""
    lengths = [40] * 8
    sequences = sequences_of(lengths)
    for sampler in all_ranks(lengths, 2, 4, drop_last=True):
        batches = list(sampler.rest())
        kept = [set(sequences[a]) == set(sequences[b]) for a, b in pairwise(batches)]
        assert np.mean(kept) > 0.9


def test_frames_are_read_again_soon_and_not_over_the_whole_epoch() -> None:
    """Against the shuffled order as oracle: a memory of a few samples serves most frames."""
    sequences, window = sequences_of([100] * 20), 6
    grouped = SequenceBatches(2000, 4, seed=0, drop_last=True, sequences=sequences)
    shuffled = ShuffledBatches(2000, 4, seed=0, drop_last=True)

    def hits(batches: list[list[int]], most: int) -> float:
        recent: dict[tuple[int, int], None] = {}
        found = 0
        for index in chain.from_iterable(batches):
            for frame in range(window):
                key = (int(sequences[index]), index % 100 + frame)
                found += recent.pop(key, 0) is None
                recent[key] = None
                if len(recent) > most:
                    recent.pop(next(iter(recent)))
        return found / (2000 * window)

    memory = 4 * (window + 1)
    assert hits(list(grouped.rest()), memory) > 0.8
    assert hits(list(shuffled.rest()), memory) < 0.1


def test_sequences_come_in_an_order_of_their_own_in_each_epoch() -> None:
    [sampler] = all_ranks([4] * 10, 4, lanes=1)
    orders = set()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        orders.add(tuple(chain.from_iterable(sampler.rest())))
    assert len(orders) == 5


def test_the_order_stays_the_same_from_version_to_version() -> None:
    [sampler] = all_ranks([2, 3, 3], 2, seed=0)
    assert list(sampler.rest()) == [[2, 1], [3, 5], [4, 6], [0, 7]]


def test_scattered_samples_of_a_sequence_are_brought_together() -> None:
    sampler = SequenceBatches(
        6, 3, seed=0, drop_last=False, sequences=["a", "b", "a", "b", "a", "b"], lanes=1
    )
    assert sorted(map(tuple, sampler.rest())) == [(0, 2, 4), (1, 3, 5)]


def test_without_shuffling_sequences_come_in_the_order_of_their_numbers() -> None:
    sampler = SequenceBatches(
        4, 2, seed=0, drop_last=False, shuffle=False, sequences=[1, 0, 1, 0], lanes=1
    )
    assert list(sampler) == [[1, 3], [0, 2]]


@pytest.mark.parametrize(
    ("name", "value"), [("kind", "shuffled"), ("lanes", 7), ("sequences", "00000000")]
)
def test_a_place_in_another_order_is_refused(name: str, value: str | int) -> None:
    [sampler] = all_ranks([5, 5], 2)
    with pytest.raises(DataError, match=f"{name} was {value} and is"):
        sampler.load_state_dict({**sampler.state_dict(), name: value})


def test_sequences_that_do_not_match_the_samples_are_refused() -> None:
    with pytest.raises(DataError, match="4 samples, but sequences are given for"):
        SequenceBatches(4, 2, seed=0, drop_last=False, sequences=[0, 0, 1])
    with pytest.raises(DataError, match="from 0 sequences"):
        SequenceBatches(2, 2, seed=0, drop_last=False, sequences=[0, 0], lanes=0)
    with pytest.raises(DataError, match="empty"):
        SequenceBatches(0, 2, seed=0, drop_last=False, sequences=[])


def test_a_copy_can_look_at_another_ranks_batches() -> None:
    first, second = all_ranks([9, 7], 2, 2)
    other = copy.copy(first)
    other.rank = 1
    assert list(other.rest()) == list(second.rest())
