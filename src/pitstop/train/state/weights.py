"""Trained weights, found and put into a model; nothing that is read can run code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pitstop.errors import CheckpointError
from pitstop.train.state.checkpoint import Checkpoint, find_newest_whole, open_checkpoint
from pitstop.train.state.manifest import COMMON_FILE, FILE_NAME
from pitstop.train.state.weight_sets import describe_differences, read_weight_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights by name, and where they come from."""

    path: Path
    """The checkpoint's folder, or the file."""
    tensors: Mapping[str, Tensor]
    step: int | None
    """Optimizer steps behind them; None for a bare file, which does not say."""
    averaged: bool
    notes: tuple[str, ...] = ()
    """Checkpoints that were passed over, and why; which of several sets of weights was taken."""


def read_weights(path: Path) -> Weights:
    """Read weights from wherever a user may point.

    Args:
        path: A checkpoint's folder; a run's folder or its `checkpoints`, for the newest whole one;
            or a file of weights, as `read_weight_set` reads it.

    Raises:
        CheckpointError: Where there is nothing to read, or it is damaged or something else.
    """
    if path.is_dir():
        return _of_checkpoint(*_find(path))
    if not path.exists():
        raise CheckpointError(
            f"there is no checkpoint at {path}; a run keeps its own under checkpoints/ in its "
            "folder"
        )
    if path.name == COMMON_FILE:
        return _of_checkpoint(open_checkpoint(path.parent), ())
    found = read_weight_set(path)
    return Weights(
        path=path, tensors=found.tensors, step=None, averaged=found.averaged, notes=found.notes
    )


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Put weights into a model; every name and shape must fit.

    Raises:
        CheckpointError: Where they are another model's; the model is as it was.
    """
    differences = describe_differences(model.state_dict(), weights.tensors)
    if differences:
        raise CheckpointError(
            f"{weights.path} is not of the model that this configuration describes: "
            f"{differences}. Use the configuration it was trained with"
        )
    model.load_state_dict(weights.tensors)


def _find(folder: Path) -> tuple[Checkpoint, tuple[str, ...]]:
    if any((folder / name).exists() for name in (COMMON_FILE, FILE_NAME)):
        return open_checkpoint(folder), ()
    passed_over: list[str] = []
    for place in (folder / "checkpoints", folder):
        checkpoint, skipped = find_newest_whole(place)
        passed_over += [f"skipped {skip.path}: {skip.reason}" for skip in skipped]
        if checkpoint is not None:
            return checkpoint, tuple(passed_over)
    raise CheckpointError(
        f"there is no whole checkpoint in {folder}"
        + "".join(f"; {note}" for note in passed_over)
        + "; name a folder such as RUN/checkpoints/save-000001-step-000001000, or a file of weights"
    )


def _of_checkpoint(checkpoint: Checkpoint, notes: tuple[str, ...]) -> Weights:
    """Take the averaged weights where there are any; buffers are not averaged."""
    state = checkpoint.common(mapped=True, parts=("model", "average"))
    tensors = _require_tensors(state.get("model"), checkpoint.path)
    average = state.get("average")
    if average is not None:
        tensors = {**tensors, **_require_tensors(average, checkpoint.path)}
    return Weights(
        path=checkpoint.path,
        tensors=tensors,
        step=checkpoint.manifest.step,
        averaged=average is not None,
        notes=notes,
    )


def _require_tensors(value: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(value, dict) and value and all(isinstance(v, Tensor) for v in value.values()):
        return value
    raise CheckpointError(f"{path} holds no weights: its model is no dictionary of tensors")
