"""Reads and writes records; the only file of pitstop that knows JSON.

A run is a folder with one ``rank-N.jsonl`` a rank, or a single such file; of a run on several
hosts, also a folder with one such folder a host (host/nodes.py). The probe writes them
(docs/record-format.md); this reads them, whole or while they grow. Reading never fails on damage:
lines that cannot be read are counted and said in the record's notes.
"""

import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pitstop.errors import RecordError, os_errors_as
from pitstop.records.files import open_regular, whole_file
from pitstop.records.host.nodes import RANK_FILES, node_folders
from pitstop.records.reader import RankReader
from pitstop.records.run import SCHEMA, RankRecord, Reading, RunRecord

RecordT = TypeVar("RecordT")

StepsOf = Callable[[Sequence[RankRecord]], Collection[int]]

OUTSIDE = "outside.jsonl"
"""File of a run's folder with what was read from outside the training process."""

# Every line of a rank's file is JSON, and the first one begins like this.
_RUN_LINE = b'{"kind":"run"'
_CHUNK_BYTES = 1 << 22


def read_run(
    source: str | Path, *more: Path, with_steps: bool = True, steps_of: StepsOf | None = None
) -> RunRecord:
    """Read a run from its folder or from one rank's file.

    Args:
        source: Folder with ``rank-*.jsonl``, or one such file.
        more: Folders of the same run on other hosts.
        with_steps: False reads block summaries only, which is fast for long runs.
        steps_of: Chooses, from the summaries of all ranks, those whose steps are read as well.
            For many ranks: memory then does not grow with ranks times steps.

    Raises:
        RecordError: Nothing there, not a record, or written by a newer pitstop.
    """
    files = [file for folder in (Path(source), *more) for file in rank_files(folder)]
    if not Path(source).is_dir():
        ranks = [_read_rank(file, with_steps=with_steps) for file in files]
        return RunRecord(source=str(source), ranks=tuple(ranks), notes=_missing_ranks(ranks))
    whole = with_steps and steps_of is None
    chosen = [_longest_training(file, with_steps=whole) for file in files]
    ranks, earlier = _of_last_launch(sorted((rank for rank, _, _ in chosen), key=_number))
    if steps_of is not None:
        paths = {rank.rank: path for rank, path, _ in chosen}
        numbers = steps_of(ranks)
        ranks = [
            _read_rank(paths[rank.rank], with_steps=True) if rank.rank in numbers else rank
            for rank in ranks
        ]
    others = [path for _, _, left_out in chosen for path in left_out]
    notes = (*earlier, *_missing_ranks(ranks), *_other_trainings(others))
    ranks[0] = _with_outside(ranks[0], Path(source) / OUTSIDE)
    notes = (*notes, *_end_of_command(ranks))
    return RunRecord(source=str(source), ranks=tuple(ranks), notes=notes)


def _number(rank: RankRecord) -> int:
    return rank.rank


def _of_last_launch(ranks: list[RankRecord]) -> tuple[list[RankRecord], tuple[str, ...]]:
    """Leave out ranks that only an earlier launch had, of a run that went on with fewer."""
    begun = [
        (attempt.aligned_unix_s, attempt.world_size)
        for rank in ranks
        for attempt in rank.attempts[-1:]
        if attempt.aligned_unix_s is not None
    ]
    world = max(begun)[1] if begun else 0
    # Where ranks do not know of each other, each says that it is alone: none is left out then.
    is_earlier = [
        rank.rank >= world and any(attempt.world_size > world for attempt in rank.attempts[-1:])
        for rank in ranks
    ]
    kept = [rank for rank, is_out in zip(ranks, is_earlier, strict=True) if not is_out]
    left_out = [str(rank.rank) for rank, is_out in zip(ranks, is_earlier, strict=True) if is_out]
    if not kept or not left_out:
        return ranks, ()
    shown = ", ".join(left_out[:8]) + (", ..." if len(left_out) > 8 else "")
    return kept, (
        f"the run went on with {world} ranks; of those before, {len(left_out)} are left out: "
        f"{shown}",
    )


def _longest_training(path: Path, *, with_steps: bool) -> tuple[RankRecord, Path, list[Path]]:
    """Read the process of a rank that trained most; name its file, and those of its others.

    The rank's own file is that of the first process that made a step: a trial before the training,
    maybe. The others wrote files beside it.
    """
    found = {path: _read_rank(path, with_steps=with_steps)}
    for other in sorted(path.parent.glob(f"other-{path.stem.removeprefix('rank-')}-*.jsonl")):
        with suppress(RecordError):
            found[other] = _read_rank(other, with_steps=with_steps)
    longest = max(found, key=lambda each: sum(block.wall.count for block in found[each].blocks))
    return found[longest], longest, [each for each in found if each != longest]


def _with_outside(rank: RankRecord, path: Path) -> RankRecord:
    """Add what was read from outside the training process, where somebody watched it."""
    if not path.is_file():
        return rank
    try:
        outside = _read_rank(path, with_steps=False)
    except RecordError as error:
        return replace(rank, notes=(*rank.notes, f"left out: {error}"))
    return replace(rank, readings=(*rank.readings, *outside.readings))


def is_run(source: Path) -> bool:
    """Whether a folder holds rank files, its own or one folder a host, or a file begins as one.

    Raises:
        OSError: It cannot be read.
    """
    if source.is_dir():
        return any(source.glob(RANK_FILES)) or bool(node_folders(source))
    with open_regular(source) as file:
        return file.read(len(_RUN_LINE)) == _RUN_LINE


def rank_files(source: Path) -> list[Path]:
    """Find the files of a run, one a rank.

    Raises:
        RecordError: There is no such file or folder, or the folder holds no record.
    """
    with os_errors_as(RecordError, f"cannot read {source}"):
        is_folder, is_there = source.is_dir(), source.exists()
    if is_folder:
        if not os.access(source, os.R_OK | os.X_OK):
            raise RecordError(f"cannot read {source}: {os.strerror(errno.EACCES)}")
        files = sorted(source.glob(RANK_FILES))
        with suppress(OSError):
            inside = () if files else node_folders(source)
            files += [file for folder in inside for file in sorted(folder.glob(RANK_FILES))]
        if not files:
            raise RecordError(
                f"{source} holds no run record (no {RANK_FILES} in it); "
                "name the folder that a measured run wrote"
            )
        return files
    if not is_there:
        raise RecordError(f"there is no file or folder {source}")
    return [source]


class RunFollower:
    """Follows a rank's file while it is written; leaves the writer alone."""

    def __init__(self, path: str | Path, *, with_steps: bool = True) -> None:
        self._path = Path(path)
        self._reader = RankReader(with_steps=with_steps)
        self._offset = 0

    def poll(self) -> bool:
        """Take in what was appended since the last call; tell whether there was anything."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._offset)
            before = self._offset
            while chunk := file.read(_CHUNK_BYTES):
                self._reader.feed(chunk)
                self._offset += len(chunk)
        return self._offset > before

    def record(self) -> RankRecord:
        """Give what was read so far."""
        return self._reader.record()


def decode(reading: Reading, record_type: type[RecordT]) -> RecordT:
    """Give a reading its type.

    Raises:
        RecordError: Its values do not fit the type.
    """
    return _validated(record_type, dict(reading.values), f"a {reading.kind} reading")


def to_dict(record: object) -> dict[str, Any]:
    """Turn a record into plain values, with its kind and schema version."""
    plain = _adapter(type(record)).dump_python(record, mode="json")
    return {"kind": type(record).__name__, "schema": SCHEMA, **plain}


def to_json(record: object) -> str:
    """Render a record as JSON text; infinities and NaN become null, as JSON has neither."""
    return json.dumps(_finite(to_dict(record)), indent=2, ensure_ascii=False, allow_nan=False)


def from_json(text: str, record_type: type[RecordT]) -> RecordT:
    """Read a record back from `to_json`'s text.

    Raises:
        RecordError: The text is no JSON, of another kind, of a newer schema, or does not fit.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"not a record: no valid JSON at line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            "not a record: its JSON has non-finite numbers or is nested too deeply"
        ) from error
    kind = values.pop("kind", None) if isinstance(values, dict) else None
    if kind != record_type.__name__:
        raise RecordError(f"expected a {record_type.__name__} record, found {kind or 'none'}")
    schema = values.pop("schema", None)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise RecordError(f"written with schema {schema}; this pitstop reads up to {SCHEMA}")
    return _validated(record_type, values, f"the {kind} record")


def write_json(record: object, path: Path) -> None:
    """Write a record to a file, whole or not at all."""
    write_text(path, to_json(record) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file's content, whole or not at all.

    Raises:
        RecordError: The folder is missing or cannot be written to, or the file is a run's record.
    """
    with os_errors_as(RecordError, f"cannot write {path}"):
        if path.exists() and not path.is_file():
            # A pipe or a device such as /dev/null is written to; a file must not take its place.
            path.write_text(text, encoding="utf-8")
            return
        if path.exists() and is_run(path):
            raise RecordError(f"{path} is the record of a run; name another file")
        with whole_file(path) as temporary, temporary.open("x", encoding="utf-8") as file:
            file.write(text)


def require_writable(path: Path) -> None:
    """See that `write_text` will be able to write there, and leave no trace.

    Raises:
        RecordError: The folder is missing or cannot be written to.
    """
    with os_errors_as(RecordError, f"cannot write {path}"):
        if path.is_dir():
            raise RecordError(f"cannot write {path}: it is a folder")
        if path.exists() and not path.is_file():
            return  # a pipe or a device: to open one may wait for its reader
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def _read_rank(path: Path, *, with_steps: bool) -> RankRecord:
    reader = RankReader(with_steps=with_steps)
    with os_errors_as(RecordError, f"cannot read {path}"), open_regular(path) as file:
        # As far as it is written now: what grows meanwhile, or has no end, is not followed.
        left_bytes = os.fstat(file.fileno()).st_size
        while left_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, left_bytes))):
            reader.feed(chunk)
            left_bytes -= len(chunk)
    if not reader.is_record:
        raise RecordError(f"{path} is not a run record: it does not begin with a run line")
    return reader.record()


def _missing_ranks(ranks: list[RankRecord]) -> tuple[str, ...]:
    world = max((rank.attempts[-1].world_size for rank in ranks if rank.attempts), default=1)
    present = {rank.rank for rank in ranks if 0 <= rank.rank < world}
    count = world - len(present)
    if count <= 0:
        return ()
    # A damaged header may claim any number of ranks, so they are never listed whole.
    missing = islice((number for number in range(world) if number not in present), 8)
    shown = ", ".join(map(str, missing)) + (", ..." if count > 8 else "")
    return (f"{count} of {world} ranks left no record: {shown}",)


def _other_trainings(files: list[Path]) -> tuple[str, ...]:
    """Name what further processes of a rank recorded: it is not of this run."""
    names = [path.name for path in files]
    if not names:
        return ()
    what = "one more training was" if len(names) == 1 else f"{len(names)} more trainings were"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return (f"{what} measured and left out here; to judge one, name its file: {shown}",)


def _end_of_command(ranks: list[RankRecord]) -> tuple[str, ...]:
    """Tell of a command that failed where no rank tells of it: it was another process's doing."""
    if any(rank.ending is not None and rank.ending.status != "finished" for rank in ranks):
        return ()
    found = [reading.values for reading in ranks[0].readings if reading.kind == "ended"]
    if not found or found[-1].get("stopped_by_us"):
        return ()
    ran_on = ("the command ran on, unmeasured, after that",) if found[-1].get("ran_on") else ()
    if found[-1].get("signal"):
        return (*ran_on, f"the command was ended by {found[-1]['signal']}")
    code = found[-1].get("exit_code")
    return (*ran_on, f"the command ended with code {code}") if code else ran_on


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A dataclass's door to plain values: pydantic, imported when first needed."""

    dump_python: Callable[..., Any]
    validate_python: Callable[..., Any]


_ADAPTERS: dict[type, _Adapter] = {}


def _adapter(record_type: type) -> _Adapter:
    if record_type not in _ADAPTERS:
        from pydantic import TypeAdapter  # most reads never need it

        adapter = TypeAdapter(record_type)
        _ADAPTERS[record_type] = _Adapter(adapter.dump_python, adapter.validate_python)
    return _ADAPTERS[record_type]


def _validated(record_type: type[RecordT], values: Mapping[str, Any], what: str) -> RecordT:
    from pydantic import ValidationError

    try:
        return _adapter(record_type).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{what} cannot be read: {place}: {first['msg']}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
