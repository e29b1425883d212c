"""Tables of metrics as CSV: Lightning's, and those of loops that write ``step,iter,epoch,...``.

One row a call of the logger, empty cells for what it did not log, and the header written again
when a key appears. There is no time in them.
"""

import csv
import math
import re
from collections.abc import Sequence

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Feed, Reader

NAN = math.nan
_STEPS = ("step", "global_step", "iter", "iteration")
_EVAL = re.compile(r"(?:^|[/_])(?:val|test|valid|validation|eval)(?:[/_]|$)|mIoU|mAP|IoU\.")
_HEADER = re.compile(rb'^(?=.*,)(?:[A-Za-z_"][^,]*)(?:,[A-Za-z_"][^,]*)*,?\s*$')


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8", "replace")]), [])


def _is_header(line: bytes) -> bool:
    if b"," not in line or not _HEADER.match(line):
        return False
    cells = _cells(line)
    return any(name in cells for name in _STEPS) and len(set(cells)) == len(cells)


def looks(lines: Sequence[bytes]) -> float:
    """Recognise a header with a step column, followed by rows as wide as it is."""
    width = 0
    good = bad = 0
    for line in lines[:400]:
        if _is_header(line):
            width = len(_cells(line))
        elif width and line:
            fits = line.count(b",") == width - 1 and line[:1] in b"0123456789,-."
            good, bad = good + fits, bad + (not fits)
        elif line.strip():
            return 0.0  # a table begins with its header
    return 0.95 * good / (good + bad) * (1 - 0.5**good) if good else 0.0


class _Table:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._names: list[str] = []
        self._step = -1
        self._epoch = -1
        self._is_eval: list[bool] = []
        self._last = NAN

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if not line:
            return
        if not (line[:1].isdigit() or line[:1] in b",-.") and _is_header(line):
            self._header(_cells(line))
        elif self._names:
            cells = line.decode("utf-8", "replace").split(",") if b'"' not in line else _cells(line)
            if len(cells) != len(self._names):
                raise ValueError("a row of another width than its header")
            self._row(cells)

    def _header(self, names: list[str]) -> None:
        self._names = names
        self._step = next(names.index(name) for name in _STEPS if name in names)
        self._epoch = names.index("epoch") if "epoch" in names else -1
        self._is_eval = [_EVAL.search(name) is not None for name in names]
        self._builder.version = "Lightning" if "iter" not in names else "step,iter,epoch,..."

    def _row(self, cells: list[str]) -> None:
        builder = self._builder
        step = number(cells[self._step].encode())
        epoch = (
            number(cells[self._epoch].encode()) if self._epoch >= 0 and cells[self._epoch] else NAN
        )
        filled = [
            place
            for place, cell in enumerate(cells)
            if cell and place not in (self._step, self._epoch)
        ]
        names = self._names
        values = [(place, number(cells[place].encode())) for place in filled]
        is_train = any(not self._is_eval[place] for place in filled)
        if is_train:
            rate = next((v for place, v in values if _is_rate(names[place])), NAN)
            builder.train(step, epoch=epoch, lr=rate)
        if any(self._is_eval[place] for place in filled):
            builder.evaluation(step=step, epoch=epoch)
        for place, value in values:
            builder.scalar(names[place], step, value)


def _is_rate(name: str) -> bool:
    return name in ("lr", "learning_rate") or name.startswith("lr-")


def _start(builder: LogBuilder) -> Feed:
    return _Table(builder).feed


CSV = Reader(
    name="metrics.csv",
    defined_by="Lightning-AI/pytorch-lightning: src/lightning/fabric/loggers/csv_logs.py",
    start=_start,
    mark=_HEADER,
    looks=looks,
    scalars="last step",
    notes=("the table has no times",),
)
READERS = (CSV,)
