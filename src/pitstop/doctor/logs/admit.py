"""Which numbers of a log's record may be stated: of a format that no tool defines, few.

A tool's format says what its count counts, what its times are of and which lines there are. Lines
of an author's own say none of that, so they are quoted (`LogSource.quoted`), and of what could be
worked out from them only the time of a step is stated, where its clock is even.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from pitstop.records.logs.windows import WindowTable
from pitstop.records.run import RankRecord

LEAST: Final = "the least it can be"
"""Stands in the note of a count that may leave something out."""
OPEN: Final = f"where the count begins anew is not known: its last step is {LEAST}"

_FEWEST_ROWS = 5
_EVEN = 1.5
_NOT_ONE_RUN: Final = ("several runs", "not counted as attempts")
_COUNTED: Final = ("first_step", "last_step")
_TIMED: Final = ("step_s", "printed_step_s", "data_s")


def admit(rank: RankRecord) -> RankRecord:
    """Take out of a log's record what nothing supports."""
    table = rank.windows
    assert table is not None, "a log's record has a table"
    notes = table.log.notes
    if table.log.is_count_defined:
        if is_one_run(table) or not np.isfinite(table.last_step).any():
            return rank
        notes = (*notes, OPEN)
        return replace(
            rank, notes=notes, windows=replace(table, log=replace(table.log, notes=notes))
        )
    names = _COUNTED if _is_even(table) else (*_COUNTED, *_TIMED)
    log = replace(
        table.log, total_steps=None, steps_per_epoch=None, total_epochs=None, disagreements=()
    )
    kept = replace(
        table,
        log=log,
        columns={name: note for name, note in table.columns.items() if name not in names},
        **{name: np.full(len(table), np.nan) for name in names},
    )
    return replace(rank, windows=kept, events=())


def is_one_run(table: WindowTable) -> bool:
    """Whether nothing says that several runs wrote into the file."""
    if any(words in note for note in table.log.notes for words in _NOT_ONE_RUN):
        return False
    return all(one.code != "steps went back" for one in table.log.disagreements)


def _is_even(table: WindowTable) -> bool:
    """Whether half of the records that a clock times lie within half as much again."""
    if table.note("step_s").source != "rebuilt":
        return True  # quoted from the line
    times = table.step_s[table.is_steady]
    if len(times) < _FEWEST_ROWS:
        return False
    low, high = np.quantile(times, (0.25, 0.75))
    return bool(0 < high <= _EVEN * low)
