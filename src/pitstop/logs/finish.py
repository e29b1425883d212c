"""From what a reader saw to the record: what each row covers and holds, and what follows from it.

All formats share these rules:

- A record covers the steps since the one before; the first of an epoch or of an attempt covers
  those since its beginning.
- Where totals are known (timestamps, running means, a bar's elapsed time), the time of a step is
  the difference of two totals over the steps between them. Records are joined until rounding
  changes that by at most 5 %.
- Records after an evaluation, a checkpoint, or the beginning of an epoch or attempt are marked;
  the median of the others is the steady step, and what a marked record has above it is the
  duration of what it is marked for.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from pitstop.logs.builder import (
    AFTER_CHECKPOINT,
    AFTER_EVAL,
    EPOCH,
    EVAL,
    NEW_ATTEMPT,
    NEW_EPOCH,
    TRAIN,
    LogBuilder,
    RawEvent,
)
from pitstop.logs.reader import Reader
from pitstop.logs.rows import Mask, Rows
from pitstop.records.logs.windows import (
    THINNED,
    ColumnNote,
    Disagreement,
    Kind,
    LogSource,
    Meaning,
    WindowTable,
)
from pitstop.records.run import SCHEMA, Attempt, Event, RankRecord, ScalarSeries

_BREAK_TIMES = 10.0
_BREAK_S = 600.0
_COUNTS = ("steps_per_epoch", "total_steps", "total_epochs", "batch_size", "world_size", "workers")
_MOST_COUNT = 1 << 53
_ROUNDING = 0.05
_FEW_REPEATS = 3
_MANY_REPEATS = 0.2
_MANY_EPOCHS = 0.5
_DIFFERS = 1.2
_SHORTEST_EVENT_S = 0.1


def finish(builder: LogBuilder, reader: Reader, *, confidence: float, file: str) -> RankRecord:
    """Work out the record of one log."""
    _forget_huge(builder)
    rows = _rows(builder)
    _forgive_short_epochs(builder, rows)
    _cover(rows, is_joined=builder.joined)
    if reader.rebuild:
        _rebuild(rows)
        _set_printed_waits(rows)
    else:
        rows.step_s[rows.code == TRAIN] = rows.raw["printed"][rows.code == TRAIN]
        rows.data_s = rows.raw["data"].copy()
    _leave_out_breaks(builder, rows)
    found = [*builder.found, *_contradictions(builder, rows)]
    found += _compare(builder, reader, rows)
    if reader.judge is not None:
        found += reader.judge(builder, rows)
    if not rows.keep.all():
        builder.note(
            f"the clock is too coarse for each of {len(rows.keep)} records: "
            f"they are joined to {rows.keep.sum()}"
        )
    events = _events(builder, rows, reader)
    log = _source(builder, reader, confidence=confidence, file=file, found=found)
    return RankRecord(
        attempts=_attempts(builder, reader),
        paths=(),
        blocks=(),
        steps=None,
        scalars={
            name: ScalarSeries(step=np.array(series.step), value=np.array(series.value))
            for name, series in builder.series.items()
        },
        events=events,
        notes=log.notes,
        windows=_table(builder, reader, rows, log),
    )


def _forget_huge(builder: LogBuilder) -> None:
    """Forget counts that no run can have: arithmetic on them would not end well."""
    for name in _COUNTS:
        value = getattr(builder, name)
        if value is not None and value > _MOST_COUNT:
            setattr(builder, name, None)
            builder.note(f"{name.replace('_', ' ')} is too large a number and left out")


def _rows(builder: LogBuilder) -> Rows:
    raw = builder.columns()
    count = len(builder)  # not before: rows may be joined when all of them are there
    return Rows(
        raw=raw,
        code=np.frombuffer(bytes(builder.code), np.uint8).copy(),
        flags=np.frombuffer(bytes(builder.flags), np.uint8).copy(),
        first=np.full(count, np.nan),
        step_s=np.full(count, np.nan),
        data_s=np.full(count, np.nan),
        keep=np.ones(count, dtype=bool),
        doubtful=np.zeros(count, dtype=bool),
    )


def _forgive_short_epochs(builder: LogBuilder, rows: Rows) -> None:
    """Mark no epochs where nearly every record holds the beginning of one: none is without it."""
    train = (rows.code == TRAIN) & np.isnan(rows.raw["inside"])
    new = train & ((rows.flags & NEW_EPOCH) != 0)
    if new.sum() > _MANY_EPOCHS * max(int(train.sum()), 1):
        rows.flags[new] &= ~np.uint8(NEW_EPOCH)
        if builder.is_steps_known:
            builder.note("records are further apart than epochs: each holds the beginning of one")


def _cover(rows: Rows, *, is_joined: bool) -> None:
    """Work out the first step of every training row."""
    train = np.flatnonzero(rows.code == TRAIN)
    if not len(train):
        return
    step, inside, flags = rows.raw["step"][train], rows.raw["inside"][train], rows.flags[train]
    first = np.concatenate(([np.nan], step[:-1])) + 1
    gaps = np.diff(step)[flags[1:] == 0]
    if not len(gaps):  # each record holds something else as well
        gaps = np.diff(step)[(flags[1:] & (NEW_ATTEMPT | NEW_EPOCH)) == 0]
    usual = float(np.median(gaps)) if len(gaps) else math.nan
    begins = (flags & NEW_ATTEMPT) != 0
    # Records at 199, 399, ... are those of a count from zero.
    from_zero = not is_joined and usual > 1 and bool((((step + 1) % usual) == 0).all())
    lowest = 0.0 if from_zero else np.minimum(step[begins], 1.0)
    first[begins] = np.maximum(step[begins] - usual + 1, lowest)
    known = ((flags & (NEW_EPOCH | NEW_ATTEMPT)) != 0) & np.isfinite(inside)
    first[known] = step[known] - inside[known] + 1
    rows.first[train] = first


@dataclass(slots=True)
class _Timed:
    """Rows whose time lies between them and a row before, all filled in at once."""

    row: list[int] = field(default_factory=list[int])
    before: list[int] = field(default_factory=list[int])
    step_s: list[float] = field(default_factory=list[float])
    flags: list[int] = field(default_factory=list[int])


def _rebuild(rows: Rows) -> None:
    """Turn totals into times of a step, joining rows until rounding matters little."""
    if np.isnan(rows.raw["total"]).all() and np.isnan(rows.raw["since"]).all():
        _without_totals(rows)
        return
    if _is_fine(rows):
        _rebuild_all(rows)
        return
    before = left = -1
    held = 0
    timed = _Timed()
    # Lists: single elements of arrays are slow to reach.
    total, error, step = (rows.raw[name].tolist() for name in ("total", "error", "step"))
    every = rows.flags.tolist()
    starts = _starts(rows).tolist()
    for row in np.flatnonzero(rows.code == TRAIN).tolist():
        flags = every[row] | held
        if before < 0 or starts[row]:
            _keep_rest(rows, left, before)
            _begin(rows, row, before)
            before, left, held = row, -1, 0
            continue
        spent = total[row] - total[before]
        if spent >= 0 and error[row] + error[before] > _ROUNDING * spent:
            rows.keep[row] = False  # its steps and time go to the next row
            left, held = row, flags
            continue
        timed.step_s.append(spent / (step[row] - step[before]))
        timed.row.append(row)
        timed.before.append(before)
        timed.flags.append(flags)
        before, left, held = row, -1, 0
    _keep_rest(rows, left, before)
    _set_times(rows, timed)


def _starts(rows: Rows) -> Mask:
    """Rows whose time does not count from the row before."""
    return (rows.flags & (NEW_EPOCH | NEW_ATTEMPT) != 0) | ~np.isnan(rows.raw["since"])


def _is_fine(rows: Rows) -> bool:
    """Whether rounding matters little between all neighbours: then no rows are joined."""
    train = np.flatnonzero(rows.code == TRAIN)
    total, error = rows.raw["total"][train], rows.raw["error"][train]
    with np.errstate(invalid="ignore"):  # a log may print inf
        spent = np.diff(total)
        coarse = (spent >= 0) & (error[1:] + error[:-1] > _ROUNDING * spent)
    return not (coarse & ~_starts(rows)[train][1:]).any()


def _rebuild_all(rows: Rows) -> None:
    """Turn totals into times of a step, each from the row before."""
    train = np.flatnonzero(rows.code == TRAIN)
    starts = _starts(rows)[train]
    starts[:1] = True
    for place in np.flatnonzero(starts).tolist():
        _begin(rows, int(train[place]), int(train[place - 1]) if place else -1)
    later = np.flatnonzero(~starts)
    row, before = train[later], train[later - 1]
    total, step = rows.raw["total"], rows.raw["step"]
    with np.errstate(invalid="ignore"):
        step_s = (total[row] - total[before]) / (step[row] - step[before])
    timed = _Timed(
        row=row.tolist(),
        before=before.tolist(),
        step_s=step_s.tolist(),
        flags=rows.flags[row].tolist(),
    )
    _set_times(rows, timed)


def _set_printed_waits(rows: Rows) -> None:
    """Take waits as printed where no totals tell them, whether or not their rows are timed."""
    lacks = np.isnan(rows.data_s) & (rows.code == TRAIN)
    rows.data_s[lacks] = rows.raw["data"][lacks]


def _without_totals(rows: Rows) -> None:
    """Fill in what is known of rows whose time is not: what they cover."""
    train = np.flatnonzero(rows.code == TRAIN)
    follows = (rows.flags[train] & NEW_ATTEMPT) == 0
    follows[:1] = False
    later = np.flatnonzero(follows)
    rows.first[train[later]] = rows.raw["step"][train[later - 1]] + 1


def _keep_rest(rows: Rows, left: int, before: int) -> None:
    """Keep the last row of an epoch whose time is too coarse: only its steps count."""
    if left >= 0:
        rows.keep[left] = True
        rows.first[left] = rows.raw["step"][before] + 1


def _set_times(rows: Rows, timed: _Timed) -> None:
    row, before = np.array(timed.row, dtype=np.intp), np.array(timed.before, dtype=np.intp)
    step_s, step, data_total = np.array(timed.step_s), rows.raw["step"], rows.raw["data_total"]
    rows.flags[row] = np.array(timed.flags, dtype=np.uint8)
    rows.first[row] = step[before] + 1
    is_back = step_s < 0
    rows.doubtful[row[is_back]] = True
    row, before = row[~is_back], before[~is_back]
    rows.step_s[row] = step_s[~is_back]
    waited = (data_total[row] - data_total[before]) / (step[row] - step[before])
    # Rounding of two large totals can make a short wait negative; then it is below its error.
    waited[waited < 0] = 0.0
    rows.data_s[row] = waited


def _leave_out_breaks(builder: LogBuilder, rows: Rows) -> None:
    """Time no steps across a break: nobody's step takes ten minutes and ten times the usual.

    A process that ended and one that goes on where it did leave nothing else in many logs.
    """
    plain = np.flatnonzero(rows.is_plain)
    steps = rows.raw["step"] - rows.first + 1
    every = rows.step_s * steps
    is_timed = (rows.code == TRAIN) & np.isfinite(every)
    timed = every[is_timed]
    if not len(timed):
        return
    # Of all rows: where each holds the end of an epoch, the only plain one may be the break.
    usual_s, spent = float(np.median(timed)), every[plain]
    breaks = spent > max(_BREAK_TIMES * usual_s, _BREAK_S)
    if not breaks.any():
        return
    rows.step_s[plain[breaks]] = np.nan
    rows.data_s[plain[breaks]] = np.nan
    holes = breaks & (steps[plain] > _BREAK_TIMES * float(np.median(steps[is_timed])))
    if holes.any():
        missing = steps[plain[holes]]
        where = f"up to {rows.raw['step'][plain[holes][0]]:,.0f}"
        where = where if len(missing) == 1 else f"in {len(missing)} places, the first {where}"
        builder.note(f"most lines of {missing.sum():,.0f} steps are missing, {where}")
    breaks &= ~holes
    if not breaks.any():
        return
    times = f"{breaks.sum()} times" if breaks.sum() > 1 else "once"
    builder.note(
        f"{times} up to {spent[breaks].max():.0f} s without a record, first before step "
        f"{rows.raw['step'][plain[breaks][0]]:.0f}: a break or other work, not counted as steps"
    )


def _begin(rows: Rows, row: int, before: int) -> None:
    """Time the first row of an epoch or attempt from its beginning, where that is known."""
    raw = rows.raw
    since, span = raw["since"][row], raw["span"][row]
    flags = int(rows.flags[row])
    if math.isnan(since):
        if before < 0 or flags & NEW_ATTEMPT:
            return
        since, span = raw["total"][before], raw["step"][row] - raw["step"][before]
        rows.first[row] = raw["step"][before] + 1
    elif math.isnan(span):
        begins = before < 0 or flags & NEW_ATTEMPT
        span = raw["step"][row] - (rows.first[row] - 1 if begins else raw["step"][before])
    step_s = (raw["total"][row] - since) / span if span else math.nan
    if step_s < 0:
        rows.doubtful[row] = True
        return
    rows.step_s[row] = step_s
    rows.data_s[row] = raw["data_total"][row] / span


def _contradictions(builder: LogBuilder, rows: Rows) -> list[Disagreement]:
    found: list[Disagreement] = []
    clock = builder.clock
    if clock.times_back:
        found.append(
            Disagreement(
                code="clock went back",
                message=(
                    f"the timestamps go back {clock.times_back} times, by up to "
                    f"{clock.most_back_s:.0f} s: the clock was set, or files were joined"
                ),
                extra_s=clock.most_back_s,
                unit="s",
                times=clock.times_back,
            )
        )
    again = builder.went_back + builder.repeated
    records = int((rows.code == TRAIN).sum()) + builder.repeated
    if again > _FEW_REPEATS and again > _MANY_REPEATS * records:
        rows.doubtful |= rows.code == TRAIN
        found.append(
            Disagreement(
                code="steps went back",
                message=(
                    f"{again} of {records} records repeat a step or go back: two runs seem to "
                    "write into one file, so no time of a step can be trusted"
                ),
                times=again,
            )
        )
    return found


def _compare(builder: LogBuilder, reader: Reader, rows: Rows) -> list[Disagreement]:
    """Hold the printed step time against the rebuilt one, over the plain rows."""
    plain = np.flatnonzero(rows.is_plain & np.isfinite(rows.raw["printed"]))
    steady = rows.steady_s()
    if len(plain) < 2 or not steady > 0:
        return []
    if not reader.rebuild:
        return _against_clock(builder, rows, plain)
    printed, rebuilt = rows.raw["printed"][plain], rows.step_s[plain]
    ratio = np.maximum(printed, rebuilt) / np.maximum(np.minimum(printed, rebuilt), 1e-9)
    bad = np.flatnonzero(np.isfinite(ratio) & (ratio > _DIFFERS))
    if not len(bad) or len(bad) < 0.1 * len(plain):
        return []
    row = int(bad[np.argmax(ratio[bad])])
    return [
        Disagreement(
            code="mean hides spikes",
            message=(
                f"the printed time of a step is a {reader.step}: it says "
                f"{printed[row]:.4g} s where the log's own {reader.rebuild} gives "
                f"{rebuilt[row]:.4g} s"
            ),
            printed=float(printed[row]),
            rebuilt=float(rebuilt[row]),
            unit="s",
            attempt=int(rows.raw["attempt"][plain[row]]),
            step=int(rows.raw["step"][plain[row]]),
            times=len(bad),
        )
    ]


def _against_clock(builder: LogBuilder, rows: Rows, plain: np.ndarray) -> list[Disagreement]:
    later = plain[1:][(np.diff(plain) == 1)]
    at, step = rows.raw["at"], rows.raw["step"]
    clock = (at[later] - at[later - 1]) / (step[later] - step[later - 1])
    printed = rows.step_s[later]
    good = np.isfinite(clock) & np.isfinite(printed) & (clock > 0)
    if good.sum() < 3:
        return []
    by_clock, by_print = float(np.median(clock[good])), float(np.median(printed[good]))
    resolution = builder.clock.resolution_s / max(float(np.median(np.diff(step[plain]))), 1.0)
    high, low = max(by_clock, by_print), min(by_clock, by_print)
    if high - low <= resolution or high < _DIFFERS * low:
        return []
    return [
        Disagreement(
            code="printed differs from clock",
            message=(
                f"the log prints {by_print:.4g} s a step (median), its timestamps say "
                f"{by_clock:.4g} s: something between the steps is not in the printed time"
            ),
            printed=by_print,
            rebuilt=by_clock,
            unit="s",
            times=int(good.sum()),
        )
    ]


_MARKED = (
    (AFTER_EVAL, "evaluation"),
    (AFTER_CHECKPOINT, "checkpoint"),
    (NEW_ATTEMPT, "start-up"),
    (NEW_EPOCH, "epoch boundary"),
)
_EXCESS = "(step_s - median step_s of plain records) x steps, in the record after it"


def _events(builder: LogBuilder, rows: Rows, reader: Reader) -> tuple[Event, ...]:
    """Give events their durations; add those that only a long record shows."""
    steady = rows.steady_s()
    raws = list(builder.events)
    waiting = {
        name: [e for e in raws if e.name == name and math.isnan(e.wall_s)]
        for name in ("evaluation", "checkpoint")
    }
    for row in np.flatnonzero((rows.code == TRAIN) & (rows.flags != 0) & rows.keep).tolist():
        steps = rows.raw["step"][row] - rows.first[row] + 1
        if not reader.rebuild and reader.step == "last step":
            steps = 1.0  # the printed time is of one step, and only that one holds the event
        elif not reader.rebuild and reader.step == "not known" and steps > 1:
            continue  # of one step or of all: its excess is not known
        excess = float((rows.step_s[row] - steady) * steps)
        name = next(name for flag, name in _MARKED if rows.flags[row] & flag)
        if not excess > 0:
            continue
        if name in waiting:
            _give_duration(waiting[name], row, excess)
        elif excess > max(steady, _SHORTEST_EVENT_S):
            raws.append(_boundary(rows, row, name, excess))
    raws.sort(key=lambda event: (event.attempt, event.step))
    return tuple(_event(event) for event in raws)


def _give_duration(waiting: list[RawEvent], row: int, excess: float) -> None:
    """Give the last event before this row what the row has in excess; drop those before it."""
    last = None
    while waiting and waiting[0].row <= row:
        last = waiting.pop(0)
    if last is not None:
        last.wall_s, last.formula = excess, _EXCESS


def _boundary(rows: Rows, row: int, name: str, excess: float) -> RawEvent:
    return RawEvent(
        name=name,
        attempt=int(rows.raw["attempt"][row]),
        step=float(np.nan_to_num(rows.first[row])),
        at=float(rows.raw["since"][row]),
        wall_s=excess,
        formula=_EXCESS,
    )


def _event(raw: RawEvent) -> Event:
    detail: dict[str, object] = dict(raw.detail)
    known = math.isfinite(raw.wall_s)
    if known:
        detail["formula"] = raw.formula
    return Event(
        attempt=raw.attempt,
        name=raw.name,
        step=int(raw.step),
        start_us=round(raw.at * 1e6) if math.isfinite(raw.at) else 0,
        wall_us=round(raw.wall_s * 1e6) if known else 0,
        detail=detail,
    )


def _attempts(builder: LogBuilder, reader: Reader) -> tuple[Attempt, ...]:
    reasons = ["the log begins", *builder.restarts]
    return tuple(
        Attempt(
            schema=SCHEMA,
            started_unix_s=None,
            rank=0,
            local_rank=0,
            world_size=builder.world_size or 1,
            host=None,
            pid=None,
            python=None,
            torch=None,
            command=(),
            about={"format": reader.name, "why": reasons[min(number, len(reasons) - 1)]},
        )
        for number in range(builder.attempt + 1)
    )


def _source(
    builder: LogBuilder, reader: Reader, *, confidence: float, file: str, found: list[Disagreement]
) -> LogSource:
    notes = [*reader.notes, *builder.notes]
    if not builder.clock.has_year:
        notes.append("the timestamps have no year; a jump back over half a year counts as new year")
    if builder.damaged:
        notes.append(f"{builder.damaged} damaged lines left out")
    for what, times in builder.impossible.items():
        notes.append(f"{times} {what} cannot be and are left out")
    if builder.joined:
        notes.append("very many records: neighbours were joined, their means weighted by steps")
    if any(series.stride > 1 for series in builder.series.values()):
        notes.append(f"{THINNED}only every second, fourth, ... point of a curve is kept")
    return LogSource(
        format=reader.name,
        confidence=confidence,
        defined_by=reader.defined_by,
        version=builder.version,
        is_count_defined=reader.is_count_defined,
        files=(file,),
        batch_size=builder.batch_size,
        batch_size_from=builder.batch_size_from,
        world_size=builder.world_size,
        world_size_from=builder.world_size_from,
        workers=builder.workers,
        steps_per_epoch=builder.steps_per_epoch,
        total_steps=builder.total_steps,
        total_epochs=builder.total_epochs,
        started=builder.clock.started,
        settings=dict(builder.settings),
        disagreements=tuple(found),
        notes=tuple(notes),
    )


def _table(builder: LogBuilder, reader: Reader, rows: Rows, log: LogSource) -> WindowTable:
    keep = rows.keep
    known = np.ones(keep.sum()) if builder.is_steps_known else np.full(keep.sum(), np.nan)
    raw = {name: values[keep] for name, values in rows.raw.items()}
    table = {
        "attempt": raw["attempt"],
        "epoch": raw["epoch"],
        "first_step": rows.first[keep] * known,
        "last_step": raw["step"] * known,
        "at_s": raw["at"],
        "step_s": rows.step_s[keep],
        "printed_step_s": raw["printed"],
        "data_s": rows.data_s[keep],
        "samples_per_s": raw["rate"],
        "lr": raw["lr"],
        "memory_bytes": raw["memory"],
    }
    notes = _column_notes(builder, reader)
    return WindowTable(
        log=log,
        kind=_kinds(rows)[keep],
        columns={
            name: note
            for name, note in notes.items()
            if name in ("attempt", "first_step") or np.isfinite(table[name]).any()
        },
        **table,
    )


def _kinds(rows: Rows) -> np.ndarray:
    kinds = np.full(len(rows.code), "train", dtype="<U16")
    names: tuple[tuple[int, Kind], ...] = (
        (NEW_EPOCH, "epoch start"),
        (NEW_ATTEMPT, "first"),
        (AFTER_CHECKPOINT, "after checkpoint"),
        (AFTER_EVAL, "after eval"),
    )
    for flag, kind in names:
        kinds[(rows.flags & flag) != 0] = kind
    kinds[rows.doubtful] = "doubtful"
    kinds[rows.code == EVAL] = "eval"
    kinds[rows.code == EPOCH] = "epoch"
    return kinds


def _column_notes(builder: LogBuilder, reader: Reader) -> dict[str, ColumnNote]:
    joined = "mean of joined records, weighted by steps" if builder.joined else ""
    step = (
        ColumnNote(meaning="window mean", source="rebuilt", formula=reader.rebuild)
        if reader.rebuild
        else ColumnNote(
            meaning=reader.step,
            source="rebuilt" if joined else "printed",
            formula=joined or reader.step_formula,
        )
    )
    data_formula = joined or reader.data_formula
    return {
        "attempt": _note("total", "rebuilt", "a new one where steps go back or the log says so"),
        "epoch": _note("last step", "printed"),
        "first_step": _note("last step", "rebuilt", "last_step of the record before + 1"),
        "last_step": _note(
            "last step", "rebuilt" if reader.counting else "printed", reader.counting
        ),
        "at_s": _note("last step", "rebuilt", "timestamp - first timestamp"),
        "step_s": step,
        "printed_step_s": _note(reader.step, "printed", joined or reader.step_formula),
        "data_s": _note(reader.data, "rebuilt" if data_formula else "printed", data_formula),
        "samples_per_s": _note(reader.rate, "printed", joined),
        "lr": _note("last step", "printed"),
        "memory_bytes": _note("total", "printed", reader.memory_formula),
    }


def _note(meaning: Meaning, source: str, formula: str = "") -> ColumnNote:
    return ColumnNote(
        meaning=meaning, source="printed" if source == "printed" else "rebuilt", formula=formula
    )
