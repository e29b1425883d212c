from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.sampling.samplers import Deal, ShuffledBatches, train_order
from pitstop.errors import DataError

sizes = st.integers(1, 60)
batch_sizes = st.integers(1, 7)
worlds = st.integers(1, 5)
seeds = st.integers(0, 2**32 - 1)


def all_ranks(
    num_samples: int, batch_size: int, world_size: int, *, seed: int = 3, drop_last: bool = False
) -> list[ShuffledBatches]:
    return [
        ShuffledBatches(
            num_samples, batch_size, seed=seed, rank=r, world_size=world_size, drop_last=drop_last
        )
        for r in range(world_size)
    ]


@given(sizes, batch_sizes, worlds, seeds)
def test_ranks_share_every_sample_once(n: int, batch: int, world: int, seed: int) -> None:
    taken = [list(sampler.rest()) for sampler in all_ranks(n, batch, world, seed=seed)]
    assert sorted(chain.from_iterable(chain.from_iterable(taken))) == list(range(n))


@given(sizes, batch_sizes, worlds)
def test_dropping_the_last_leaves_full_batches_of_equal_number(
    n: int, batch: int, world: int
) -> None:
    if n < batch * world:
        with pytest.raises(DataError, match=f"{n} samples do not fill"):
            all_ranks(n, batch, world, drop_last=True)
        return
    taken = [list(sampler.rest()) for sampler in all_ranks(n, batch, world, drop_last=True)]
    assert {len(batches) for batches in taken} == {n // (batch * world)}
    assert {len(indices) for indices in chain.from_iterable(taken)} == {batch}
    seen = Counter(chain.from_iterable(chain.from_iterable(taken)))
    assert set(seen.values()) == {1}


@given(sizes, batch_sizes, worlds, st.booleans())
def test_lengths_and_counts_of_a_round_are_exact(
    n: int, batch: int, world: int, drop_last: bool
) -> None:
    if drop_last and n < batch * world:
        return
    samplers = all_ranks(n, batch, world, drop_last=drop_last)
    taken = [list(sampler.rest()) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in taken]
    for sampler in samplers:
        assert sampler.rounds == max(map(len, taken))
        assert list(sampler.idle_ranks) == [
            r for r in range(world) if len(taken[r]) < sampler.rounds
        ]
        for index in range(sampler.rounds):
            together = [batches[index] for batches in taken if index < len(batches)]
            assert sampler.samples_in_round(index) == sum(map(len, together))
            assert max(map(len, together)) - min(map(len, together)) <= 1
            assert all(0 < len(indices) <= batch for indices in together)


@given(sizes, batch_sizes, worlds)
def test_a_round_of_many_ranks_learns_from_what_one_large_batch_would(
    n: int, batch: int, world: int
) -> None:
    taken = [list(sampler.rest()) for sampler in all_ranks(n, batch, world)]
    one = list(ShuffledBatches(n, batch * world, seed=3, drop_last=False).rest())
    for index, large in enumerate(one):
        parts = [batches[index] for batches in taken if index < len(batches)]
        assert list(chain.from_iterable(parts)) == large


@given(sizes, batch_sizes, seeds, st.integers(0, 1000))
def test_order_is_a_function_of_seed_and_epoch(n: int, batch: int, seed: int, epoch: int) -> None:
    first = ShuffledBatches(n, batch, seed=seed, drop_last=False)
    second = ShuffledBatches(n, batch, seed=seed, drop_last=False)
    for warm_up in (7, 2):
        second.set_epoch(warm_up)
        list(second)
    first.set_epoch(epoch)
    second.set_epoch(epoch)
    second.rewind()
    assert list(first) == list(second)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = set()
    for seed in range(5):
        sampler = ShuffledBatches(50, 50, seed=seed, drop_last=True)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            orders.add(tuple(*sampler.rest()))
    assert len(orders) == 25


def test_the_order_stays_the_same_from_version_to_version() -> None:
    sampler = ShuffledBatches(10, 10, seed=0, drop_last=True)
    assert list(sampler.rest()) == [[8, 4, 9, 1, 2, 7, 6, 5, 3, 0]]


def test_every_position_is_equally_likely() -> None:
    sampler = ShuffledBatches(8, 8, seed=1, drop_last=True)
    first = Counter[int]()
    for epoch in range(4000):
        sampler.set_epoch(epoch)
        [order] = sampler.rest()
        first[order[0]] += 1
    # 500 expected each; seven standard deviations are about 146.
    assert all(354 < first[index] < 646 for index in range(8))


def test_without_shuffling_samples_come_in_order() -> None:
    sampler = ShuffledBatches(5, 2, seed=0, drop_last=False, shuffle=False)
    assert list(sampler) == [[0, 1], [2, 3], [4]]


@given(sizes, batch_sizes, worlds, st.data())
def test_any_place_can_be_continued_from(
    n: int, batch: int, world: int, data: st.DataObject
) -> None:
    for sampler in all_ranks(n, batch, world):
        sampler.set_epoch(4)
        whole = list(sampler.rest())
        taken = data.draw(st.integers(0, len(sampler)))
        head = [indices for _, indices in zip(range(taken), sampler, strict=False)]
        [other] = [s for s in all_ranks(n, batch, world) if s.rank == sampler.rank]
        other.load_state_dict(sampler.state_dict())
        assert head + list(other) == whole
        assert other.consumed == len(whole)


def test_iterating_counts_what_it_hands_out_and_looking_ahead_does_not() -> None:
    sampler = ShuffledBatches(20, 2, seed=0, drop_last=True)
    assert len(list(sampler.rest())) == 10
    assert sampler.consumed == 0
    iterator = iter(sampler)
    head = [next(iterator) for _ in range(3)]
    assert sampler.state_dict()["consumed"] == 3
    other = ShuffledBatches(20, 2, seed=0, drop_last=True)
    other.load_state_dict(sampler.state_dict())
    assert head + list(other) == list(ShuffledBatches(20, 2, seed=0, drop_last=True))


def test_naming_the_present_epoch_keeps_the_place_in_it() -> None:
    sampler = ShuffledBatches(20, 2, seed=0, drop_last=True)
    sampler.set_epoch(3)
    sampler.consumed = 4
    sampler.set_epoch(3)
    assert sampler.consumed == 4
    sampler.set_epoch(4)
    assert sampler.consumed == 0


def test_a_finished_epoch_continues_with_nothing() -> None:
    sampler = ShuffledBatches(6, 2, seed=0, drop_last=True)
    list(sampler)
    other = ShuffledBatches(6, 2, seed=0, drop_last=True)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_samples", 41),
        ("batch_size", 5),
        ("seed", 8),
        ("rank", 1),
        ("drop_last", False),
        ("shuffle", False),
        ("kind", "grouped"),
    ],
)
def test_a_place_in_another_order_is_refused(name: str, value: int | bool | str) -> None:
    sampler = ShuffledBatches(40, 4, seed=7, rank=0, world_size=2, drop_last=True)
    state = {**sampler.state_dict(), "epoch": 2, "consumed": 3}
    with pytest.raises(DataError, match=f"{name} was {value} and is"):
        sampler.load_state_dict({**state, name: value})
    assert (sampler.epoch, sampler.consumed) == (0, 0)
    sampler.load_state_dict(state)
    assert (sampler.epoch, sampler.consumed) == (2, 3)


@pytest.mark.parametrize("place", [{"epoch": -1}, {"consumed": 6}, {"consumed": None}])
def test_a_place_outside_the_epoch_is_refused(place: dict[str, int | None]) -> None:
    sampler = ShuffledBatches(40, 8, seed=7, drop_last=True)
    with pytest.raises(DataError, match="cannot continue"):
        sampler.load_state_dict({**sampler.state_dict(), **place})


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        ShuffledBatches(0, 1, seed=0, drop_last=False)


def test_a_task_without_an_order_of_its_own_is_shuffled() -> None:
    deal = Deal(batch_size=3, seed=5, rank=1, world_size=2, drop_last=True)
    order = train_order(object(), range(20), deal)
    same = ShuffledBatches(20, 3, seed=5, rank=1, world_size=2, drop_last=True)
    assert list(order.rest()) == list(same.rest())


def test_a_task_may_bring_an_order_of_its_own() -> None:
    class Straight:
        def train_batches(self, samples: range, deal: Deal) -> ShuffledBatches:
            return ShuffledBatches(
                len(samples), deal.batch_size, seed=0, drop_last=False, shuffle=False
            )

    deal = Deal(batch_size=2, seed=5, rank=0, world_size=1, drop_last=True)
    assert list(train_order(Straight(), range(3), deal).rest()) == [[0, 1], [2]]
