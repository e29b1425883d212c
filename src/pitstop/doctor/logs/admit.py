"""Which numbers of a log's record may be stated: those that two different things in it support.

A reader says what it made of the lines. Before anything is stated, each kind of number is asked for
its support here, whoever read it, and what has too little is taken out of the record: so nothing
that follows from it can be stated either. What was taken out is named in a note, as what it is.

number             what supports it
steps              what defines the format; the count's name; a loss or a wait for data beside it;
                   its total is reached; epochs are of one length; time passes evenly with it; a
                   printed time agrees with the clock
totals             what defines the format; the count reaches them
attempts           the count goes back; the epoch does; a long silence; the log says so
the run's time     what defines the format; else it is the least, from record to record
events             what defines the format; they come once an epoch or evenly
pace (drift)       what defines the format; printed times that change as the clock's do
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.records.logs.windows import TRAINING, WindowTable
from pitstop.records.run import Event, RankRecord

Mask = npt.NDArray[np.bool_]

LEAST: Final = "the least it can be"
"""Stands in the note of a count that may leave something out."""

_ENOUGH = 2
_FEWEST_ROWS = 5
_FEWEST_EVENTS = 2
_NEAR = 0.02
_MOSTLY = 0.9
_EVEN = 1.5
_AGREES = 1.25
_DRIFTS = 1.10
_SILENCE_TIMES = 10.0
_NUMBERS: Final = ("first_step", "last_step", "step_s", "printed_step_s", "data_s", "samples_per_s")
_LATER: Final = "the log begins in epoch"
_NOT_ONE_RUN: Final = ("several runs", "not counted as attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What may be said of a log as a whole."""

    attempts: bool = True
    """Whether their number is known."""
    first: bool = True
    """Whether the first count is the run's: the next ones follow it as they follow each other."""
    records: bool = True
    """Whether the number of records is that of what they count."""
    announced: int = 0
    """Steps that the log announces, stated or not: a run may be early that says how long it is."""
    run: bool = True
    """Whether the time of the whole run is known; else the least of it, and no shares."""
    withheld: tuple[str, ...] = ()
    """What the log holds and is not stated, in the words of what a log may lack."""
    pace: bool = True
    """Whether a change of the step time is one of the steps', not of what lies between them."""


def admit(rank: RankRecord) -> tuple[RankRecord, Admission]:
    """Take out of a log's record what too little supports."""
    table = rank.windows
    assert table is not None, "a log's record has a table"
    notes: list[str] = []
    printed = table.log
    has_attempts = _are_attempts(rank, table, notes)
    is_defined = printed.is_count_defined
    if not is_defined:
        table = _with_steps(rank, table, notes)
        table = _with_totals(table, notes, is_one=has_attempts)
        table = _with_known_meanings(table)
    if not has_attempts and np.isfinite(table.last_step).any():
        notes.append(f"where the count begins anew is not known: its last step is {LEAST}")
    log = replace(table.log, notes=(*table.log.notes, *notes))
    told = replace(
        rank,
        windows=replace(table, log=log),
        events=rank.events if is_defined else _regular(rank.events, table),
        notes=(*rank.notes, *notes),
    )
    is_timed = bool(np.isfinite(rank.windows.step_s).any()) if rank.windows else False
    is_withheld = is_timed and not np.isfinite(table.step_s).any()
    admission = Admission(
        attempts=has_attempts,
        announced=printed.total_steps
        or (printed.steps_per_epoch or 0) * (printed.total_epochs or 1),
        first=is_defined or _begins_evenly(table),
        records=is_defined or _has_all_epochs(table, is_one=has_attempts),
        run=is_defined and has_attempts,
        withheld=("time of a step", "wait for data") if is_withheld else (),
        pace=is_defined or _is_paced(table),
    )
    return told, admission


def counted(table: WindowTable) -> Mask:
    """Mark the rows that cover training steps and count them."""
    return table.of_kind(*TRAINING) & np.isfinite(table.last_step)


def support(rank: RankRecord, table: WindowTable) -> list[str]:
    """Name what speaks for a count being that of the run's steps, apart from the count."""
    is_printed = table.note("last_step").source == "printed"
    found = {
        "its name": bool(table.log.count_name),
        "the values of a training beside it": is_printed and _has_values(rank, table),
        "its total, which is reached": _reaches(table, table.log.total_steps)
        or _ends_epochs(table),
        "epochs of one length": _has_even_epochs(table),
        "the time, which passes evenly": _is_even(table),
        "printed times, which agree with the clock": _agrees(table),
    }
    return [name for name, holds in found.items() if holds]


def _has_values(rank: RankRecord, table: WindowTable) -> bool:
    """Whether a learning rate, a loss or a wait for data is printed with the count."""
    is_waiting = table.note("data_s").source == "printed" and np.isfinite(table.data_s).any()
    return bool(is_waiting or np.isfinite(table.lr).any()) or any(
        "loss" in one.lower() for one in rank.scalars
    )


def _with_steps(rank: RankRecord, table: WindowTable, notes: list[str]) -> WindowTable:
    rows = counted(table)
    if not rows.any():
        return table
    found = support(rank, table)
    if len(found) >= _ENOUGH:
        return table
    first, last = np.nanmin(table.last_step[rows]), np.nanmax(table.last_step[rows])
    alone = f"only {found[0]} says" if found else "nothing else in the log says"
    is_printed = table.note("last_step").source == "printed"
    # Quoted is what is printed: a count over epochs is worked out.
    count = f"a count goes from {first:,.0f} to {last:,.0f}" if is_printed else "steps are counted"
    notes.append(f"{count}; {alone} that these are the run's steps, so no steps are stated")
    nothing = {name: np.full(len(table), np.nan) for name in _NUMBERS}
    columns = {name: note for name, note in table.columns.items() if name not in _NUMBERS}
    return replace(table, **nothing, columns=columns)


def _with_totals(table: WindowTable, notes: list[str], *, is_one: bool) -> WindowTable:
    """Keep totals that the count reaches: the run's, or the epoch's of a number of epochs."""
    log = table.log
    is_reached = is_one and _reaches(table, log.total_steps)
    is_epoch = is_one and _ends_epochs(table)
    total = log.total_steps if is_reached else None
    is_short = is_one and not is_epoch and _ends_alike(table)
    per_epoch = log.steps_per_epoch if is_epoch or is_short else None
    epochs = None if is_short else log.total_epochs
    if not counted(table).any():
        total = per_epoch = None  # a total of a count that is not stated
    elif log.total_steps is not None and total is None:
        notes.append(f"{log.total_steps:,} is printed as a total; the count never reached it")
    elif log.steps_per_epoch is not None and per_epoch is None:
        notes.append(
            f"{log.steps_per_epoch:,} is printed as the steps of an epoch; no epoch was seen to "
            "end there"
        )
    log = replace(log, total_steps=total, steps_per_epoch=per_epoch, total_epochs=epochs)
    return replace(table, log=log)


def _with_known_meanings(table: WindowTable) -> WindowTable:
    """Leave out that a printed time is not what its name says where nobody knows what it is."""
    if table.note("printed_step_s").meaning != "not known":
        return table
    doubts = ("clock went back", "steps went back")
    kept = tuple(one for one in table.log.disagreements if one.code in doubts)
    return replace(table, log=replace(table.log, disagreements=kept))


def _window(table: WindowTable, rows: Mask) -> float:
    """Steps that a record usually covers."""
    covered = table.steps[rows]
    known = covered[np.isfinite(covered) & (covered >= 1)]
    return float(np.median(known)) if len(known) else 1.0


def _reaches(table: WindowTable, total: int | None) -> bool:
    """Whether the count comes within a record of its total, and not beyond."""
    rows = counted(table)
    if total is None or not rows.any():
        return False
    last = float(np.nanmax(table.last_step[rows]))
    return total - _window(table, rows) <= last <= total


def _ends_epochs(table: WindowTable) -> bool:
    """Whether nearly every epoch before the last was counted to its announced end."""
    length, rows = table.log.steps_per_epoch, counted(table)
    if not length or not rows.any():
        return False
    number = np.floor((table.last_step[rows] - 1) / length)
    inside = table.last_step[rows] - number * length
    turns = np.flatnonzero(np.diff(number) != 0)
    near = length - _window(table, rows)
    return len(turns) > 0 and float((inside[turns] >= near).mean()) >= _MOSTLY


def _ends_alike(table: WindowTable) -> bool:
    """Whether epochs all end at one count, be it another than the announced one."""
    rows = counted(table) & np.isfinite(table.epoch)
    if not table.log.steps_per_epoch or not rows.any():
        return False
    ends = table.last_step[rows][:-1][np.diff(table.epoch[rows]) == 1]
    return len(ends) > _FEWEST_EVENTS and len(np.unique(np.diff(ends))) == 1


def _has_even_epochs(table: WindowTable) -> bool:
    """Whether printed epochs turn after as many printed steps each time."""
    rows = counted(table) & np.isfinite(table.epoch)
    if table.note("last_step").source != "printed" or not rows.any():
        return False
    epoch, last = table.epoch[rows], table.last_step[rows]
    turns = np.flatnonzero(np.diff(epoch) == 1) + 1
    if len(turns) < _FEWEST_EVENTS:
        return False
    lengths = np.diff(last[turns])
    if len(lengths) < _FEWEST_EVENTS:
        return False
    usual = float(np.median(lengths))
    near = np.abs(lengths - usual) <= max(_NEAR * usual, _window(table, rows))
    return usual > 1 and float(near.mean()) >= _MOSTLY


def _is_even(table: WindowTable) -> bool:
    """Whether half of the records that a clock times lie within half as much again."""
    if table.note("step_s").source != "rebuilt":
        return False
    times = table.step_s[table.is_steady]
    if len(times) < _FEWEST_ROWS:
        return False
    low, high = np.quantile(times, (0.25, 0.75))
    return 0 < high <= _EVEN * low


def _agrees(table: WindowTable) -> bool:
    """Whether the printed time of a step is the clock's."""
    rows = table.is_steady & np.isfinite(table.printed_step_s)
    if table.note("step_s").source != "rebuilt" or int(rows.sum()) < _FEWEST_ROWS:
        return False
    clock, printed = np.median(table.step_s[rows]), np.median(table.printed_step_s[rows])
    return bool(0 < max(clock, printed) <= _AGREES * min(clock, printed))


def _is_paced(table: WindowTable) -> bool:
    """Whether printed times change from first to last third as the clock's do."""
    rows = np.flatnonzero(table.is_steady & np.isfinite(table.printed_step_s))
    third = len(rows) // 3
    if third < _FEWEST_ROWS or not _agrees(table):
        return False
    ratios = [
        float(np.median(column[rows[-third:]]) / np.median(column[rows[:third]]))
        for column in (table.step_s, table.printed_step_s)
        if np.median(column[rows[:third]]) > 0
    ]
    return len(ratios) == 2 and max(ratios) <= _DRIFTS * min(ratios)


def _are_attempts(rank: RankRecord, table: WindowTable, notes: list[str]) -> bool:
    """Whether each new attempt shows in two ways, and none else may have gone unseen."""
    if any(words in note for note in table.log.notes for words in _NOT_ONE_RUN):
        return False
    if any(one.code == "steps went back" for one in table.log.disagreements):
        return False
    begins = np.flatnonzero(np.diff(table.attempt) > 0) + 1
    told = [str(one.about.get("why", "")) for one in rank.attempts]
    shown = [_shown(table, row, told) for row in begins.tolist()]
    if table.log.is_count_defined or all(ways >= _ENOUGH for ways in shown):
        return True
    notes.append("the count begins anew: another process, or another count of this one")
    return False


def _shown(table: WindowTable, row: int, told: list[str]) -> int:
    """Count in how many ways a new attempt shows."""
    number = int(table.attempt[row])
    why = told[number] if number < len(told) else ""
    gaps = np.diff(table.at_s)
    gap, usual = gaps[row - 1], np.median(gaps[np.isfinite(gaps)]) if np.isfinite(gaps).any() else 0
    return sum(
        (
            bool(table.last_step[row] <= table.last_step[row - 1]),
            bool(table.epoch[row] < table.epoch[row - 1]),
            bool(gap > _SILENCE_TIMES * usual) or bool(gap < 0),
            "the log says" in why or "of the start come again" in why,
        )
    )


def _begins_evenly(table: WindowTable) -> bool:
    """Whether the second record follows the first as the others follow each other."""
    last = table.last_step[counted(table)]
    rises = np.diff(last)
    is_later = any(_LATER in note for note in table.log.notes)
    if is_later or not len(rises) or last[0] != last.min():
        return False
    return bool(abs(rises[0] - np.median(rises[rises > 0])) <= 1)


def _has_all_epochs(table: WindowTable, *, is_one: bool) -> bool:
    """Whether records that count epochs alone leave none out and have none twice."""
    if counted(table).any() or len(table) > int(table.of_kind("epoch").sum()):
        return True
    known = np.unique(table.epoch[np.isfinite(table.epoch)])
    return is_one and len(known) == len(table) == int(1 + np.ptp(known))


def _regular(events: tuple[Event, ...], table: WindowTable) -> tuple[Event, ...]:
    """Keep evaluations that come once an epoch or evenly: others may have gone unseen.

    Start-up and the ends of epochs are worked out from one long record, which shows in one way.
    """
    kept = [event for event in events if event.name == "evaluation"]
    return tuple(kept) if _is_regular(kept, table) else ()


def _is_regular(events: list[Event], table: WindowTable) -> bool:
    epochs = table.epoch[np.isfinite(table.epoch)]
    if len(np.unique(epochs)) == len(events) >= _FEWEST_EVENTS:
        return True
    apart = np.diff(np.array([event.step for event in events], dtype=np.float64))
    return len(apart) >= _FEWEST_EVENTS and float(np.ptp(apart)) <= _NEAR * float(np.median(apart))
