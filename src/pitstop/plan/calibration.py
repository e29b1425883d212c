"""One short real run tightens a plan: what it measured, against what would have been planned.

The run and the plan may differ in batch, precision, recomputation and optimizer. The run's own
settings are planned as well. What belongs to samples is multiplied by measured over planned; what
libraries take is corrected too, and grows with nothing. Where the run had the planned GPU, the side
of a step that took its time is multiplied as well: the host's launches or the device's kernels.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from pitstop.doctor.readings import Readings
from pitstop.doctor.thresholds import BUSY_ENOUGH
from pitstop.errors import PitstopError
from pitstop.plan.correction import correction_of
from pitstop.plan.gpus import is_gpu
from pitstop.plan.memory import WORKSPACE_BYTES, fit_of
from pitstop.plan.speed import AS_PLANNED, Ceilings, Pace, plan_speed
from pitstop.records.engine import EngineSetup
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.plans.plan import Calibration, LedgerRow, MemoryPlan, StepTrace
from pitstop.records.run import RankRecord, StepTable
from pitstop.records.store import read_run

LOW, HIGH = 0.97, 1.03
"""Calibrated by one measured run of a network, what others were of the plan, at the least and at
the most, rounded outwards (docs/accuracy.md)."""
STEP_LOW, STEP_HIGH = 0.8, 1.5
"""The same of step times, as benchmarks/plan_errors.py reads them off the results."""
_WARM_UP: Final = 5
_FEWEST_STEPS: Final = 10
_FEWEST_LOADS: Final = 3
STEADY: Final = 0.25
"""Between tenth and ninetieth percentile. On an H200 the readings of four steps lay within 0.24
and their median agreed with a profile (0.83 for 0.86, 1.00 for 0.98, 0.95 for 0.97, 0.49 for 0.48);
those of a fifth lay 0.59 apart and said 0.75 for 0.61 (benchmarks/results/plan_third.json)."""
_PRECISIONS: Final = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
_POLICY: Final = "train.recompute"
_POLICIES: Final = ("none", "full", "selective", "attention", "ffn")


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
        self.ranks = rank.attempts[-1].world_size
        """Of the run: what one of several holds is not what one alone does."""
        self.recompute = _recompute(readings)
        self.optimizer = (readings.proof("optimizer.kind") or {}).get("kind")
        self._shards = readings.proof("train.shard") or {}
        self.peak_bytes = _step_peak(rank, readings, source)
        self.step_s = _step_s(rank)
        """Median; None where too few steps were taken."""
        self.busy_share = _busy_share(rank, readings)
        """Of the GPU in these steps, without waits for data; None where it was asked too seldom."""

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
        if self.ranks > 1:
            kind = self._shards.get("kind", "none")
            yield f"train.shard={kind}"
            yield f"train.shard_ranks={self._shards['ranks'] if kind == 'hybrid' else 'null'}"

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
    found = correction_of(
        run.peak_bytes,
        planned_bytes=planned,
        samples_bytes=same_settings.peak_bytes - same_settings.fixed_bytes,
        samples_error=HIGH - 1,
    )
    of_samples = plan.trace.peak_bytes - plan.trace.fixed_bytes
    peak = round(found.peak_bytes(plan.peak_bytes, samples_bytes=of_samples))
    low, high = found.interval(peak, LOW, HIGH)
    row = LedgerRow(
        owner="calibration", num_bytes=peak - plan.peak_bytes, basis=f"measured in {run.source}"
    )
    return replace(
        plan,
        peak_bytes=peak,
        low_bytes=round(low),
        high_bytes=round(high),
        fit=fit_of(peak, plan.usable_bytes),
        ledger=(*plan.ledger, row),
        calibration=Calibration(
            run=str(run.source),
            measured_bytes=run.peak_bytes,
            planned_bytes=planned,
            factor=found.factor,
            workspace_bytes=round(found.workspace_bytes),
        ),
    )


def measured_pace(
    run: MeasuredRun, same_settings: StepTrace, ceilings: Ceilings
) -> tuple[Pace, tuple[str, ...]]:
    """Say at which pace a run went, and why step times are not corrected where they are not.

    Args:
        run: What was measured.
        same_settings: A dry run of the run's own settings.
        ceilings: Of the planned GPU.
    """
    if not is_gpu(run.setup.device, ceilings.gpu):
        return AS_PLANNED, (_not_corrected(run, f"it ran on {run.setup.device}"),)
    if run.step_s is None:
        return AS_PLANNED, (_not_corrected(run, f"it took fewer than {_FEWEST_STEPS} steps"),)
    accumulate = run.setup.settings.get("train.accumulate", 1)
    planned = plan_speed(same_settings, ceilings, accumulate=accumulate)
    host, device, idle_s = pace_factors(
        run.step_s,
        launch_s=planned.launch_s,
        device_s=planned.device_s,
        busy_share=run.busy_share,
    )
    pace = Pace(
        host=host,
        device=device,
        idle_s=idle_s,
        low=STEP_LOW,
        high=STEP_HIGH,
        run=str(run.source),
    )
    return pace, ()


def pace_factors(
    step_s: float, *, launch_s: float, device_s: float, busy_share: float | None = None
) -> tuple[float, float, float]:
    """Say how a step went: its host's and its device's side, of planned ones, and seconds idle.

    A step that is the longer of two sides says how long that side was, and of the other that it was
    not longer. So the side that took the step's time is corrected, and the other only where it was
    planned as longer than the step. A device that was watched says itself how long it took: less
    than the step even where it had the longer side, since launches are late here and there. That
    rest does not grow with the batch: a BEV network in fp32 took 21, 11 and 8 ms more than its
    kernels at batches 4, 8 and 32 (benchmarks/results/bev_step_h200.json).

    Args:
        step_s: As measured.
        launch_s: The host's side, as planned.
        device_s: The device's side, as planned.
        busy_share: Share of the step in which the device computed; None where nobody looked, and
            the side that was planned as the longer one took the time.
    """
    if busy_share is None:
        if launch_s > device_s:
            return step_s / launch_s, min(1.0, step_s / device_s), 0.0
        return min(1.0, step_s / launch_s), step_s / device_s, 0.0
    computing_s = busy_share * step_s
    if busy_share < BUSY_ENOUGH:
        return step_s / launch_s, computing_s / device_s, 0.0
    return min(1.0, computing_s / launch_s), computing_s / device_s, step_s - computing_s


def _not_corrected(run: MeasuredRun, reason: str) -> str:
    return f"step times are not corrected by {run.source}: {reason}"


def _first_evaluation_us(rank: RankRecord) -> float:
    evaluated = [event.start_us for event in rank.events if event.name == "evaluation"]
    return min(evaluated, default=float("inf"))


def _step_peak(rank: RankRecord, readings: Readings, source: Path) -> int:
    """Give the peak of training steps: of readings up to the first evaluation."""
    found = readings.between(float("-inf"), _first_evaluation_us(rank), MemoryReading)
    peaks = [device.peak_allocated_bytes for reading in found for device in reading.devices]
    if not peaks:
        raise PitstopError(
            f"--calibrate {source}: no device memory was read before its first evaluation; train "
            "a few steps on a GPU with log.memory_every_steps=5"
        )
    return max(peaks)


def _step_s(rank: RankRecord) -> float | None:
    """Give the median of a run's steps without the first ones, and without their waits for data.

    A plan's step has its batch; a slow loader must not be taken for slow launches.
    """
    if rank.steps is None or len(rank.steps) - _WARM_UP < _FEWEST_STEPS:
        return None
    return median(_computing_us(rank.steps)) / 1e6


def _computing_us(steps: StepTable) -> list[int]:
    """Give what each step took without its wait for data, without the first ones."""
    taken_us = (step.wall_us - step.host_us.get(("data",), 0) for step in steps)
    return list(itertools.islice(taken_us, _WARM_UP, None))


def _busy_share(rank: RankRecord, readings: Readings) -> float | None:
    """Give the median share of time in which the GPU computed, in the steps that are timed."""
    if rank.steps is None or len(rank.steps.wall_us) <= _WARM_UP:
        return None
    # Start-up and evaluation keep a device busy in another way, and the driver looks back.
    first_us = float(rank.steps.start_us[_WARM_UP])
    loads = readings.between(first_us, _first_evaluation_us(rank), HostLoad)
    shares = [
        load.gpus[0].busy_share
        for load in loads
        if len(load.gpus) == 1 and load.gpus[0].busy_share is not None
    ]
    share = steady_share(shares)
    if share is None:
        return None
    # The driver counts waits for data as idle; a device has nothing to do in them.
    computing = sum(_computing_us(rank.steps)) / float(rank.steps.wall_us[_WARM_UP:].sum())
    return min(1.0, share / computing)


def steady_share(shares: Sequence[float]) -> float | None:
    """Give the median of the driver's readings; None where they are few or disagree.

    A reading covers a fraction of a second, and where the host is late it says which part of a step
    it fell on. A plan is better without it then.
    """
    if len(shares) < _FEWEST_LOADS:
        return None
    tenths = quantiles(shares, n=10, method="inclusive")
    return median(shares) if tenths[-1] - tenths[0] < STEADY else None


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
