"""Tables of metrics as CSV: Lightning's, and those of loops that write ``step,iter,epoch,...``.

One row a call of the logger, empty cells for what it did not log, and the header written again
when a key appears. There is no time in them.
"""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pitstop.logs.batch import Batch, Layout
from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import COUNT, FINITE, convert, number
from pitstop.logs.reader import Reader

NAN = math.nan
_STEPS = ("step", "global_step", "iter", "iteration")
_EVAL = re.compile(r"(?:^|[/_])(?:val|test|valid|validation|eval)(?:[/_]|$)|mIoU|mAP|IoU\.")
_HEADER = re.compile(rb'^(?=.*,)(?:[A-Za-z_"][^,]*+)(?:,[A-Za-z_"][^,]*+)*,?\s*$')
_ROW_BEGINS = frozenset(b"0123456789,-.")
_MOST_PLANS = 256
_NEVER = re.compile(rb"(?!)")


def _cells(line: bytes) -> list[str]:
    """Split a line whose cells may be in quotes.

    Raises:
        ValueError: A cell is longer than the csv module allows.
    """
    try:
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error


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


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is what in rows with the same cells filled."""

    usual: re.Pattern[bytes]
    """Matches such a row when its numbers are ordinary ones; a group for each filled cell."""
    layout: Layout
    names: tuple[bytes, ...]
    rate: int
    """Place of the learning rate among the names; -1 for none."""
    is_train: bool
    is_eval: bool


class _Table:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._batch = Batch(builder)
        self._names: list[str] = []
        self._step = -1
        self._epoch = -1
        self._is_eval: list[bool] = []
        self._usual = _NEVER
        self._plans: dict[tuple[int, ...], _Plan] = {}

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if (found := self._usual.match(line)) is not None:
            self._batch.add(found.groups())
        elif not line:
            return
        elif line[0] not in _ROW_BEGINS and _HEADER.match(line) and _is_header(line):
            self._header(_cells(line))
        elif not self._names:
            return
        elif b'"' in line:
            self._row([cell.encode() for cell in _cells(line)])
        elif line.count(b",") + 1 == len(self._names):
            self._row(line.split(b","))
        else:
            self._builder.damaged += 1  # no exception: there may be a great many such lines

    def _header(self, names: list[str]) -> None:
        self._batch.flush()
        self._names = names
        self._step = next(names.index(name) for name in _STEPS if name in names)
        self._epoch = names.index("epoch") if "epoch" in names else -1
        self._is_eval = [_EVAL.search(name) is not None for name in names]
        self._usual = _NEVER
        self._plans.clear()
        self._builder.version = "Lightning" if "iter" not in names else "step,iter,epoch,..."

    def _row(self, cells: list[bytes]) -> None:
        """Take a row of another shape than those before, and expect more of its shape."""
        if len(cells) != len(self._names):
            raise ValueError("a row of another width than its header")
        self._batch.flush()
        step = convert(cells[self._step])
        epoch = number(cells[self._epoch]) if self._epoch >= 0 and cells[self._epoch] else NAN
        own = (self._step, self._epoch)
        filled = tuple(place for place, cell in enumerate(cells) if cell and place not in own)
        texts = [cells[place] for place in filled]
        for text in texts:
            convert(text)  # a row with a cell that is no number is left out as a whole
        plan = self._planned(filled, has_epoch=not math.isnan(epoch))
        self._take(plan, step, epoch, texts)
        self._usual = _NEVER if plan.is_eval else plan.usual
        self._batch.set_layout(plan.layout)

    def _planned(self, filled: tuple[int, ...], *, has_epoch: bool) -> _Plan:
        plan = self._plans.get((has_epoch, *filled))
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[has_epoch, *filled] = self._plan_of(filled, has_epoch=has_epoch)
        return plan

    def _plan_of(self, filled: tuple[int, ...], *, has_epoch: bool) -> _Plan:
        cells = [b""] * len(self._names)
        for place in filled:
            cells[place] = FINITE
        cells[self._step] = COUNT
        if has_epoch:
            cells[self._epoch] = COUNT
        groups = [place for place, cell in enumerate(cells) if cell]
        names = [self._names[place] for place in filled]
        rate = next((place for place, name in enumerate(names) if _is_rate(name)), -1)
        curves = tuple(
            (name.encode(), groups.index(place))
            for name, place in zip(names, filled, strict=True)
        )  # fmt: skip
        is_train = any(not self._is_eval[place] for place in filled)
        return _Plan(
            usual=re.compile(b",".join(cells) + rb"\Z"),
            layout=Layout(
                step=groups.index(self._step),
                epoch=groups.index(self._epoch) if has_epoch else -1,
                lr=groups.index(filled[rate]) if rate >= 0 else -1,
                is_record=is_train,
                curves=curves,
            ),
            names=tuple(name for name, _ in curves),
            rate=rate,
            is_train=is_train,
            is_eval=any(self._is_eval[place] for place in filled),
        )

    def _take(self, plan: _Plan, step: float, epoch: float, texts: list[bytes]) -> None:
        builder = self._builder
        if plan.is_train:
            rate = convert(texts[plan.rate]) if plan.rate >= 0 else NAN
            builder.brief(step, epoch=epoch, lr=rate)
        if plan.is_eval:
            builder.evaluation(step=step, epoch=epoch)
        builder.scalars(step, zip(plan.names, texts, strict=True))


def _is_rate(name: str) -> bool:
    return name in ("lr", "learning_rate") or name.startswith("lr-")


CSV = Reader(
    name="metrics.csv",
    takes_long_lines=True,
    defined_by="Lightning-AI/pytorch-lightning: src/lightning/fabric/loggers/csv_logs.py",
    start=lambda builder: _Table(builder).feed,
    mark=_HEADER,
    looks=looks,
    scalars="last step",
    notes=("the table has no times",),
)
READERS = (CSV,)
