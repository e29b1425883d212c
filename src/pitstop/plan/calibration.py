"""One short real run tightens a plan: what it measured, against what would have been planned.

The run and the plan may differ in batch, precision, recomputation and optimizer. The run's own
settings are planned as well. What belongs to samples is multiplied by measured over planned, and so
are step times where the run had the planned GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from pitstop.doctor.readings import Readings
from pitstop.errors import PitstopError
from pitstop.plan.gpus import is_gpu
from pitstop.plan.memory import WORKSPACE_BYTES, fit_of
from pitstop.plan.speed import Ceilings, plan_speed
from pitstop.records.engine import EngineSetup
from pitstop.records.host.memory import MemoryReading
from pitstop.records.plans.plan import (
    Calibration,
    LedgerRow,
    MemoryPlan,
    PlanRow,
    SpeedPlan,
    StepTrace,
    WhatIf,
)
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run

LOW, HIGH = 0.97, 1.03
"""Calibrated by one measured run of a network, what others were of the plan, at the least and at
the most, rounded outwards (docs/accuracy.md)."""
STEP_LOW, STEP_HIGH = 0.6, 1.6
"""The same of step times, as benchmarks/plan_errors.py reads them off the results."""
_WARM_UP: Final = 5
_FEWEST_STEPS: Final = 10
_PRECISIONS: Final = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
_POLICY: Final = "train.recompute"
_POLICIES: Final = ("none", "full", "selective", "attention", "ffn")


_TimedT = TypeVar("_TimedT", PlanRow, WhatIf)


class MeasuredRun:
    """What the record of a run says about its device memory.

    Args:
        source: Folder of a run of the engine.

    Raises:
        PitstopError: Where there is none, or it ran on no GPU.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        rank = read_run(source).ranks[0]
        readings = Readings(rank.readings)
        setup = readings.last(EngineSetup)
        if setup is None:
            raise PitstopError(
                f"--calibrate {source}: not a run of pitstop train, so its settings are not known"
            )
        self.setup = setup
        self.recompute = _recompute(readings)
        self.optimizer = (readings.proof("optimizer.kind") or {}).get("kind")
        self.peak_bytes = _step_peak(rank, readings, source)
        self.step_s = _step_s(rank)
        """Median; None where too few steps were taken."""

    def overrides(self) -> tuple[str, ...]:
        """Give the settings that make a plan of another configuration one of this run."""
        return tuple(self._overrides())

    def _overrides(self) -> Iterator[str]:
        yield f"train.batch_size={self.setup.settings['train.batch_size']}"
        yield f"train.precision={_PRECISIONS[self.setup.number_format]}"
        if self.recompute is not None:
            yield f"{_POLICY}={self.recompute}"
        if self.optimizer is not None:
            yield f"optimizer.kind={self.optimizer}"

    def require_same_model(self, trace: StepTrace, settings: Mapping[str, Any]) -> None:
        """Refuse to compare with another network or other samples.

        Raises:
            PitstopError: Where they differ; names what does.
        """
        if (trace.model, trace.parameters) != (self.setup.model, self.setup.parameters):
            raise PitstopError(
                f"--calibrate {self.source}: it trained a {self.setup.model} of "
                f"{self.setup.parameters:,} parameters, and the plan is of a {trace.model} of "
                f"{trace.parameters:,}; calibrate with a run of the same model"
            )
        theirs = self.setup.settings
        shaping = (key for key in settings if key.startswith(("model.", "data.")))
        other = [key for key in shaping if key in theirs and theirs[key] != _plain(settings[key])]
        if other:
            raise PitstopError(
                f"--calibrate {self.source}: {', '.join(sorted(other))} differ from the planned "
                "configuration; calibrate with a run whose samples and model are the same"
            )


def calibrate(plan: MemoryPlan, run: MeasuredRun, same_settings: StepTrace) -> MemoryPlan:
    """Correct a plan by what a run measured.

    Args:
        plan: Of what is to be run.
        run: What was measured.
        same_settings: A dry run of the run's own settings.
    """
    planned = same_settings.peak_bytes + WORKSPACE_BYTES
    factor = factor_of(run.peak_bytes, planned_bytes=planned, fixed_bytes=same_settings.fixed_bytes)
    peak = corrected_bytes(plan.peak_bytes, fixed_bytes=plan.trace.fixed_bytes, factor=factor)
    change = round(peak) - plan.peak_bytes
    row = LedgerRow(owner="calibration", num_bytes=change, basis=f"measured in {run.source}")
    return replace(
        plan,
        peak_bytes=round(peak),
        low_bytes=round(peak * LOW),
        high_bytes=round(peak * HIGH),
        fit=fit_of(round(peak), plan.usable_bytes),
        ledger=(*plan.ledger, row),
        calibration=Calibration(
            run=str(run.source),
            measured_bytes=run.peak_bytes,
            planned_bytes=planned,
            factor=factor,
        ),
    )


def at_measured_pace(
    plan: MemoryPlan, run: MeasuredRun, same_settings: StepTrace, ceilings: Ceilings
) -> MemoryPlan:
    """Correct the step times of a plan by what a run measured.

    Args:
        plan: Of what is to be run, with times.
        run: What was measured.
        same_settings: A dry run of the run's own settings.
        ceilings: Of the planned GPU.
    """
    if not is_gpu(run.setup.device, ceilings.gpu):
        reason = f"it ran on {run.setup.device}"
        return replace(plan, notes=(*plan.notes, _not_corrected(run, reason)))
    if run.step_s is None:
        reason = f"it took fewer than {_FEWEST_STEPS} steps"
        return replace(plan, notes=(*plan.notes, _not_corrected(run, reason)))
    accumulate = run.setup.settings.get("train.accumulate", 1)
    factor = run.step_s / plan_speed(same_settings, ceilings, accumulate=accumulate).step_s
    return replace(
        plan,
        speed=None if plan.speed is None else _paced_speed(plan.speed, run, factor),
        table=tuple(_paced(row, factor) for row in plan.table),
        what_if=tuple(_paced(one, factor) for one in plan.what_if),
    )


def _not_corrected(run: MeasuredRun, reason: str) -> str:
    return f"step times are not corrected by {run.source}: {reason}"


def _paced_speed(speed: SpeedPlan, run: MeasuredRun, factor: float) -> SpeedPlan:
    step_s = factor * speed.step_s
    return replace(
        speed,
        basis=f"{speed.basis}, corrected by {run.source} (x {factor:.2f})",
        step_s=step_s,
        low_s=STEP_LOW * step_s,
        high_s=STEP_HIGH * step_s,
        samples_per_s=speed.samples_per_s / factor,
        epoch_s=None if speed.epoch_s is None else factor * speed.epoch_s,
        total_s=None if speed.total_s is None else factor * speed.total_s,
    )


def _paced(one: _TimedT, factor: float) -> _TimedT:
    return replace(
        one,
        step_s=None if one.step_s is None else factor * one.step_s,
        samples_per_s=None if one.samples_per_s is None else one.samples_per_s / factor,
    )


def factor_of(measured_bytes: float, *, planned_bytes: float, fixed_bytes: float) -> float:
    """Say how many times as large as planned the part of a peak was that belongs to samples."""
    return (measured_bytes - fixed_bytes) / (planned_bytes - fixed_bytes)


def corrected_bytes(planned_bytes: float, *, fixed_bytes: float, factor: float) -> float:
    """Correct the part of a planned peak that belongs to samples; the rest is known exactly."""
    return fixed_bytes + (planned_bytes - fixed_bytes) * factor


def _step_peak(rank: RankRecord, readings: Readings, source: Path) -> int:
    """Give the peak of training steps: of readings up to the first evaluation."""
    evaluated = [event.start_us for event in rank.events if event.name == "evaluation"]
    until = min(evaluated, default=float("inf"))
    found = readings.between(float("-inf"), until, MemoryReading)
    peaks = [device.peak_allocated_bytes for reading in found for device in reading.devices]
    if not peaks:
        raise PitstopError(
            f"--calibrate {source}: no device memory was read before its first evaluation; train "
            "a few steps on a GPU with log.memory_every_steps=5"
        )
    return max(peaks)


def _step_s(rank: RankRecord) -> float | None:
    """Give the median of a run's steps without the first ones."""
    taken_us = () if rank.steps is None else rank.steps.wall_us[_WARM_UP:]
    if len(taken_us) < _FEWEST_STEPS:
        return None
    return float(median(taken_us)) / 1e6


def _recompute(readings: Readings) -> str | None:
    proof = readings.proof(_POLICY)
    if proof is None:
        return "none"
    policy = proof.get("policy")
    if not isinstance(policy, str):
        return None
    # Anything else names modules, of which a configuration has a list.
    return policy if policy in _POLICIES else f"[{policy}]"


def _plain(value: Any) -> Any:
    """Give a setting as it comes back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
