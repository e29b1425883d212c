"""Trained weights, found and put into a model; nothing that is read can run code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from pitstop.errors import CheckpointError
from pitstop.train.state.checkpoint import (
    Checkpoint,
    find_newest_whole,
    open_checkpoint,
    read_state,
)
from pitstop.train.state.manifest import COMMON_FILE, FILE_NAME

_NESTED_UNDER: Final = "params"


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
    """Checkpoints that were passed over, and why."""


def read_weights(path: Path) -> Weights:
    """Read weights from wherever a user may point.

    Args:
        path: A checkpoint's folder; a run's folder or its `checkpoints`, for the newest whole one;
            or a file with a dictionary of tensors, plain or under `params`.

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
    state = read_state(path)
    tensors = _require_tensors(state.get(_NESTED_UNDER, state), path)
    return Weights(path=path, tensors=tensors, step=None, averaged=False)


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Put weights into a model; every name and shape must fit.

    Raises:
        CheckpointError: Where they are another model's; the model is as it was.
    """
    own = model.state_dict()
    differences = [
        *_differing_names(own.keys() - weights.tensors.keys(), "missing there"),
        *_differing_names(weights.tensors.keys() - own.keys(), "not known here"),
        *_differing_shapes(own, weights.tensors),
    ]
    if differences:
        raise CheckpointError(
            f"{weights.path} is not of the model that this configuration describes: "
            f"{'; '.join(differences)}. Use the configuration it was trained with"
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
    state = checkpoint.common(mapped=True)
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
    raise CheckpointError(
        f"{path} holds no weights: they must be a dictionary of tensors, plain or under "
        f"{_NESTED_UNDER}"
    )


def _differing_names(names: set[str], how: str) -> list[str]:
    if not names:
        return []
    first = min(names)
    if len(names) == 1:
        return [f"{first} is {how}"]
    return [f"{len(names)} weights are {how} (such as {first})"]


def _differing_shapes(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    shared = [name for name in own if name in other and own[name].shape != other[name].shape]
    if not shared:
        return []
    first = shared[0]
    there, here = ("x".join(map(str, tensors[first].shape)) for tensors in (other, own))
    return [f"{len(shared)} differ in shape (such as {first}: {there} there, {here} here)"]
