"""A dry run of a configuration, on a machine that may have neither its data nor its weights."""

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import load_config
from pitstop.config.sections import CompileSection, RunConfig
from pitstop.config.workloads.deblur import DeblurData, DeblurLoss
from pitstop.errors import PitstopError
from pitstop.plan.dry_run.evaluation import trace_evaluation
from pitstop.plan.dry_run.request import Request
from pitstop.plan.dry_run.step import trace_step
from pitstop.plan.shards import shard_notes
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.records.plans.plan import StepTrace
from pitstop.train.task import Task
from pitstop.workloads.catalogue import build_task, outside_kinds


def trace_config(request: Request) -> StepTrace:
    """Run one step of a configuration.

    Raises:
        PitstopError: Where it cannot be run, on shapes alone or at all.
    """
    config, planned, task, notes = _planned(request)
    samples = None if planned.data.root is None else len(task.train_samples())
    # From the second micro-batch on, gradients are there while activations are made.
    gradients_held = config.train.accumulate > 1
    trace = trace_step(planned, task, gradients_held=gradients_held, ranks=request.ranks)
    trace = replace(trace, epoch_samples=samples)
    notes = (*shard_notes(config.train, ranks=request.ranks), *notes)
    if config.optimizer.kind == "adamw8bit":
        trace = _with_state_of(trace, "adamw8bit")
    return replace(trace, notes=(*trace.notes, *notes))


def build_model(request: Request) -> None:
    """Build the model of a configuration and let it go; what it imports stays.

    Raises:
        PitstopError: Where it cannot be built.
    """
    _, _, task, _ = _planned(request)
    task.build_model()


def trace_config_evaluation(request: Request) -> EvaluationTrace:
    """Run one evaluation batch of a configuration.

    Raises:
        PitstopError: Where it cannot be run, on shapes alone or at all.
    """
    _, planned, task, _ = _planned(request)
    if isinstance(planned.data, DeblurData) and planned.data.tiles.memory is not None:
        raise PitstopError("data.tiles.memory bounds it: the GPU chooses tiles that keep to it")
    return trace_evaluation(planned, task)


def _planned(request: Request) -> tuple[RunConfig, RunConfig, Task[Any], tuple[str, ...]]:
    """Give the configuration, what is run of it, its task, and what was left out."""
    assert request.config is not None
    config = load_config(Path(request.config), request.overrides, kinds=outside_kinds()).config
    with ExitStack() as stack:
        planned, notes = without_files(config, stack)
        return config, planned, build_task(planned), notes


def without_files(config: RunConfig, stack: ExitStack) -> tuple[RunConfig, tuple[str, ...]]:
    """Leave out what lies in files and what does not change a step's memory."""
    notes = []
    train: dict[str, Any] = {"accumulate": 1}
    if config.train.compile.scope != "off":
        train["compile"] = CompileSection()
        notes.append(
            "train.compile is planned as if it were off: compiled code keeps less and runs faster"
        )
    data: dict[str, Any] = {}
    root = config.data.root
    if root is None or not Path(root).exists():
        data = {"root": None}
        notes.append("the dataset is not here: shapes come from the configuration alone")
    changes: dict[str, Any] = {
        "train": config.train.model_copy(update=train),
        "data": config.data.model_copy(update=data),
        "model": config.model.model_copy(update={"weights": None}),
        "loss": _random_features(config.loss, stack),
    }
    if config.optimizer.kind == "adamw8bit":
        changes["optimizer"] = config.optimizer.model_copy(update={"kind": "adamw"})
    return config.model_copy(update=changes), tuple(notes)


def _random_features(loss: Any, stack: ExitStack) -> Any:
    """Give a perceptual loss a network with random weights; its memory is the same."""
    if not isinstance(loss, DeblurLoss) or not loss.perceptual.weight:
        return loss
    from pitstop.workloads.deblur.model.features import Features

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pitstop-plan-")))
    section = loss.perceptual
    network = Features(section.network, section.layers)
    torch.save(network.state_dict(), folder / "features.pth")
    chosen = section.model_copy(update={"weights": folder / "features.pth"})
    return loss.model_copy(update={"perceptual": chosen})


def _with_state_of(trace: StepTrace, kind: str) -> StepTrace:
    """Put another optimizer's state in the place of the one that was run."""
    saved = trace.owners["optimizer state"] - trace.optimizer_bytes[kind]
    owners = {**trace.owners, "optimizer state": trace.optimizer_bytes[kind]}
    return replace(
        trace,
        optimizer=kind,
        owners=owners,
        peak_bytes=trace.peak_bytes - saved,
        reserved_bytes=trace.reserved_bytes - saved,
        notes=(*trace.notes, f"the state of {kind} is worked out, not run"),
    )
