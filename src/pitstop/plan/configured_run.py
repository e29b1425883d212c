"""A plan of a configuration: its own step, what other choices would cost, what to change first."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.measure.host.limits import read_host_limits
from pitstop.plan.advice import advise
from pitstop.plan.calibration import MeasuredRun, calibrate, measured_pace
from pitstop.plan.child_process import children_end_with_us
from pitstop.plan.dry_run.request import Answer, Request, trace_all
from pitstop.plan.host.total import Host, plan_host, start_method
from pitstop.plan.host.trial import TrialAnswer, TrialRequest, try_processes
from pitstop.plan.memory import Gpu, plan_evaluation, plan_memory
from pitstop.plan.speed import Ceilings, plan_speed
from pitstop.plan.table import batch_law, plan_table
from pitstop.records.plans.plan import MemoryPlan, SpeedPlan, StepTrace, WhatIf
from pitstop.train.work import work_settings
from pitstop.workloads.catalogue import outside_kinds

_RECOMPUTE: Final = ("none", "full")
_PRECISIONS: Final = ("fp32", "bf16")
_SAME_STEP: Final = (
    "changes nothing in a training step; for evaluation, host memory and total time give it "
    "without --what-if"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to plan, and for which GPU."""

    config: Path
    overrides: tuple[str, ...] = ()
    gpu: Gpu
    ceilings: Ceilings | None = None
    ranks: int = 1
    what_if: tuple[str, ...] = ()
    with_table: bool = True
    host_bytes: int | None = None
    """Memory of the host that it will run on; None for this machine's."""
    calibrate: Path | None = None
    """Folder of a short real run of the same model."""


def plan_config(wanted: Wanted) -> MemoryPlan:
    """Plan a configuration.

    Raises:
        PitstopError: Where its own step cannot be run on shapes alone, or a run to calibrate with
            cannot be used.
    """
    config = load_config(wanted.config, wanted.overrides, kinds=outside_kinds()).config
    run = None if wanted.calibrate is None else MeasuredRun(wanted.calibrate)
    changes = _variants(config) if wanted.with_table else []
    questions = [(change,) for change in wanted.what_if]
    requests = [_request(wanted, extra) for extra in [(), *questions, *changes]]
    requests.append(replace(requests[0], part="evaluation"))
    if run is not None:
        requests.append(replace(_request(wanted, run.overrides()), ranks=run.ranks))
    with ThreadPoolExecutor(1) as pool, children_end_with_us():
        trial = pool.submit(_try_host, wanted, config)
        answers = deque(trace_all(requests))
        tried = trial.result()
    of_run = None if run is None else answers.pop().require()
    own = answers.popleft().require()
    asked = [answers.popleft() for _ in questions]
    others = [answers.popleft() for _ in changes]
    plan = plan_memory(str(wanted.config), own, wanted.gpu)
    if run is not None and of_run is not None:
        run.require_same_model(of_run, work_settings(config))
        # Before any step is timed: rows of the table and questions go at the measured pace too.
        wanted, notes = _at_measured_pace(wanted, run, of_run)
        plan = replace(plan, notes=(*plan.notes, *notes))
    plan = _with_evaluation(replace(plan, speed=_speed(own, config, wanted)), answers)
    if wanted.with_table:
        plan = _with_table(plan, others, wanted, config)
    if run is not None and of_run is not None:
        plan = calibrate(plan, run, of_run)
    plan = _with_host(plan, config, tried, wanted)
    all_notes = (*plan.notes, *_failures(changes, others), *_assumed(own))
    answered = zip(wanted.what_if, asked, strict=True)
    return replace(
        plan,
        notes=tuple(dict.fromkeys(all_notes)),
        what_if=tuple(_what_if(change, answer, plan, wanted) for change, answer in answered),
    )


def _at_measured_pace(
    wanted: Wanted, run: MeasuredRun, of_run: StepTrace
) -> tuple[Wanted, tuple[str, ...]]:
    """Plan steps at the pace of a run; notes say why not, where that cannot be."""
    if wanted.ceilings is None:
        return wanted, ()
    pace, notes = measured_pace(run, of_run, wanted.ceilings)
    return replace(wanted, ceilings=replace(wanted.ceilings, pace=pace)), notes


def _with_evaluation(plan: MemoryPlan, answers: "deque[Answer]") -> MemoryPlan:
    answer = answers.popleft()
    if answer.evaluation is None:
        return replace(plan, notes=(*plan.notes, f"evaluation is not planned: {answer.error}"))
    return replace(plan, evaluation=plan_evaluation(answer.evaluation, plan.usable_bytes))


def _try_host(wanted: Wanted, config: RunConfig) -> TrialAnswer:
    return try_processes(
        TrialRequest(
            config=str(wanted.config),
            overrides=wanted.overrides,
            start_method=start_method(config, has_gpu=True),
        )
    )


def _with_host(
    plan: MemoryPlan, config: RunConfig, trial: TrialAnswer, wanted: Wanted
) -> MemoryPlan:
    if trial.sizes is None:
        return replace(plan, notes=(*plan.notes, f"host memory is not planned: {trial.error}"))
    limits = read_host_limits()
    given = wanted.host_bytes
    host = Host(
        limit_bytes=limits.memory_bytes if given is None else given,
        limit_of="this machine" if given is None else "a host of that size",
        cores=limits.cores,
        ranks=wanted.ranks,
    )
    return replace(plan, host=plan_host(config, trial.sizes, host))


def _request(wanted: Wanted, extra: Sequence[str]) -> Request:
    overrides = (*wanted.overrides, *extra)
    return Request(config=str(wanted.config), overrides=overrides, ranks=wanted.ranks)


def _variants(config: RunConfig) -> list[tuple[str, ...]]:
    """Changes that get a dry run of their own: twice the batch first, where that says something."""
    train = config.train
    ways = [
        (f"train.recompute={recompute}", f"train.precision={precision}")
        for recompute in dict.fromkeys((_policy(train.recompute), *_RECOMPUTE))
        for precision in dict.fromkeys((train.precision, *_PRECISIONS))
        if (recompute, precision) != (_policy(train.recompute), train.precision)
        and (recompute in _RECOMPUTE)
        and precision in {train.precision, *_PRECISIONS}
    ]
    twice = [(f"train.batch_size={2 * train.batch_size}",)] if _own_grows(config) else []
    return [*twice, *ways]


def _own_grows(config: RunConfig) -> bool:
    """Whether the configured way is the same at another batch: a size decides otherwise there."""
    return not isinstance(config.train.recompute, int)


def _policy(recompute: str | int | tuple[str, ...]) -> str:
    return recompute if isinstance(recompute, str) else "some"


def _with_table(
    plan: MemoryPlan, others: Sequence[Answer], wanted: Wanted, config: RunConfig
) -> MemoryPlan:
    own, own_grows = plan.trace, _own_grows(config)
    rest = deque(others)
    law = batch_law(own, rest.popleft().trace if own_grows else None)
    traces = [own, *(answer.trace for answer in rest if answer.trace is not None)]
    table = plan_table(
        traces,
        law,
        plan.usable_bytes,
        ceilings=wanted.ceilings,
        accumulate=config.train.accumulate,
        own_grows=own_grows,
    )
    laid_out = replace(plan, table=table, batch_growth=law.growth)
    return replace(laid_out, advice=advise(laid_out))


def _failures(changes: Sequence[tuple[str, ...]], answers: Sequence[Answer]) -> list[str]:
    return [
        f"{' '.join(change)} is not in the table: {answer.error}"
        for change, answer in zip(changes, answers, strict=True)
        if answer.error is not None
    ]


def _assumed(trace: StepTrace) -> list[str]:
    fused = trace.fused_operations
    return [f"assumes the fused kernels {', '.join(fused)}"] if fused else []


def _speed(trace: StepTrace, config: RunConfig, wanted: Wanted) -> SpeedPlan | None:
    if wanted.ceilings is None:
        return None
    train = config.train
    speed = plan_speed(
        trace, wanted.ceilings, accumulate=train.accumulate, samples=trace.epoch_samples
    )
    if train.steps is not None:
        return replace(speed, total_s=train.steps * speed.step_s)
    if speed.epoch_s is None or train.epochs is None:
        return speed
    return replace(speed, total_s=train.epochs * speed.epoch_s)


def _what_if(change: str, answer: Answer, plan: MemoryPlan, wanted: Wanted) -> WhatIf:
    if answer.trace is None:
        return WhatIf(change=change, problem=f"cannot be planned: {answer.error}")
    own, changed = (
        load_config(wanted.config, overrides, kinds=outside_kinds()).config
        for overrides in (wanted.overrides, (*wanted.overrides, change))
    )
    is_same_trace = replace(answer.trace, notes=()) == replace(plan.trace, notes=())
    # A trace is of one micro-batch; more of them take longer.
    if is_same_trace and changed.train.accumulate == own.train.accumulate:
        return WhatIf(change=change, problem=_SAME_STEP)
    other = plan_memory(plan.source, answer.trace, wanted.gpu)
    speed = _speed(answer.trace, changed, wanted)
    return WhatIf(
        change=change,
        peak_bytes=other.peak_bytes,
        fit=other.fit,
        more_bytes=other.peak_bytes - plan.peak_bytes,
        step_s=None if speed is None else speed.step_s,
        samples_per_s=None if speed is None else speed.samples_per_s,
    )
