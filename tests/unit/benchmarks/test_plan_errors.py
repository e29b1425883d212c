"""What is made of predictions and measurements: errors, verdicts, the order of step times."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.plan_errors import RESULTS, compared, kendall_tau, step_intervals

from pitstop.plan import calibration, speed


def plan(name: str, **values: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "config": "some.yaml",
        "overrides": [],
        "cap_gib": 24,
        "neighbour": None,
        "peak_gib": 10.0,
        "fixed_gib": 2.0,
        "reserved_gib": 11.0,
        "step_ms": 100.0,
        "fit": "fits",
    }
    return {**usual, **values}


def ran(name: str, peak_gib: float, step_ms: float, outcome: str = "ran") -> dict[str, Any]:
    return {"name": name, "outcome": outcome, "peak_gib": peak_gib, "step_ms": step_ms}


def test_a_plan_below_what_was_measured_has_a_negative_error() -> None:
    [row] = compared([plan("one")], [ran("one", 12.5, 80.0)])["rows"]
    assert row["peak_error"] == pytest.approx(-0.2)
    assert row["step_error"] == pytest.approx(0.25)


def test_a_neighbour_corrects_what_belongs_to_samples() -> None:
    plans = [plan("small"), plan("large", peak_gib=18.0, step_ms=200.0, neighbour="small")]
    # 8 GiB of samples were 6: a factor of 0.75 on the 16 of the larger one.
    found = compared(plans, [ran("small", 8.0, 120.0), ran("large", 14.0, 240.0)])
    large = found["rows"][1]
    assert large["calibrated_peak_gib"] == pytest.approx(14.0)
    assert large["calibrated_peak_error"] == pytest.approx(0.0)
    assert large["calibrated_step_ms"] == pytest.approx(240.0)
    assert found["summary"]["peak_calibrated"]["cases"] == 1


def test_verdicts_count_outside_the_band_alone() -> None:
    plans = [
        plan("fits"),
        plan("too large", peak_gib=30.0, fit="does not fit"),
        plan("close", peak_gib=24.5, fit="too close"),
        plan("said to fit", peak_gib=20.0),
    ]
    seen = [
        ran("fits", 10.0, 1.0),
        {"name": "too large", "outcome": "out of memory"},
        ran("close", 24.0, 1.0, outcome="out of memory"),
        ran("said to fit", 25.0, 1.0, outcome="out of memory"),
    ]
    found = compared(plans, seen)
    assert [row["verdict_right"] for row in found["rows"]] == [True, True, None, False]
    assert found["summary"]["verdicts_right"] == [2, 3]
    assert found["summary"]["did_not_fit"] == 3
    assert "peak_error" not in found["rows"][1]


def test_cases_that_were_not_run_are_left_out() -> None:
    found = compared([plan("one"), plan("not begun")], [ran("one", 10.0, 100.0)])
    assert found["summary"]["cases"] == 1


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 30), (2, 20), (3, 10)], -1.0),
        ([(1, 10), (2, 30), (3, 20)], 1 / 3),
        ([(1, 10)], None),
    ],
)
def test_the_order_of_steps_is_judged_by_pairs(
    pairs: list[tuple[float, float]], tau: float | None
) -> None:
    assert kendall_tau(pairs) == (None if tau is None else pytest.approx(tau))


def test_what_had_been_measured_before_counts_in_no_sum() -> None:
    plans = [
        plan("known", step_ms=50.0, measured_before=True),
        plan("new", step_ms=200.0, neighbour="known"),
    ]
    found = compared(plans, [ran("known", 10.0, 100.0), ran("new", 10.0, 500.0)])
    assert [row.get("measured_before") for row in found["rows"]] == [True, None]
    assert found["summary"]["cases"] == 1
    assert found["summary"]["step_blind"]["lowest"] == pytest.approx(-0.6)
    # Its run corrects others nevertheless.
    assert found["summary"]["step_calibrated"]["highest"] == pytest.approx(-0.2)


def test_a_watched_neighbour_says_which_side_took_its_time() -> None:
    # Planned as the host's. The driver says 80 %, a profile 90: kernels took 80 or 90 ms.
    sides = {"launch_ms": 100.0, "device_ms": 50.0}
    plans = [
        plan("small", **sides),
        plan("large", neighbour="small", launch_ms=100.0, device_ms=100.0),
    ]
    base = ran("small", 10.0, 100.0) | {"busy_share": 0.8, "kernels_ms": 90.0}
    [_, large] = compared(plans, [base, ran("large", 10.0, 200.0)])["rows"]
    # 20 ms were idle, and no batch changes that.
    assert large["calibrated_step_ms"] == pytest.approx(180.0)
    assert large["calibrated_step_error"] == pytest.approx(-0.1)
    assert large["calibrated_step_error_by_kernels"] == pytest.approx(-0.05)
    # Nobody looked: the side that was planned as the longer one took the time, as planned.
    assert large["calibrated_step_error_unwatched"] == pytest.approx(-0.5)


def test_other_ways_to_calibrate_are_summed_up_where_a_neighbour_was_watched() -> None:
    plans = [plan("small"), plan("large", step_ms=200.0, neighbour="small")]
    unwatched = compared(plans, [ran("small", 10.0, 100.0), ran("large", 10.0, 200.0)])
    assert "step_calibrated_unwatched" not in unwatched["summary"]
    base = ran("small", 10.0, 100.0) | {"busy_share": None, "kernels_ms": None}
    watched = compared(plans, [base, ran("large", 10.0, 200.0)])
    assert watched["summary"]["step_calibrated_unwatched"]["cases"] == 1
    assert "step_calibrated_by_kernels" not in watched["summary"]


def test_intervals_are_the_extremes_of_the_newest_blind_run_and_of_steps_left_out(
    tmp_path: Path,
) -> None:
    def wrote(name: str, rows: list[dict[str, Any]]) -> None:
        (tmp_path / name).write_text(json.dumps({"rows": rows}))

    first = {"peak_error": 0.0, "step_error": -0.6, "calibrated_step_error": 1.0}
    wrote("plan.json", [first])
    # Half of what was planned, which is exactly a tenth; 1.25 times as long.
    wrote("plan_steps.json", [{"error": 1.0}, {"error": -0.2, "neighbour_error": -0.2}])
    assert step_intervals(tmp_path) == {"planned": (0.5, 2.5), "corrected": (0.5, 1.3)}
    second = {"peak_error": 0.0, "step_error": -0.35, "calibrated_step_error": 0.05}
    known = {"measured_before": True, "peak_error": 0.0, "step_error": 9.0}
    wrote("plan_second.json", [second, known])
    assert step_intervals(tmp_path) == {"planned": (0.5, 1.6), "corrected": (0.9, 1.3)}
    wrote("plan_third.json", [{**second, "step_error": -0.5}])
    assert step_intervals(tmp_path) == {"planned": (0.5, 2.0), "corrected": (0.9, 1.3)}
    # By the formula of the third, so both count.
    wrote("plan_fourth.json", [{**second, "calibrated_step_error": 0.25}])
    assert step_intervals(tmp_path) == {"planned": (0.5, 2.0), "corrected": (0.8, 1.3)}


def test_plans_show_the_intervals_that_the_results_support() -> None:
    supported = step_intervals(RESULTS)
    assert supported["planned"] == (speed.LOW, speed.HIGH)
    assert supported["corrected"] == (calibration.STEP_LOW, calibration.STEP_HIGH)
