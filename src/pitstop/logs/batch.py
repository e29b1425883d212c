"""Records of the usual shape, held back and taken many at a time.

Most lines of a log have one shape. A reader that knows it matches a line with one pattern, whose
groups are nothing but counts and finite numbers (`COUNT` and `FINITE` of `pitstop.logs.numbers`),
and puts the groups here; whole columns are converted at once. What comes of it is what single
records give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pitstop.logs.builder import Array, LogBuilder
from pitstop.logs.numbers import floats

_MOST = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which group of the pattern is what; -1 for none."""

    step: int
    """Without one, the step is the number of the record."""
    epoch: int = -1
    printed: int = -1
    printed_unit: float = 1.0
    lr: int = -1
    error: float = 0.0
    is_record: bool = True
    """Whether the values are those of a training record, or curves alone."""
    curves: tuple[tuple[bytes, int], ...] = ()
    """Names of values and their groups."""


class Batch:
    """Groups of matched lines that all have one layout.

    Whoever holds lines back puts `flush` at the builder's `close`, and calls it before anything
    else is reported to the builder.
    """

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._layout = Layout(step=0)
        self._rows: list[tuple[bytes, ...]] = []
        self.counted = 0
        """Records so far, where their number is the step."""
        builder.close = self.flush

    def set_layout(self, layout: Layout) -> None:
        """Take what is held, and say what the next groups are."""
        self.flush()
        self._layout = layout

    def add(self, groups: tuple[bytes, ...]) -> None:
        """Hold the groups of one line."""
        self._rows.append(groups)
        if len(self._rows) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Tell the builder what was held back."""
        if not self._rows:
            return
        columns = list(zip(*self._rows, strict=True))
        self._rows = []
        layout, builder = self._layout, self._builder
        if layout.step >= 0:
            step = np.array(list(map(int, columns[layout.step])), dtype=np.float64)
        else:
            step = np.arange(1.0, 1.0 + len(columns[0])) + self.counted
            self.counted += len(columns[0])
        if layout.is_record:
            builder.many(
                step,
                epoch=_column(columns, layout.epoch),
                printed=_column(columns, layout.printed) / layout.printed_unit,
                lr=_column(columns, layout.lr),
                error=layout.error,
            )
        for name, group in layout.curves:
            builder.curve(name.decode("utf-8", "replace"), step, columns[group])


def _column(columns: Sequence[Sequence[bytes]], group: int) -> Array:
    if group < 0:
        return np.full(len(columns[0]), np.nan)
    return floats(columns[group])
