"""How long a logged run took: from its clock, else from its parts; never counted twice."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs.case import LogCase, case_of
from pitstop.records.run import RunRecord
from tests.unit.doctor.log_tables import NAN, event, log_record


def case(record: RunRecord) -> LogCase:
    return case_of(record.first, record.source)


def test_steady_state_leaves_out_everything_but_plain_records() -> None:
    kinds = ["first", "train", "train", "after eval", "train", "after checkpoint", "train"]
    found = case(log_record([9, 1, 1, 7, 1, 5, 2], kind=kinds))
    assert found.log.step is not None
    assert (found.log.step.middle, found.log.step.windows) == (1, 4)
    assert found.log.step.steps == 200


def test_the_formula_says_what_the_median_is_of() -> None:
    step = case(log_record(0.76, rows=40)).log.step
    assert step is not None
    assert step.formula == "median of 40 windows; printed as window mean: time"


def test_epochs_are_taken_where_windows_are_not_timed_and_are_called_so() -> None:
    found = case(log_record([2.84, 2.8, 2.9], kind="epoch"))
    assert found.facts.basis == "epochs"
    assert found.log.step is not None
    assert found.log.step.formula.startswith("median of 3 means of epochs; ")


def test_a_log_without_times_has_no_step_and_says_so() -> None:
    found = case(log_record(NAN))
    assert (found.log.step, found.log.rate, found.log.eta, found.log.run_s) == (None,) * 4
    assert "time of a step" in found.log.gaps
    assert found.log.rate_gap == "the log does not time its steps"
    assert found.shares == {}


def test_the_clock_decides_where_there_is_one() -> None:
    found = case(log_record([1.0] * 9 + [3.0], kind=["train"] * 9 + ["after eval"], clock=True))
    assert found.log.run_s == 50 * 12
    assert found.time.train_s == 50 * 10
    assert found.shares["unaccounted"] == pytest.approx(2 / 12)


def test_without_a_clock_steps_and_timed_events_are_added() -> None:
    kinds = ["train"] * 9 + ["after eval"]
    record = log_record([1.0] * 9 + [3.0], kind=kinds, events=[event("evaluation", 100)])
    found = case(record)
    assert found.log.run_s == 50 * 10 + 100, "what the evaluation took is counted once"
    assert found.log.events["evaluation"].share == pytest.approx(1 / 6)


def test_a_break_between_two_attempts_is_no_time_of_the_run() -> None:
    record = log_record(1.0, rows=4, attempt=[0, 0, 1, 1], clock=True)
    windows = record.first.windows
    assert windows is not None
    windows.at_s[2:] += 1e6
    assert case(record).log.run_s == 200


def test_a_clock_set_back_loses_one_record_only() -> None:
    record = log_record(1.0, rows=10, clock=True)
    windows = record.first.windows
    assert windows is not None
    windows.at_s[5:] -= 3600
    assert case(record).log.run_s == 450


def test_start_up_is_no_part_of_the_shares() -> None:
    events = [event("start-up", 1000), event("evaluation", 500)]
    found = case(log_record(1.0, rows=10, events=events))
    assert found.log.start_up_s == 1000
    assert found.log.run_s == 2000
    assert found.shares == pytest.approx({"steps": 0.5, "evaluation": 0.5, "unaccounted": 0})
    assert found.log.events["start-up"].share == 0.5


def test_an_event_without_a_duration_is_counted_but_not_as_zero() -> None:
    found = case(log_record(1.0, events=[event("evaluation", None), event("evaluation", 10)]))
    total = found.log.events["evaluation"]
    assert (total.count, total.timed, total.total_s) == (2, 1, 10)
    untimed = case(log_record(1.0, events=[event("checkpoint", None)])).log.events["checkpoint"]
    assert (untimed.timed, untimed.share) == (0, None)


parts = st.lists(st.floats(0.01, 500), min_size=1, max_size=6)


@given(st.floats(0.01, 10), st.floats(0, 0.99), parts, st.booleans())
def test_shares_add_up_to_one_and_none_is_negative(
    step_s: float, waiting: float, eval_s: list[float], clock: bool
) -> None:
    events = [event("evaluation", s) for s in eval_s] + [event("start-up", eval_s[0])]
    found = case(log_record(step_s, data_s=step_s * waiting, events=events, clock=clock))
    assert sum(found.shares.values()) == pytest.approx(1) or not found.shares
    assert all(share >= 0 for share in found.shares.values())
    if found.shares and not clock:
        assert found.shares["data"] == pytest.approx(
            waiting * step_s * 2000 / (step_s * 2000 + sum(eval_s)), rel=1e-4, abs=1e-6
        )


def test_a_wait_longer_than_its_step_is_no_share_of_it() -> None:
    found = case(log_record(0.1, data_s=0.5))
    assert found.log.data_share is None
    assert found.log.data_wait is not None


def test_what_is_left_is_reckoned_from_the_recent_pace() -> None:
    eta = case(log_record([1.0] * 20 + [2.0] * 10, total_steps=2500)).log.eta
    assert eta is not None
    assert (eta.steps, eta.seconds.value, eta.trend) == (1000, 2000, 2.0)
    assert eta.seconds.error == 1000, "the whole log's median says half of it"
    assert eta.formula == "1,000 steps x 2.00 s (median of the last 10 windows)"


def test_recurring_events_are_part_of_what_is_left() -> None:
    eta = case(log_record(1.0, total_steps=4000, events=[event("evaluation", 500)])).log.eta
    assert eta is not None
    assert eta.seconds.value == 2500
    assert eta.seconds.error == 500, "one evaluation more or less"
    assert "25.0% for evaluations" in eta.formula


def test_an_estimate_is_never_shown_as_exact() -> None:
    eta = case(log_record(1.0, total_steps=4000)).log.eta
    assert eta is not None
    assert eta.seconds.error == 20


@pytest.mark.parametrize("total", [None, 2000, 2049, 1500])
def test_nothing_is_left_of_a_run_at_its_end_or_without_one(total: int | None) -> None:
    assert case(log_record(1.0, total_steps=total)).log.eta is None


def test_the_length_of_a_training_is_worked_out_where_the_log_tells_its_parts() -> None:
    epochs = case(log_record(1.0, steps_per_epoch=500, total_epochs=10))
    assert epochs.log.total_steps == 5000
    bar = case(log_record(1.0, steps_per_epoch=200_000))
    assert bar.log.total_steps == 200_000, "a single bar is the whole of it"
    resumed = log_record(1.0, steps_per_epoch=200_000, attempt=[0.0] * 20 + [1.0] * 20)
    assert case(resumed).log.total_steps is None


def test_a_total_that_the_steps_have_passed_is_not_that_of_the_training() -> None:
    assert case(log_record(1.0, total_steps=186)).log.total_steps is None


def test_samples_a_second_count_all_ranks_where_their_number_is_known() -> None:
    alone = case(log_record(0.5, batch_size=4)).log.rate
    four = case(log_record(0.5, batch_size=4, world_size=4)).log.rate
    assert alone is not None
    assert four is not None
    assert (alone.middle, four.middle) == (8, 32)
    assert "of one rank: the number of ranks is not in the log" in alone.formula
    assert four.formula == "4 samples x 4 ranks / 500 ms a step"


def test_printed_samples_a_second_are_used_where_the_batch_is_not_known() -> None:
    rate = case(log_record(0.5, samples_per_s=40.7)).log.rate
    assert rate is not None
    assert (rate.middle, rate.unit) == (40.7, "samples/s")
    assert rate.formula == "median of 40 windows; printed as window mean: Speed"


def test_a_printed_rate_is_better_than_one_computed_from_means_of_epochs() -> None:
    rate = case(log_record(0.5, rows=4, kind="epoch", batch_size=4, samples_per_s=7.5)).log.rate
    assert rate is not None
    assert rate.middle == 7.5


def test_without_batch_and_print_samples_a_second_are_not_known() -> None:
    log = case(log_record(0.5)).log
    assert log.rate is None
    assert log.rate_gap == "give --batch-size: samples of one optimizer step on one rank"


def test_the_spread_of_a_rate_is_that_of_the_steps_turned_round() -> None:
    step_s = np.linspace(0.4, 0.6, 41).tolist()
    log = case(log_record(step_s, batch_size=6)).log
    assert log.step is not None
    assert log.rate is not None
    assert math.isclose(log.rate.low, 6 / log.step.high)
    assert math.isclose(log.rate.high, 6 / log.step.low)
