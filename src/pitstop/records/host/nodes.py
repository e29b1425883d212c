"""One run whose ranks wrote their files on several hosts, one folder each, gathered afterwards.

    gathered/                    or, as arguments:    gathered/node-a  gathered/node-b
      node-a/  rank-0.jsonl  rank-1.jsonl
      node-b/  rank-2.jsonl  rank-3.jsonl

Folders of several runs lie side by side in just the same way. They are one run where their files
begin with the same name and number of ranks, no rank is there twice, and none of them has all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pitstop.records.files import open_regular

RANK_FILES: Final = "rank-*.jsonl"
"""What the files of a run's folder are called, one a rank."""

_MOST_FOLDERS: Final = 4096
_MOST_HEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the first line of a rank's file says of the run."""

    name: str | None
    world_size: int
    rank: int


def node_folders(folder: Path) -> list[Path]:
    """Find the folders in a folder that hold one run between them; none where there is no such run.

    Raises:
        OSError: The folder cannot be read.
    """
    # A folder that is no gathered run may hold anything, and much of it.
    inside = sorted(path for path in islice(folder.iterdir(), _MOST_FOLDERS) if path.is_dir())
    with_files = [path for path in inside if any(path.glob(RANK_FILES))]
    return with_files if is_one_run(with_files) else []


def is_one_run(folders: Sequence[Path]) -> bool:
    """Tell whether folders hold one run between them, some ranks each."""
    if len(folders) < 2:
        return False
    found = [_heads(folder) for folder in folders]
    heads = [head for of_folder in found for head in of_folder or ()]
    if not all(found) or len({(head.name, head.world_size) for head in heads}) != 1:
        return False
    is_part = all(len(of_folder or ()) < heads[0].world_size for of_folder in found)
    return is_part and len({head.rank for head in heads}) == len(heads)


def _heads(folder: Path) -> list[_Head] | None:
    """Read the first line of each file; None where one says nothing of ranks."""
    try:
        return [_head(path) for path in sorted(folder.glob(RANK_FILES))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _head(path: Path) -> _Head:
    with open_regular(path) as file:
        line = json.loads(file.readline(_MOST_HEAD_BYTES))
    name = line.get("name")
    return _Head(
        name=None if name is None else str(name),
        world_size=int(line["world_size"]),
        rank=int(line["rank"]),
    )
