"""Event files of TensorBoard: scalars with their wall clock, without TensorFlow or TensorBoard.

A file is a row of records (length, its checksum, bytes, their checksum), each an ``Event`` in the
protocol buffers' wire format; a handful of fields is all that scalars need.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from re import compile as pattern

from pitstop.logs.builder import LogBuilder
from pitstop.logs.reader import Feed, Reader

NAN = math.nan
_LONGEST = 1 << 26
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


def masked_crc(data: bytes) -> int:
    """Give the checksum that stands beside a length or a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class _Events:
    """Cuts the file into records and takes scalars out of them."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._torn = b""
        self._is_broken = False
        self._row: dict[str, float] = {}
        self._step = NAN
        self._at = NAN
        builder.close = self._end_row

    def feed(self, data: bytes) -> None:
        """Take the next portion of the file."""
        if self._is_broken:
            return
        data = self._torn + data
        place = 0
        while len(data) - place >= 12:
            (length,) = struct.unpack_from("<Q", data, place)
            (crc,) = struct.unpack_from("<I", data, place + 8)
            if length > _LONGEST or crc != masked_crc(data[place : place + 8]):
                self._is_broken = True
                self._builder.note("the file is damaged; what comes after the damage is not read")
                return
            end = place + 12 + length
            if end + 4 > len(data):
                break
            self._take(data[place + 12 : end], struct.unpack_from("<I", data, end)[0])
            place = end + 4
        self._torn = data[place:]

    def _take(self, record: bytes, crc: int) -> None:
        if len(record) < _LONGEST >> 10 and crc != masked_crc(record):
            self._builder.damaged += 1
            return
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
                self._end_row()
                self._step, self._at = step, builder.clock.unix(wall)
            self._row[tag] = value
        builder.scalar(tag, step, value)

    def _end_row(self) -> None:
        """Values of one step come one by one: together they are one record."""
        if self._row:
            rate = next((value for tag, value in self._row.items() if tag in _LR), NAN)
            self._builder.train(self._step, at=self._at, total=self._at, error=0.0005, lr=rate)
        self._row, self._step = {}, NAN


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


def _start(builder: LogBuilder) -> Feed:
    return _Events(builder).feed


def looks(lines: Sequence[bytes]) -> float:
    """Recognise the first record, which names the version of the file."""
    head = b"\n".join(lines[:4])[:256]
    return 0.99 if b"brain.Event:" in head[:64] else 0.0


TENSORBOARD = Reader(
    name="TensorBoard events",
    defined_by=(
        "tensorflow/tensorboard: tensorboard/compat/proto/event.proto, summary.proto, "
        "tensorboard/compat/tensorflow_stub/pywrap_tensorflow.py"
    ),
    start=_start,
    mark=pattern(rb"brain\.Event:"),
    looks=looks,
    is_binary=True,
    rebuild="difference of wall clocks / steps between the records",
    scalars="not known",
)
READERS = (TENSORBOARD,)
