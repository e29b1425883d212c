"""Batches of people keep every promise, for any people, ranks and place to go on from."""

import copy
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset

import pitstop
from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batches import build_loader
from pitstop.data.sampling.pk_plan import deal_turns, mix
from pitstop.data.sampling.pk_sampler import EpochUnit, PKSampler
from pitstop.data.sampling.samplers import raw_bits
from pitstop.errors import DataError

torch.set_num_threads(1)

WORLDS = (1, 2, 4, 6)

_DRAW = np.random.default_rng(7)
PEOPLE = np.sort(_DRAW.integers(0, 320, 14_910))
SINGLE = np.where(_DRAW.random(14_910) < 0.4, 1, 1 << _DRAW.integers(1, 5, 14_910))
"""One modality a record."""
ANCHORED = 1 | np.where(_DRAW.random(14_910) < 0.9, 1 << _DRAW.integers(1, 5, 14_910), 0)
"""RGB and mostly something else in one record."""
MASKS = {"single": SINGLE, "anchored": ANCHORED}


def check_batch(
    batch: list[int],
    people: np.ndarray,
    masks: np.ndarray,
    *,
    p: int,
    k: int,
    ensure_rgb: bool = True,
) -> None:
    """Hold one batch against the promises, in the plainest way there is."""
    rows_of = defaultdict(list)
    for row in batch:
        rows_of[people[row]].append(row)
    assert len(rows_of) == p
    for person, rows in rows_of.items():
        own = np.flatnonzero(people == person)
        rgb = [row for row in own if masks[row] & 1]
        other = [row for row in own if masks[row] & ~1]
        assert len(rows) == k
        if ensure_rgb and rgb:
            assert set(rows) & set(rgb)
        if rgb and other and k >= 2:
            assert set(rows) & set(other)
            if len(own) >= 2 and ensure_rgb:
                pairs = [(a, b) for a in set(rows) & set(rgb) for b in set(rows) & set(other)]
                assert any(a != b for a, b in pairs)
        if len(own) >= k:
            assert len(set(rows)) == k
        else:
            assert set(rows) == set(own)


def samplers_of(world: int, masks: np.ndarray, unit: EpochUnit) -> list[PKSampler]:
    return [
        PKSampler(PEOPLE, masks, seed=3, epoch_unit=unit, rank=rank, world_size=world)
        for rank in range(world)
    ]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("unit", ["records", "identities"])
@pytest.mark.parametrize("records", ["single", "anchored"])
def test_the_promises_hold_at_the_size_of_a_real_dataset(
    world: int, unit: EpochUnit, records: str
) -> None:
    masks = MASKS[records]
    ranks = [list(sampler) for sampler in samplers_of(world, masks, unit)]
    wanted = {"records": 14_910 // (32 * world), "identities": 320 // (8 * world)}[unit]
    assert [len(batches) for batches in ranks] == [wanted] * world
    assert [len(sampler) for sampler in samplers_of(world, masks, unit)] == [wanted] * world
    for group in zip(*ranks, strict=True):
        for batch in group:
            check_batch(batch, PEOPLE, masks, p=8, k=4)
        # Nobody is on two ranks at once, and so no record is.
        assert len({person for batch in group for person in PEOPLE[batch].tolist()}) == 8 * world


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("unit", ["records", "identities"])
def test_every_place_can_be_continued_from(world: int, unit: EpochUnit) -> None:
    for rank, sampler in enumerate(samplers_of(world, SINGLE, unit)):
        sampler.set_epoch(5)
        whole = list(sampler.rest())
        other = PKSampler(PEOPLE, SINGLE, seed=3, epoch_unit=unit, rank=rank, world_size=world)
        iterator = iter(sampler)
        for taken in range(len(sampler) + 1):
            other.load_state_dict(sampler.state_dict())
            assert list(other) == whole[taken:]
            next(iterator, None)


def test_an_epoch_over_records_sees_almost_all_of_them() -> None:
    sampler = PKSampler(PEOPLE, ANCHORED)
    seen: set[int] = set()
    for batch in sampler:
        seen.update(batch)
    assert len(seen) / len(PEOPLE) > 0.98
    for batch in sampler:
        seen.update(batch)
    assert sampler.epoch == 1
    assert len(seen) / len(PEOPLE) > 0.999


def test_a_record_comes_again_only_after_all_others_of_its_queue() -> None:
    people, masks = np.repeat(np.arange(4), 7), np.full(28, 3)
    sampler = PKSampler(
        people,
        masks,
        identities_per_batch=2,
        records_per_identity=2,
        epoch_unit="steps",
        epoch_steps=40,
    )
    drawn = defaultdict(list)
    for batch in sampler:
        for row in batch:
            drawn[people[row]].append(row)
    for rows in drawn.values():
        for at in range(0, len(rows) - 6, 7):
            assert len(set(rows[at : at + 7])) == 7


@given(
    counts=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=14
    ),
    p=st.integers(1, 5),
    k=st.integers(1, 6),
    world=st.integers(1, 4),
    unit=st.sampled_from(["records", "identities", "steps"]),
    ensure_rgb=st.booleans(),
    require_pair=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_promises_hold_for_any_people(
    counts: list[tuple[int, int, int]],
    p: int,
    k: int,
    world: int,
    unit: EpochUnit,
    ensure_rgb: bool,
    require_pair: bool,
    seed: int,
) -> None:
    people, masks = [], []
    for person, (rgb, other, both) in enumerate(counts):
        people += [person] * (rgb + other + both)
        masks += [1] * rgb + [4] * other + [3] * both
    assume(people)
    shuffle = random.Random(seed).sample(range(len(people)), len(people))
    ids, bits = np.array(people)[shuffle], np.array(masks)[shuffle]
    paired = [bool((r or b) and (o or b)) for r, o, b in counts]
    eligible = sum(paired) if require_pair else sum(any(count) for count in counts)
    arguments = {
        "identities_per_batch": p,
        "records_per_identity": k,
        "seed": seed,
        "epoch_unit": unit,
        "epoch_steps": 5 if unit == "steps" else None,
        "ensure_rgb": ensure_rgb,
        "require_pair": require_pair,
        "world_size": world,
    }
    if eligible < p or (require_pair and k < 2):
        with pytest.raises(DataError):
            PKSampler(ids, bits, **arguments)
        return
    samplers = [PKSampler(ids, bits, rank=rank, **arguments) for rank in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in ranks} == {len(samplers[0])}
    assert len(samplers[0]) >= 1
    for group in zip(*ranks, strict=True):
        for batch in group:
            check_batch(batch, ids, bits, p=p, k=k, ensure_rgb=ensure_rgb)
            if require_pair:
                assert all(paired[person] for person in ids[batch])
        if eligible >= p * world:
            assert len({person for batch in group for person in ids[batch].tolist()}) == p * world


def test_few_people_on_many_ranks_still_show_different_records() -> None:
    people, masks = np.repeat(np.arange(10), 40), np.full(400, 3)
    samplers = [
        PKSampler(people, masks, identities_per_batch=4, rank=rank, world_size=4)
        for rank in range(4)
    ]
    for group in zip(*samplers, strict=True):
        rows = [row for batch in group for row in batch]
        assert len(set(rows)) == len(rows) == 64


def test_a_person_with_most_of_the_records_does_not_take_over() -> None:
    people = np.concatenate((np.zeros(10_000, int), np.repeat(np.arange(1, 9), 5)))
    sampler = PKSampler(people, np.full(len(people), 3), identities_per_batch=4)
    batches = list(sampler)
    assert len(batches) == len(people) // 16
    assert all(len(set(people[batch])) == 4 for batch in batches)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60), st.integers(0, 99)
)
def test_turns_are_shared_by_weight_to_within_one(weights: list[int], most: int, seed: int) -> None:
    total = min(sum(weights), most * len(weights))
    given_weights = np.array(weights)
    turns = deal_turns(given_weights, total=total, most=most, bits=raw_bits(seed))
    assert turns.sum() == total
    assert turns.max() <= most
    exact = given_weights * total / given_weights.sum()
    if exact.max() <= most:
        assert (abs(turns - exact) < 1).all()


def test_who_meets_whom_is_left_to_chance() -> None:
    """Against independent draws: meetings of two people are then a Poisson count."""
    turns = np.full(120, 12)
    table = mix(turns, units=180, width=8, bits=raw_bits(0))
    assert Counter(table.ravel().tolist()) == Counter(dict.fromkeys(range(120), 12))
    assert all(len(set(row)) == 8 for row in table.tolist())
    is_in = np.zeros((180, 120))
    np.put_along_axis(is_in, table, 1, axis=1)
    meetings = (is_in.T @ is_in)[np.triu_indices(120, 1)]
    assert 0.85 < meetings.var() / meetings.mean() < 1.1
    # And over time: the first half of the epoch has its half of everybody's turns.
    early = is_in[:90].sum(axis=0)
    assert 0.7 < early.var() / 3 < 1.4


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    first, second = PKSampler(PEOPLE, SINGLE, seed=1), PKSampler(PEOPLE, SINGLE, seed=1)
    for epoch in (4, 2, 0):
        second.set_epoch(epoch)
        list(second)
    zeroth = list(first)
    second.set_epoch(0)
    assert list(second) == zeroth
    np.random.default_rng(0).random()
    orders = {str(list(PKSampler(PEOPLE[:400], SINGLE[:400], seed=seed))) for seed in range(5)}
    assert len(orders) == 5


def test_the_order_stays_the_same_from_version_to_version() -> None:
    sampler = PKSampler(
        [0, 0, 0, 1, 1, 1, 2, 2],
        [1, 2, 3, 1, 2, 2, 1, 1],
        identities_per_batch=2,
        records_per_identity=2,
    )
    assert list(sampler) == [[3, 4, 7, 6], [3, 5, 0, 2]]


def test_iterating_again_goes_on_to_the_next_epoch() -> None:
    """A loop that never names an epoch must not train on the same batches for ever."""
    sampler, other = PKSampler(PEOPLE, SINGLE), PKSampler(PEOPLE, SINGLE)
    first, second = list(sampler), list(sampler)
    assert first != second
    other.set_epoch(1)
    assert list(other) == second
    assert sampler.epoch == 1


def test_a_look_at_the_first_batch_takes_nothing_away() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    peek = next(iter(sampler))
    batches = list(sampler)
    assert batches[0] == peek
    assert len(batches) == len(sampler)
    assert sampler.epoch == 0


def test_naming_a_finished_epoch_again_starts_it_over() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    first = list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_naming_the_present_epoch_keeps_the_place_in_it() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    whole = list(sampler.rest())
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 7})
    sampler.set_epoch(0)
    assert list(sampler) == whole[7:]


def test_a_finished_epoch_continues_with_nothing_and_then_the_next() -> None:
    sampler, other = PKSampler(PEOPLE, SINGLE), PKSampler(PEOPLE, SINGLE)
    list(sampler)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == []
    assert list(other) == list(sampler)
    assert other.epoch == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 9),
        ("identities_per_batch", 4),
        ("records_per_identity", 2),
        ("epoch_unit", "identities"),
        ("ensure_rgb", False),
        ("require_pair", True),
        ("data", "00000000"),
        ("kind", "shuffled"),
    ],
)
def test_a_place_in_another_order_is_refused(name: str, value: int | str) -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    with pytest.raises(DataError, match=f"{name} was {value} and is"):
        sampler.load_state_dict({**sampler.state_dict(), name: value})
    with pytest.raises(DataError, match="there is no batch 466"):
        sampler.load_state_dict({**sampler.state_dict(), "consumed": 466})


def test_a_place_saved_by_one_rank_serves_every_rank() -> None:
    first, second = samplers_of(2, SINGLE, "records")
    iterator = iter(first)
    next(iterator)
    whole = list(second.rest())
    second.load_state_dict(first.state_dict())
    assert list(second) == whole[1:]


def test_a_copy_can_look_at_another_ranks_batches() -> None:
    """Whoever shares a cache with other ranks wants to know what they will ask for."""
    first, second = samplers_of(2, SINGLE, "records")
    other = copy.copy(first)
    other.rank = 1
    assert list(other.rest()) == list(second.rest())
    other.set_epoch(1)
    assert (first.epoch, first.rank) == (0, 0)


def test_other_records_make_another_order() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    masks = SINGLE.copy()
    masks[17] ^= 3
    with pytest.raises(DataError, match="data was"):
        PKSampler(PEOPLE, masks).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"identities_per_batch": 400}, "400 different people, and the dataset has 320"),
        ({"identities_per_batch": 0}, "identities_per_batch must be at least 1, not 0"),
        ({"records_per_identity": 0}, "records_per_identity must be at least 1, not 0"),
        ({"records_per_identity": 1, "require_pair": True}, "two records .* is 1"),
        ({"epoch_unit": "steps"}, "epoch_steps is for epoch_unit steps"),
        ({"epoch_steps": 3}, "epoch_steps is for epoch_unit steps"),
        ({"epoch_unit": "steps", "epoch_steps": 0}, "epoch_steps must be at least 1"),
        ({"epoch_unit": "days"}, "identities, records or steps, not days"),
        ({"seed": -1}, "seed must not be negative"),
        ({"rank": 2, "world_size": 2}, "no rank 2 among 2"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_counts(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        PKSampler(PEOPLE, SINGLE, **arguments)  # pyright: ignore[reportArgumentType]


def test_too_few_people_with_a_pair_are_counted() -> None:
    people = np.repeat(np.arange(10), 4)
    masks = np.where(people < 3, [1, 2, 1, 2] * 10, 1)
    with pytest.raises(DataError, match=r"takes 4 people .* and 3 of 10 people have both"):
        PKSampler(people, masks, identities_per_batch=4, require_pair=True)


@pytest.mark.parametrize(
    ("people", "masks", "message"),
    [
        ([], [], "the dataset is empty"),
        ([1, 2], [1], r"shapes are \(2,\) and \(1,\)"),
        ([1.5, 2.5], [1, 1], "whole numbers or words"),
        ([1, 2], [True, False], "modalities whole numbers"),
        ([1, 2, 2], [1, 0, 0], "2 records have no modality, the first is record 1"),
    ],
)
def test_records_that_say_nothing_are_refused(
    people: list[float], masks: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        PKSampler(people, masks, identities_per_batch=1)


def test_a_report_counts_what_an_epoch_sees() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    batches = list(sampler.rest())
    report = sampler.report()
    rows = [row for batch in batches for row in batch]
    assert (report.draws, report.records_seen) == (len(rows), len(set(rows)))
    assert report.repeats == len(rows) - len(set(rows))
    assert report.people_seen == report.people == 320
    counts = Counter(sum(int(SINGLE[row] & 1) for row in batch) for batch in batches)
    assert report.rgb_records_in_batch == counts
    assert report.repeats_in_batch == 0
    messages = report.messages()
    assert messages[0] == "an epoch over records is 465 batches of 8 people x 4 records"
    assert f"{report.records_seen:,} of 14,910 records" in messages[1]


def test_a_report_says_who_is_left_out_and_what_repeats_for_want_of_records() -> None:
    people = [0, 0, 1, 1, 2, 3, 3, 3, 3]
    masks = [1, 2, 1, 2, 1, 1, 2, 1, 2]
    sampler = PKSampler(people, masks, identities_per_batch=3, require_pair=True)
    report = sampler.report()
    assert (report.people_left_out, report.people_without_pair) == (1, 0)
    assert report.repeats_in_batch == 4
    assert "1 people are left out: they have no pair" in report.messages()
    everybody = PKSampler(people, masks, identities_per_batch=3, world_size=2, rank=1).report()
    assert everybody.people_without_pair == 1
    assert "on each of 2 ranks" in everybody.messages()[0]


class Indices(Dataset[int]):
    """Gives back what it is asked for."""

    def __len__(self) -> int:
        return len(PEOPLE)

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_loader_with_workers_gives_the_same_batches(workers: int) -> None:
    few = PEOPLE < 60
    ids, masks = PEOPLE[few], SINGLE[few]
    sampler = PKSampler(ids, masks, world_size=2, rank=1)
    whole = list(sampler.rest())
    loader = DataLoader(Indices(), batch_sampler=sampler, num_workers=workers)
    assert len(loader) == len(whole)
    assert [batch.tolist() for batch in loader] == whole

    # Stopped after three: workers have taken more, but three were trained on.
    sampler.set_epoch(0)
    iterator = iter(loader)
    head = [next(iterator).tolist() for _ in range(3)]
    state = sampler.state_dict(consumed=3)
    del iterator
    other = PKSampler(ids, masks, world_size=2, rank=1)
    other.load_state_dict(state)
    rest = DataLoader(Indices(), batch_sampler=other, num_workers=workers)
    assert head + [batch.tolist() for batch in rest] == whole


class Samples:
    def __len__(self) -> int:
        return len(PEOPLE)

    def sample(self, epoch: int, index: int) -> int:
        return index


def test_the_engines_own_loader_takes_it() -> None:
    sampler = PKSampler(PEOPLE, SINGLE)
    whole = list(sampler.rest())
    with build_loader(Samples(), sampler, list, LoaderSection(workers=0)) as loader:
        head = [batch for (batch, _), _ in zip(loader, range(5), strict=False)]
        state = loader.state_dict(consumed=4)
    assert head == whole[:5]
    other = PKSampler(PEOPLE, SINGLE)
    with build_loader(Samples(), other, list, LoaderSection(workers=0)) as loader:
        loader.load_state_dict(state)
        assert [batch for batch, _ in loader] == whole[4:]
        loader.set_epoch(1)
        assert loader.position == 0


def test_building_takes_no_longer_than_sorting_the_ids_a_few_times() -> None:
    """Against work that is there anyhow, so that a slow machine is not blamed on the sampler."""

    def best_s(action: object) -> float:
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            assert callable(action)
            action()
            times.append(time.perf_counter() - begun)
        return min(times)

    # 14,910 ids: one pass of plain Python over them takes about a millisecond.
    plain = best_s(lambda: [int(person) * 2 for person in PEOPLE])
    assert best_s(lambda: PKSampler(PEOPLE, SINGLE)) < 10 * plain


class Listed(Indices):
    """A dataset that lists its records, as many do."""

    def __init__(self, records: list[dict[str, object]], name: str = "data_list") -> None:
        setattr(self, name, records)
        self._length = len(records)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a sample was read")


NAMES = ("vis", "nir", "sk", "cp")


def listed(count: int = 80) -> list[dict[str, object]]:
    return [{"person_id": at // 8, "modality": NAMES[at % 4]} for at in range(count)]


@pytest.mark.parametrize("name", ["data_list", "records", "samples"])
def test_a_datasets_own_list_is_enough(name: str) -> None:
    sampler = PKSampler.from_dataset(Listed(listed(), name), 16, 4)
    masks = np.array([1 << (at % 4) for at in range(80)])
    people = np.arange(80) // 8
    for batch in sampler:
        check_batch(batch, people, masks, p=4, k=4)


def test_a_subset_is_sampled_by_its_own_numbers() -> None:
    chosen = list(range(40, 80))
    sampler = PKSampler.from_dataset(Subset(Listed(listed()), chosen), 8, 4)
    assert {row for batch in sampler for row in batch} <= set(range(40))


def test_arrays_of_a_dataset_are_taken_as_they_are() -> None:
    class Arrays(Indices):
        person_ids = PEOPLE
        modalities = SINGLE

    sampler = PKSampler.from_dataset(Arrays(), 32, 4, seed=5)
    assert list(sampler) == list(PKSampler(PEOPLE, SINGLE, seed=5, require_pair=True))


def test_names_of_several_modalities_and_new_ones_are_understood() -> None:
    records: list[dict[str, object]] = [
        {"pid": at // 4, "modality": ["vis", "gait"]} for at in range(16)
    ]
    report = PKSampler.from_dataset(Listed(records), 8, 2).report()
    assert (report.people_left_out, report.people_without_pair) == (0, 0)


def test_two_lists_that_differ_are_refused() -> None:
    dataset = Listed(listed())
    dataset.samples = [{**record, "person_id": 1} for record in listed()]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match="data_list and samples differ"):
        PKSampler.from_dataset(dataset, 8, 4)


def test_a_list_of_another_length_is_not_the_datasets() -> None:
    dataset = Listed(listed())
    dataset.samples = listed(120)  # pyright: ignore[reportAttributeAccessIssue]
    assert len(PKSampler.from_dataset(dataset, 8, 4)) == 10


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"modality": "vis"}], r"data_list\[0\] has no person_id or pid"),
        ([{"person_id": 1}], r"data_list\[0\] has no modality: neither modality_mask"),
    ],
)
def test_records_that_do_not_say_enough_are_named(
    records: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        PKSampler.from_dataset(Listed(records), 1, 1)


def test_a_dataset_that_says_nothing_is_refused_without_reading_it() -> None:
    with pytest.raises(DataError, match="does not say who is on its records"):
        PKSampler.from_dataset(Listed([], "nothing"), 8, 4)
    with pytest.raises(DataError, match="a batch of 9 records cannot be made"):
        PKSampler.from_dataset(Listed(listed()), 9, 4)


def test_nobody_with_a_pair_is_said_and_not_worked_around() -> None:
    records: list[dict[str, object]] = [
        {"person_id": at // 8, "modality": "vis"} for at in range(80)
    ]
    with pytest.raises(DataError, match="0 of 10 people have both"):
        PKSampler.from_dataset(Listed(records), 16, 4)
    assert len(PKSampler.from_dataset(Listed(records), 16, 4, prefer_complete=False)) == 5


def test_it_is_offered_by_the_package() -> None:
    assert pitstop.PKSampler is PKSampler
    assert all(one != other for one, other in pairwise(PKSampler(PEOPLE, SINGLE)))
