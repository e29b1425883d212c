"""Reads training logs of any known format, however many files, into one record a run."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pitstop.errors import RecordError
from pitstop.logs.builder import LogBuilder
from pitstop.logs.finish import finish
from pitstop.logs.formats import (
    bars,
    fastreid,
    huggingface,
    kair,
    llm,
    meters,
    mm,
    plain,
    tables,
    tensorboard,
    transreid,
)
from pitstop.logs.general.read import NAME as GENERAL
from pitstop.logs.general.read import FieldHints, read_general
from pitstop.logs.group import Read, group, join
from pitstop.logs.lines import Note, is_packed, portions, sample, stream
from pitstop.logs.reader import Feed, Reader
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.store import is_run, read_run

READERS: Final[tuple[Reader, ...]] = (
    *mm.READERS,
    *fastreid.READERS,
    *meters.READERS,
    *transreid.READERS,
    *kair.READERS,
    *llm.READERS,
    *huggingface.READERS,
    *tables.READERS,
    *bars.READERS,
    *tensorboard.READERS,
    *plain.READERS,
)
OWN: Final = "pitstop"
"""Name of our own format, which `pitstop.records.store` reads."""

_SURE_ENOUGH = 0.5
_DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)
_SUFFIXES = frozenset((".log", ".txt", ".json", ".csv", ".out", ".err", ".gz", ".jsonl"))
_MOST_FILES = 256


def read_logs(
    paths: Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the word the user knows
    batch_sizes: Sequence[int] = (),
    world_sizes: Sequence[int] = (),
    hints: FieldHints | None = None,
) -> tuple[RunRecord, ...]:
    """Read logs; files of one run become one record.

    Args:
        paths: Files, or folders whose files are looked through.
        format: Name of a reader to use instead of the one that is found; see `READERS`.
        batch_sizes: Samples of a step on one rank: one for all, or one for each path in order.
        world_sizes: Ranks of the run, likewise.
        hints: What the caller says of fields; then the general reader is used.

    Raises:
        RecordError: A path cannot be read or holds no known log, the format does not exist, or
            the numbers do not fit the paths.
    """
    batches = _one_each(batch_sizes, len(paths), "batch sizes")
    worlds = _one_each(world_sizes, len(paths), "world sizes")
    forced = None if format in (None, OWN, GENERAL) else _named(format)
    if format == GENERAL:
        hints = hints or FieldHints()
    own: list[RunRecord] = []
    files: list[Read] = []
    for path, batch, world in zip(map(Path, paths), batches, worlds, strict=True):
        _refuse_pipe(path)
        if _is_own(path) or format == OWN:
            own.append(read_run(path))
            continue
        for file in _files(path):
            if hints is not None:
                rank = read_general(file, hints)[0]
            else:
                rank = _read(file, forced, is_picked=file != path)
            if rank is not None:
                files.append(_as_given(file, rank, batch, world))
        _require_some(path, files)
    runs = [_run(members) for members in group(files)]
    return (*own, *runs)


def _refuse_pipe(path: Path) -> None:
    """Refuse what can be read once only: a log is read twice, first to find its format."""
    try:
        is_pipe = path.exists() and not (path.is_file() or path.is_dir())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    if is_pipe:
        raise RecordError(f"{path} is a pipe or a device; give a file")


def _require_some(path: Path, files: list[Read]) -> None:
    if path.is_dir() and not any(path in file.path.parents for file in files):
        raise RecordError(f"no file in {path} is a training log of a known format; {_known()}")


def _one_each(values: Sequence[int], count: int, what: str) -> list[int | None]:
    if any(value < 1 for value in values):
        raise RecordError(f"{what} must be 1 or more, not {min(values)}")
    if not values:
        return [None] * count
    if len(values) == 1:
        return [values[0]] * count
    if len(values) != count:
        raise RecordError(
            f"{len(values)} {what} for {count} paths; give one for all, or one for each in order"
        )
    return list(values)


def _named(name: str | None) -> Reader:
    for reader in READERS:
        if reader.name == name:
            return reader
    raise RecordError(f"there is no log format {name!r}; {_known()}")


def _known() -> str:
    return "known formats: " + ", ".join([*(reader.name for reader in READERS), GENERAL, OWN])


def _is_own(path: Path) -> bool:
    try:
        return is_run(path)
    except OSError:
        return False


def _files(path: Path) -> list[Path]:
    """Give the file itself, or what may be logs in the folder."""
    try:
        if not path.exists():
            raise RecordError(f"there is no file or folder {path}")
        if not path.is_dir():
            return [path]
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and (file.suffix in _SUFFIXES or "tfevents" in file.name)
        )
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    if len(found) > _MOST_FILES:
        raise RecordError(
            f"{path} holds {len(found)} files that may be logs; name the ones to read"
        )
    return found


def detect(path: str | Path) -> list[tuple[Reader, float]]:
    """Say which formats a file may hold and how sure that is, the surest first.

    Raises:
        RecordError: The file cannot be read.
    """
    lines = sample(Path(path))
    sure = [(reader, reader.sniff(lines)) for reader in READERS]
    found = [(reader, confidence) for reader, confidence in sure if confidence > 0]
    found.sort(key=lambda pair: -pair[1])
    return found


def _chosen(path: Path) -> list[tuple[Reader, float]]:
    """Choose the formats to read: each that is sure enough; pairs of anything only if alone."""
    found = detect(path)
    good = [pair for pair in found if pair[1] >= _SURE_ENOUGH and pair[0] is not plain.PLAIN]
    if any(reader.is_binary or reader is tables.CSV for reader, _ in good):
        return good[:1]
    return good or found[:1]


def _read(path: Path, forced: Reader | None, *, is_picked: bool) -> RankRecord | None:
    """Read one file.

    Args:
        path: File to read.
        forced: Format that the caller named.
        is_picked: Whether we found the file in a folder; then it need not be a log.
    """
    chosen = [(forced, 1.0)] if forced is not None else _chosen(path)
    if is_picked:
        chosen = [pair for pair in chosen if pair[1] >= _SURE_ENOUGH]
    ranks = [_read_as(path, chosen)] if chosen else []
    records = [rank for found in ranks for rank in found if rank.windows and len(rank.windows)]
    if records:
        return join(records)
    if is_picked:
        return None
    raise RecordError(_why_not(path, forced))


def _why_not(path: Path, forced: Reader | None) -> str:
    lines = sample(path)
    if not any(lines) and is_packed(path):
        return f"{path} is cut off or damaged: nothing in it can be unpacked"
    if not any(lines):
        return f"{path} is empty: there is nothing to read in it"
    if forced is not None:
        return (
            f"{path} holds no record of the format {forced.name}; leave out --format to detect it"
        )
    text = b"\n".join(lines[:64])[:4096]
    if b"\0" in text:
        return f"{path} is a binary file of no known format; {_known()}"
    return (
        f"{path} holds no training record of a known format; {_known()}. --explain shows what the "
        f"general reader makes of its lines; --format {GENERAL} judges by that: check it first"
    )


def _read_as(path: Path, chosen: Sequence[tuple[Reader, float]]) -> list[RankRecord]:
    builders = [LogBuilder(is_rebuilt=bool(reader.rebuild)) for reader, _ in chosen]
    feeds = [reader.start(builder) for (reader, _), builder in zip(chosen, builders, strict=True)]
    if chosen[0][0].is_binary:
        _pour(path, feeds[0], builders[0])
    else:
        _feed_lines(path, feeds, builders)
    records = []
    for (reader, confidence), builder in zip(chosen, builders, strict=True):
        builder.close()
        records.append(finish(builder, reader, confidence=confidence, file=str(path)))
    return records


def _pour(path: Path, feed: Feed, builder: LogBuilder) -> None:
    for portion in portions(path, builder.note):
        try:
            feed(portion)
        except _DAMAGE:
            builder.damaged += 1


def _note_in(builders: Sequence[LogBuilder]) -> Note:
    def note(text: str) -> None:
        for builder in builders:
            builder.note(text)

    return note


def _feed_lines(path: Path, feeds: Sequence[Feed], builders: Sequence[LogBuilder]) -> None:
    pairs = list(zip(feeds, builders, strict=True))
    before = b""
    note = _note_in(builders)
    for lines, is_whole in stream(path, note):
        if not is_whole and before:
            note("the last line has no end and is left out: killed, or writing now")
            continue
        for feed, builder in pairs:
            feed_portion(lines, before, feed, builder)
        if lines:
            before = lines[-1]


def feed_portion(lines: Sequence[bytes], before: bytes, feed: Feed, builder: LogBuilder) -> None:
    """Hand lines to a reader one by one; a line on which it fails is counted as damaged.

    Args:
        lines: In the order of the file.
        before: The line before the first of them.
        feed: Takes a line.
        builder: Counts the damaged ones.
    """
    for line in lines:
        if line == before:
            continue  # printed twice, to the console and to the file
        before = line
        try:
            feed(line)
        except _DAMAGE:
            builder.damaged += 1


def _as_given(path: Path, rank: RankRecord, batch: int | None, world: int | None) -> Read:
    """Put what the caller said in place of what the log says."""
    assert rank.windows is not None, "a log's record has a table"
    log = rank.windows.log
    if batch is not None:
        log = replace(log, batch_size=batch, batch_size_from="given")
    if world is not None:
        log = replace(log, world_size=world, world_size_from="given")
    attempts = tuple(replace(a, world_size=log.world_size or 1) for a in rank.attempts)
    rank = replace(rank, attempts=attempts, windows=replace(rank.windows, log=log))
    return Read(path=path, rank=rank, formats=frozenset(log.format.split(" + ")))


def _run(members: Sequence[Read]) -> RunRecord:
    rank = join([member.rank for member in members])
    source = ", ".join(str(member.path) for member in members)
    return RunRecord(source=source, ranks=(rank,))
