"""How far plans were off: predictions made beforehand against what a GPU then showed.

    python benchmarks/plan_errors.py --predicted PREDICTED.json --measured MEASURED.json \
        --output benchmarks/results/plan.json [--again PREDICTED_LATER.json]

Errors are planned / measured - 1: below zero a plan promised too much. A case that names a
neighbour is also planned with that neighbour's run as its calibration, as `pitstop plan
--calibrate` would do it. Plans of the first two trials added launches to kernels; their step times
are multiplied by that neighbour's measured over planned, as was done then. From the third on a
step is corrected by the side that took its neighbour's time, and how busy the GPU was in it is what
the driver said, where it did so often enough: that is the result of the trial. Two other ways were
fixed with it, stand beside it and decide nothing: without what the driver said, and by the kernels
of one profiled step. A verdict counts where the planned peak is not within 5 % of the cap.
`--again` are plans of the same cases by later code, which knew the measurements: kept apart. Cases
that had been measured before have a row with their errors, and count in no sum.

The intervals of step times that plans show follow from what is written here and by `plan_steps.py`:

    python benchmarks/plan_errors.py --intervals
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pitstop.plan.calibration import pace_factors
from pitstop.plan.memory import CLOSE

RESULTS = Path(__file__).parent / "results"
SEEN_AS = {"fits": "ran", "does not fit": "out of memory"}
FORMULAS = (("plan_fourth.json", "plan_third.json"), ("plan_second.json",), ("plan.json",))
"""Results by the formula of their plans, the newest first."""

Row = dict[str, Any]


def main() -> None:
    """Compare two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", action="store_true", help="Say what results support.")
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.intervals:
        print(json.dumps(step_intervals(RESULTS)))
        return
    predicted = json.loads(options.predicted.read_text())
    measured = json.loads(options.measured.read_text())
    report = {
        "what": "peak memory and step time, predicted beforehand and measured; blank batches",
        **{key: value for key, value in measured.items() if key not in {"what", "rows"}},
        **compared(predicted["rows"], measured["rows"]),
    }
    if options.again is not None:
        later = json.loads(options.again.read_text())
        report["after_the_fact"] = compared(later["rows"], measured["rows"])
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["summary"], indent=2))


def compared(predicted: Sequence[Row], measured: Sequence[Row]) -> dict[str, Any]:
    """Give every case that was run with its errors, and what they come to."""
    seen = {row["name"]: row for row in measured}
    plans = {row["name"]: row for row in predicted if row["name"] in seen}
    rows = [with_errors(plan, seen, plans) for plan in plans.values()]
    return {"summary": summary(rows), "rows": rows}


def with_errors(plan: Row, seen: Mapping[str, Row], plans: Mapping[str, Row]) -> Row:
    """Put a plan beside what was measured."""
    was = seen[plan["name"]]
    close = abs(plan["peak_gib"] / plan["cap_gib"] - 1) <= CLOSE
    row: Row = {
        **{key: plan[key] for key in ("name", "config", "overrides", "cap_gib", "neighbour")},
        "planned_peak_gib": plan["peak_gib"],
        "planned_reserved_gib": plan["reserved_gib"],
        "planned_step_ms": plan["step_ms"],
        "verdict": plan["fit"],
        "outcome": was["outcome"],
        "verdict_right": None if close else SEEN_AS.get(plan["fit"]) == was["outcome"],
        "measured": {k: v for k, v in was.items() if k not in {"name", "outcome"}},
    }
    if plan.get("measured_before"):
        row["measured_before"] = True
    if "peak_gib" not in was:
        return row
    row["peak_error"] = plan["peak_gib"] / was["peak_gib"] - 1
    row["step_error"] = plan["step_ms"] / was["step_ms"] - 1
    neighbour = plan["neighbour"]
    if neighbour in plans and "peak_gib" in seen[neighbour]:
        row |= calibrated(plan, was, plans[neighbour], seen[neighbour])
    return row


def calibrated(plan: Row, was: Row, neighbour: Row, neighbour_was: Row) -> Row:
    """Plan again with a neighbour's run at hand."""
    peak_gib = corrected_peak_gib(plan, neighbour, neighbour_was["peak_gib"])
    step_ms = corrected_step_ms(plan, neighbour, neighbour_was)
    return {
        "calibrated_peak_gib": peak_gib,
        "calibrated_peak_error": peak_gib / was["peak_gib"] - 1,
        "calibrated_step_ms": step_ms,
        "calibrated_step_error": step_ms / was["step_ms"] - 1,
        **{
            f"calibrated_step_error_{way}": corrected_step_ms(plan, neighbour, seen)
            / was["step_ms"]
            - 1
            for way, seen in other_ways(neighbour_was).items()
        },
    }


def other_ways(was: Row) -> dict[str, Row]:
    """Give a measured neighbour as if others had said how busy the GPU was."""
    if "kernels_ms" not in was:
        return {}
    ways: dict[str, Row] = {"unwatched": {**was, "busy_share": None}}
    if was["kernels_ms"] is not None:
        share = min(1.0, was["kernels_ms"] / was["step_ms"])
        ways["by_kernels"] = {**was, "busy_share": share}
    return ways


def corrected_peak_gib(plan: Row, neighbour: Row, measured_gib: float) -> float:
    """Plan a peak by a neighbour's: all but what is fixed is multiplied.

    So it was done when these were planned. Since then the allowance for libraries, which is in the
    figures and no share of them here, stays out of it (`pitstop.plan.correction`).
    """
    factor = (measured_gib - neighbour["fixed_gib"]) / (
        neighbour["peak_gib"] - neighbour["fixed_gib"]
    )
    return plan["fixed_gib"] + (plan["peak_gib"] - plan["fixed_gib"]) * factor


def corrected_step_ms(plan: Row, neighbour: Row, was: Row) -> float:
    """Plan a step at the pace of a neighbour, in the way of the code that made the plan."""
    launch_ms, device_ms = neighbour.get("launch_ms", 0.0), neighbour.get("device_ms", 0.0)
    if neighbour["step_ms"] > max(launch_ms, device_ms):
        return plan["step_ms"] * was["step_ms"] / neighbour["step_ms"]
    host, device, idle_ms = pace_factors(
        was["step_ms"],
        launch_s=launch_ms,
        device_s=device_ms,
        busy_share=was.get("busy_share"),
    )
    return max(host * plan["launch_ms"], device * plan["device_ms"]) + idle_ms


def summary(all_rows: Sequence[Row]) -> dict[str, Any]:
    """Say what the errors come to, of cases that had not been measured before."""
    rows = [row for row in all_rows if not row.get("measured_before")]
    verdicts = [row["verdict_right"] for row in rows if row["verdict_right"] is not None]
    timed = [(row["planned_step_ms"], row["measured"]["step_ms"]) for row in rows if has_peak(row)]
    return {
        "cases": len(rows),
        "did_not_fit": sum(row["outcome"] == "out of memory" for row in rows),
        "peak_blind": spread(row["peak_error"] for row in rows if has_peak(row)),
        "peak_calibrated": spread(errors(rows, "calibrated_peak_error")),
        "verdicts_right": [sum(verdicts), len(verdicts)],
        "step_blind": spread(row["step_error"] for row in rows if has_peak(row)),
        "step_calibrated": spread(errors(rows, "calibrated_step_error")),
        **{
            f"step_calibrated_{way}": spread(found)
            for way in ("unwatched", "by_kernels")
            if (found := errors(rows, f"calibrated_step_error_{way}"))
        },
        "step_tau": kendall_tau(timed),
    }


def has_peak(row: Row) -> bool:
    """Whether a case ran with the whole GPU."""
    return "peak_error" in row


def errors(rows: Iterable[Row], key: str) -> list[float]:
    """Collect one kind of error where there is one."""
    return [row[key] for row in rows if key in row]


def spread(values: Iterable[float]) -> dict[str, Any] | None:
    """Mean size of errors, and the extremes; None without any."""
    found = list(values)
    if not found:
        return None
    return {
        "mean_absolute": statistics.mean(map(abs, found)),
        "lowest": min(found),
        "highest": max(found),
        "cases": len(found),
    }


def step_intervals(results: Path) -> dict[str, tuple[float, float]]:
    """What measured steps were of planned ones that the constants had not seen: least and most.

    As planned, and corrected by a neighbour. The errors are those of plans by the newest formula
    that were made before their runs, and those of all earlier steps, each planned by constants that
    were fitted without it.
    """
    here = [[results / name for name in names] for names in FORMULAS]
    newest = next(files for files in here if any(file.exists() for file in files))
    blind = [
        row
        for file in newest
        if file.exists()
        for row in json.loads(file.read_text())["rows"]
        if has_peak(row) and not row.get("measured_before")
    ]
    left_out = json.loads((results / "plan_steps.json").read_text())["rows"]
    return {
        "planned": _interval(errors(blind, "step_error") + errors(left_out, "error")),
        "corrected": _interval(
            errors(blind, "calibrated_step_error") + errors(left_out, "neighbour_error")
        ),
    }


def _interval(found: Sequence[float]) -> tuple[float, float]:
    """Give the extremes of measured over planned, rounded outwards to a tenth."""
    ratios = [1 / (1 + error) for error in found]
    # A ratio that is a tenth already stays one, whatever its last bit says.
    return (
        math.floor(round(min(ratios) * 10, 6)) / 10,
        math.ceil(round(max(ratios) * 10, 6)) / 10,
    )


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Agreement of two orders, from -1 to 1; None for less than two pairs.

    Equal values count neither for nor against.
    """
    signs = [
        _sign(one[0] - other[0]) * _sign(one[1] - other[1]) for one, other in combinations(pairs, 2)
    ]
    return statistics.mean(signs) if signs else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


if __name__ == "__main__":
    main()
