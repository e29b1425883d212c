"""Event files of TensorBoard: scalars with their wall clock, without TensorFlow or TensorBoard.

A file is a row of records (length, its checksum, bytes, their checksum), each an ``Event`` in the
protocol buffers' wire format; a handful of fields is all that scalars need.
"""

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from re import compile as pattern

import numpy as np

from pitstop.logs.builder import Array, LogBuilder, Series
from pitstop.logs.reader import Reader

NAN = math.nan
_FEWEST, _SOME, _MOSTLY, _LONG_STEP_S = 3, 0.05, 0.9, 1.0
_LONGEST = 1 << 26
_HEAD = 12
_FEW = 8
_MOST_KNOWN = 4096
_LONGEST_TAG = 118
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT_TENSOR = 1
_LR = frozenset(("lr", "learning_rate", "train/lr", "train/learning_rate", "Train/lr"))
_EVAL = pattern(r"(?i)(?:^|/)(?:val|test|eval|valid|validation)(?:[/_]|$)")


def _crc_table() -> tuple[int, ...]:
    """Table of the Castagnoli polynomial, which the format prescribes."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC = _crc_table()
_CRC_ARRAY = np.array(_CRC, dtype=np.uint32)
# An event of one scalar, as it is nearly always: time, step, lengths of what lies in one another,
# tag and value. The step has at most 49 bits, so that it is a float without loss.
_USUAL = pattern(
    rb"(?s)\x09(.{8})\x10([\x80-\xff]{0,6}[\x00-\x7f])\x2a([\x00-\x7f]\x0a[\x00-\x7f]\x0a[\x00-\x7f])"
    rb"(.*)\x15(.{4})\Z"
)
_DOUBLE, _FLOAT = struct.Struct("<d").unpack, struct.Struct("<f").unpack


def masked_crc(data: bytes) -> int:
    """Give the checksum that stands beside a length or a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crcs(records: Sequence[bytes]) -> list[int]:
    """Give the checksums of records of one length, all at once where there are many."""
    if len(records) < _FEW or not records[0]:
        return [masked_crc(record) for record in records]
    table = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
    crc = np.full(len(records), 0xFFFFFFFF, dtype=np.uint32)
    for column in np.ascontiguousarray(table.T):
        crc = _CRC_ARRAY[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    crc = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    return crc.tolist()


@dataclass(slots=True)
class _Tag:
    """What is known of a tag."""

    text: str
    is_eval: bool
    lengths: bytes
    """What the summary, its value and the tag announce as their lengths in an event of one."""
    series: Series | None = None


class _Events:
    """Cuts the file into records and takes scalars out of them."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._torn = b""
        self._is_broken = False
        self._lengths: dict[bytes, int] = {}
        """Heads of records whose checksum was right: few lengths make up a file."""
        self._tags: dict[bytes, _Tag] = {}
        self._step_text = b""
        self._step_read = 0.0
        self._row: dict[str, float] = {}
        self._step = NAN
        self._at = NAN
        builder.close = self._end

    def feed(self, data: bytes) -> None:
        """Take the next portion of the file."""
        if self._is_broken:
            return
        data = self._torn + data
        place = 0
        records: list[bytes] = []
        crcs: list[bytes] = []
        last = len(data) - _HEAD
        known = self._lengths.get
        while place <= last:
            begin = place + _HEAD
            head = data[place:begin]
            length = known(head)
            if length is None:
                length = self._length(head)
            end = begin + length
            if length < 0 or end + 4 > len(data):
                break
            records.append(data[begin:end])
            place = end + 4
            crcs.append(data[end:place])
        self._torn = data[place:]
        self._take_all(records, struct.unpack(f"<{len(crcs)}I", b"".join(crcs)))
        if self._is_broken:
            self._builder.note("the file is damaged; what comes after the damage is not read")

    def _length(self, head: bytes) -> int:
        """Check the length of the record that begins here; -1 where the file is damaged."""
        length, crc = struct.unpack("<QI", head)
        if length > _LONGEST or crc != masked_crc(head[:8]):
            self._is_broken = True
            return -1
        if len(self._lengths) >= _MOST_KNOWN:
            self._lengths.clear()
        self._lengths[head] = length
        return length

    def _take_all(self, records: list[bytes], crcs: Sequence[int]) -> None:
        """Take records in order, without those whose bytes are not what was written."""
        of_length: dict[int, list[int]] = {}
        for place, record in enumerate(records):
            of_length.setdefault(len(record), []).append(place)
        bad: set[int] = set()
        for length, places in of_length.items():
            if length < _LONGEST >> 10:
                found = masked_crcs([records[place] for place in places])
                bad.update(
                    place for place, crc in zip(places, found, strict=True) if crc != crcs[place]
                )
        for place, record in enumerate(records):
            try:
                if place in bad:
                    self._builder.damaged += 1
                elif (found := _USUAL.match(record)) is None or not self._usual(found):
                    self._take(record)
            except (ValueError, IndexError, struct.error):
                self._builder.damaged += 1

    def _take(self, record: bytes) -> None:
        wall, step, summary = NAN, 0, b""
        for number, value in _fields(record):
            if number == 1 and isinstance(value, bytes):
                (wall,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = value if value < 1 << 63 else value - (1 << 64)
            elif number == 5 and isinstance(value, bytes):
                summary = value
        if summary:
            self._summary(wall, float(step), summary)

    def _usual(self, found: re.Match[bytes]) -> bool:
        """Take an event of one scalar; False where its lengths say that it is something else."""
        wall, step_text, lengths, name, value_text = found.groups()
        tag = self._tags.get(name) or self._tag(name)
        if lengths != tag.lengths:
            return False
        if step_text != self._step_text:
            self._step_read, self._step_text = float(_varint(step_text, 0)[0]), step_text
        (value,) = _FLOAT(value_text)
        if isnan(value) or not name:
            return True
        step = self._step_read
        if tag.is_eval:
            self._scalar(tag.text, value, _DOUBLE(wall)[0], step)
            return True
        if step != self._step:
            self._begin_row(step, _DOUBLE(wall)[0])
        self._row[tag.text] = value
        if tag.series is not None:
            tag.series.add(step, value)
        else:
            self._builder.scalar(tag.text, step, value)
            tag.series = self._builder.series.get(tag.text)
        return True

    def _tag(self, name: bytes) -> _Tag:
        if len(self._tags) >= _MOST_KNOWN:
            self._tags.clear()
        text, size = name.decode("utf-8", "replace"), len(name)
        lengths = bytes((size + 9, 10, size + 7, 10, size)) if size <= _LONGEST_TAG else b""
        tag = self._tags[name] = _Tag(text, _EVAL.search(text) is not None, lengths)
        return tag

    def _summary(self, wall: float, step: float, summary: bytes) -> None:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                tag, number_read = _value(value)
                if tag and not math.isnan(number_read):
                    self._scalar(tag, number_read, wall, step)

    def _scalar(self, tag: str, value: float, wall: float, step: float) -> None:
        builder = self._builder
        if _EVAL.search(tag):
            self._end_row()
            builder.evaluation(step=step, at=builder.clock.unix(wall))
        else:
            if step != self._step:
                self._begin_row(step, wall)
            self._row[tag] = value
        builder.scalar(tag, step, value)

    def _end(self) -> None:
        self._end_row()
        if self._builder.went_back > 1 and self._builder.went_back > _SOME * len(self._builder):
            self._builder.forget()  # values with several indices: none is surely the step
        self._builder.count_epochs_if(self._is_of_epochs)

    @staticmethod
    def _is_of_epochs(step: Array, at: Array, evaluations: int) -> str:
        """Say why an index may count epochs: then it is no step, and gives no time of one."""
        rises, spent = np.diff(step), np.diff(at)
        if len(rises) < _FEWEST or (rises == 1).mean() < _MOSTLY:
            return ""
        if evaluations >= _MOSTLY * len(step):
            return "the index rises by one with an evaluation each: it counts epochs, not steps"
        if float(np.nanmedian(spent)) >= _LONG_STEP_S:
            return "the index rises by one in a long time: it may count epochs, so no step is timed"
        return ""

    def _begin_row(self, step: float, wall: float) -> None:
        self._end_row()
        self._step, self._at = step, self._builder.clock.unix(wall)

    def _end_row(self) -> None:
        """Values of one step come one by one: together they are one record."""
        if self._row:
            rate = NAN
            if not _LR.isdisjoint(self._row):
                rate = next(value for tag, value in self._row.items() if tag in _LR)
            self._builder.brief(self._step, at=self._at, error=0.0005, lr=rate)
            self._row = {}
        self._step = NAN


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give number and content of each field of a message.

    Raises:
        ValueError, IndexError: The bytes are no message.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, place = _varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no message")
        if place + length > len(data):
            raise ValueError("a field runs over the end")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number runs over its width")


def _value(message: bytes) -> tuple[str, float]:
    """Read a summary value: its tag, and its number if it is a scalar."""
    tag, number_read = "", NAN
    for number, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode("utf-8", "replace")
        elif number == 2 and len(value) == 4:
            (number_read,) = struct.unpack("<f", value)
        elif number == 8:
            number_read = _tensor(value)
    return tag, number_read


def _tensor(message: bytes) -> float:
    """Read a tensor of one float: its content as bytes, or as a packed list."""
    is_float, number_read = False, NAN
    for number, value in _fields(message):
        if number == 1 and value == _FLOAT_TENSOR:
            is_float = True
        elif number in (4, 5) and isinstance(value, bytes) and len(value) == 4:
            (number_read,) = struct.unpack("<f", value)
    return number_read if is_float else NAN


def looks(lines: Sequence[bytes]) -> float:
    """Recognise the first record, which names the version of the file."""
    head = b"\n".join(lines[:4])[:256]
    return 0.99 if b"brain.Event:" in head[:64] else 0.0


TENSORBOARD = Reader(
    name="TensorBoard events",
    is_count_defined=False,
    defined_by=(
        "tensorflow/tensorboard: tensorboard/compat/proto/event.proto, summary.proto, "
        "tensorboard/compat/tensorflow_stub/pywrap_tensorflow.py"
    ),
    start=lambda builder: _Events(builder).feed,
    mark=pattern(rb"brain\.Event:"),
    looks=looks,
    is_binary=True,
    rebuild="difference of wall clocks / steps between the records",
    scalars="not known",
)
READERS = (TENSORBOARD,)
