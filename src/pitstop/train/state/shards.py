"""A state of which every rank has parts, taken apart for saving and put together for reading.

What all ranks have alike stays a plain state, with a mark where a divided tensor was. An index says
of each of these which rows lie in which file. Both are in `common.pt`, the rows in a file a rank:

    shard-00000.pt      {"model.0.weight@0": rows from 0 on, ...}

Tensors are divided by their first dimension, as FSDP2 does it. Reading needs no process group and
any number of ranks; every claim of an index is held against the tensors that are there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from pitstop.errors import CheckpointError
from pitstop.train.optim.local_part import is_divided

INDEX: Final = "shards"
"""Where the index stands in the state that all ranks share."""

_MARK: Final = "divided between ranks"

Read = Callable[[str], Mapping[str, Any]]
"""Gives the tensors in a file of a checkpoint, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows of a divided tensor."""

    start: int
    count: int
    file: str

    def name(self, key: str) -> str:
        """Name them within their file."""
        return f"{key}@{self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedTensor:
    """Where the rows of a tensor lie."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: tuple[Rows, ...]
    """In order, without a gap."""

    def __post_init__(self) -> None:
        sizes = (
            *self.shape,
            *(number for part in self.rows for number in (part.start, part.count)),
        )
        if not all(type(number) is int and number >= 0 for number in sizes):
            raise ValueError("sizes are no whole numbers")
        ends = [part.start + part.count for part in self.rows]
        if [part.start for part in self.rows] != [0, *ends[:-1]] or ends[-1:] != [*self.shape[:1]]:
            raise ValueError("rows are missing or there twice")


Index = Mapping[str, DividedTensor]


def split_shards(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Give the state with marks in place of divided tensors, and these by their path."""
    divided: dict[str, Tensor] = {}

    def mark(path: str, value: Tensor) -> Any:
        if not is_divided(value):
            return value
        divided[path] = value
        return {_MARK: path}

    return map_tensors(state, mark), divided


def map_tensors(value: Any, change: Callable[[str, Tensor], Any], path: str = "") -> Any:
    """Rebuild a nested state with each tensor changed; a path is its keys, joined by dots."""
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        above = f"{path}." if path else ""
        return {key: map_tensors(item, change, f"{above}{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change, f"{path}.{i}") for i, item in enumerate(value))
    return value


def fill_marks(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put tensors where their marks are.

    Raises:
        CheckpointError: A mark names none of them.
    """
    if isinstance(value, Mapping):
        if set(value) == {_MARK}:
            return _marked(value[_MARK], tensors)
        return {key: fill_marks(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(fill_marks(item, tensors) for item in value)
    return value


def write_index(index: Index) -> dict[str, Any]:
    """Put an index into plain values."""
    return {
        key: {
            "dtype": str(each.dtype).removeprefix("torch."),
            "shape": list(each.shape),
            "rows": [[part.start, part.count, part.file] for part in each.rows],
        }
        for key, each in index.items()
    }


def read_index(content: Any, files: Collection[str]) -> dict[str, DividedTensor]:
    """Read an index back; it may name no other files than these.

    Raises:
        CheckpointError: It is no index, or not of these files.
    """
    try:
        return {str(key): _read_entry(entry, files) for key, entry in content.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"its index of divided tensors is damaged: {error}") from error


def join_shards(
    index: Index, read: Read, parts: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Put whole tensors together from their rows, each in memory of its own.

    Args:
        index: Where rows lie.
        read: Opens a file; each is opened once.
        parts: First keys of the paths that are wanted; None for all.

    Raises:
        CheckpointError: What lies there is not what the index says.
    """
    files = ShardFiles(read)
    whole: dict[str, Tensor] = {}
    for key, each in index.items():
        if parts is not None and key.partition(".")[0] not in parts:
            continue
        found = [files.rows(key, each, part) for part in each.rows]
        whole[key] = torch.cat(found) if len(found) > 1 else found[0].clone()
    return whole


class ShardFiles:
    """The files of a checkpoint that rows lie in, each opened once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._open: dict[str, Mapping[str, Any]] = {}

    def rows(self, key: str, tensor: DividedTensor, part: Rows) -> Tensor:
        """Give some rows of a tensor.

        Raises:
            CheckpointError: They are not there, or of another type or shape.
        """
        if part.file not in self._open:
            self._open[part.file] = self._read(part.file)
        found = self._open[part.file].get(part.name(key))
        expected = (part.count, *tensor.shape[1:])
        if not isinstance(found, Tensor) or found.shape != expected or found.dtype != tensor.dtype:
            raise CheckpointError(f"{part.file} does not hold rows {part.start} on of {key}")
        return found


def _marked(key: object, tensors: Mapping[str, Tensor]) -> Tensor | None:
    if not isinstance(key, str) or key not in tensors:
        raise CheckpointError(f"its index of divided tensors lacks {key!r}")
    return tensors[key]


def _read_entry(entry: Any, files: Collection[str]) -> DividedTensor:
    dtype = getattr(torch, entry["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{entry['dtype']!r} is no type of tensors")
    rows = tuple(Rows(start=start, count=count, file=file) for start, count, file in entry["rows"])
    if not all(part.file in files for part in rows):
        raise ValueError("it names files that are no part of the checkpoint")
    return DividedTensor(dtype=dtype, shape=tuple(entry["shape"]), rows=rows)


def all_rows(index: Index) -> Iterator[tuple[str, DividedTensor, Rows]]:
    """Go through all rows of all tensors."""
    for key, each in index.items():
        for part in each.rows:
            yield key, each, part
