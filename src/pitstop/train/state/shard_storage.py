"""Divided tensors saved and read by torch's distributed checkpoints, in files of our own.

torch plans who writes and reads what, so that any number of ranks can go on from what another
number has saved. Its own storage keeps the plan as a pickle, which runs code when it is read; here
the plan becomes the index of `pitstop.train.state.shards`, and files are plain tensors.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from pitstop.errors import CheckpointError
from pitstop.train.state.manifest import FileSum
from pitstop.train.state.shards import DividedTensor, Index, Read, Rows, ShardFiles, all_rows

Write = Callable[[Mapping[str, Tensor]], tuple[str, FileSum]]
"""Writes this rank's tensors; gives the file's name and its sum."""


def save_shards(
    tensors: Mapping[str, Tensor], write: Write, group: ProcessGroup
) -> tuple[dict[str, DividedTensor], dict[str, FileSum]]:
    """Write divided tensors; all ranks of the group must call this.

    Returns:
        On the first rank, where everything lies and the sums of all files; nothing on others.

    Raises:
        OSError: This rank could not write its file.
        CheckpointError: Another rank could not.
    """
    writer = _Writer(write)
    try:
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        _raise_cause(error, group.rank())
    return writer.index, writer.sums


def load_shards(targets: Mapping[str, Tensor], index: Index, read: Read) -> None:
    """Fill divided tensors from a checkpoint, each rank its own part; all ranks must call this.

    Raises:
        CheckpointError: What lies there does not fit.
    """
    lacking = next((key for key in targets if key not in index), None)
    if lacking is not None:
        raise CheckpointError(f"it has no {lacking}")
    wanted = {key: index[key] for key in targets}
    try:
        load(dict(targets), storage_reader=_Reader(wanted, read))
    except CheckpointException as error:
        _raise_cause(error, torch.distributed.get_rank())


class _Writer(StorageWriter):
    """Gives each rank's rows to a function, and makes the index of all."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.index: dict[str, DividedTensor] = {}
        self.sums: dict[str, FileSum] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        del is_coordinator, args, kwargs

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rows: dict[str, Tensor] = {}
        for item in plan.items:
            value = planner.resolve_data(item)
            assert isinstance(value, Tensor), "nothing else is given to be saved"
            if value.numel():
                rows[f"{item.index.fqn}@{_first(item.index)}"] = value.detach()
        written = self._write(rows) if rows else None
        results = [
            WriteResult(index=item.index, size_in_bytes=0, storage_data=written)
            for item in plan.items
        ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files: dict[tuple[str, int], str] = {}
        for result in (each for ranks in results for each in ranks):
            if result.storage_data is not None:
                name, total = result.storage_data
                files[result.index.fqn, _first(result.index)] = name
                self.sums[name] = total
        for key, entry in metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata), "nothing else is given to be saved"
            chunks = sorted((chunk.offsets[0], chunk.sizes[0]) for chunk in entry.chunks)
            self.index[key] = DividedTensor(
                dtype=entry.properties.dtype,
                shape=tuple(entry.size),
                rows=tuple(
                    Rows(start=start, count=count, file=files[key, start])
                    for start, count in chunks
                    if count
                ),
            )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        del checkpoint_id
        return True


class _Reader(StorageReader):
    """Reads rows where the index says they are."""

    def __init__(self, index: Index, read: Read) -> None:
        self._index = index
        self._read = read

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        del args, kwargs
        entries: dict[str, Any] = {
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=each.dtype),
                size=torch.Size(each.shape),
                chunks=[
                    ChunkStorageMetadata(
                        offsets=torch.Size((part.start, *[0] * (len(each.shape) - 1))),
                        sizes=torch.Size((part.count, *each.shape[1:])),
                    )
                    for part in each.rows
                ],
            )
            for key, each in self._index.items()
        }
        return Metadata(state_dict_metadata=entries)

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - torch's own
        *args: Any,
        **kwargs: Any,
    ) -> None:
        del metadata, is_coordinator, args, kwargs

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        places = {(key, part.start): (each, part) for key, each, part in all_rows(self._index)}
        files = ShardFiles(self._read)
        for item in plan.items:
            key = item.storage_index.fqn
            each, part = places[key, _first(item.storage_index)]
            found = files.rows(key, each, part)
            for dimension, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                found = found.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(found)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        del checkpoint_id
        return True


def _first(index: MetadataIndex) -> int:
    return 0 if index.offset is None else index.offset[0]


def _raise_cause(error: CheckpointException, rank: int) -> None:
    """Raise what went wrong on this rank, or say which other one it was."""
    if rank in error.failures:
        raise error.failures[rank][0] from None
    other, (cause, _) = next(iter(error.failures.items()))
    raise CheckpointError(f"rank {other} could not do its part: {cause}") from None
