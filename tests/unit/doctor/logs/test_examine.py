"""Verdicts over whole logs: what decides, what is too little, and what adds up."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs import examine as log_examine
from pitstop.doctor.logs.examine import LOG_NAMES, examine_log
from pitstop.doctor.rules.catalogue import ENTRIES
from pitstop.errors import RecordError
from pitstop.records.logs.summary import LogExamination, Steady
from pitstop.records.store import from_json, to_json
from tests.unit.doctor.log_tables import NAN, event, log_record


def test_a_starved_log_is_a_bottleneck_with_its_bound() -> None:
    verdict = examine_log(log_record(0.5, data_s=0.2)).verdict
    assert (verdict.outcome, verdict.primary) == ("bottleneck", "DATA001")
    assert verdict.verdict == "input-bound"
    assert [gain.code for gain in verdict.cumulative_gains] == ["DATA001"]
    assert verdict.message == (
        "the training loop waits for data; fixing it makes the run up to 1.67x faster"
    )
    assert verdict.combined_bound is not None
    assert verdict.combined_bound.share == pytest.approx(0.4)
    assert verdict.steps == 2000


def test_healthy_says_that_the_log_shows_no_more() -> None:
    verdict = examine_log(log_record(0.5)).verdict
    assert verdict.outcome == "healthy"
    assert verdict.message.startswith("no bottleneck of 10% or more in this log")


@pytest.mark.parametrize(("rows", "outcome"), [(4, "not enough evidence"), (5, "healthy")])
def test_five_windows_are_needed(rows: int, outcome: str) -> None:
    verdict = examine_log(log_record(0.5, rows=rows)).verdict
    assert verdict.outcome == outcome
    if rows == 4:
        assert verdict.message == "4 timed records are too few to judge; 5 are needed"


def test_a_log_without_times_is_still_asked_for_its_losses() -> None:
    assert examine_log(log_record(NAN)).verdict.message == "the log does not time its steps"
    verdict = examine_log(log_record(NAN, scalars={"loss": [1.0, NAN]})).verdict
    assert (verdict.outcome, verdict.primary) == ("bottleneck", "NAN001")


def test_a_broken_loss_comes_before_any_question_of_speed() -> None:
    verdict = examine_log(log_record(0.5, data_s=0.4, scalars={"loss": [1.0, NAN]})).verdict
    assert [finding.code for finding in verdict.findings] == ["NAN001", "DATA001"]


def test_remarks_decide_nothing() -> None:
    verdict = examine_log(log_record(0.5, lr=1e-3)).verdict
    assert ([one.code for one in verdict.findings], verdict.outcome) == (["LR001"], "healthy")


def test_time_in_no_record_is_no_verdict_on_the_rest() -> None:
    record = log_record([1.0] * 9 + [9.0], kind=["train"] * 9 + ["after eval"], clock=True)
    assert examine_log(record).verdict.outcome == "not enough evidence"


def test_the_whole_training_is_reckoned_where_its_end_is_known() -> None:
    assert examine_log(log_record(3.6, total_steps=4000)).verdict.whole_run_hours == 4
    assert examine_log(log_record(3.6, total_steps=2000)).verdict.whole_run_hours == 2
    assert examine_log(log_record(3.6)).verdict.whole_run_hours is None


def test_every_code_of_a_log_has_a_name() -> None:
    rules = [*Path(log_examine.__file__).parent.glob("*.py")]
    codes = {code for path in rules for code in re.findall(r'"([A-Z]+\d{3})"', path.read_text())}
    assert {"DATA001", "DRIFT001", "BAR001"} <= codes
    assert codes <= LOG_NAMES.keys() | ENTRIES.keys()
    assert not LOG_NAMES.keys() & ENTRIES.keys()


def test_notes_are_said_once() -> None:
    record = log_record(0.5, notes={}, total_steps=9)
    windows = record.first.windows
    assert windows is not None
    log = dataclasses.replace(windows.log, notes=("no year",))
    rank = dataclasses.replace(
        record.first, notes=("no year",), windows=dataclasses.replace(windows, log=log)
    )
    record = dataclasses.replace(record, ranks=(rank,))
    assert examine_log(record).verdict.notes == ("no year",)


def test_a_measured_run_is_refused_with_its_name() -> None:
    record = log_record(0.5)
    rank = dataclasses.replace(record.first, windows=None)
    with pytest.raises(RecordError, match=r"train\.log is a measured run"):
        examine_log(dataclasses.replace(record, ranks=(rank,)))


seconds = st.floats(0.5, 1e4)


@given(st.floats(0.01, 5), st.floats(0, 1), seconds, seconds, seconds)
def test_bounds_of_one_log_never_promise_more_than_the_run_has(
    step_s: float, waiting: float, eval_s: float, save_s: float, boundary_s: float
) -> None:
    events = [
        event("evaluation", eval_s),
        event("checkpoint", save_s),
        event("epoch boundary", boundary_s),
    ]
    examined = examine_log(log_record(step_s, data_s=step_s * waiting, events=events))
    total = sum(one.bound.share for one in examined.verdict.findings if one.bound is not None)
    assert total <= 1 + 1e-9
    kept = examined.verdict.shares["rest of the steps"]
    assert total <= 1 - kept + 1e-9, "what remains are the steps without their waits"
    assert from_json(to_json(examined), LogExamination) == examined


@pytest.mark.parametrize("middle", [0.5, 2.5])
def test_quartiles_out_of_order_are_refused(middle: float) -> None:
    with pytest.raises(ValueError, match="not quartiles"):
        Steady(low=1, middle=middle, high=2, unit="s", windows=3, steps=None, formula="")
