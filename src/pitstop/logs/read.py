"""Reads training logs of any known format, however many files, into one record a run."""

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from pitstop.errors import RecordError
from pitstop.logs.builder import LogBuilder
from pitstop.logs.finish import finish
from pitstop.logs.formats import (
    fastreid,
    huggingface,
    kair,
    llm,
    meters,
    mm,
    tables,
    tensorboard,
    transreid,
)
from pitstop.logs.general.dialect import dialect_of
from pitstop.logs.general.read import NAME as GENERAL
from pitstop.logs.general.read import FieldHints, read_bar, read_general
from pitstop.logs.group import Read, group, join
from pitstop.logs.lines import (
    Note,
    check_regular,
    cut,
    is_packed,
    portions,
    sample,
    standard_input,
    stream,
)
from pitstop.logs.memory_lines import MARK, MemoryLines
from pitstop.logs.mentions import mentioned
from pitstop.logs.reader import Feed, Reader
from pitstop.records.reader import DAMAGE
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.store import is_run, read_run
from pitstop.records.units import count_text

READERS: Final[tuple[Reader, ...]] = (
    *mm.READERS,
    *fastreid.READERS,
    *meters.READERS,
    *transreid.READERS,
    *kair.READERS,
    *llm.READERS,
    *huggingface.READERS,
    *tables.READERS,
    *tensorboard.READERS,
)
OWN: Final = "pitstop"
"""Name of our own format, which `pitstop.records.store` reads."""

_SURE_ENOUGH = 0.5
_STANDARD_INPUT = "-"
_KEPT_AS = "standard-input.log"
_WHOLE = (b"}", b"]")
"""How a line ends that is whole though the file ends with it: JSON, a drawing of a bar."""
_DAMAGE: Final = (*DAMAGE, struct.error)
_SUFFIXES = frozenset((".log", ".txt", ".json", ".csv", ".out", ".err", ".gz", ".jsonl"))
_PRINTED: Final = {
    "a loss": (rb"loss\w{0,16}[ \t=:'\"]{1,4}-?\d",),
    "a learning rate": (rb"l(?<![^\W_].)(?:r|earning[ _]rate)[ \t=:'\"]{1,4}\d",),
    "a timestamp": (rb":\d\d:(?<=\b\d\d:\d\d:)\d\d\b",),
    "memory": (rb"(?:mem(?:ory)?|vram)\b[^\d\n]{0,16}\d",),
    "a time": (
        rb"[cdest](?<![^\W_].)(?:(?<=t)(?:ime|ook)|(?<=e)lapsed|(?<=d)uration|(?<=c)ost"
        rb"|(?<=s)ec(?:ond)?s?)\b[^\w\n]{1,4}\d",
        rb"[ims](?:(?<=\d.)|(?<=\d .))(?:(?<=m)s|(?<=i)t/s|(?<=s)(?:ecs?|econds|/it)?)\b",
    ),
}
"""What stands in a log whose text in lower case has one of these, whoever read it.

Each begins with a letter or a colon and looks back from there: that lets a search jump.
"""
_UNREAD = "not understood: "
_MOST_FILES = 256
# Of any kind: a home folder is not searched through.
_MOST_SEEN = 20_000


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
        paths: Files, folders whose files are looked through, or ``-`` for standard input.
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
    with TemporaryDirectory() as folder:
        given = [_kept(path, Path(folder)) for path in paths]
        runs = _read_all(list(zip(given, batches, worlds, strict=True)), format, hints)
        kept = str(Path(folder, _KEPT_AS))
        return tuple(replace(r, source=r.source.replace(kept, _STANDARD_INPUT)) for r in runs)


def _kept(path: str | Path, folder: Path) -> Path:
    """Keep what comes from standard input, given as ``-``, in a file."""
    if str(path) != _STANDARD_INPUT:
        return Path(path)
    kept = folder / _KEPT_AS
    standard_input(kept)
    return kept


def _read_all(
    given: Sequence[tuple[Path, int | None, int | None]],
    format: str | None,  # noqa: A002 - the word the user knows
    hints: FieldHints | None,
) -> tuple[RunRecord, ...]:
    forced = None if format in (None, OWN, GENERAL) else _named(format)
    if format == GENERAL:
        hints = hints or FieldHints()
    own: list[RunRecord] = []
    files: list[Read] = []
    for path, batch, world in given:
        if path.exists() and not path.is_dir():
            check_regular(path)
        if _is_own(path) or format == OWN:
            own.append(read_run(path))
            continue
        for file in _files(path):
            rank = _read(file, forced, hints, is_picked=file != path)
            if rank is not None:
                files.append(_as_given(file, rank, batch, world))
        _require_some(path, files)
    runs = [_run(members) for members in group(files)]
    return (*own, *runs)


def _require_some(path: Path, files: list[Read]) -> None:
    if not path.is_dir() or any(path in file.path.parents for file in files):
        return
    runs = sorted(place for place in path.iterdir() if place.is_dir() and _is_own(place))
    if runs:
        raise RecordError(f"{path} is no run but holds {count_text(len(runs), 'run')}: {runs[0]}")
    if not _files_in(path):
        raise RecordError(
            f"{path} holds no file that could be a training log, and no rank-*.jsonl of a "
            "measured run; try `pitstop doctor -- COMMAND`"
        )
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
        return _files_in(path) if path.is_dir() else [path]
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error


def _files_in(folder: Path) -> list[Path]:
    """Give what may be logs in a folder that holds one run, not everything that somebody has."""
    found: list[Path] = []
    seen = 0
    for parent, _, names in os.walk(folder):
        seen += len(names)
        found += [
            file
            for name in names
            if (file := Path(parent, name)).suffix in _SUFFIXES or "tfevents" in name
            if file.is_file()
        ]
        if len(found) > _MOST_FILES or seen > _MOST_SEEN:
            raise RecordError(
                f"{folder} holds more than {_MOST_FILES} files that may be logs, or more than "
                f"{_MOST_SEEN:,} files in all; name the logs to read"
            )
    return sorted(found)


def recognise(lines: list[bytes]) -> list[tuple[Reader, float]]:
    """Say which formats lines of a file may be of and how sure that is, the surest first."""
    text = b"\n".join(lines)
    # Most formats have a word of their own that is nowhere in the file.
    likely = [reader for reader in READERS if reader.needle in text]
    sure = [(reader, reader.sniff(lines)) for reader in likely]
    found = [(reader, confidence) for reader, confidence in sure if confidence > 0]
    found.sort(key=lambda pair: -pair[1])
    return found


def _chosen(lines: list[bytes]) -> list[tuple[Reader, float]]:
    """Choose the formats to read: each that is sure enough."""
    found = recognise(lines)
    good = [pair for pair in found if pair[1] >= _SURE_ENOUGH]
    if any(reader.is_binary or reader is tables.CSV for reader, _ in good):
        return good[:1]
    return good or found[:1]


def _read(
    path: Path, forced: Reader | None, hints: FieldHints | None, *, is_picked: bool
) -> RankRecord | None:
    """Read one file: as a known format, else by what repeats in it.

    Args:
        path: File to read.
        forced: Format that the caller named.
        hints: What the caller says of fields; then the general reader is used.
        is_picked: Whether we found the file in a folder; then it need not be a log.
    """
    if forced is None and hints is None:
        hints = dialect_of(path)
    lines = sample(path)
    if hints is not None:
        return _with_memory(path, lines, read_general(path, hints)[0])
    chosen = [(forced, 1.0)] if forced is not None else _chosen(lines)
    if is_picked:
        chosen = [pair for pair in chosen if pair[1] >= _SURE_ENOUGH]
    found = _read_as(path, chosen) if chosen else []
    records = [rank for rank in found if _has_records(rank)]
    if records and chosen[0][0].is_binary:
        return join(records)
    if records:
        found = join([*records, *_bar_of(path, records)])
        return _with_memory(path, lines, _with_unread(lines, found))
    if is_picked:
        return None
    if (why := _why_not(path, lines, chosen, forced)) is not None:
        raise RecordError(why)
    return _with_memory(path, lines, read_general(path)[0])


def _bar_of(path: Path, records: Sequence[RankRecord]) -> list[RankRecord]:
    """Time the Trainer's steps by the bar that it draws around its dicts."""
    logs = [rank.windows.log for rank in records if rank.windows is not None]
    totals = [log.total_steps for log in logs if log.format == huggingface.HF_CONSOLE.name]
    found = [read_bar(path, total) for total in totals if total is not None]
    return [bar for bar in found if bar is not None]


def _with_memory(path: Path, sampled: list[bytes], found: RankRecord) -> RankRecord:
    """Add what lines between the records print of memory and of a cache."""
    if MARK.search(b"\n".join(map(cut, sampled))) is None:
        return found
    assert found.windows is not None, "a log's record has a table"
    lines = MemoryLines()
    for portion, _ in stream(path, _no_note):
        lines.feed(map(cut, portion))
    log = replace(found.windows.log, notes=(*found.windows.log.notes, *lines.notes()))
    return replace(
        found,
        scalars={**found.scalars, **lines.series()},
        windows=replace(found.windows, log=log),
        notes=log.notes,
    )


def _no_note(text: str) -> None:
    """Leave out what the first pass over the file noted."""
    del text


def _with_unread(lines: list[bytes], found: RankRecord) -> RankRecord:
    """Name what a format does not read and other lines of the file print: it is not absent."""
    assert found.windows is not None, "a log's record has a table"
    table = found.windows
    known = {
        "a loss": any("loss" in name.lower() for name in found.scalars),
        "a learning rate": bool(np.isfinite(table.lr).any()),
        "a timestamp": bool(np.isfinite(table.at_s).any()),
        "memory": bool(np.isfinite(table.memory_bytes).any()),
        "a time": bool(np.isfinite((table.step_s, table.printed_step_s)).any()),
    }
    said = [note.rsplit("(", 1)[-1] for note in table.log.notes if note.startswith(_UNREAD)]
    text = b"\n".join(map(cut, lines))  # searched at once: no pattern goes beyond its line
    lower = text.lower()
    notes = [
        f"{_UNREAD}{what.removeprefix('a ')}, e.g. {_line_at(text, place.start())} "
        f"({what} on a line of its own)"
        for what, patterns in _PRINTED.items()
        if not known[what] and not any(reason.startswith(what) for reason in said)
        if (place := next(filter(None, (re.search(one, lower) for one in patterns)), None))
    ]
    log = replace(table.log, notes=(*table.log.notes, *notes))
    return replace(found, windows=replace(table, log=log), notes=log.notes)


def _line_at(text: bytes, place: int) -> str:
    """Give the line in which a place lies, to be quoted."""
    line = text[text.rfind(b"\n", 0, place) + 1 :].partition(b"\n")[0]
    return line.decode("utf-8", "replace").strip()[:160]


def _has_records(rank: RankRecord) -> bool:
    table = rank.windows
    return table is not None and bool((~table.of_kind("eval")).any())


def _why_not(
    path: Path, lines: list[bytes], chosen: list[tuple[Reader, float]], forced: Reader | None
) -> str | None:
    """Say why a file cannot be read at all; None where its lines may tell something."""
    if not any(lines) and is_packed(path):
        return f"{path} is cut off or damaged: nothing in it can be unpacked"
    if not any(lines):
        return f"{path} is empty: there is nothing to read in it"
    if forced is not None:
        return (
            f"{path} holds no record of the format {forced.name}; leave out --format to detect it"
        )
    if any(reader.is_binary for reader, _ in chosen):
        return f"{path} is an event file without values that count steps in one way"
    text = b"\n".join(lines[:64])[:4096].lstrip(b"\0")
    return f"{path} is a binary file of no known format; {_known()}" if b"\0" in text else None


def _read_as(path: Path, chosen: Sequence[tuple[Reader, float]]) -> list[RankRecord]:
    builders = [LogBuilder(is_rebuilt=bool(reader.rebuild)) for reader, _ in chosen]
    feeds = [reader.start(builder) for (reader, _), builder in zip(chosen, builders, strict=True)]
    if chosen[0][0].is_binary:
        _pour(path, feeds[0], builders[0])
    else:
        _feed_lines(path, [reader for reader, _ in chosen], feeds, builders)
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


def _feed_lines(
    path: Path, readers: Sequence[Reader], feeds: Sequence[Feed], builders: Sequence[LogBuilder]
) -> None:
    long = [reader.takes_long_lines for reader in readers]
    pairs = list(zip(feeds, builders, long, strict=True))
    before = b""
    note = _note_in(builders)
    for lines, is_whole in stream(path, note):
        if not is_whole and before and not lines[-1].rstrip().endswith(_WHOLE):
            note("the last line has no end and is left out: killed, or writing now")
            continue
        short = list(map(cut, lines))
        for feed, builder, is_long in pairs:
            feed_portion(lines if is_long else short, before, feed, builder)
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
    log = replace(rank.windows.log, mentions=mentioned(path))
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
