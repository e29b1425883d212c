"""Checkpoints that are whole or do not exist.

    checkpoints/
      save-000007-step-000006000/     the seventh save into this folder, after step 6000
        common.pt                     model, optimizer, schedule, loss scale, averages, config
        rank-00000.pt ...             of every rank: random state, place in the data
        shard-00000.pt ...            where ranks divide the model: each one's rows of its tensors
        manifest.json                 written last: the size and SHA-256 of each file
      .writing/                       a save under way, or one that was cut short

A save goes to `.writing` on all ranks, is flushed to the disk, and gets its name by one rename. A
process that is killed at any moment leaves the checkpoints before it as they were. They are
ordered by save, not by step: a run that went back and took another way has its newest at a lower
step. Reading builds tensors and plain values only (``weights_only``); it never runs code.
"""

import errno
import hashlib
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

import torch
from torch import distributed

from pitstop.errors import CheckpointError
from pitstop.records.files import open_regular, read_regular
from pitstop.train.state.manifest import (
    COMMON_FILE,
    FILE_NAME,
    FileSum,
    Manifest,
    rank_file,
    read_manifest,
    shard_file,
    write_manifest,
)
from pitstop.train.state.shards import (
    INDEX,
    Index,
    fill_marks,
    join_shards,
    read_index,
    split_shards,
    write_index,
)
from pitstop.train.state.snapshot import snapshot

_NAME: Final = re.compile(r"save-(\d{6,})-step-\d{9,}")
_WRITING: Final = ".writing"
_REMOVED: Final = ".removed-"
_CHUNK_BYTES: Final = 1 << 20
_MOST_MANIFEST_BYTES: Final = 64 << 20
_ADVICE: Final = {
    errno.ENOSPC: "free space there, or lower checkpoint.keep_last",
    errno.EDQUOT: "free space there, or lower checkpoint.keep_last",
    errno.EFBIG: "raise the limit on the size of files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose every byte was compared with its manifest."""

    path: Path
    manifest: Manifest

    def common(
        self, *, mapped: bool = False, parts: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Read what all ranks share, into host memory; what they divided is put together.

        Args:
            mapped: Map the file instead of reading it. Only for values that are copied on, such as
                weights put into a model: a tensor that stays mapped follows its file, also to its
                end.
            parts: Which of its parts are wanted, such as "model"; None for all.

        Raises:
            CheckpointError: Where it cannot be read.
        """
        state, index = self.divided(mapped=mapped)
        wanted = {key: state[key] for key in state if parts is None or key in parts}
        return fill_marks(wanted, join_shards(index, self.read_shard, parts)) if index else wanted

    def divided(self, *, mapped: bool = False) -> tuple[dict[str, Any], Index]:
        """Read what all ranks have alike, and where the rows of the rest are; see `shards`.

        The index is empty where nothing was divided.

        Raises:
            CheckpointError: Where it cannot be read.
        """
        state = self._read(COMMON_FILE, mapped=mapped)
        return state, read_index(state.pop(INDEX, {}), self.manifest.files)

    def read_shard(self, name: str) -> dict[str, Any]:
        """Map a file of rows; what is used of them must be copied.

        Raises:
            CheckpointError: Where it cannot be read.
        """
        return self._read(name, mapped=True)

    def of_rank(self, rank: int) -> dict[str, Any]:
        """Read what belongs to one rank alone.

        Raises:
            CheckpointError: Where the run that saved it had no such rank.
        """
        if not 0 <= rank < self.manifest.world_size:
            raise CheckpointError(
                f"{self.path} was saved by {self.manifest.world_size} ranks and has nothing for "
                f"rank {rank}; resume with as many ranks, or start a new run from its weights"
            )
        return self._read(rank_file(rank), mapped=False)

    def _read(self, name: str, *, mapped: bool) -> dict[str, Any]:
        return read_state(self.path / name, mapped=mapped)


def read_state(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read a dictionary of tensors and plain values into host memory; never runs code.

    Args:
        path: What ``torch.save`` wrote.
        mapped: See `Checkpoint.common`.

    Raises:
        CheckpointError: Where it is not there, damaged, or holds anything else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds something other than tensors and plain values, and is not read: "
            "that could run code"
        ) from error
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    except (EOFError, ValueError, LookupError, TypeError) as error:
        # What the unpickler stumbles over in another file is a number or nothing, no message.
        raise CheckpointError(
            f"{path} is no file that torch.save wrote, or it is damaged"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not a state")
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A save that is not used, and why."""

    path: Path
    reason: str


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint after comparing all of it with its manifest.

    Raises:
        CheckpointError: Where any of it is missing or damaged.
    """
    try:
        manifest = _compare_all(path)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"cannot use {path}: {error}") from error
    return Checkpoint(path=path, manifest=manifest)


def find_newest_whole(folder: Path) -> tuple[Checkpoint | None, list[Skipped]]:
    """Find the newest checkpoint that is whole, and say what newer there was and why it is not."""
    skipped: list[Skipped] = []
    if (folder / _WRITING).exists():
        skipped.append(Skipped(path=folder / _WRITING, reason="this save was cut short"))
    for path in reversed(_saves_in(folder)):
        try:
            return open_checkpoint(path), skipped
        except CheckpointError as error:
            skipped.append(Skipped(path=path, reason=str(error)))
    return None, skipped


def has_saves(folder: Path) -> bool:
    """Tell whether anything was ever saved there, whole or not; a save cut short is none."""
    return bool(_saves_in(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """The metric whose best checkpoint is kept beside the latest ones."""

    metric: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingRanks:
    """The ranks that write a checkpoint together.

    Attributes:
        rank: This one.
        world_size: How many there are.
        agree: Called by all ranks with whether they are well; waits for all, and answers on every
            rank whether all are. It is called from the writer's thread, so it must not share a
            process group with the training thread: their collectives would mix.
        group: The process group behind it; None where there is no other rank.
    """

    rank: int = 0
    world_size: int = 1
    agree: Callable[[bool], bool] = bool
    group: Any = None


def join_writers(*, rank: int, world_size: int, timeout: timedelta | None = None) -> WritingRanks:
    """Let the ranks of a launch write together, over a process group of their own.

    Every rank must call this, at the same point.

    Args:
        rank: This one.
        world_size: How many there are.
        timeout: How long they wait for each other; None for torch's own limit.
    """
    # A rank alone has a group only where it divides a model, with nobody.
    if world_size == 1 and not (distributed.is_available() and distributed.is_initialized()):
        return WritingRanks()
    group = distributed.new_group(backend="gloo", timeout=timeout)

    def agree(well: bool) -> bool:  # noqa: FBT001 - the question is its only argument
        vote = torch.tensor(int(well))
        distributed.all_reduce(vote, distributed.ReduceOp.MIN, group=group)
        return bool(vote.item())

    return WritingRanks(rank=rank, world_size=world_size, agree=agree, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """One save: everything to write, in host memory."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    common: Any
    own: Any
    shards: Mapping[str, Any]
    """Of tensors that ranks divide: what this one has."""
    index: dict[str, Any] = field(default_factory=dict)
    """Where the rows of all ranks are, once written; known to the first rank."""
    sums: dict[str, FileSum] = field(default_factory=dict)
    """Of the files this rank has written so far."""


class CheckpointWriter:
    """Saves checkpoints into one folder and keeps it tidy. All ranks have one and save together.

    Use it in a ``with`` statement, or close it: only then is the last save known to be whole.

    Args:
        folder: Where checkpoints go; made when first needed. All ranks must see the same one.
        keep_last: Number of latest checkpoints to keep; older ones go once a new one is whole.
        best_of: Metric whose best checkpoint is kept as well.
        ranks: Who writes; one process unless given.
        background: Write in a thread while training goes on. `save` then takes as long as a copy
            to host memory, and as what is left of the save before.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int,
        best_of: BestOf | None = None,
        ranks: WritingRanks = WritingRanks(),  # noqa: B008 - frozen
        background: bool = True,
    ) -> None:
        assert keep_last >= 1
        self._folder = folder
        self._keep_last = keep_last
        self._best_of = best_of
        self._ranks = ranks
        self._background = background
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as late:  # noqa: BLE001 - the error that ends the run comes first
            error.add_note(f"also, the last checkpoint could not be saved: {late}")

    def save(
        self,
        common: Mapping[str, Any],
        own: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save the state after `step`; what is given may change as soon as this returns.

        Args:
            common: What all ranks share; taken from the first rank only, but for tensors that
                ranks divide.
            own: What belongs to this rank.
            step: Optimizer steps done.
            epoch: The epoch the run is in.
            metrics: Quality at this step, where it was evaluated.

        Raises:
            CheckpointError: Where this save, or the one before it in the background, failed. The
                state in memory and earlier checkpoints are as they were, and saving can be tried
                again.
        """
        self.wait()
        first = self._ranks.rank == 0
        alike, shards = split_shards(common)
        save = _Save(
            step=step,
            epoch=epoch,
            metrics=dict(metrics or {}),
            common=snapshot(alike) if first else None,
            own=snapshot(own),
            shards=snapshot(shards),
        )
        if not self._background:
            self._write(save)
            return
        # Not a daemon: a program that ends in order waits for its last checkpoint.
        self._thread = threading.Thread(
            target=self._write_beside, args=(save,), name="checkpoint-writer"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is under way.

        Raises:
            CheckpointError: Where it failed; raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait for the last save.

        Raises:
            CheckpointError: Where it failed.
        """
        self.wait()

    def _write_beside(self, save: _Save) -> None:
        try:
            self._write(save)
        except Exception as error:  # noqa: BLE001 - raised again on the training thread
            self._error = error

    def _write(self, save: _Save) -> None:
        writing = self._folder / _WRITING
        for phase in (self._prepare, self._write_shards, self._write_parts, self._publish):
            failure = _attempt(phase, save, self._folder)
            if not self._ranks.agree(failure is None):
                if self._ranks.rank == 0:
                    shutil.rmtree(writing, ignore_errors=True)
                raise failure or CheckpointError(
                    f"the checkpoint of step {save.step} was not saved: another rank could not "
                    "write its part, and says why"
                )
        if self._ranks.rank == 0:
            failure = _attempt(self._retire, save, self._folder)
            if failure is not None:
                raise failure

    def _prepare(self, save: _Save) -> None:
        """Make an empty folder to write to, out of the way of anything a killed run left."""
        del save
        if self._ranks.rank != 0:
            return
        # Without its parents: a run's folder that was deleted is not made anew behind its back.
        self._folder.mkdir(exist_ok=True)
        for left_over in [self._folder / _WRITING, *self._folder.glob(f"{_REMOVED}*")]:
            if left_over.exists():
                shutil.rmtree(left_over)
        (self._folder / _WRITING).mkdir()

    def _write_shards(self, save: _Save) -> None:
        """Write what ranks divide; first, since all of them must come by here together."""
        if not save.shards:
            return
        # Here, where it is needed: importing what it stands on takes half a second.
        from pitstop.train.state.shard_storage import save_shards

        name = shard_file(self._ranks.rank)

        def write(rows: Mapping[str, Any]) -> tuple[str, FileSum]:
            return name, _write_state(self._folder / _WRITING / name, rows)

        index, sums = save_shards(save.shards, write, self._ranks.group)
        save.index.update(write_index(index))
        save.sums.update(sums)

    def _write_parts(self, save: _Save) -> None:
        writing = self._folder / _WRITING
        states = {rank_file(self._ranks.rank): save.own}
        if self._ranks.rank == 0:
            states[COMMON_FILE] = {**save.common, INDEX: save.index} if save.index else save.common
        save.sums.update({name: _write_state(writing / name, states[name]) for name in states})

    def _publish(self, save: _Save) -> None:
        """Write the manifest and give the folder its name: from here on the checkpoint exists."""
        if self._ranks.rank != 0:
            return
        writing = self._folder / _WRITING
        others = map(rank_file, range(1, self._ranks.world_size))
        manifest = Manifest(
            step=save.step,
            epoch=save.epoch,
            world_size=self._ranks.world_size,
            metrics=save.metrics,
            files={**save.sums, **{name: _sum_of(writing / name) for name in others}},
        )
        with (writing / FILE_NAME).open("w", encoding="utf-8") as file:
            file.write(write_manifest(manifest))
            _flush(file)
        _flush_folder(writing)
        saves = _saves_in(self._folder)
        number = 1 + (_number_of(saves[-1]) if saves else 0)
        writing.rename(self._folder / f"save-{number:06d}-step-{save.step:09d}")
        _flush_folder(self._folder)

    def _retire(self, save: _Save) -> None:
        """Remove what is neither among the latest nor the best, now that a newer one is whole."""
        del save
        whole = _whole_in(self._folder)
        keep = {path for path, _ in whole[-self._keep_last :]}
        best = self._best_of and best_checkpoint(whole, self._best_of)
        for path, _ in whole:
            if path not in keep and path != best:
                # Renamed first: a folder half deleted must not look like a damaged checkpoint.
                removed = path.with_name(f"{_REMOVED}{path.name}")
                path.rename(removed)
                shutil.rmtree(removed)


def best_checkpoint(saves: list[tuple[Path, Manifest]], best_of: BestOf) -> Path | None:
    """Choose the best by a metric, of equals the earliest; None where it was never measured."""
    sign = 1.0 if best_of.higher_is_better else -1.0
    measured = [
        (sign * value, path)
        for path, manifest in saves
        if (value := manifest.metrics.get(best_of.metric)) is not None
    ]
    return max(measured, key=lambda entry: entry[0])[1] if measured else None


class _SummedFile:
    """A file that sums what it is given, and remembers why writing failed: torch does not say."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(data)
        self._size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def sum(self) -> FileSum:
        return FileSum(size_bytes=self._size_bytes, sha256=self._digest.hexdigest())


def _write_state(path: Path, state: Any) -> FileSum:
    """Write a state through to the disk; the sum is of what was meant, not of what arrived."""
    with path.open("wb") as file:
        summed = _SummedFile(file)
        try:
            torch.save(state, cast("IO[bytes]", summed))
        except RuntimeError as error:
            raise summed.error or error from None
        _flush(file)
    return summed.sum()


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder as lasting as the files are."""
    if os.name == "nt":  # which does not open folders, and keeps names in its journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _attempt(phase: Callable[[_Save], None], save: _Save, folder: Path) -> Exception | None:
    """Run a phase and give back what went wrong, so that this rank still reaches the vote."""
    try:
        phase(save)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "see that the folder exists and can be written to")
        failure = CheckpointError(
            f"cannot save the checkpoint of step {save.step} in {folder}: {error}; {advice}"
        )
        failure.__cause__ = error
        return failure
    except Exception as error:  # noqa: BLE001 - raised after the vote
        return error
    return None


def _saves_in(folder: Path) -> list[Path]:
    """List the saves in a folder, whole or not, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_number_of)


def _number_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _whole_in(folder: Path) -> list[tuple[Path, Manifest]]:
    """List the saves that look whole, the oldest first: every file there, and of its size."""
    found: list[tuple[Path, Manifest]] = []
    for path in _saves_in(folder):
        try:
            found.append((path, _manifest_of(path)))
        except (CheckpointError, OSError):
            continue
    return found


def _manifest_of(path: Path) -> Manifest:
    """Read a manifest and compare it with what a glance shows of the files."""
    try:
        text = read_regular(path / FILE_NAME, most_bytes=_MOST_MANIFEST_BYTES).decode("utf-8")
        manifest = read_manifest(text)
    except FileNotFoundError:
        raise CheckpointError(f"it has no {FILE_NAME}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{FILE_NAME} is damaged") from None
    for name, expected in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except FileNotFoundError:
            raise CheckpointError(f"{name} is missing") from None
        if size_bytes != expected.size_bytes:
            raise CheckpointError(f"{name} has {size_bytes} bytes instead of {expected.size_bytes}")
    return manifest


def _compare_all(path: Path) -> Manifest:
    manifest = _manifest_of(path)
    for name, expected in manifest.files.items():
        if _sum_of(path / name) != expected:
            raise CheckpointError(f"{name} is damaged: its checksum differs from the manifest's")
    return manifest


def _sum_of(path: Path) -> FileSum:
    digest, size_bytes = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return FileSum(size_bytes=size_bytes, sha256=digest.hexdigest())
