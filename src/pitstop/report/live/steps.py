"""The last steps of a run that goes on: each row is understood once, however often one looks."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from pitstop.records.reader import RankReader
from pitstop.records.run import Array, Block, RankRecord, StepTable

WINDOW_STEPS: Final = 512
"""Steps that a verdict rests on; two blocks, so that the begin of the latest one is among them."""

_COLUMNS: Final = (
    "attempt", "index", "start_us", "wall_us", "outside_us", "samples", "micro_steps",
    "device_wall_us",
)  # fmt: skip


def read_lines(lines: Iterable[bytes], *, with_steps: bool) -> RankRecord:
    """Understand whole lines of a record."""
    reader = RankReader(with_steps=with_steps)
    reader.feed(b"".join(line + b"\n" for line in lines))
    return reader.record()


class StepWindow:
    """The last rows of an attempt, as they were written and as a table."""

    def __init__(self) -> None:
        self.rows: deque[bytes] = deque(maxlen=WINDOW_STEPS)
        self._fresh = 0
        self._named = 0
        self._has_damage = False
        self._table: StepTable | None = None

    def add(self, row: bytes) -> None:
        """Take the next row; it is understood when somebody looks."""
        self.rows.append(row)
        self._fresh += 1

    def table(self, names: list[bytes], last: Block | None) -> StepTable:
        """The rows as columns.

        Args:
            names: Lines that name the attempt, its spans and its layouts.
            last: The latest block, which says when its first step began.
        """
        if self._table is None or self._fresh or self._named != len(names):
            self._table = self._understood(names)
            self._fresh, self._named = 0, len(names)
        return replace(self._table, start_us=self._table.start_us + _shift_us(self._table, last))

    def _understood(self, names: list[bytes]) -> StepTable:
        if self._table is not None and self._fresh < len(self.rows) and not self._has_damage:
            rows = [self.rows[place] for place in range(-self._fresh, 0)]
            table = _steps(read_lines((*names, *rows), with_steps=True))
            if len(table) == len(rows):
                return _joined(self._table, table)
            self._has_damage = True
        return _steps(read_lines((*names, *self.rows), with_steps=True))


def _steps(record: RankRecord) -> StepTable:
    assert record.steps is not None
    return record.steps


def _shift_us(table: StepTable, last: Block | None) -> float:
    """When the table's clock began: rows say how long they took, a block says when it was."""
    if last is None or last.start_us is None:
        return 0.0
    rows = table.start_us[table.index == last.first]
    return float(last.start_us - rows[0]) if len(rows) else 0.0


def _joined(before: StepTable, after: StepTable) -> StepTable:
    """Put rows behind others and leave out the first ones where there are too many."""
    if len(before):
        end_us = before.start_us[-1] + before.wall_us[-1] + before.outside_us[-1]
        after = replace(after, start_us=after.start_us + end_us)
    columns = {
        name: np.concatenate([getattr(before, name), getattr(after, name)])[-WINDOW_STEPS:]
        for name in _COLUMNS
    }
    width = len(after.paths)
    host = np.concatenate([_widened(before.host_us, width), after.host_us])
    device = np.concatenate([_widened(before.device_us, width), after.device_us])
    return replace(after, **columns, host_us=host[-WINDOW_STEPS:], device_us=device[-WINDOW_STEPS:])


def _widened(values: Array, width: int) -> Array:
    """Add columns for spans that were named later: they were not recorded in these rows."""
    rows, columns = values.shape
    return np.concatenate([values, np.full((rows, width - columns), np.nan)], axis=1)
