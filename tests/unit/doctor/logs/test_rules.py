"""Rules about time: what they say of logs whose every number is known."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs.case import case_of
from pitstop.doctor.logs.rules import (
    EVENT_RULES,
    STEP_RULES,
    checkpoints,
    data_wait,
    epoch_starts,
    evaluations,
    gets_slower,
    slow_windows,
    start_up,
    unaccounted_time,
)
from pitstop.records.run import RunRecord
from pitstop.records.verdict import Finding
from tests.unit.doctor.log_tables import NAN, event, log_record

Rule = Callable[..., Finding | None]


def ask(rule: Rule, record: RunRecord) -> Finding | None:
    return rule(case_of(record.first, record.source))


def found(rule: Rule, record: RunRecord) -> Finding:
    finding = ask(rule, record)
    assert finding is not None
    return finding


def share(finding: Finding) -> float:
    assert finding.bound is not None
    return finding.bound.share


def test_a_log_that_waits_half_its_time_is_starved() -> None:
    finding = found(data_wait, log_record(0.6, data_s=0.3))
    assert (finding.code, finding.severity) == ("DATA001", "critical")
    assert share(finding) == 0.5
    assert "50.0% of 2,000 steps in 40 windows" in finding.evidence[0]
    assert (
        "wait 300 ms, IQR 300 ms to 300 ms (median of 40 windows; printed as window mean: "
        "data_time)" in finding.evidence
    )


@pytest.mark.parametrize(
    ("wait", "severity"), [(0.0999, None), (0.1, "warning"), (0.3, "critical")]
)
def test_a_tenth_is_a_warning_and_three_tenths_are_critical(
    wait: float, severity: str | None
) -> None:
    finding = ask(data_wait, log_record(1.0, data_s=wait))
    assert (None if finding is None else finding.severity) == severity


def test_a_log_without_data_times_is_not_blamed_for_waiting() -> None:
    assert ask(data_wait, log_record(1.0)) is None


def test_the_bound_on_waiting_is_of_the_run_where_other_things_take_time_as_well() -> None:
    record = log_record(1.0, data_s=0.5, events=[event("evaluation", 2000)])
    finding = found(data_wait, record)
    assert share(finding) == pytest.approx(0.25)
    assert any("25.0% of the run's 66 min 40 s" in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("rule", "name", "code"),
    [
        (evaluations, "evaluation", "EVAL001"),
        (checkpoints, "checkpoint", "CKPT001"),
        (epoch_starts, "epoch boundary", "DATA002"),
    ],
)
def test_what_takes_a_tenth_of_the_run_apart_is_reported(rule: Rule, name: str, code: str) -> None:
    assert ask(rule, log_record(1.0, events=[event(name, 200)])) is None
    finding = found(rule, log_record(1.0, events=[event(name, 200), event(name, 300)]))
    assert (finding.code, finding.severity) == (code, "warning")
    assert share(finding) == pytest.approx(0.2)
    assert finding.evidence[0].startswith(f"{name}, 2 times: 8 min 20 s = 20.0% of the run's 41 m")
    assert "printed as eval_runtime" in finding.evidence[1]


def test_a_single_event_is_no_rhythm_unless_the_training_is_over() -> None:
    events = [event("evaluation", 1000)]
    assert found(evaluations, log_record(1.0, events=events)).severity == "info"
    done = log_record(1.0, events=events, total_steps=2000)
    assert found(evaluations, done).severity == "critical"


def test_events_that_are_not_timed_make_the_share_a_least_one() -> None:
    events = [event("evaluation", 1000), event("evaluation", None)]
    assert (
        "1 more is not timed, so this is a lower bound"
        in found(evaluations, log_record(1.0, events=events)).evidence[0]
    )


def test_start_up_is_judged_over_the_whole_training() -> None:
    events = [event("start-up", 500)]
    short = ask(start_up, log_record(1.0, events=events, total_steps=100_000))
    assert short is None, "the start-up of a log's first steps is nothing in the end"
    done = found(start_up, log_record(1.0, events=events, total_steps=2000))
    assert (done.severity, done.bound) == ("warning", None)
    assert "20.0% of 41 min 40 s" in done.evidence[0]
    unknown = found(start_up, log_record(1.0, events=events))
    assert unknown.severity == "info", "how long it will run is not known"


def noisy(middle: float, rows: int, seed: int = 0) -> list[float]:
    return (middle * np.random.default_rng(seed).uniform(0.97, 1.03, rows)).tolist()


def test_a_jump_is_dated_and_measured() -> None:
    finding = found(gets_slower, log_record(noisy(0.5, 30) + noisy(0.8, 10, 1)))
    assert (finding.code, finding.severity) == ("DRIFT001", "warning")
    assert " from step 1,501 on, " in finding.evidence[0]
    assert "medians of 30 and 10 windows" in finding.evidence[0]
    assert share(finding) == pytest.approx(0.3 * 10 / (0.5 * 30 + 0.8 * 10), rel=0.1)


def test_a_jump_at_a_resume_says_so() -> None:
    record = log_record(noisy(0.5, 20) + noisy(0.8, 20), attempt=[0.0] * 20 + [1.0] * 20)
    assert "(where the run was resumed)" in found(gets_slower, record).evidence[0]


def test_a_slow_slope_is_told_from_a_jump() -> None:
    step_s = (np.linspace(0.5, 1.0, 60) * np.array(noisy(1.0, 60))).tolist()
    finding = found(gets_slower, log_record(step_s))
    assert "in the first third of the log" in finding.evidence[0]
    assert "grows with the run" in finding.remedy[0]
    # The level rises from 0.58 (median of the first third) to 1.0; the mean is 0.75.
    assert share(finding) == pytest.approx((0.75 - 0.583) / 0.75, abs=0.03)


def test_a_run_that_gets_faster_is_no_trouble() -> None:
    assert ask(gets_slower, log_record(noisy(0.8, 20) + noisy(0.5, 20))) is None


@pytest.mark.parametrize("change", [1.0, 1.05])
def test_less_than_a_tenth_is_no_drift(change: float) -> None:
    assert ask(gets_slower, log_record(noisy(0.5, 30) + noisy(0.5 * change, 30, 1))) is None


# Measured: 6 of 22,000 series, 0.03%; of the 2,000 that are drawn here, 2.
FALSE_ALARMS = 0.0025


@pytest.mark.slow
def test_noise_without_a_change_is_hardly_ever_a_drift() -> None:
    series, alarms = 2_000, 0
    for seed in range(series):
        rng = np.random.default_rng(seed)
        noise = rng.lognormal(0, 0.15, rng.integers(5, 201))
        alarms += ask(gets_slower, log_record(noise.tolist())) is not None
    assert alarms <= FALSE_ALARMS * series


def test_levels_that_overlap_widely_are_no_drift() -> None:
    rng = np.random.default_rng(1)
    step_s = np.concatenate([rng.uniform(0.5, 1.5, 100), rng.uniform(0.65, 1.75, 100)])
    assert np.median(step_s[100:]) > 1.1 * np.median(step_s[:100])
    assert ask(gets_slower, log_record(step_s.tolist())) is None


def test_a_slower_step_says_whether_the_wait_grew() -> None:
    record = log_record(noisy(0.5, 20) + noisy(0.8, 20), data_s=[0.01] * 20 + [0.31] * 20)
    assert "the wait for data in it went from 10.0 ms to 310 ms (medians)" in (
        found(gets_slower, record).evidence
    )


def test_single_slow_windows_are_added_up() -> None:
    step_s = [0.5] * 40
    step_s[7], step_s[23] = 1.5, 2.5
    finding = found(slow_windows, log_record(step_s))
    assert finding.code == "DRIFT002"
    assert share(finding) == pytest.approx((1.0 + 2.0) / sum(step_s))
    assert finding.evidence[0].startswith("2 of 40 windows took more than 1.5 times the median")
    assert "from step 1,151: 2.50 s a step, 5.0 times the usual" in finding.evidence[1]


def test_what_is_wait_for_data_is_bounded_there_and_not_twice() -> None:
    step_s, data_s = [0.5] * 40, [0.1] * 40
    for row, waited in ((7, 0.4), (23, 2.0)):
        step_s[row], data_s[row] = 2.5, 0.1 + waited
    record = log_record(step_s, data_s=data_s)
    spikes = found(slow_windows, record)
    assert spikes.evidence[-1] == "60.0% of that is wait for data"
    assert share(spikes) == pytest.approx((4.0 - 2.4) / sum(step_s))
    assert share(found(data_wait, record)) == pytest.approx(sum(data_s) / sum(step_s))
    slower = log_record([0.5] * 20 + [0.8] * 20, data_s=[0.1] * 20 + [0.3] * 20)
    assert share(found(gets_slower, slower)) == pytest.approx((0.3 - 0.2) * 20 / (1.3 * 20))


def test_drift_and_slow_windows_never_claim_the_same_time() -> None:
    step_s = noisy(0.5, 30) + noisy(1.0, 30, 1)
    step_s[10] = step_s[50] = 20.0
    record = log_record(step_s)
    drift, spikes = found(gets_slower, record), found(slow_windows, record)
    usual = 0.5 * 60
    assert share(drift) + share(spikes) == pytest.approx(1 - usual / sum(step_s), abs=0.02)


def test_one_slow_window_is_no_pattern() -> None:
    assert ask(slow_windows, log_record([0.5] * 20 + [5.0] + [0.5] * 20)) is None
    long = found(slow_windows, log_record([0.5] * 20 + [50.0] + [0.5] * 20))
    assert long.severity == "info", "but a fifth of the run in one record is said"


def test_time_in_no_record_is_said_and_promises_nothing() -> None:
    record = log_record([1.0] * 9 + [9.0], kind=["train"] * 9 + ["after eval"], clock=True)
    finding = found(unaccounted_time, record)
    assert (finding.code, finding.bound) == ("TIME001", None)
    assert finding.evidence[0].startswith("44.4% of the run's 15 min 00 s (first timestamp")


values = st.lists(st.floats(0.01, 100) | st.sampled_from([NAN, 0.0]), min_size=0, max_size=30)


@given(values, st.floats(0, 50) | st.just(NAN), st.lists(st.floats(0, 1e5), max_size=4))
def test_no_log_makes_a_rule_fail_or_bound_more_than_everything(
    step_s: list[float], data_s: float, events: list[float]
) -> None:
    names = ("evaluation", "checkpoint", "start-up", "epoch boundary")
    apart = [event(name, wall_s) for name, wall_s in zip(names, events, strict=False)]
    for clock in (False, True):
        record = log_record(step_s, data_s=data_s, events=apart, clock=clock, total_steps=999)
        case = case_of(record.first, record.source)
        for rule in (*STEP_RULES, *EVENT_RULES):
            finding = rule(case)
            assert finding is None or finding.bound is None or 0 <= finding.bound.share <= 1
            assert finding is None or "nan" not in " ".join(finding.evidence)
