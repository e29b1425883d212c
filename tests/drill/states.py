"""What a run must be at each step: sums over every bit of its state, from a run left alone."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pitstop.train.state.checkpoint import Checkpoint, CheckpointWriter


def fingerprint(common: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Sum up the whole state of a rank; the configuration, which names folders, is left out."""
    digest = hashlib.sha256()
    _feed(digest, {name: value for name, value in common.items() if name != "config"})
    _feed(digest, own)
    return digest.hexdigest()


def of_checkpoint(checkpoint: Checkpoint, rank: int = 0) -> str:
    """Sum up what a checkpoint brings back."""
    return fingerprint(checkpoint.common(), checkpoint.of_rank(rank))


def noting_every_save(path: Path) -> Callable[[], None]:
    """Make a new process note the state at each save instead of writing checkpoints."""

    def install() -> None:
        sums: dict[str, str] = {}

        def save(self: CheckpointWriter, common: Any, own: Any, *, step: int, **_: Any) -> None:
            sums[str(step)] = fingerprint(common, own)
            path.write_text(json.dumps(sums))

        CheckpointWriter.save = save

    return install


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().reshape(-1).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(repr(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
