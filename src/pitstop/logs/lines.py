"""Lines of a log file, in one pass with bounded memory, whatever the file holds.

Carriage returns end a line as line feeds do, for progress bars write nothing else. Colour codes
are taken out. Files packed with gzip are unpacked on the way, and UTF-16, which some shells write
when output is redirected, becomes UTF-8.
"""

import codecs
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pitstop.errors import RecordError

Note = Callable[[str], None]

_CHUNK_BYTES = 1 << 20
_LONGEST_TORN = 1 << 20
LONGEST_LINE = 1 << 14
"""Bytes of a line that patterns are held against: none is longer, and a pattern may be slow."""
_MOST_BYTES = 1 << 36
_MOST_INPUT_BYTES = 1 << 32
_HEAD_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 17
_PACKED_BYTES = 1 << 14
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_ERASED = re.compile(rb"\x08+")  # some bars go back over their line before they draw the next one


def _no_note(_: str) -> None:
    """Tell nobody."""


def stream(path: Path, note: Note = _no_note) -> Iterator[tuple[list[bytes], bool]]:
    """Give the file's lines, portion by portion, and whether they are whole.

    A last line without its end comes alone and is not whole: its last number may be cut off.

    Args:
        path: File to read.
        note: Described, as text, what could not be read.

    Raises:
        RecordError: The file cannot be opened or read.
    """
    torn = b""
    for chunk in portions(path, note):
        lines = _split(torn + chunk)
        torn = lines.pop()
        if len(torn) > _LONGEST_TORN:  # no text has such lines: what follows is not worth keeping
            torn = torn[:_LONGEST_TORN]
        yield lines, True
    if torn:
        yield [torn], False


def _split(data: bytes) -> list[bytes]:
    if b"\x1b" in data:
        data = _COLOUR.sub(b"", data)
    if b"\x08" in data:
        data = _ERASED.sub(b"\n", data)
    if b"\r" in data:
        data = data.replace(b"\r", b"\n")
    return data.split(b"\n")


def cut(line: bytes) -> bytes:
    """Give as much of a line as patterns are held against."""
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE]


def check_regular(path: Path) -> None:
    """Refuse what is no file with an end: a device, a pipe, a file that says it is endless.

    Raises:
        RecordError: It is none, or longer than any log.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise RecordError(f"{path} is a pipe or a device; give a file, or - for standard input")
    if found.st_size > _MOST_BYTES:
        raise RecordError(f"{path} says it has {found.st_size} bytes: too many for a log")
    if not found.st_size:
        raise RecordError(f"{path} is empty: there is nothing to read in it")


def standard_input(into: Path) -> None:
    """Keep standard input in a file: a log is read twice, first to find its format.

    Raises:
        RecordError: It does not end.
    """
    taken = 0
    with into.open("wb") as file:
        while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
            taken += len(chunk)
            if taken > _MOST_INPUT_BYTES:
                raise RecordError(f"standard input is longer than {_MOST_INPUT_BYTES >> 30} GiB")
            file.write(chunk)


def portions(path: Path, note: Note = _no_note) -> Iterator[bytes]:
    """Give the file's bytes, unpacked and as UTF-8; a damaged end is left out.

    Args:
        path: File to read.
        note: Described, as text, what could not be read.

    Raises:
        RecordError: The file cannot be opened or read.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            yield from _decoded(_unpacked(raw, start, note), start)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip does."""
    with path.open("rb") as raw:
        return raw.read(2) == _GZIP


def _unpacked(raw: BinaryIO, start: bytes, note: Note) -> Iterator[bytes]:
    if start == _GZIP:
        yield from _gunzipped(raw, note)
        return
    while chunk := raw.read(_CHUNK_BYTES):
        yield chunk


def _gunzipped(raw: BinaryIO, note: Note) -> Iterator[bytes]:
    """Unpack as far as it goes: a file cut off while it was written is a log all the same."""
    unpack = zlib.decompressobj(_GZIP_BITS)
    is_begun = False
    while packed := raw.read(_PACKED_BYTES):
        while packed:
            before = unpack.copy()
            try:
                chunk = unpack.decompress(packed)
            except zlib.error:
                yield _until_damage(before.decompress, packed)
                note("the packed file is damaged: it is read up to there")
                return
            is_begun = True
            yield chunk
            packed = unpack.unused_data.lstrip(b"\0")
            if unpack.eof:  # files packed one by one may be joined
                unpack, is_begun = zlib.decompressobj(_GZIP_BITS), False
    if is_begun:
        note("the packed file is cut off: it is read as far as it goes")


def _until_damage(unpack: Callable[[bytes], bytes], packed: bytes) -> bytes:
    found: list[bytes] = []
    with suppress(zlib.error):
        for place in range(len(packed)):
            found.append(unpack(packed[place : place + 1]))  # noqa: PERF401 - kept on error
    return b"".join(found)


def _decoded(chunks: Iterator[bytes], start: bytes) -> Iterator[bytes]:
    if start not in _UTF16:
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(_UTF16[start])(errors="replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")


def sample(path: Path) -> list[bytes]:
    """Give lines from the head, the middle and the end, to find out what the file is.

    Raises:
        RecordError: The file cannot be opened or read.
    """
    head = b""
    for chunk in portions(path):
        head += chunk
        if len(head) >= _HEAD_BYTES:
            break
    lines = _split(head)
    if len(head) < _HEAD_BYTES or head[:2] in (_GZIP, *_UTF16):
        return lines
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            for place in (size // 2, max(0, size - _SAMPLE_BYTES)):
                file.seek(place)
                lines += _split(file.read(_SAMPLE_BYTES))[1:]
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    return lines
