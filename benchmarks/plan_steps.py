"""How far planned steps are off for configurations that the constants have not seen.

    python benchmarks/plan_steps.py --traces FOLDER --output benchmarks/results/plan_steps.json

`pitstop.plan.speed` has constants that were fitted to steps measured on an H200. Here they are
fitted again and again: to all steps but those of one configuration, which is then planned.
Neighbours are planned twice: blind, and corrected by the measured step of the same network at
another batch or recomputation, as `pitstop plan --calibrate` does it; the corrected one is never in
the fit either. A step is the longer of two sides, so a fit can end in several places: it begins at
several, which differ in what the host takes. Dry runs are kept in FOLDER under the names of their
steps and used again if there.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitstop.plan.calibration import pace_factors
from pitstop.plan.dry_run.request import Request, trace_all
from pitstop.plan.gpus import find_gpu
from pitstop.plan.speed import FITTED, Costs, Pace, plan_speed
from pitstop.plan.table import scaled
from pitstop.records.plans.plan import StepTrace
from pitstop.records.store import from_json, write_json
from plan_accuracy import BEV, CASES, CONFIGS, SECOND_CASES, VRT
from plan_errors import kendall_tau
from progress import say, write

H200 = find_gpu("H200")
BLIND, SECOND = "plan.json", "plan_second.json"
LATER, BARE = "other benchmarks of the engine", "a bare loop, no engine"
FIT_ERROR = 0.08
"""What a step's error counts as one in the fit."""
LARGEST_REACH = 0.85
"""Of a data sheet's rate; nothing reached more when it was measured alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One step that was timed."""

    name: str
    dry_run: str
    """What is traced: a case of plan_accuracy.py, or one of `TRACED`."""
    step_ms: float
    source: str
    batch_size: int | None = None
    """Where it is not the dry run's."""
    neighbour: str | None = None
    busy_share: float | None = None
    """Kernels of the step, where a profile of the same configuration was taken."""


SMALL = (*VRT, "data.crop=128", "model.kernels=reference")
TRACED: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        case.name: (case.config, case.overrides)
        for case in (*CASES, *SECOND_CASES)
        if not case.collects_all
    },
    "mono fp16": ("bev/mono_baseline.yaml", (*BEV, "train.precision=fp16")),
    "vrt 128 recomputed": ("deblur/opt.yaml", SMALL),
    "vrt 128": ("deblur/opt.yaml", (*SMALL, "train.recompute=none")),
    "vrt 128 fp32 recomputed": ("deblur/opt.yaml", (*SMALL, "train.precision=fp32")),
    "vrt within 24 GB": ("deblur/opt.yaml", (*VRT, "train.recompute=17.88GiB")),
    "vrt 2 within 48 GB": (
        "deblur/opt.yaml",
        (*VRT, "train.recompute=35.76GiB", "train.batch_size=2"),
    ),
    "vrt 2 within 32 GB": (
        "deblur/opt.yaml",
        (*VRT, "train.recompute=23.84GiB", "train.batch_size=2"),
    ),
    "vrt tf32": ("deblur/opt.yaml", (*VRT, "train.precision=tf32", "train.recompute=none")),
}


BUSY = {
    "mono 4 fp32": 98.75 / 119.9,
    "mono fp16, batch 4": 44.3 / 100.3,
    "vrt 256 bf16 fused, batch 1": 260.1 / 336.4,
    "vrt tf32, batch 1": 495.9 / 505.9,
}
"""Kernels over step of the same configurations, both in ms, from bev_step_h200.json,
deblur_vrt_h200.json and deblur_vrt_tf32_h200.json; the record of a run says it by itself."""


def blind_steps(results: Path) -> list[Measured]:
    """Steps of the runs that were planned first, as far as they ran.

    What the second run measured again has a row of its own, and the same dry run. With a collector
    that goes through everything a step is not one of the engine's.
    """
    rows: list[Measured] = []
    for name, suffix in ((BLIND, ""), (SECOND, ", measured again")):
        path = results / name
        found = json.loads(path.read_text())["rows"] if path.exists() else []
        ran = [one for one in found if "step_ms" in one["measured"] and one["name"] in TRACED]
        named = {
            one["name"]: one["name"] + (suffix if one.get("measured_before") else "") for one in ran
        }
        rows += [
            Measured(
                name=named[one["name"]],
                dry_run=one["name"],
                step_ms=round(one["measured"]["step_ms"], 1),
                source=name,
                neighbour=named.get(one["neighbour"]),
                busy_share=BUSY.get(named[one["name"]]),
            )
            for one in ran
        ]
    return rows


def _at(dry_run: str, batch_size: int, step_ms: float, neighbour: str, source: str) -> Measured:
    name = f"{dry_run}, batch {batch_size}"
    return Measured(
        name=name,
        dry_run=dry_run,
        step_ms=step_ms,
        source=source,
        batch_size=batch_size,
        neighbour=None if neighbour == name else neighbour,
        busy_share=BUSY.get(name),
    )


MEASURED = (
    *blind_steps(CONFIGS.parent / "benchmarks" / "results"),
    _at("mono 4 fp32", 8, 181, "mono 4 fp32", LATER),
    _at("mono 4 fp32", 32, 581, "mono 4 fp32", LATER),
    _at("mono fp16", 4, 100.3, "mono fp16, batch 4", LATER),
    _at("mono fp16", 6, 94.2, "mono fp16, batch 4", LATER),
    _at("mono fp16", 8, 109.2, "mono fp16, batch 4", LATER),
    _at("vrt 128 recomputed", 1, 722, "vrt 128 recomputed, batch 1", LATER),
    _at("vrt 128 recomputed", 2, 1083, "vrt 128 recomputed, batch 1", LATER),
    _at("vrt 128 recomputed", 3, 1511, "vrt 128 recomputed, batch 1", LATER),
    _at("vrt 128", 2, 722, "vrt 128 recomputed, batch 1", LATER),
    _at("vrt 128 fp32 recomputed", 1, 780, "vrt 128 fp32 recomputed, batch 1", LATER),
    # Four crops of 128 have as many pixels as one of 256, which is what was measured.
    _at("vrt 128 recomputed", 4, 1804, "vrt 128 recomputed, batch 1", BARE),
    _at("vrt 256 bf16 fused", 1, 316, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt 256 bf16 fused", 2, 537, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt 256 bf16 fused", 3, 774, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt within 24 GB", 1, 405, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt 2 within 48 GB", 2, 626, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt 2 within 32 GB", 2, 639, "vrt 256 bf16 fused, batch 1", BARE),
    _at("vrt tf32", 1, 505.9, "vrt tf32, batch 1", BARE),
)

Vector = NDArray[np.float64]
_SCALARS = (
    "pointwise_reach",
    "bytes_reach",
    "kernel_s",
    "launch_s",
    "fused_launch_s",
    "recomputed_s",
)
START = (0.8, 0.7, 0.28, 0.2, 0.2, 0.75, 0.45, 3e-6, 25e-6, 0.15e-3, 0.5e-3)
_HOST_AXES = np.array([0.0] * 8 + [1.0] * 3)
"""Of what the host takes, among the constants of a fit."""
_HOST_STARTS = (-0.5, 0.0, 0.5, 1.0)
"""Where fits start beside `START`, along these axes, in logarithms."""
_LOOSE = np.array([0.15] * 7 + [0.7] * 4)
"""How far a constant may go from its start, in logarithms, before that counts as one in the fit."""


def costs_of(point: Vector) -> Costs:
    """Constants at a point of the fit: matrix and product reaches, then the rest."""
    fp32_matrix, bf16_matrix, fp32, tf32, bf16, *rest = np.exp(point).tolist()
    return replace(
        FITTED,
        matrix_reach={
            "fp32": fp32_matrix,
            "tf32": FITTED.matrix_reach["tf32"],
            "bf16": bf16_matrix,
        },
        products_reach={"fp32": fp32, "tf32": tf32, "bf16": bf16},
        **dict(zip(_SCALARS, rest, strict=True)),
    )


def step_ms(trace: StepTrace, costs: Costs) -> float:
    """Plan a step."""
    return plan_speed(trace, H200, costs=costs).step_s * 1e3


def residuals(point: Vector, steps: Sequence[tuple[StepTrace, float]]) -> Vector:
    """Errors of steps, and how far constants are from where they may be."""
    costs = costs_of(point)
    errors = [math.log(step_ms(trace, costs) / taken) / FIT_ERROR for trace, taken in steps]
    # Hosts were busy at times: a step that is far off counts by its distance, not by its square.
    errors = [math.copysign(math.sqrt(2 * (math.hypot(1, one) - 1)), one) for one in errors]
    beyond = np.maximum(0, np.exp(point[:7]) - LARGEST_REACH) / 0.03
    return np.concatenate([errors, (point - np.log(START)) / _LOOSE, beyond])


def fit(steps: Sequence[tuple[StepTrace, float]], start: Vector, *, rounds: int) -> Vector:
    """Levenberg's method on logarithms, with slopes by differences."""
    point, damping = start.copy(), 0.01
    errors = residuals(point, steps)
    for _ in range(rounds):
        slopes = np.stack(
            [
                (residuals(point + 1e-4 * axis, steps) - errors) / 1e-4
                for axis in np.eye(len(point))
            ],
            axis=1,
        )
        normal = slopes.T @ slopes
        move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ errors)
        tried = residuals(point + np.clip(move, -0.5, 0.5), steps)
        if tried @ tried < errors @ errors:
            point, errors, damping = point + np.clip(move, -0.5, 0.5), tried, damping / 3
        else:
            damping *= 4
    return point


def best_fit(
    steps: Sequence[tuple[StepTrace, float]], start: Vector, *, rounds: int, starts: Sequence[float]
) -> Vector:
    """Fit from several starts; the one with the smallest errors."""
    found = [fit(steps, start + shift * _HOST_AXES, rounds=rounds) for shift in starts]
    return min(found, key=lambda point: float(np.sum(residuals(point, steps) ** 2)))


def corrected_ms(trace: StepTrace, near: StepTrace, was: Measured, costs: Costs) -> float:
    """Plan a step at the pace of a measured neighbour."""
    planned = plan_speed(near, H200, costs=costs)
    host, device, idle_s = pace_factors(
        was.step_ms / 1e3,
        launch_s=planned.launch_s,
        device_s=planned.device_s,
        busy_share=was.busy_share,
    )
    paced = replace(H200, pace=Pace(host=host, device=device, idle_s=idle_s))
    return plan_speed(trace, paced, costs=costs).step_s * 1e3


def compared(traces: dict[str, StepTrace]) -> dict[str, Any]:
    """Plan every step with constants fitted without it."""
    by_name = {one.name: one for one in MEASURED}
    steps = {one.name: (_trace(one, traces), one.step_ms) for one in MEASURED}
    fitted = best_fit(list(steps.values()), np.log(START), rounds=20, starts=_HOST_STARTS)
    rows = []
    for one in MEASURED:
        known = [steps[two.name] for two in MEASURED if not _is_same(one, two, steps)]
        costs = costs_of(best_fit(known, fitted, rounds=6, starts=(0.0, 0.3)))
        planned = step_ms(steps[one.name][0], costs)
        row: dict[str, Any] = {
            "name": one.name,
            "source": one.source,
            "measured_ms": one.step_ms,
            "planned_ms": round(planned, 1),
            "error": planned / one.step_ms - 1,
            "error_of_the_code": step_ms(steps[one.name][0], FITTED) / one.step_ms - 1,
        }
        if one.neighbour is not None:
            near, was = steps[one.neighbour][0], by_name[one.neighbour]
            row["neighbour"] = one.neighbour
            corrected = corrected_ms(steps[one.name][0], near, was, costs)
            row["neighbour_error"] = corrected / one.step_ms - 1
        rows.append(row)
        say(f"{one.name}: {row['error']:+.1%} {row.get('neighbour_error', math.nan):+.1%}")
    return {"summary": summary(rows), "fitted": _plain(costs_of(fitted)), "rows": rows}


def _is_same(one: Measured, two: Measured, steps: dict[str, tuple[StepTrace, float]]) -> bool:
    """Whether two steps are of one configuration, which is left out whole."""
    sizes = (steps[one.name][0].batch_size, steps[two.name][0].batch_size)
    return one.dry_run == two.dry_run and sizes[0] == sizes[1]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Say what the errors come to."""
    near = [row["neighbour_error"] for row in rows if "neighbour_error" in row]
    return {
        "steps": len(rows),
        "left_out_mean_absolute": statistics.mean(abs(row["error"]) for row in rows),
        "left_out_largest": max((row["error"] for row in rows), key=abs),
        "neighbours": len(near),
        "neighbours_mean_absolute": statistics.mean(map(abs, near)),
        "neighbours_largest": max(near, key=abs),
        "neighbours_beyond_15_percent": sum(abs(error) > 0.15 for error in near),
        "tau": kendall_tau([(row["planned_ms"], row["measured_ms"]) for row in rows]),
    }


def _plain(costs: Costs) -> dict[str, Any]:
    return {name: getattr(costs, name) for name in Costs.__dataclass_fields__}


def _trace(one: Measured, traces: dict[str, StepTrace]) -> StepTrace:
    trace = traces[one.dry_run]
    return trace if one.batch_size is None else scaled(trace, one.batch_size)


def traces_in(folder: Path) -> dict[str, StepTrace]:
    """Dry runs of everything that was measured; those that are missing are made."""
    names = dict.fromkeys(one.dry_run for one in MEASURED)
    files = {name: folder / f"{name.replace(' ', '-')}.json" for name in names}
    missing = [name for name in names if not files[name].exists()]
    requests = [
        Request(config=str(CONFIGS / config), overrides=overrides)
        for config, overrides in (TRACED[name] for name in missing)
    ]
    for name, answer in zip(missing, trace_all(requests) if requests else [], strict=True):
        write_json(answer.require(), files[name])
    return {name: from_json(path.read_text(), StepTrace) for name, path in files.items()}


def main() -> None:
    """Fit and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.traces.mkdir(exist_ok=True, parents=True)
    report = {
        "what": "step times planned with constants fitted to all other measured steps",
        "hardware": "NVIDIA H200",
        "torch": "2.11.0+cu130",
        **compared(traces_in(options.traces)),
    }
    write(report, options.output)


if __name__ == "__main__":
    main()
