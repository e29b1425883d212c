"""Logs of meters: ``Time 0.30 (0.31)``, the last value and the mean of the epoch so far.

torchreid and timm; others that print the same are read by the general reader. The last value is
one step out of many; the mean in brackets hides what the last records did. But two means give what
lay between them: mean x steps is a total.
"""

import math
import re

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Reader

NAN = math.nan
_FORMULA = "(mean x steps of the epoch - the same of the record before) / steps between them"
# What only looks like a number is found out when it is converted.
_VALUE = rb"([-+]?+[\dni][\w.+-]*+)"
_PAIRS = re.compile(
    rb"([A-Za-z_][\w@./-]*+(?: [A-Za-z][\w@./-]*+)*):? ++[^ (]++ ++\( *+" + _VALUE + rb"%?\)"
)
# Time left, before a field that is no bracket: no pair begins in it, but finding that out is slow.
_LEFT = re.compile(rb"\teta [\d:]++\t(?=\S++ [^( ])")
_LR = re.compile(rb"\blr:? " + _VALUE)
_STAMP = re.compile(rb"(\d{4}[-/]\d\d[-/]\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{3})?)")


_HALVES = tuple(0.5 * 10.0**-digits for digits in range(10))
_STAMP_BYTES = 19
_EVALUATES = (b"Extract Features: [", b"##### Evaluating ", b"=> Final test")


class _Torchreid:
    """Reads torchreid's records; epochs and steps count from one."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"poch: [" in line and (found := _TORCHREID.search(line)) is not None:
            self._record(line, found)
        elif line.startswith(_EVALUATES):
            self._builder.evaluation()

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        epoch_text, epochs, step_text, of, last, mean, waited = found.groups()
        epoch, count = number(epoch_text), number(step_text)
        builder.total_epochs, builder.steps_per_epoch = int(epochs), int(of)
        end = found.end()
        left = _LEFT.match(line, end)
        pairs = _PAIRS.findall(line, end if left is None else left.end())
        step = (epoch - 1) * int(of) + count
        place = line.find(b"lr", end)
        rate = _LR.search(line, place) if place >= 0 else None
        builder.train(
            step,
            epoch=epoch,
            inside=count,
            at=_at(builder, line) if found.start() >= _STAMP_BYTES else NAN,
            total=number(mean) * count,
            error=_half_a_digit(mean) * count,
            data_total=number(waited) * count if waited else NAN,
            since=0.0,
            printed=number(last),
            lr=number(rate[1]) if rate else NAN,
        )
        builder.scalars(step, pairs)


def _at(builder: LogBuilder, line: bytes) -> float:
    stamp = _STAMP.search(line, 0, 48)
    return builder.clock.seconds(stamp[1], stamp[2]) if stamp else NAN


def _half_a_digit(text: bytes) -> float:
    """Give the rounding error of a printed number."""
    point = text.find(b".")
    return _HALVES[min(len(text) - point - 1, 9)] if point >= 0 else 0.0


# The last value and the mean of the time; of the wait for data the mean alone.
_TIMES = (
    rb"ime ++"
    + _VALUE
    + rb" ++\( *+"
    + _VALUE
    + rb"\)(?:\s++[Dd]ata ++[^ (]++ ++\( *+"
    + _VALUE
    + rb"\))?"
)
_TORCHREID = re.compile(rb"epoch: \[(\d+)/(\d+)\]\[(\d+)/(\d+)\]\s+t" + _TIMES)


_TIMM = re.compile(rb"Train: (\d+) \[ *(\d+)/(\d+) \( *\d+%\)\]  ")
_TIMM_TIME = re.compile(
    rb"Time: (\d+\.?\d*)s, +(\d+\.?\d*)/s  (?:\((\d+\.?\d*)s, +(\d+\.?\d*)/s\)  )?"
    rb"(?:LR: (\d+\.?\d*(?:[eE][-+]?\d+)?)  (?:Data: \d+\.?\d* \((\d+\.?\d*)\))?)?"
)
_TIMM_TEST = re.compile(rb"Test(?: \(EMA\))?: \[ *(\d+)/(\d+)\]")
_TIMM_LOSS = re.compile(rb"([A-Z][\w@ ]*): +[^ ]+ \( *" + _VALUE + rb"\)")


class _Timm:
    """Reads timm's records; epochs and steps count from zero."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"Train: " in line and (found := _TIMM.search(line)) is not None:
            self._record(line, found)
        elif b"Test" in line and (found := _TIMM_TEST.search(line)) is not None:
            if int(found[1]) >= int(found[2]):
                step = max(self._builder.last_step, 0.0)
                self._builder.scalars(step, _means(line, found.end(), len(line)), "val/")
            self._builder.evaluation(at=_at(self._builder, line))
        elif b"Current checkpoints" in line:
            self._builder.checkpoint(at=_at(self._builder, line))

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        times = _TIMM_TIME.match(line, line.find(b"Time: ", found.end()))
        if times is None:
            raise ValueError("a record without its time")
        epoch, inside = number(found[1]), number(found[2])
        builder.steps_per_epoch = int(found[3])
        step = epoch * int(found[3]) + inside
        last, rate, mean, _, lr, waited = times.groups(b"nan")
        builder.train(
            step,
            epoch=epoch,
            inside=inside + 1,
            at=_at(builder, line) if found.start() >= _STAMP_BYTES else NAN,
            total=number(mean) * (inside + 1),
            error=_half_a_digit(mean) * (inside + 1),
            data_total=number(waited) * (inside + 1),
            since=0.0,
            printed=number(last),
            rate=number(rate),
            lr=number(lr),
        )
        builder.scalars(step, _means(line, found.end(), times.start()))


def _means(line: bytes, start: int, end: int) -> list[tuple[bytes, bytes]]:
    return [(name, mean) for name, mean in _TIMM_LOSS.findall(line, start, end) if name != b"Time"]


_NOTE = (
    "values beside the name are of the last step, those in brackets the mean of the epoch so far"
)

TORCHREID = Reader(
    name="torchreid",
    defined_by="KaiyangZhou/deep-person-reid: torchreid/engine/engine.py",
    start=lambda builder: _Torchreid(builder).feed,
    needle=b"epoch: [",
    mark=_TORCHREID,
    rebuild=_FORMULA,
    step="last step",
    data="window mean",
    data_formula=_FORMULA,
    scalars="running mean of the epoch",
    counting="(epoch - 1) x steps per epoch + step",
    notes=(_NOTE,),
)
TIMM = Reader(
    name="timm",
    defined_by="huggingface/pytorch-image-models: train.py",
    start=lambda builder: _Timm(builder).feed,
    needle=b"Train: ",
    mark=_TIMM,
    rebuild=_FORMULA,
    step="last step",
    data="window mean",
    data_formula=_FORMULA,
    rate="last step",
    scalars="running mean of the epoch",
    counting="epoch x steps per epoch + step",
    notes=(_NOTE, "samples per second count all ranks"),
)
READERS = (TORCHREID, TIMM)
