"""A plan of somebody's own model, from a function that builds it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pitstop.config.sections import OptimizerSection, TrainSection
from pitstop.errors import ConfigError
from pitstop.plan.dry_run.request import Request, trace_all
from pitstop.plan.memory import Gpu, plan_memory
from pitstop.plan.speed import Ceilings, plan_speed
from pitstop.records.plans.plan import MemoryPlan


def plan_build(
    build: str,
    gpu: Gpu,
    ceilings: Ceilings | None,
    *,
    settings: tuple[int | None, str, str],
) -> MemoryPlan:
    """Plan one training step of what a function gives.

    Args:
        build: `module:function`; the module lies in the present folder or is installed.
        gpu: What is planned for.
        ceilings: Its rates, where they are known.
        settings: Batch size (None for the batch as built), precision and optimizer.

    Raises:
        ConfigError: Where there is no such precision or optimizer.
        PitstopError: Where the function cannot be used.
    """
    batch_size, precision, optimizer = settings
    _require_known("--precision", precision, TrainSection.model_fields["precision"].annotation)
    _require_known("--optimizer", optimizer, OptimizerSection.model_fields["kind"].annotation)
    request = Request(
        build=build,
        folder=str(Path.cwd()),
        batch_size=batch_size,
        precision=precision,
        optimizer=optimizer,
    )
    [answer] = trace_all([request])
    trace = answer.require()
    plan = plan_memory(build, trace, gpu)
    return plan if ceilings is None else replace(plan, speed=plan_speed(trace, ceilings))


def _require_known(option: str, value: str, literals: Any) -> None:
    known = get_args(literals)
    if value not in known:
        raise ConfigError(f"{option} {value} is none of {', '.join(known)}; name one of them")
