"""Two runs compared: what differs beyond noise, and what may not be compared at all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.compare import compare
from pitstop.doctor.facts import facts_of
from pitstop.errors import RecordError
from pitstop.records.comparison import Comparison
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.store import from_json, to_json
from tests.unit.doctor.records import ON_CPU, SETUP, WORK, load, noisy, rank, run_of


def run(seed: int, *, forward_us: float = 8_000, steps: int = 200, **rest: object) -> RunRecord:
    parts = {
        "data": noisy(2_000, steps, seed, spread=0.3),
        "forward": noisy(forward_us, steps, seed + 1_000, spread=0.1),
    }
    return run_of(rank(parts, steps=steps, **rest), source=f"run {seed}")  # type: ignore[arg-type]


def test_a_slower_run_is_slower_in_the_part_that_grew() -> None:
    got = compare(run(1), run(2, forward_us=10_000))
    assert got.change == "slower"
    assert got.step is not None
    assert got.step.value == pytest.approx(1.2, rel=0.03)
    assert got.step.low <= 1.2 <= got.step.high
    assert [part.part for part in got.parts if part.beyond_noise] == ["forward"]
    assert got.parts[0].part == "forward"
    assert "1.2" in got.message
    back = compare(run(2, forward_us=10_000), run(1))
    assert back.change == "faster"


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_runs_of_the_same_program_are_not_told_apart(seed: int) -> None:
    got = compare(run(seed), run(seed + 500_000))
    assert got.change == "no difference beyond noise"


def test_drift_inside_the_runs_widens_the_interval() -> None:
    drift = np.linspace(0.8, 1.2, 200)
    flat = compare(run(1), run(2)).step
    parts = {
        "data": noisy(2_000, 200, 3, spread=0.3) * drift,
        "forward": noisy(8_000, 200, 4, spread=0.1) * drift,
    }
    drifting = compare(run(1), run_of(rank(parts, steps=200))).step
    assert flat is not None
    assert drifting is not None
    assert drifting.high - drifting.low > 3 * (flat.high - flat.low)


def test_an_evaluation_that_takes_longer_makes_a_slower_run_of_equal_steps() -> None:
    def evaluated(us: int, seed: int) -> RunRecord:
        return run(seed, apart={"evaluation": dict.fromkeys(range(9, 200, 10), us)})

    got = compare(evaluated(10_000, 1), evaluated(60_000, 2))
    assert got.step is not None
    assert got.run is not None
    assert got.change == "slower"
    assert got.run.value == pytest.approx(16_000 / 11_000, rel=0.03)
    assert got.step.value == pytest.approx(1, rel=0.03)
    assert got.message.startswith("the run, time outside steps included,")
    assert got.parts[0].part == "evaluation"


def test_one_evaluation_more_among_few_is_noise() -> None:
    once = run(1, apart={"evaluation": {100: 300_000}})
    twice = run(2, apart={"evaluation": {60: 300_000, 160: 300_000}})
    assert compare(once, twice).change == "no difference beyond noise"
    assert compare(twice, once).change == "no difference beyond noise"


@pytest.mark.parametrize(("after_us", "change"), [(10_400, "no difference"), (10_600, "slower")])
def test_a_change_of_less_than_a_twentieth_is_not_told_from_another_run(
    after_us: int, change: str
) -> None:
    before = run_of(rank({"forward": 10_000}, steps=200))
    after = run_of(rank({"forward": after_us}, steps=200))
    assert compare(before, after).change.startswith(change)


def test_a_change_inside_the_runs_own_swing_is_noise() -> None:
    swing = np.linspace(0.5, 1.5, 200)
    before = run_of(rank({"forward": 10_000 * swing}, steps=200))
    after = run_of(rank({"forward": 10_800 * swing}, steps=200))
    got = compare(before, after)
    assert got.step is not None
    assert got.step.value == pytest.approx(1.08)
    assert got.change == "no difference beyond noise"


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({"samples": 4}, {"samples": 8}, "samples a step over all ranks is 4 in the first and 8"),
        ({"world": 1}, {"world": 2}, "samples a step over all ranks"),
        ({"readings": [SETUP]}, {"readings": [replace(SETUP, parameters=2)]}, "trained parameters"),
        ({"readings": [SETUP]}, {"readings": [replace(SETUP, models=("B",))]}, "model is Net"),
        ({"readings": [SETUP]}, {"readings": [replace(SETUP, autocast=None)]}, "number format"),
        ({"readings": [SETUP]}, {"readings": [ON_CPU]}, "number format"),
        ({"readings": [WORK]}, {"readings": [replace(WORK, flops=2 * 10**12)]}, "FLOPs"),
    ],
)
def test_unequal_work_is_refused(
    before: dict[str, object], after: dict[str, object], what: str
) -> None:
    with pytest.raises(RecordError, match=what):
        compare(run(1, **before), run(2, **after))  # type: ignore[arg-type]


def test_steps_that_were_all_looked_at_early_on_do_not_outweigh_the_later_ones() -> None:
    """The first 104 steps are sampled, then one of eight; from there on data comes late."""
    late = np.arange(400) >= 104
    parts = {"data": np.where(late, 3_000.0, 1_000.0), "forward": np.where(late, 7_000.0, 9_000.0)}
    whole = rank(parts, steps=400)
    assert whole.steps is not None
    sampled = ~late | (np.arange(400) % 8 == 3)
    host = np.where(sampled[:, None], whole.steps.host_us, np.nan)
    after = replace(whole, steps=replace(whole.steps, host_us=host))
    got = compare(run_of(rank({"data": 1_000, "forward": 9_000}, steps=400)), run_of(after))
    data = next(part for part in got.parts if part.part == "data")
    share = facts_of(after).share("data")
    assert share is not None
    assert data.after_s == pytest.approx(share * 10e-3)
    # Of 360 counted steps 64 are early ones; the mean of the sampled ones is 1.7 ms.
    assert data.after_s == pytest.approx((64 * 1e-3 + 296 * 3e-3) / 360, rel=0.01)
    assert data.low_s is not None
    assert data.high_s is not None
    assert data.after_s is not None
    assert data.low_s < data.after_s - 1e-3 < data.high_s
    assert data.beyond_noise


def test_parts_that_nobody_looked_at_are_not_known_and_what_lay_apart_is() -> None:
    whole = rank({"forward": 9_000}, steps=200, apart={"evaluation": {100: 900_000}})
    assert whole.steps is not None
    none = np.full_like(whole.steps.host_us, np.nan)
    unseen = replace(whole, steps=replace(whole.steps, host_us=none))
    got = {part.part: part for part in compare(run_of(whole), run_of(unseen)).parts}
    assert (got["forward"].before_s, got["forward"].after_s) == (9e-3, None)
    assert got["evaluation"].after_s == got["evaluation"].before_s == 5e-3
    assert "unaccounted" not in facts_of(unseen).shares()


def test_what_is_not_known_is_said_to_be_so() -> None:
    got = compare(run(1, readings=[SETUP]), run(2))
    assert got.same_work == ("samples a step over all ranks: 4",)
    assert "trained parameters" in got.not_checked
    close = replace(WORK, flops=int(1.01 * 10**12))
    assert compare(run(1, readings=[WORK]), run(2, readings=[close])).change != "slower"


def test_the_rate_is_that_of_all_ranks_on_the_wall_clock() -> None:
    def job(seed: int) -> RunRecord:
        ranks: list[RankRecord] = [
            rank({"forward": 10_000}, number=number, world=2) for number in range(2)
        ]
        return run_of(*ranks, source=str(seed))

    got = compare(job(1), job(2))
    assert got.before.samples_per_s == pytest.approx(800)


def test_too_few_steps_are_not_compared() -> None:
    got = compare(run(1, steps=10), run(2, steps=10, forward_us=80_000))
    assert (got.change, got.step, got.run) == ("not enough evidence", None, None)
    empty = run_of(rank({"forward": 10}, steps=0))
    assert compare(empty, run(1)).change == "not enough evidence"


def test_a_comparison_goes_through_json_and_back() -> None:
    got = compare(run(1), run(2, forward_us=10_000))
    assert from_json(to_json(got), Comparison) == got


def crowded(seed: int, forward_us: float, *, own: float, others: float) -> RunRecord:
    busy = load(tree_cpu_cores=own, host_cpu_cores=own + others, usable_cores=2.0)
    return run(seed, forward_us=forward_us, readings=[busy])


def test_a_change_that_a_crowded_host_may_have_made_is_no_evidence() -> None:
    alone = crowded(1, 8_000, own=1.0, others=0.0)
    slowed = crowded(2, 12_000, own=0.7, others=1.3)
    for got in (compare(alone, slowed), compare(slowed, alone)):
        assert got.change == "not enough evidence"
        assert "its own CPU time does not confirm it" in got.message
    assert "other processes use 1.3 of 2 cores" in got.notes[-1]


def test_a_run_that_computes_more_is_slower_on_a_crowded_host_too() -> None:
    before = crowded(1, 8_000, own=0.7, others=1.3)
    after = crowded(2, 12_000, own=0.7, others=1.3)
    assert compare(before, after).change == "slower"
    assert compare(after, before).change == "faster"


def test_the_ratio_is_that_of_the_times_shown_beside_it() -> None:
    steady, jumps = run(1), np.where(np.arange(200) < 60, 1_000.0, 9_000.0)
    uneven = run_of(rank({"data": 2_000.0, "forward": jumps}, steps=200))
    got = compare(steady, uneven)
    assert got.step is not None
    assert got.run is not None
    assert got.step.value == pytest.approx(got.after.step_s / got.before.step_s)
    assert got.run.value == pytest.approx(got.after.run_s / got.before.run_s)
