"""Reads a log of any shape: mine its lines, say what they are, quote them, time what counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.errors import RecordError
from pitstop.logs.general.families import Array, Family, Miner
from pitstop.logs.general.quote import Lines, keys_of, kinds_of, quoted, unquoted
from pitstop.logs.general.roles import Reading, decide
from pitstop.logs.general.steps import (
    NAN,
    Timed,
    counter_of,
    only_rises,
    place_of_step,
    printed,
    time_steps,
)
from pitstop.logs.lines import stream
from pitstop.records.logs.windows import ColumnNote, LineKind, LogSource, Unquoted, WindowTable
from pitstop.records.run import SCHEMA, Attempt, RankRecord, ScalarSeries

NAME: Final = "general"
UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "min": 60.0}
_DEFINED_BY = "lines that repeat with other numbers; no source defines them"
_BAR = "tqdm/tqdm: tqdm/std.py (format_meter)"
_FEWEST_LINES = 3
_MOST_LISTED = 24
_MOST_STEP = float(1 << 52)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldHints:
    """What the user says of a log's fields; empty where nothing."""

    step: str = ""
    time: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """Which lines of a log became what."""

    lines: int
    quoted: tuple[LineKind, ...]
    unquoted: Unquoted | None
    counter: str
    """The line whose count times steps; empty where none does."""


def read_general(path: Path, hints: FieldHints | None = None) -> tuple[RankRecord, Understanding]:
    """Read a log of any shape.

    Raises:
        RecordError: No lines repeat that print a loss or count something; the message says which
            came closest.
    """
    hints = hints or FieldHints()
    miner = _mined(path)
    families = miner.families
    for option, name in (("step", hints.step), ("time", hints.time)):
        _require_field(path, families, option=option, name=name)
    if hints.time and hints.unit:
        _set_unit(families, hints.time, UNITS[hints.unit])
    readings = [decide(family) for family in families]
    kinds = kinds_of(readings)
    main = counter_of(kinds, step=hints.step)
    if main is None and not any(_is_quotable(kind) for kind in kinds):
        raise RecordError(_refusal(path, miner, families))
    lines = quoted(kinds)
    rest = unquoted(kinds, forgotten=miner.forgotten)
    timed = _timed(kinds, main, miner, time=hints.time)
    notes = [*miner.notes]
    if not any(one.falls is not None for kind in lines for one in kind.fields):
        notes.append("no number on these lines counts steps or epochs by its name or a total")
    log = LogSource(
        format=NAME,
        confidence=1.0,
        defined_by=_DEFINED_BY,
        is_count_defined=bool(hints.step) and main is not None and only_rises(main),
        total_steps=_total(main) if hints.step else None,
        batch_size=_batch_size(timed.main),
        batch_size_from="printed with each record",
        files=(str(path),),
        quoted=lines,
        unquoted=rest,
        notes=tuple(notes),
    )
    counter = "" if main is None else main.family.example
    understood = Understanding(lines=miner.lines, quoted=lines, unquoted=rest, counter=counter)
    kinds.sort(key=lambda kind: timed.main not in kind.readings)
    return _record(timed, log, kinds, is_counted=main is not None), understood


def read_bar(path: Path, total: int) -> RankRecord | None:
    """Time the steps of a bar without a name that counts to a known total; None without one."""
    for one in map(decide, _mined(path).families):
        place = place_of_step(one)
        if place < 0 or not one.family.is_bar or one.family.slots[place].name:
            continue
        is_its = one.family.column(place + 1) == total
        bar = Reading(one.family.only(is_its), one.roles)
        if is_its.any() and only_rises(bar):
            # An evaluation draws a bar without a name too, to another total.
            between = np.array(one.family.line)[~is_its].tolist()
            timed = time_steps(bar, (), between, time="", is_of_steps=True)
            log = LogSource(format=NAME, confidence=1.0, defined_by=_BAR, files=(str(path),))
            return _record(timed, log, [Lines([bar])], is_counted=True)
    return None


def _is_quotable(kind: Lines) -> bool:
    return kind.count >= _FEWEST_LINES and kind.has("loss", "step", "epoch", "elapsed")


def _require_field(path: Path, families: list[Family], *, option: str, name: str) -> None:
    """Refuse a field that the user names and no line has.

    Raises:
        RecordError: There is none; the message lists those that repeat.
    """
    names = {slot.name: None for family in families for slot in family.slots if slot.name}
    if name and name.lower() not in {one.lower() for one in names}:
        repeated = [family for family in families if family.count >= _FEWEST_LINES]
        known = dict.fromkeys(slot.name for one in repeated for slot in one.slots if slot.name)
        listed = ", ".join(list(known)[:_MOST_LISTED]) or "none"
        raise RecordError(f"--{option} {name}: no line of {path} has that field; fields: {listed}")


def _set_unit(families: list[Family], name: str, scale: float) -> None:
    """Put the user's unit in place of the printed one."""
    for family in families:
        family.slots = tuple(
            replace(slot, unit="time", scale=scale) if slot.name.lower() == name.lower() else slot
            for slot in family.slots
        )


def _mined(path: Path) -> Miner:
    miner = Miner()
    for lines, is_whole in stream(path, miner.notes.append):
        if not is_whole and miner.lines:
            miner.feed_torn(lines[0])
            continue
        before = b""
        for line in lines:
            if line != before:
                miner.feed(line)
            before = line
    return miner


def _refusal(path: Path, miner: Miner, families: list[Family]) -> str:
    repeated = [one for one in families if one.count >= _FEWEST_LINES]
    seen = (
        f"{path} holds no training record of a known format: no lines that print a loss or count "
        f"steps or epochs in {miner.lines} lines"
    )
    if not repeated:
        return f"{seen}; none repeats with other numbers. Try `pitstop doctor -- COMMAND`"
    closest = max(repeated, key=lambda one: one.count)
    names = ", ".join(dict.fromkeys(slot.name for slot in closest.slots if slot.name)) or "none"
    return (
        f"{seen}; closest, {closest.count} times: {closest.example!r} (fields: {names}). "
        f"Name its counter: `pitstop doctor {path} --step FIELD`"
    )


def _timed(kinds: list[Lines], main: Reading | None, miner: Miner, *, time: str) -> Timed:
    """Time the lines that count; of a log without any, take those that say most, untimed."""
    if main is None:
        head = kinds[0].readings[0]
        nothing = np.full(len(head.family), NAN)
        return Timed(head, nothing, nothing.copy(), nothing.copy())
    home = next(kind for kind in kinds if main in kind.readings)
    others = [one for kind in kinds if kind is not home for one in kind.readings]
    return time_steps(main, others, miner.events, time=time)


def _total(main: Reading | None) -> int | None:
    """What stands behind the slash of a count that the user named."""
    place = -1 if main is None else place_of_step(main)
    if main is None or not main.family.slots[place].has_total:
        return None
    totals = np.unique(main.family.column(place + 1))
    return int(totals[0]) if len(totals) == 1 and only_rises(main) else None


def _batch_size(main: Reading) -> int | None:
    sizes = main.column("batch size")
    is_one = sizes is not None and bool((sizes == sizes[0]).all()) and 1 <= sizes[0] < _MOST_STEP
    return int(sizes[0]) if sizes is not None and is_one else None


def _record(
    timed: Timed, log: LogSource, kinds: Sequence[Lines], *, is_counted: bool
) -> RankRecord:
    main = timed.main
    count = main.family.column(place_of_step(main)) if is_counted else None
    step = count if count is not None and only_rises(main) else None
    return RankRecord(
        attempts=(_attempt(),),
        paths=(),
        blocks=(),
        steps=None,
        scalars=_curves(kinds),
        events=(),
        notes=log.notes,
        windows=_table(timed, log, step),
    )


def _attempt() -> Attempt:
    return Attempt(
        schema=SCHEMA, started_unix_s=None, rank=0, local_rank=0, world_size=1, host=None, pid=None,
        python=None, torch=None, command=(), about={"format": NAME, "why": "the log begins"},
    )  # fmt: skip


def _curves(kinds: Sequence[Lines]) -> dict[str, ScalarSeries]:
    """Losses and other values over their count, where it is one, else over the number of the line.

    Args:
        kinds: Those of whose times something is said first.
    """
    found: dict[str, ScalarSeries] = {}
    for kind in kinds:
        head = kind.readings[0]
        if head.family.phase == "eval":
            continue
        for key, place in keys_of(head).items():
            if head.roles[place] not in ("loss", "value"):
                continue
            values, lines = kind.values(key)
            at = np.arange(len(values), dtype=np.float64)
            if only_rises(head):
                nearest = np.searchsorted(np.array(head.family.line), lines)
                count = head.family.column(place_of_step(head))
                at = count[np.minimum(nearest, len(count) - 1)]
            found.setdefault(head.family.name_of(place), ScalarSeries(step=at, value=values))
    return found


def _table(timed: Timed, log: LogSource, step: Array | None) -> WindowTable:
    main = timed.main
    nothing = np.full(len(main.family), NAN)
    last = nothing if step is None else step
    columns = {
        "attempt": np.zeros(len(main.family)),
        "epoch": printed(main, "epoch"),
        "first_step": last if step is None else np.concatenate((last[:1], last[:-1] + 1)),
        "last_step": last,
        "at_s": np.array(main.family.at),
        "step_s": timed.step_s,
        "printed_step_s": timed.printed_s,
        "data_s": timed.data_s,
        "samples_per_s": printed(main, "samples/s"),
        "lr": printed(main, "learning rate"),
        "memory_bytes": printed(main, "memory"),
    }
    notes = {
        "attempt": ColumnNote(meaning="total", source="rebuilt", formula="not told apart"),
        "at_s": ColumnNote(
            meaning="last step", source="rebuilt", formula="timestamp - first timestamp"
        ),
        "first_step": ColumnNote(
            meaning="last step", source="rebuilt", formula="last_step of the line before + 1"
        ),
        **timed.columns,
    }
    plain = ColumnNote(meaning="not known", source="printed", formula="as its line prints it")
    is_timed = np.isfinite(timed.step_s) | ~np.isfinite(timed.step_s).any()
    return WindowTable(
        log=log,
        kind=np.where(is_timed, "train", "first").astype("<U16"),
        columns={
            name: notes.get(name, plain)
            for name, column in columns.items()
            if name == "attempt" or np.isfinite(column).any()
        },
        **columns,
    )
