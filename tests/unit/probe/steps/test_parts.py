"""Parts of a step are disjoint and add up, whatever was nested in what."""

import random
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop_probe.steps.parts import (
    CLOSURE,
    EVAL,
    MODE,
    TRAIN,
    Fetch,
    GapNames,
    OutsideInterval,
    Region,
    Rounds,
    Unset,
    after_aside,
    batches_by_calls,
    name_gap,
    outside_intervals,
    rounds_of,
    split,
    split_plain,
)

KINDS = ["data", "forward", "backward", "optimizer", "clip", "copy"]


def random_regions(seed: int, start: int, end: int, depth: int = 0) -> list[Region]:
    """Nested regions inside [start, end], parents before their children."""
    chance = random.Random(seed)
    found: list[Region] = []
    cursor = start
    while depth < 4 and cursor < end and chance.random() < 0.8:
        low = chance.randint(cursor, end)
        high = chance.randint(low, end)
        found.append(Region(chance.choice(KINDS), low, high))
        found += random_regions(chance.random().__hash__(), low, high, depth + 1)
        cursor = high
    return found


def painted(regions: list[Region], bounds: tuple[int, int]) -> Counter[str]:
    """The slow way: ask of every microsecond which region is innermost there."""
    times: Counter[str] = Counter()
    for moment in range(*bounds):
        over = [r for r in regions if r.start <= moment < r.end]
        times[over[-1].kind if over else "between"] += 1
    return times


@given(seed=st.integers(0, 10**9))
def test_a_part_is_what_its_regions_hold_and_no_region_inside_them(seed: int) -> None:
    bounds = (5, 205)
    regions = random_regions(seed, *bounds)
    times, intervals = split(regions, [], bounds, GapNames(lambda *_: "between"))
    expected = painted(regions, bounds)
    assert intervals == []
    assert {name: us for name, (_, us) in times.items() if us} == +expected
    calls = Counter(region.kind for region in regions)
    assert {name: times[name][0] for name in calls} == dict(calls)


@given(seed=st.integers(0, 10**9), first=st.integers(0, 5))
def test_parts_and_what_lies_apart_add_up_to_the_wall_clock(seed: int, first: int) -> None:
    bounds = (0, 300)
    regions = sorted(random_regions(seed, *bounds), key=lambda r: (r.start, -r.end))
    outer = [place for place in range(len(regions)) if not _has_parent(regions, place)]
    outside = [
        OutsideInterval("evaluation", regions[place].start, regions[place].end)
        for place in outer[first : first + 1]
    ]
    times, intervals = split(regions, outside, bounds)
    outside_us = sum(end - start for _, start, end in intervals)
    assert sum(us for _, us in times.values()) + outside_us == 300
    assert intervals == [tuple(interval) for interval in outside]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4000), st.sampled_from(KINDS), st.integers(1000, 9000)),
        max_size=12,
    ),
    rest=st.integers(0, 3000),
)
def test_a_plain_step_is_divided_as_any_other(steps: list[tuple[int, str, int]], rest: int) -> None:
    """The quick way reads nanoseconds as noted, the thorough one whole microseconds."""
    cursor, noted = 5_123, []
    for gap, kind, took in steps:
        noted.append([kind, cursor + gap, cursor + gap + took, None, None, None])
        cursor += gap + took
    bounds = (5_123, cursor + rest)
    regions = [Region(kind, start // 1000, end // 1000) for kind, start, end, *_ in noted]
    thorough, _ = split(regions, [], (bounds[0] // 1000, bounds[1] // 1000))
    quick = split_plain(noted, set(), bounds, GapNames(name_gap))
    assert quick is not None
    assert {name: entry for name, entry in quick.items() if entry[1]} == {
        name: entry for name, entry in thorough.items() if entry[1]
    }


def test_a_gap_of_several_things_is_shared_out_to_the_microsecond() -> None:
    names = GapNames(name_gap)
    names["forward", "backward"] = (("data", 0.617), ("host", 0.1), ("loss", 0.283))
    noted = [
        ["forward", 0, 10_000, TRAIN, None, None],
        # A copy in between does not change what the loss follows.
        ["copy", 20_000, 30_000, None, None, None],
        ["backward", 1_020_000, 1_030_000, None, None, None],
    ]
    names["forward", "copy"] = "loss"
    times = split_plain(noted, set(), (0, 1_030_000), names)
    assert times is not None
    assert {name: us for name, (_, us) in times.items()} == {
        "forward": 10,
        "copy": 10,
        "backward": 10,
        "data": 611,
        "host": 99,
        "loss": 280 + 10,
    }


def test_what_needs_thought_is_not_divided_the_quick_way() -> None:
    def quick(*noted: list[object]) -> object:
        return split_plain([[*n, None, None] for n in noted], {1}, (0, 90_000), GapNames(name_gap))

    assert quick(["data", 0, 5_000, Fetch(1, 0)], ["forward", 5_000, 9_000, TRAIN]) is not None
    assert quick(["optimizer", 0, 50_000, None], ["forward", 5_000, 9_000, TRAIN]) is None
    assert quick(["forward", 0, 5_000, EVAL]) is None
    assert quick(["checkpoint", 0, 5_000, None]) is None
    assert quick(["data", 0, 5_000, Fetch(2, 0)]) is None
    assert quick(["data", 0, 5_000, Fetch(1, 0, last=True)]) is None


def test_the_python_of_a_closure_is_not_the_optimizers() -> None:
    regions = [
        Region("optimizer", 0, 100),
        Region(CLOSURE, 5, 80),
        Region("forward", 15, 30, TRAIN),
        Region("backward", 34, 60),
    ]
    times, _ = split(regions, [], (0, 110))
    assert {name: us for name, (_, us) in times.items()} == {
        "optimizer": 5 + 20,
        "host": 10 + 20 + 10,
        "forward": 15,
        "loss": 4,
        "backward": 26,
    }


def _has_parent(regions: list[Region], place: int) -> bool:
    own = regions[place]
    return any(r.start <= own.start and own.end <= r.end for r in regions[:place])


def test_a_compilation_inside_the_forward_pass_is_taken_out_of_it() -> None:
    regions = [Region("forward", 0, 100, TRAIN), Region("compile", 10, 90)]
    outside = outside_intervals(regions, set(), set())
    times, intervals = split(regions, outside, (0, 120))
    assert intervals == [("compile", 10, 90)]
    assert times == {"forward": [1, 20], "host": [0, 20]}


def test_python_between_model_and_gradients_is_the_loss() -> None:
    assert name_gap("forward", "backward") == "loss"
    assert name_gap("forward", "zero_grad") == "loss"
    assert name_gap(None, "data") == "host"
    assert name_gap("backward", "optimizer") == "host"


def test_an_evaluation_reaches_from_its_first_fetch_to_its_last() -> None:
    """What its batches were fetched for is only known afterwards."""
    evaluating = Fetch(loader=2, workers=0)
    regions = [
        Region("loader start", 10, 12, evaluating),
        Region("data", 12, 20, evaluating),
        Region("forward", 20, 30, EVAL),
        Region("data", 35, 40, evaluating._replace(last=True)),
        Region("data", 50, 55, Fetch(loader=1, workers=0)),
        Region("forward", 55, 60, TRAIN),
        Region("backward", 60, 70),
        Region("optimizer", 70, 80),
    ]
    evaluates: set[int] = set()
    trains: set[int] = set()
    outside = outside_intervals(regions, evaluates, trains)
    assert outside == [OutsideInterval("evaluation", 10, 40)]
    assert (evaluates, trains) == ({2}, {1})


def test_a_loop_for_both_phases_zeroes_gradients_before_it_evaluates_too() -> None:
    trains, tests = Fetch(1, 0), Fetch(2, 0)
    evaluating = [
        region
        for at in range(100, 400, 100)
        for region in (
            Region("data", at, at + 20, tests),
            Region("zero_grad", at + 20, at + 25),
            Region("forward", at + 30, at + 60, EVAL),
            Region("loss", at + 60, at + 65),
        )
    ]
    regions = [
        Region("zero_grad", 5, 10),  # after the step before: no beginning of an evaluation
        *evaluating,
        Region("data", 500, 520, trains),
        Region("zero_grad", 520, 525),
        Region("forward", 530, 560, TRAIN),
        Region("backward", 560, 600),
        Region("optimizer", 600, 610),
    ]
    feeds, known = set[int](), set[int]()
    assert outside_intervals(regions, feeds, known) == [OutsideInterval("evaluation", 100, 360)]
    assert (feeds, known) == ({2}, {1})


def test_an_evaluation_in_training_mode_is_known_by_a_loader_that_nothing_trains_with() -> None:
    training, held_out = Fetch(loader=1, workers=0), Fetch(loader=2, workers=0)
    regions = [
        Region("data", 0, 5, training),
        Region("loader start", 10, 12, held_out),
        Region("data", 12, 20, held_out),
        Region("forward", 20, 30, None),
        Region("data", 35, 40, held_out._replace(last=True)),
        Region("forward", 55, 60, TRAIN),
        Region("backward", 60, 70),
        Region("optimizer", 70, 80),
    ]
    evaluates: set[int] = set()
    assert outside_intervals(regions, evaluates, {1}) == [OutsideInterval("evaluation", 10, 40)]
    assert evaluates == {2}


def test_a_pass_without_gradients_inside_a_step_is_part_of_it() -> None:
    """A teacher; labels that are made up for other batches; a batch that is left out."""
    taught = ("1", "no grad", "forward", "backward")
    made_up_first = ("1", "no grad", "2", "1", "forward", "backward")
    assert loaders_of(*taught, *taught, "optimizer") == (set(), {1})
    assert loaders_of(*made_up_first, *made_up_first, "optimizer") == (set(), {1, 2})
    left_out = ("1", "no grad", *taught, "checkpoint", "optimizer")
    assert loaders_of(*left_out, known={1}) == (set(), {1})


def loaders_of(*kinds: str, known: Collection[int] = ()) -> tuple[set[int], set[int]]:
    """Give the loaders that a step shows to evaluate and to train."""
    evaluates: set[int] = set()
    trains = set(known)
    regions = [Region(*fields[:4]) for fields in noted(*kinds)]
    outside_intervals(
        [r._replace(start=n, end=n + 1) for n, r in enumerate(regions)], evaluates, trains
    )
    return evaluates, trains


def test_a_model_that_is_set_to_evaluate_trains_once_that_is_known_of_it() -> None:
    regions = [Region("forward", 0, 5, Unset(7)), Region("backward", 5, 9)]
    assert outside_intervals(regions, set(), set()) == [OutsideInterval("evaluation", 0, 5)]
    assert outside_intervals(regions, set(), {7}) == []


def noted(*kinds: str) -> list[list[Any]]:
    """Regions by name; a fetch by the number of its loader."""
    named: dict[str, tuple[str, object]] = {"forward": ("forward", TRAIN)}
    named["no grad"] = ("forward", None)
    named |= {kind: ("data", Fetch(int(kind), 0)) for kind in kinds if kind.isdigit()}
    told = [named.get(kind, (kind, None)) for kind in kinds]
    return [[kind, 0, 0, detail, None, None] for kind, detail in told]


ROUND = ("forward", "backward")
GAN = ("forward", "forward", *ROUND, "optimizer", *ROUND, "optimizer")


@pytest.mark.parametrize(
    ("kinds", "sizes", "expected"),
    [
        pytest.param((*ROUND, *ROUND, "optimizer"), [[8, 6]], (2, 14), id="accumulation"),
        pytest.param(("1", *ROUND, "1", *ROUND), [[8, 6]], (2, 14), id="accumulation, loader"),
        pytest.param(("1", "1", *ROUND, *ROUND), [[8, 6]], (2, 14), id="fetched beforehand"),
        pytest.param(("1", "1", *ROUND), [[8]], (1, 8), id="one batch ahead"),
        pytest.param(("forward", *ROUND), [[8, 8]], (1, 8), id="two views"),
        pytest.param(("forward", *ROUND), [[8, 9]], (1, None), id="two unequal calls"),
        pytest.param(("1", "2", "forward", *ROUND), [[8, 8]], (1, None), id="two loaders"),
        pytest.param((*ROUND, "backward"), [[8], [8]], (1, 8), id="a penalty on gradients"),
        pytest.param(GAN, [[8], [8, 8, 8]], (1, 8), id="critic and generator"),
        pytest.param(("1", *GAN), [[8], [8, 8, 8]], (1, 8), id="critic and generator, loader"),
        pytest.param(
            ("1", *ROUND, "optimizer") * 3 + (*ROUND, "optimizer"),
            [[8] * 4, [8] * 3],
            (3, 24),
            id="three batches for the critic",
        ),
        pytest.param(("1", *ROUND, *ROUND), [[4, 4]], (2, None), id="in pieces, or once more"),
        pytest.param(("optimizer", *("closure", *ROUND) * 5), [[8] * 5], (1, 8), id="closure"),
        pytest.param((*ROUND, *ROUND), [[8, None]], (2, None), id="a size not known"),
    ],
)
def test_samples_are_those_of_batches_however_often_a_model_is_called(
    kinds: tuple[str, ...], sizes: list[list[int | None]], expected: tuple[int, int | None]
) -> None:
    rounds = rounds_of(noted(*kinds), {1, 2})
    assert (rounds.made, batches_by_calls(sizes, rounds)) == expected


def test_without_a_way_forward_and_back_there_is_nothing_to_count() -> None:
    rounds = rounds_of(noted("forward", "optimizer"), set())
    assert rounds == Rounds(0)
    assert batches_by_calls([[8]], rounds) is None


def test_a_loader_is_known_by_what_it_was_first_used_for() -> None:
    """The fetch that ends a pass is followed by training, yet belongs to the evaluation."""
    regions = [Region("data", 0, 5, Fetch(loader=2, workers=0)), Region("forward", 5, 9, TRAIN)]
    assert outside_intervals(regions, {2}, set()) == [OutsideInterval("evaluation", 0, 5)]


def test_starting_workers_is_an_epoch_boundary_until_their_first_batch() -> None:
    fetch = Fetch(loader=1, workers=2)
    regions = [
        Region("data", 0, 30, fetch._replace(last=True)),
        Region("loader start", 30, 50, fetch),
        Region("data", 50, 90, fetch._replace(first=True)),
        Region("data", 91, 92, fetch),
        Region("forward", 92, 95, TRAIN),
    ]
    outside = outside_intervals(regions, set(), {1})
    assert outside == [
        OutsideInterval("epoch boundary", 0, 30),
        OutsideInterval("epoch boundary", 30, 90),
    ]


def test_without_workers_the_first_batch_is_waiting_like_any_other() -> None:
    fetch = Fetch(loader=1, workers=0)
    regions = [
        Region("loader start", 30, 31, fetch),
        Region("data", 31, 60, fetch._replace(first=True)),
        Region("forward", 60, 65, TRAIN),
    ]
    assert outside_intervals(regions, set(), {1}) == [OutsideInterval("epoch boundary", 30, 31)]


SET_TO_EVALUATE = Region(MODE, 20, 20, EVAL)


@pytest.mark.parametrize(
    ("after", "end"),
    [
        pytest.param([Region(MODE, 80, 80, TRAIN)], 80, id="set back to train"),
        pytest.param(
            [Region("loader start", 70, 75, Fetch(1, 0)), Region(MODE, 80, 80, TRAIN)],
            70,
            id="the next pass begins before",
        ),
        pytest.param([Region("checkpoint", 60, 90), Region(MODE, 95, 95, TRAIN)], 60, id="a save"),
        pytest.param(
            [Region("copy", 30, 40), Region("wait", 40, 45), Region(MODE, 80, 80, TRAIN)],
            80,
            id="copies and waits of its own",
        ),
    ],
)
def test_a_model_that_samples_by_a_method_of_its_own_evaluates(
    after: list[Region], end: int
) -> None:
    """No call of the model is seen: its parts are called by it."""
    regions = [
        Region("optimizer", 0, 10),
        SET_TO_EVALUATE,
        *after,
        Region("forward", 99, 100, TRAIN),
    ]
    found = outside_intervals(regions, set(), {1})
    assert found[0] == OutsideInterval("evaluation", 20, end)
    assert [each.name for each in found].count("evaluation") == 1


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([], id="to the end of the step"),
        pytest.param([Region(MODE, 20, 20, TRAIN)], id="at once"),
        pytest.param([Region("backward", 50, 90)], id="trained on in that mode"),
        pytest.param([Region("loader start", 50, 60, Fetch(1, 0))], id="never set back"),
    ],
)
def test_a_model_that_is_only_set_to_evaluate_does_not(after: list[Region]) -> None:
    found = outside_intervals([Region("optimizer", 0, 10), SET_TO_EVALUATE, *after], set(), {1})
    assert "evaluation" not in [interval.name for interval in found]


def test_an_evaluation_that_was_seen_is_as_long_as_what_was_seen_of_it() -> None:
    """What follows its last batch, such as a metric in Python, is the step's as before."""
    regions = [
        SET_TO_EVALUATE,
        Region("forward", 30, 40, EVAL),
        Region(MODE, 90, 90, TRAIN),
        Region("forward", 95, 99, TRAIN),
    ]
    assert outside_intervals(regions, set(), set()) == [OutsideInterval("evaluation", 30, 40)]


@pytest.mark.parametrize("before", [None, "forward", "loss", "optimizer", "copy"])
def test_a_moment_separates_nothing(before: str | None) -> None:
    assert after_aside(before, MODE) == before
