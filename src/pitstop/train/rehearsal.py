"""What a run does before its first step, done without one: everything that would stop it, at once.

The model is built with its weights, the optimizer over it, both datasets are opened, and the first
sample of each is read. Nothing is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pitstop.config.sections import RunConfig
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import Deal, train_order
from pitstop.errors import PitstopError
from pitstop.train.evaluation.quality import require_metric
from pitstop.train.host_cache import require_cacheable
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer, choose_device
from pitstop.train.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What would stop a run, and in which group of settings it came up."""

    section: str
    message: str


def rehearse(config: RunConfig, build_task: Callable[[RunConfig], Task[Any]]) -> list[Obstacle]:
    """Prepare a run as `pitstop train` would and give what stops it; each thing once."""
    try:
        task = build_task(config)
    except PitstopError as error:
        return [Obstacle(section="model", message=str(error))]
    found: dict[str, Obstacle] = {}
    for section, prepare in _stages(config, task):
        try:
            prepare()
        except PitstopError as error:
            message = str(error)
            found.setdefault(message, Obstacle(section=section, message=message))
    return list(found.values())


def _stages(config: RunConfig, task: Task[Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = Ranks()
    metric = config.checkpoint.best_of
    yield "data", lambda: _open_train(config, task)
    yield "data", lambda: _read_first(config, task.eval_samples())
    yield "model", lambda: build_trainer(config, task, ranks, choose_device(ranks))
    if metric is not None:
        yield "checkpoint", lambda: require_metric(task, metric)


def _open_train(config: RunConfig, task: Task[Any]) -> None:
    samples = task.train_samples()
    train_order(task, samples, Deal.of(config))
    if config.cache.budget:
        require_cacheable(samples, task.name)
    _read_first(config, samples)


def _read_first(config: RunConfig, samples: Samples) -> None:
    # A run that leaves damaged samples out is not stopped by one.
    if config.loader.corrupt == "raise" and len(samples):
        samples.sample(0, 0)
