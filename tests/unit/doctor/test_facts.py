"""Facts: one base for all shares, whatever a record holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.facts import BUSY, IDLE, Recomputed, facts_of
from pitstop.doctor.outside_steps import NOT_NAMED
from pitstop.records.run import Event
from tests.unit.doctor.records import KERNELS, SETUP, facts, noisy, rank, raw

times_us = st.integers(0, 10**7)
parts = st.dictionaries(
    st.sampled_from(["data", "copy", "forward", "loss", "backward", "optimizer", "host", "log"]),
    st.lists(times_us, min_size=40, max_size=40),
    min_size=1,
)
aparts = st.dictionaries(
    st.sampled_from(["evaluation", "checkpoint", "log", "plotting"]),
    st.dictionaries(st.integers(0, 39), st.integers(1, 10**8), max_size=5),
)


@settings(max_examples=60, deadline=None)
@given(parts, aparts, times_us)
def test_all_shares_add_up_to_one(
    inside: dict[str, list[int]], apart: dict[str, dict[int, int]], rest: int
) -> None:
    """The oracle adds up whole microseconds of the counted steps by hand."""
    run = facts(inside, steps=40, apart=apart, unaccounted=rest)
    wall = sum(sum(us[4:]) for us in inside.values()) + 36 * rest
    beside = sum(us for by_step in apart.values() for step, us in by_step.items() if step >= 4)
    shares = run.shares()
    if not wall + beside:
        assert shares == {}
        return
    assert math.fsum(shares.values()) == pytest.approx(1, abs=1e-9)
    assert min(shares.values()) >= -1e-12
    for name in shares.keys() - {"unaccounted"}:
        own = sum(inside.get(name, [])[4:])
        own += sum(us for step, us in apart.get(name, {}).items() if step >= 4)
        own -= sum(stall.us for stall in run.stalls if stall.part == name)
        whole = wall + beside - run.stalled_us
        assert shares[name] == pytest.approx(own / whole, abs=1e-9)


def test_an_event_inside_another_or_beside_the_step_is_not_counted_twice() -> None:
    record = rank({"forward": 10_000}, apart={"evaluation": {50: 30_000}})
    [outer] = record.events
    inner = replace(outer, name="plotting", start_us=outer.start_us + 10, wall_us=20_000)
    thread = Event(attempt=0, name="checkpoint", step=60, start_us=10**9, wall_us=70_000, detail={})
    run = facts_of(replace(record, events=(outer, inner, thread)))
    assert {name: apart.total_us for name, apart in run.outside.items()} == {"evaluation": 30_000}


def test_an_inner_event_takes_nothing_from_the_next_one() -> None:
    record = rank(
        {"forward": 10_000}, apart={"evaluation": {50: 30_000}, "checkpoint": {50: 9_000}}
    )
    outer, later = record.events
    inner = replace(outer, name="plotting", start_us=outer.start_us + 10, wall_us=20_000)
    run = facts_of(replace(record, events=(inner, outer, later)))
    assert {name: apart.total_us for name, apart in run.outside.items()} == {
        "evaluation": 30_000,
        "checkpoint": 9_000,
    }


def test_time_apart_without_an_event_keeps_a_name() -> None:
    record = rank({"forward": 10_000}, apart={"evaluation": {50: 30_000}})
    run = facts_of(replace(record, events=()))
    assert run.shares()[NOT_NAMED] == pytest.approx(30_000 / 930_000)


SAVES = dict.fromkeys(range(3, 400, 4), 20_000)
EVALUATIONS = dict.fromkeys(range(9, 400, 10), 20_000)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), longer_us=st.sampled_from([1_000, 2_000, 8_000]))
def test_what_a_save_adds_to_its_step_is_found_in_noise(seed: int, longer_us: int) -> None:
    times = noisy(10_000, 400, seed, spread=0.1)
    times[list(SAVES)] += longer_us
    run = facts({"forward": times}, steps=400, apart={"checkpoint": SAVES})
    added_us = 90 * longer_us
    # The error of a mean of 90 steps that vary by 1 ms is 0.1 ms: four of them here, and more.
    assert run.spill("checkpoint").us == pytest.approx(added_us, abs=90 * 500)
    share = run.whole_share("checkpoint")
    assert share is not None
    assert share == pytest.approx((90 * 20_000 + added_us) / run.total_us, abs=0.01)


def test_the_most_a_save_can_have_added_is_seldom_less_than_it_did() -> None:
    shares: list[tuple[float, float]] = []
    for seed in range(100):
        times = noisy(10_000, 400, seed, spread=0.1)
        times[list(SAVES)] += 2_000
        run = facts({"forward": times}, steps=400, apart={"checkpoint": SAVES})
        most = run.most_share("checkpoint")
        assert most is not None
        shares.append((most, 90 * 22_000 / run.total_us))
    # Two standard errors lie below one draw of forty-four, and reach no further than needed.
    assert sum(most < true for most, true in shares) <= 8
    assert np.mean([most - true for most, true in shares]) < 0.01


def test_steps_that_differ_by_chance_alone_are_seldom_counted_with_a_save() -> None:
    runs = [
        facts({"forward": noisy(10_000, 400, seed)}, steps=400, apart={"checkpoint": SAVES})
        for seed in range(100)
    ]
    # Above two standard errors lies one draw of forty-four.
    assert sum(run.spill("checkpoint").us > 0 for run in runs) <= 8


def test_a_step_with_two_things_apart_tells_of_neither() -> None:
    times = np.full(400, 10_000.0)
    times[list(SAVES)] += 5_000
    both = {"checkpoint": SAVES, "evaluation": SAVES}
    assert facts({"forward": times}, steps=400, apart=both).spill("checkpoint").us == 0
    apart = {"checkpoint": SAVES, "evaluation": EVALUATIONS}
    run = facts({"forward": times}, steps=400, apart=apart)
    alone = [step for step in SAVES if step >= 40 and step not in EVALUATIONS]
    assert run.spill("checkpoint").us == pytest.approx(5_000 * len(alone))


def test_python_once_an_epoch_is_not_what_a_new_pass_adds_to_its_step() -> None:
    python, computing = np.full(400, 200.0), np.full(400, 10_000.0)
    python[list(EVALUATIONS)] += 30_000
    passes = {"epoch boundary": dict.fromkeys(EVALUATIONS, 300)}
    run = facts({"forward": computing, "host": python}, steps=400, apart=passes)
    assert run.spill("epoch boundary").us == 0
    computing[list(EVALUATIONS)] += 2_000
    run = facts({"forward": computing, "host": python}, steps=400, apart=passes)
    counted = sum(step >= 40 for step in EVALUATIONS)
    assert run.spill("epoch boundary").us == pytest.approx(2_000 * counted)


def test_a_few_steps_or_the_hosts_clock_beside_a_gpu_tell_no_such_thing() -> None:
    times = np.full(100, 10_000.0)
    times[[50, 60, 70, 80]] += 5_000
    saves = dict.fromkeys([50, 60, 70, 80], 20_000)
    assert facts({"forward": times}, apart={"checkpoint": saves}).spill("checkpoint").us == 0
    times[90] += 5_000
    saves[90] = 20_000
    assert facts({"forward": times}, apart={"checkpoint": saves}).spill("checkpoint").us == 25_000
    run = facts({"forward": times}, apart={"checkpoint": saves}, readings=[SETUP, KERNELS])
    assert run.on_gpu
    assert run.spill("checkpoint").us == 0
    assert run.spill("evaluation").us == 0


def test_start_up_is_told_and_is_no_share() -> None:
    record = rank({"forward": 10_000}, steps=9, apart={"start-up": {0: 5_000_000}})
    run = facts_of(record)
    assert (run.warm_up_steps, run.start_up_us) == (0, 5_000_000)
    assert run.shares() == {"forward": 1.0, "unaccounted": 0.0}
    assert facts({"forward": 10_000}).start_up_us is None
    own = facts({"forward": 10_000}, apart={"pitstop": {50: 900_000}})
    assert own.shares() == {"forward": 1.0, "unaccounted": 0.0}, "our own cost is not the run's"


def test_a_profiled_step_counts_for_nothing_else() -> None:
    slow = np.full(100, 10_000.0)
    slow[70] = 5_000_000
    run = facts({"forward": slow}, readings=[SETUP, replace(KERNELS, step=70)])
    assert (run.steps, run.step_us) == (90, 10_000)


def test_readings_that_do_not_fit_are_counted_and_left_out() -> None:
    run = facts({"forward": 100}, readings=[raw("setup", device=5), raw("kernels"), KERNELS])
    assert run.setup is None
    assert run.busy_share() is not None
    assert run.readings.damaged == 2


def test_idle_and_busy_time_of_the_device_make_up_the_steps() -> None:
    run = facts(
        {"data": 4_000, "forward": 6_000},
        apart={"evaluation": {50: 100_000}},
        readings=[SETUP, replace(KERNELS, busy_us=7_000.0)],
    )
    assert run.steps_share == pytest.approx(0.9)
    assert run.busy_share() == pytest.approx(0.9 * 0.7)
    assert run.idle_share() == pytest.approx(0.9 * 0.3)
    waste, cost = run.waste("data"), run.of_busy("products", 0.9)
    assert waste is not None
    assert (waste.pool, waste.share) == (IDLE, pytest.approx(0.27))
    assert (cost.pool, cost.share) == (BUSY, pytest.approx(0.63))


# A part of backward: its name, time of its own, and the parts in it.
Tree = tuple[str, int, list["Tree"]]
trees: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(
        st.sampled_from(["stage1", "recompute", "recompute stage1", "recomputer"]),
        st.integers(1, 500),
        st.just([]),
    ),
    lambda inside: st.tuples(
        st.sampled_from(["stage1", "stage2", "recompute", "recompute stage2"]),
        st.integers(1, 500),
        st.lists(inside, max_size=3, unique_by=lambda tree: tree[0]),
    ),
    max_leaves=8,
)


def whole_us(tree: Tree) -> int:
    return tree[1] + sum(map(whole_us, tree[2]))


def again_us(tree: Tree) -> int:
    """The oracle goes down from the top and stops at what runs again."""
    name, _, inside = tree
    if name in ("recompute", "recompute stage1", "recompute stage2"):
        return whole_us(tree)
    return sum(map(again_us, inside))


def columns(tree: Tree, above: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    path = (*above, tree[0])
    found: dict[tuple[str, ...], float] = {path: whole_us(tree)}
    for inner in tree[2]:
        found |= columns(inner, path)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(trees, max_size=3, unique_by=lambda tree: tree[0]))
def test_what_runs_again_is_counted_once_however_deep_it_lies(inside: list[Tree]) -> None:
    """On either clock; the device here takes twice the host's time."""
    backward = columns(("backward", 10, inside), ())
    wanted_us = sum(map(again_us, inside))
    parts = {"forward": 5_000, ("forward", "recompute"): 900, **backward}
    marks = {path: 2 * us for path, us in backward.items()}
    run = facts(parts, steps=40, device=marks, unaccounted=20_000)
    if not wanted_us:
        assert run.recomputed is None
        return
    assert run.recomputed is not None
    assert run.recomputed.host_us == pytest.approx(36 * wanted_us)
    assert run.recomputed.device_share == pytest.approx(2 * wanted_us / run.wall_us[0])


AGAIN = ("backward", "stage1", "recompute")
OTHER = ("backward", "recompute")


def recomputed(marks: dict[tuple[str, ...], np.ndarray]) -> Recomputed:
    parts = {"backward": 9_000, ("backward", "stage1"): 5_000, AGAIN: 2_000, OTHER: 1_000}
    found = facts(parts, device={"backward": 9_000, **marks}, unaccounted=1_000).recomputed
    assert found is not None
    return found


def test_steps_without_all_their_marks_say_nothing_of_the_device() -> None:
    """A missing mark is not a time of zero: the share is that of the steps which have them all."""
    some = np.where(np.arange(100) % 4 == 0, 3_000.0, np.nan)
    fewer = np.where(np.arange(100) % 8 == 0, 1_000.0, np.nan)
    assert recomputed({AGAIN: some, OTHER: fewer}).device_share == pytest.approx(0.4)
    assert recomputed({AGAIN: some}).device_share is None
    few = np.where(np.arange(100) > 95, 3_000.0, np.nan)
    assert recomputed({AGAIN: few, OTHER: few}).device_share is None


def test_a_device_with_too_few_marks_is_still_a_device() -> None:
    few = np.where(np.arange(100) > 95, 9_000.0, np.nan)
    run = facts({"backward": 9_000}, device={"backward": few})
    assert run.device is None
    assert run.on_gpu
    assert run.cost("backward") is None
    assert not facts({"backward": 9_000}).on_gpu


@pytest.mark.parametrize("marked", [5, 44, 45, 46, 90])
def test_the_clock_of_a_step_does_not_hang_on_whether_half_of_them_are_marked(marked: int) -> None:
    """The device takes twice as long as the host, which runs ahead."""
    record = rank({"backward": 9_000}, device={"backward": 9_000})
    assert record.steps is not None
    device_wall_us = np.where(np.arange(100) < 10 + marked, 18_000.0, np.nan)
    table = replace(record.steps, device_wall_us=device_wall_us)
    assert facts_of(replace(record, steps=table)).step_us == 18_000
    few = replace(table, device_wall_us=np.where(np.arange(100) < 14, 18_000.0, np.nan))
    assert facts_of(replace(record, steps=few)).step_us == 9_000, "four tell nothing"


def test_what_lies_outside_steps_does_not_lengthen_them_by_the_clock_of_the_device() -> None:
    """On the device the pause between two marks is part of the step: it has no end of its own."""
    evaluations = {"evaluation": {30: 400_000, 60: 400_000, 90: 400_000}}
    record = rank({"backward": 9_000}, device={"backward": 5_000}, apart=evaluations)
    assert record.steps is not None
    walls = record.steps.wall_us + record.steps.outside_us
    run = facts_of(replace(record, steps=replace(record.steps, device_wall_us=walls)))
    assert run.step_us == 9_000
    assert run.device_share("backward") == pytest.approx(5 / 9 * run.steps_share)


def test_sampling_that_lengthens_steps_does_not_lengthen_those_that_were_not_sampled() -> None:
    """One step in eight is sampled, and a fifth longer; the device runs with the host."""
    is_sampled = np.arange(400) % 8 == 0
    walls = np.where(is_sampled, 12_000.0, 10_000.0)
    record = rank({"forward": walls}, steps=400, device={"forward": 5_000})
    assert record.steps is not None
    table = replace(
        record.steps,
        host_us=np.where(is_sampled[:, None], record.steps.host_us, np.nan),
        device_us=np.where(is_sampled[:, None], record.steps.device_us, np.nan),
        device_wall_us=np.where(is_sampled, walls * 1.01, np.nan),
    )
    run = facts_of(replace(record, steps=table))
    assert run.step_us == pytest.approx(run.wall_us.mean() * 1.01)


def test_where_every_step_holds_something_outside_the_clock_of_the_device_still_counts() -> None:
    handed_over = {"pitstop": dict.fromkeys(range(100), 1_000)}
    record = rank({"backward": 9_000}, device={"backward": 9_000}, apart=handed_over)
    assert record.steps is not None
    walls = record.steps.wall_us + 500
    run = facts_of(replace(record, steps=replace(record.steps, device_wall_us=walls)))
    assert run.step_us == 9_500
    assert run.device is not None


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.9))
@settings(max_examples=40, deadline=None)
def test_the_error_of_a_share_covers_what_other_steps_would_give(seed: int, share: float) -> None:
    """Halves of one run differ by a few of the stated errors and no more."""
    draws = np.random.default_rng(seed)
    data = draws.gamma(4, share * 10_000 / 4, 400)
    rest = draws.gamma(4, (1 - share) * 10_000 / 4, 400)
    whole = facts({"data": data, "forward": rest}, steps=400)
    halves = [
        facts({"data": data[half], "forward": rest[half]}, steps=200).share("data")
        for half in (slice(0, 200), slice(200, 400))
    ]
    assert halves[0] is not None
    assert halves[1] is not None
    assert abs(halves[0] - halves[1]) <= 5 * 2 * whole.share_error("data")
    assert whole.share_error("data") < 0.05
