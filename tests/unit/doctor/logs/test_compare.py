"""Logs side by side: samples against samples, and nothing against what it is not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs.compare import compare_logs
from pitstop.records.logs.comparison import LogComparison, LogPair
from pitstop.records.logs.windows import ColumnNote, Meaning
from pitstop.records.run import RunRecord
from pitstop.records.store import from_json, to_json
from tests.unit.doctor.log_tables import NAN, event, log_record


def pair(first: RunRecord, other: RunRecord) -> LogPair:
    [found] = compare_logs([first, other]).pairs
    return found


def test_the_guides_batch_8_is_2_3_percent_slower_and_not_51() -> None:
    batch_4 = log_record(1 / 7.45, batch_size=4, source="batch4.log")
    batch_8 = log_record(1 / 3.64, batch_size=8, source="batch8.log")
    found = pair(batch_4, batch_8)
    assert found.result == "no difference beyond noise"
    assert found.ratio == pytest.approx(29.12 / 29.80)
    assert found.message == (
        "29.1 samples/s against 29.8 samples/s: 2.3% slower, within the usual difference of two "
        "runs of one program"
    )
    assert found.step_ratio == pytest.approx(3.64 / 7.45)
    assert found.notes == (
        "in steps/s it would seem 51.1% slower: a step has 8 samples here, 4 in batch4.log",
        "batch size: 4 in batch4.log, 8 in batch8.log",
    )


def test_steps_a_second_are_not_held_against_samples_a_second() -> None:
    found = pair(log_record(0.1, source="a"), log_record(0.2, batch_size=8, source="b"))
    assert (found.result, found.ratio) == ("not comparable", None)
    assert found.message.startswith("the batch size of a is not known: give --batch-size")
    assert found.step_ratio == pytest.approx(0.5)


def test_two_logs_without_batch_sizes_are_refused_as_well() -> None:
    found = pair(log_record(0.1, source="a"), log_record(0.2, source="b"))
    assert found.result == "not comparable"
    assert "the batch size of a" in found.message
    assert "the batch size of b" in found.message


def test_a_log_without_times_is_refused_with_its_name() -> None:
    found = pair(log_record(0.1, batch_size=4), log_record(NAN, batch_size=4, source="csv"))
    assert found.message.startswith("csv: the log does not time its steps")


def test_means_over_epochs_are_not_held_against_steady_windows() -> None:
    epochs = log_record(0.5, rows=5, kind="epoch", batch_size=4, source="epochs")
    found = pair(log_record(0.5, batch_size=4), epochs)
    assert found.result == "not comparable"
    assert "epochs times whole epochs only" in found.message


def printed(rate: float, meaning: Meaning, tool: str = "timm") -> RunRecord:
    notes = {"samples_per_s": ColumnNote(meaning=meaning, source="printed", formula="Speed")}
    return log_record(0.5, samples_per_s=rate, notes=notes, format=tool)


def test_samples_a_second_of_two_tools_are_not_held_against_each_other() -> None:
    one, other = printed(40, "last step"), printed(80, "last step", "TransReID family")
    found = pair(one, other)
    assert found.result == "not comparable"
    assert "train.log (TransReID family, last step)" in found.message, "one counts all ranks"


def test_steps_that_took_no_time_give_no_rate() -> None:
    found = pair(log_record(0.5, batch_size=4), log_record(0.0, batch_size=4, source="zero"))
    assert found.message.startswith("zero has steps of 0 s")


def test_printed_rates_compare_only_in_one_meaning() -> None:
    assert pair(printed(40, "per epoch"), printed(44, "per epoch")).ratio == pytest.approx(1.1)
    assert pair(printed(40, "window mean"), printed(44, "last step")).result == "faster"
    unlike = pair(printed(40, "per epoch"), printed(44, "window mean"))
    assert unlike.result == "not comparable"
    assert "may not mean the same" in unlike.message
    assert pair(printed(40, "not known"), printed(44, "not known")).result == "not comparable"


def test_ranks_count_where_both_logs_tell_them() -> None:
    one = log_record(0.5, batch_size=4, world_size=1)
    eight = log_record(0.5, batch_size=4, world_size=8)
    found = pair(one, eight)
    assert (found.ratio, found.basis) == (8, "samples/s of all ranks")
    unknown = pair(eight, log_record(0.5, batch_size=4))
    assert unknown.ratio == 1
    assert unknown.basis == "samples/s of one rank; not every log gives the number of ranks"


def test_three_figures_for_one_baseline_are_one_speed_by_its_steps() -> None:
    texts = {"first.log": 1.2, "second.log": 0.5, "third.log": 0.4}
    logs = [
        log_record(6.0, batch_size=1, world_size=3, samples_per_s=rate, source=source)
        for source, rate in texts.items()
    ]
    found = compare_logs(logs).pairs
    assert [one.ratio for one in found] == [1, 1]
    assert all(one.result == "no difference beyond noise" for one in found)
    assert all("0.500 samples/s against 0.500 samples/s" in one.message for one in found)


def test_a_difference_within_the_spread_is_none() -> None:
    rng = np.random.default_rng(0)
    noisy = [(0.5 * rng.uniform(0.9, 1.1, 60)).tolist() for _ in range(2)]
    first, other = (log_record(times, batch_size=4) for times in noisy)
    found = pair(first, other)
    assert found.result == "no difference beyond noise"
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.high


def test_the_ratios_spread_is_what_the_middle_halves_allow() -> None:
    first = log_record([0.8, 0.9, 1.0, 1.1, 1.2] * 4, batch_size=1)
    other = log_record([1.6, 1.8, 2.0, 2.2, 2.4] * 4, batch_size=1)
    found = pair(first, other)
    assert (found.ratio, found.result) == (0.5, "slower")
    assert found.low == pytest.approx(0.9 / 2.2)
    assert found.high == pytest.approx(1.1 / 1.8)


def test_warm_up_and_evaluation_do_not_count() -> None:
    plain = log_record(0.5, rows=10, batch_size=4)
    kinds = ["first", *["train"] * 8, "after eval"]
    slow_start = log_record([60.0] + [0.5] * 8 + [30.0], kind=kinds, batch_size=4)
    assert pair(plain, slow_start).ratio == 1


def test_settings_that_differ_are_named_and_results_are_no_settings() -> None:
    first = log_record(batch_size=4, workers=8, settings={"fp16": "off", "train_runtime": "1"})
    other = log_record(batch_size=4, workers=12, settings={"fp16": "on", "train_runtime": "2"})
    assert pair(first, other).notes == (
        "workers: 8 in train.log, 12 in train.log",
        "settings that differ: fp16 off / on",
    )


def test_many_logs_are_each_compared_with_the_first() -> None:
    comparison = compare_logs([log_record(s, batch_size=4, source=f"{s}") for s in (1, 2, 0.5)])
    assert [found.result for found in comparison.pairs] == ["slower", "faster"]
    assert [one.summary.source for one in comparison.logs] == ["1", "2", "0.5"]


def test_a_comparison_goes_through_json_and_back() -> None:
    records = [log_record(0.5, batch_size=4, events=[event("evaluation", 9)]), log_record(0.6)]
    comparison = compare_logs(records)
    assert from_json(to_json(comparison), LogComparison) == comparison


@pytest.mark.parametrize(
    ("times", "result"),
    [(1.1, "slower"), (1.04, "no difference beyond noise"), (0.9, "faster")],
)
def test_a_twentieth_is_the_least_that_counts(times: float, result: str) -> None:
    assert pair(log_record(1.0, batch_size=1), log_record(times, batch_size=1)).result == result


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 512), st.integers(1, 512))
def test_swapping_two_logs_turns_the_ratio_round(a_s: float, b_s: float, a: int, b: int) -> None:
    first, other = log_record(a_s, batch_size=a), log_record(b_s, batch_size=b)
    there, back = pair(first, other), pair(other, first)
    assert there.ratio is not None
    assert back.ratio is not None
    assert math.isclose(there.ratio * back.ratio, 1)
    assert math.isclose(there.ratio, (b / b_s) / (a / a_s))
    opposite = {"faster": "slower", "slower": "faster"}
    if abs(math.log(there.ratio)) > 0.06:
        assert opposite[there.result] == back.result
