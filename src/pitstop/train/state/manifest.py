"""The page that makes a folder of files a checkpoint: what is in it, and the sum of each file.

It is written last, and carries its own sum. A folder without a valid one holds no checkpoint.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pitstop.errors import CheckpointError

FILE_NAME: Final = "manifest.json"
COMMON_FILE: Final = "common.pt"

_FORMAT: Final = "pitstop checkpoint"
_VERSION: Final = 1
_PART: Final = re.compile(r"common\.pt|(rank|shard)-\d{5}\.pt")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def rank_file(rank: int) -> str:
    """Name the file in which one rank keeps what is its own."""
    return f"rank-{rank:05d}.pt"


def shard_file(rank: int) -> str:
    """Name the file in which one rank keeps its rows of tensors that ranks divide."""
    return f"shard-{rank:05d}.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """What a file must be to be whole."""

    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if type(self.size_bytes) is not int or not _SHA256.fullmatch(self.sha256):
            raise ValueError("not the sum of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says about itself."""

    step: int
    epoch: int
    world_size: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Quality at this step, as far as it was evaluated; None for what was not a finite number."""
    files: Mapping[str, FileSum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.step, self.epoch, self.world_size)):
            raise ValueError("not a place in a run")
        # Counted first: a manifest may claim a billion ranks.
        if not self.world_size < len(self.files) <= 2 * self.world_size + 1:
            raise ValueError(f"not the files of {self.world_size} ranks")
        expected = {COMMON_FILE, *map(rank_file, range(self.world_size))}
        # A rank without a row of its own writes none.
        shards = set(map(shard_file, range(self.world_size)))
        if not expected <= set(self.files) <= expected | shards:
            raise ValueError(f"not the files of {self.world_size} ranks")


def write_manifest(manifest: Manifest) -> str:
    """Put a manifest into text: one line of JSON, then the SHA-256 of that line."""
    body = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "step": manifest.step,
            "epoch": manifest.epoch,
            "world_size": manifest.world_size,
            "metrics": {name: _finite(value) for name, value in manifest.metrics.items()},
            "files": {
                name: {"size_bytes": part.size_bytes, "sha256": part.sha256}
                for name, part in manifest.files.items()
            },
        },
        sort_keys=True,
        allow_nan=False,
    )
    return f"{body}\n{_sum(body)}\n"


def read_manifest(text: str) -> Manifest:
    """Read a manifest back.

    Raises:
        CheckpointError: Where it is torn, damaged, or of a later version.
    """
    body, _, rest = text.partition("\n")
    if rest != f"{_sum(body)}\n":
        raise CheckpointError(f"{FILE_NAME} is damaged")
    try:
        return _from_json(json.loads(body))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{FILE_NAME} does not describe a checkpoint: {error}") from error


def _from_json(content: dict[str, Any]) -> Manifest:
    if content["format"] != _FORMAT or content["version"] != _VERSION:
        raise CheckpointError(
            f"{FILE_NAME} is of format {content['version']}, this pitstop reads {_VERSION}"
        )
    if not all(_PART.fullmatch(name) for name in content["files"]):
        raise CheckpointError(f"{FILE_NAME} names files that are no part of a checkpoint")
    return Manifest(
        step=content["step"],
        epoch=content["epoch"],
        world_size=content["world_size"],
        metrics={name: _finite(value) for name, value in content["metrics"].items()},
        files={name: FileSum(**part) for name, part in content["files"].items()},
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
