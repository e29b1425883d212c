"""The learning rate as a pure function of the step, so that a resumed run needs no state for it.

Steps count optimizer steps from 0. Warm-up rises from `warmup_start` at step 0 to the peak at step
`warmup_steps`; from there the rate falls, and `end_factor` is reached at step `total_steps`, one
past the last update, so that no update is made at a rate of zero.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from pitstop.config.sections import OptimizerSection, ScheduleSection
from pitstop.errors import ConfigError


def learning_rate_factor(section: ScheduleSection, step: int, total_steps: int) -> float:
    """Give the rate at a step as a share of the peak."""
    return _warmup(section, step) * _FALL[section.kind](section, step, total_steps)


class Schedule:
    """Sets the rate of an optimizer's groups; what each group started with is its peak.

    Make it before a checkpoint is loaded into the optimizer: then the configuration decides the
    rate of a resumed run, not the file.

    Raises:
        ConfigError: When a part of the schedule lies beyond the end of the run.
    """

    def __init__(self, optimizer: Optimizer, section: ScheduleSection, *, total_steps: int) -> None:
        _refuse_unreached(section, total_steps)
        self._optimizer = optimizer
        self._section = section
        self._total_steps = total_steps
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]

    def apply(self, step: int) -> float:
        """Set every group's rate for a step; give the share of the peak."""
        factor = learning_rate_factor(self._section, step, self._total_steps)
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                # Compiled optimizers hold the rate in a tensor; a new object would compile anew.
                rate.fill_(peak * factor)
            else:
                group["lr"] = peak * factor
        return factor


class ScaledRate(NamedTuple):
    """A peak rate and the message that says where it comes from."""

    lr: float
    message: str


def scaled_lr(
    section: OptimizerSection, *, batch_size: int, accumulate: int, devices: int
) -> ScaledRate:
    """Scale the peak rate from the batch it was chosen for to the effective batch of this run.

    Args:
        section: Rate, rule and reference; a reference of None is one micro-batch on each device.
        batch_size: Samples of a micro-batch on one device.
        accumulate: Micro-batches of an optimizer step.
        devices: Ranks over all nodes.
    """
    effective = batch_size * accumulate * devices
    if section.lr_scaling == "none":
        return ScaledRate(section.lr, f"lr {section.lr:g}: effective batch {effective}, not scaled")
    reference = section.reference_batch or batch_size * devices
    ratio = effective / reference
    factor = ratio if section.lr_scaling == "linear" else math.sqrt(ratio)
    lr = section.lr * factor
    return ScaledRate(
        lr,
        f"lr {section.lr:g} x {factor:.4g} = {lr:.4g}: effective batch {effective} against "
        f"reference {reference} ({section.lr_scaling})",
    )


def _warmup(section: ScheduleSection, step: int) -> float:
    if step >= section.warmup_steps:
        return 1.0
    return section.warmup_start + (1 - section.warmup_start) * step / section.warmup_steps


def _progress(section: ScheduleSection, step: int, total_steps: int) -> float:
    """From 0 at the end of warm-up to 1 at the end of the run."""
    past = step - section.warmup_steps
    return min(max(past / max(total_steps - section.warmup_steps, 1), 0.0), 1.0)


def _cosine(section: ScheduleSection, step: int, total_steps: int) -> float:
    height = (1 + math.cos(math.pi * _progress(section, step, total_steps))) / 2
    return section.end_factor + (1 - section.end_factor) * height


def _poly(section: ScheduleSection, step: int, total_steps: int) -> float:
    height = (1 - _progress(section, step, total_steps)) ** section.power
    return section.end_factor + (1 - section.end_factor) * height


def _stairs(section: ScheduleSection, step: int, total_steps: int) -> float:  # noqa: ARG001
    return section.gamma ** bisect_right(section.milestones, step)


def _flat(section: ScheduleSection, step: int, total_steps: int) -> float:  # noqa: ARG001
    return 1.0


_FALL: Final[dict[str, Callable[[ScheduleSection, int, int], float]]] = {
    "cosine": _cosine,
    "poly": _poly,
    "step": _stairs,
    "constant": _flat,
}


def _refuse_unreached(section: ScheduleSection, total_steps: int) -> None:
    if section.warmup_steps >= total_steps:
        raise ConfigError(
            f"schedule.warmup_steps is {section.warmup_steps}, but the run has {total_steps} "
            "steps and would never leave warm-up; lower it, or make the run longer"
        )
    late = [at for at in section.milestones if at >= total_steps]
    if section.kind == "step" and late:
        raise ConfigError(
            f"schedule.milestones has {late[0]}, which a run of {total_steps} steps never "
            "reaches; leave it out, or make the run longer"
        )
