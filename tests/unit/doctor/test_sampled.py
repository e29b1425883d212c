"""From some of the steps to all: exact where it can be, fair and with an error elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.facts import facts_of
from pitstop.doctor.sampled import Sample, estimate, window_weights
from pitstop.records.run import RankRecord
from tests.unit.doctor.records import rank


def sampled(record: RankRecord, every: int = 10, seed: int = 0) -> RankRecord:
    """Forget the parts of all steps but one in so many, at a place drawn anew each time."""
    assert record.steps is not None
    count = len(record.steps)
    draws = np.random.default_rng(seed)
    kept = np.arange(0, count, every) + draws.integers(0, every, len(range(0, count, every)))
    host = np.full_like(record.steps.host_us, np.nan)
    kept = kept[kept < count]
    host[kept] = record.steps.host_us[kept]
    return replace(record, steps=replace(record.steps, host_us=host))


def sample_of(sampled: list[int], steps: int) -> Sample:
    rows = np.array(sampled)
    return Sample(rows=rows, weights=window_weights(rows, steps))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=80))
def test_where_all_were_looked_at_it_is_their_sum(times: list[int]) -> None:
    times_us = np.array(times, dtype=float)
    sample = sample_of(list(range(len(times))), len(times))
    assert estimate(times_us, sample, times_us * 2).total_us == sum(times)


@given(
    st.lists(st.tuples(st.integers(0, 10**5), st.integers(1, 10**5)), min_size=30, max_size=120),
    st.integers(2, 12),
)
def test_parts_of_the_sample_add_up_to_the_wall_clock_of_all(
    parts: list[tuple[int, int]], every: int
) -> None:
    first, second = (np.array(column, dtype=float) for column in zip(*parts, strict=True))
    wall_us = first + second
    sample = sample_of(list(range(0, len(parts), every)), len(parts))
    both = [estimate(times[sample.rows], sample, wall_us).total_us for times in (first, second)]
    assert sum(both) == pytest.approx(wall_us.sum(), rel=1e-9)


def test_a_part_that_was_not_looked_at_is_not_taken_for_nothing() -> None:
    whole = rank({"data": 250, "forward": 750}, steps=400)
    facts = facts_of(sampled(whole))
    assert facts.steps == 360
    assert len(facts.wall_us) == 360
    assert len(facts.parts_us["data"]) == len(facts.sampled) < 50
    assert facts.parts_us["data"].min() == 250
    assert facts.share("data") == pytest.approx(0.25)
    assert facts.shares()["unaccounted"] == pytest.approx(0)
    assert facts.mean_us(facts.parts_us["forward"]) == pytest.approx(750)


@pytest.mark.parametrize("every", [4, 6, 8, 10])
def test_what_lengthens_every_fifth_step_is_found_for_what_it_is(every: int) -> None:
    """The shares are those of all steps, whichever were sampled; so the error may be small."""
    log_us = np.where(np.arange(250) % 5 == 0, 3000.0, 0.0)
    draws = np.random.default_rng(1)
    whole = rank({"host": 50 + log_us, "forward": draws.normal(500, 20, 250)}, steps=250)
    expected = facts_of(whole).share("host")
    assert expected is not None
    for seed in range(20):
        facts = facts_of(sampled(whole, every, seed))
        assert facts.share("host") == pytest.approx(expected, abs=0.01)
        assert facts.share_error("host") < 0.05


def test_shares_are_right_on_average_and_within_their_errors() -> None:
    draws = np.random.default_rng(2)
    data_us = draws.gamma(2.0, 100, 300)
    whole = rank({"data": data_us, "forward": draws.normal(500, 50, 300)}, steps=300)
    expected = facts_of(whole).share("data")
    assert expected is not None
    runs = [facts_of(sampled(whole, 8, seed)) for seed in range(60)]
    misses = np.array([(run.share("data") or 0) - expected for run in runs])
    errors = np.array([run.share_error("data") for run in runs])
    assert abs(misses.mean()) < 3 * misses.std() / np.sqrt(60)
    assert np.mean(np.abs(misses) < 2 * errors) > 0.9


def test_pauses_that_no_look_met_leave_the_shares_in_doubt() -> None:
    log_us = np.zeros(250)
    log_us[75::50] = 30_000
    draws = np.random.default_rng(3)
    whole = rank({"host": log_us, "forward": draws.normal(500, 20, 250)}, steps=250)
    assert whole.steps is not None
    kept = np.flatnonzero((np.arange(250) % 8 == 3) & (log_us == 0))
    host = np.full_like(whole.steps.host_us, np.nan)
    host[kept] = whole.steps.host_us[kept]
    facts = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    assert facts_of(whole).share_error("forward") < 0.2
    # Four pauses of 30 ms in 225 steps of half a millisecond: half of the time.
    assert facts.share_error("forward") > 0.14


def test_stretches_that_were_looked_at_more_closely_count_no_more_than_others() -> None:
    """Where all were sampled each stands for itself, elsewhere for eight."""
    closely = np.arange(512) < 256
    data_us = np.where(closely, 900.0, 100.0)
    whole = rank({"data": data_us, "forward": 1000.0 - data_us}, steps=512)
    assert whole.steps is not None
    kept = closely | (np.arange(512) % 8 == 5)
    host = np.where(kept[:, None], whole.steps.host_us, np.nan)
    facts = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    assert facts.share("data") == pytest.approx(facts_of(whole).share("data"), abs=0.06)


def test_the_devices_clock_of_a_sample_stands_for_all_steps() -> None:
    """Steps grow from 10 to 30 ms: all of the first are sampled, of the others one in four."""
    # Fifty steps are warm-up; then four whole windows.
    closely = np.arange(640) < 50 + 4 * 64
    times = np.where(closely, 10_000.0, 30_000.0)
    whole = rank({"forward": times}, steps=640, device={"forward": 9_000.0})
    assert whole.steps is not None
    kept = closely | (np.arange(640) % 4 == 0)
    table = replace(
        whole.steps,
        host_us=np.where(kept[:, None], whole.steps.host_us, np.nan),
        device_wall_us=np.where(kept, whole.steps.device_wall_us, np.nan),
    )
    found = facts_of(replace(whole, steps=table)).device_step_us
    assert found == pytest.approx(facts_of(whole).device_step_us, rel=0.001)


def test_a_record_in_which_nobody_looked_at_any_step_has_no_parts() -> None:
    whole = rank({"data": 250, "forward": 750}, steps=100)
    assert whole.steps is not None
    host = np.full_like(whole.steps.host_us, np.nan)
    facts = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    assert facts.parts_us == {}
    assert facts.share("data") is None
    assert facts.steps == 90
    assert facts.step_us == 1000


def line_without(left_out: int | None, times: np.ndarray, walls: np.ndarray, to: float) -> float:
    """What a line through all sampled steps but one gives at some length, by another fit."""
    kept = np.arange(len(times)) != left_out
    slope, offset = np.polyfit(walls[kept], times[kept], 1)
    return float(offset + slope * to)


@given(st.integers(0, 10**6), st.integers(12, 40))
def test_the_error_is_how_far_the_estimate_moves_when_a_look_is_left_out(
    seed: int, count: int
) -> None:
    """The closed form against a loop that leaves out each step in turn and fits again."""
    draws = np.random.default_rng(seed)
    steps = 8 * count
    wall_us = 500 + draws.gamma(0.3, 2_000, steps)
    sampled = np.arange(0, steps, 8)
    wall_us[sampled[0]] = wall_us.max()  # so that no step is longer than the sampled ones
    times_us = draws.uniform(0, 1, count) * wall_us[sampled]
    sample = Sample(rows=sampled, weights=np.full(count, 8.0))
    found = estimate(times_us, sample, wall_us)
    walls, to = wall_us[sampled], float(wall_us.mean())
    assert found.total_us == pytest.approx(steps * line_without(None, times_us, walls, to))
    moved = steps * np.array([line_without(i, times_us, walls, to) for i in range(count)])
    missed = (count - 1) / count * float(((moved - moved.mean()) ** 2).sum())
    rest = times_us - times_us.sum() / walls.sum() * walls
    uneven = steps * float((rest**2).sum()) / (count - 1)
    assert found.error_us == pytest.approx(np.sqrt(missed * 7 / 8 + uneven), rel=1e-5)


def test_one_long_look_makes_no_verdict_on_the_part_it_fell_in() -> None:
    """Steps of 0.3 ms, some of which were interrupted for 4 ms; a look met a single one."""
    draws = np.random.default_rng(4)
    optimizer_us, backward_us = draws.normal(35, 2, 220), draws.normal(300, 10, 220)
    backward_us[[31, 66, 93, 127, 162, 198]] += 4_000
    optimizer_us[85] += 4_000
    whole = rank({"optimizer": optimizer_us, "backward": backward_us}, steps=220)
    assert whole.steps is not None
    host = np.full_like(whole.steps.host_us, np.nan)
    host[5::10] = whole.steps.host_us[5::10]
    facts = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    share = facts.share("optimizer")
    assert share is not None
    assert share > 0.3
    assert share - 2 * facts.share_error("optimizer") < 0.1


def test_a_line_that_hangs_on_one_look_is_not_drawn() -> None:
    """All other steps are equally long, so without that one nothing would tell a slope."""
    data_us = np.full(200, 100.0)
    data_us[[25, 70, 111, 163]] += 5_000
    whole = rank({"data": data_us, "forward": 900.0}, steps=200)
    assert whole.steps is not None
    host = np.full_like(whole.steps.host_us, np.nan)
    host[5::10] = whole.steps.host_us[5::10]
    facts = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    assert facts.shares()["data"] + facts.shares()["forward"] == pytest.approx(1)
    assert facts.share_error("data") > 0.1
