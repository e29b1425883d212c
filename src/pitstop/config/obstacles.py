"""What a run would stumble over on this host though its configuration is sound in itself."""

from collections.abc import Iterator
from pathlib import Path

from pitstop.config.host_limits import HostLimits
from pitstop.config.problems import Problem
from pitstop.config.quantities import format_bytes
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.deblur import DeblurLoss


def run_obstacles(config: RunConfig, host: HostLimits | None) -> tuple[Problem, ...]:
    """Name the settings with which `pitstop train` would not come to its first full step."""
    return (
        *_no_data(config),
        *_no_perceptual_weights(config),
        *_endless_warmup(config),
        *_oversized_cache(config, host),
    )


def _no_data(config: RunConfig) -> Iterator[Problem]:
    root = config.data.root
    if root is None:
        message = "is not set; name the folder of the dataset, or make one with `pitstop data make`"
        yield Problem(key="data.root", message=message)
    elif not root.exists():
        message = (
            f"is {root}, which is not there; name the folder of the dataset, or make one with "
        )
        yield Problem(key="data.root", message=f"{message}`pitstop data make`")


def _no_perceptual_weights(config: RunConfig) -> Iterator[Problem]:
    if not isinstance(config.loss, DeblurLoss) or config.loss.perceptual.weight == 0:
        return
    term = config.loss.perceptual
    wayout = f"name a file of {term.network} weights, or leave the term out with "
    wayout += "loss.perceptual.weight=0"
    if term.weights is None:
        state = f"is not set while loss.perceptual.weight is {term.weight:g}"
        yield Problem(key="loss.perceptual.weights", message=f"{state}; {wayout}")
    elif not Path(term.weights).is_file():
        state = f"is {term.weights}, which is not there"
        yield Problem(key="loss.perceptual.weights", message=f"{state}; {wayout}")


def _endless_warmup(config: RunConfig) -> Iterator[Problem]:
    steps, warmup = config.train.steps, config.schedule.warmup_steps
    if steps is not None and warmup >= steps:
        message = f"is {warmup} of {steps} steps (train.steps), so the full rate is never reached; "
        yield Problem(key="schedule.warmup_steps", message=f"{message}set it below train.steps")


def _oversized_cache(config: RunConfig, host: HostLimits | None) -> Iterator[Problem]:
    budget = config.cache.budget
    if host is not None and budget > host.memory_bytes:
        limit = f"{host.memory_bytes / 2**30:.1f} GiB"
        message = f"is {format_bytes(budget)}, more than the {limit} this process may use; "
        yield Problem(key="cache.budget", message=f"{message}set at most half of that")
