"""Many files of a dataset in one that is mapped into memory: written whole, checked by sums.

    header (64 bytes) | members, each at a multiple of 64 | index (JSON)

Bytes of a member are those of a file, or pixels of 8 bits that were decoded once for all. Readers
map the file: all processes of a host share one copy in the page cache, and of a member only the
pages that are used are read. The format is described in docs/pack-format.md.
"""

import json
import math
import mmap
import os
import secrets
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from pitstop.data.check import DataCheck
from pitstop.errors import DataError, os_errors_as
from pitstop.records.files import open_regular

Bytes = npt.NDArray[np.uint8]
Frames = Literal["decoded", "encoded"]
"""Images as pixels that are decoded once for all, or as the bytes of their files."""

MAGIC: Final = b"PITSTOPK"
VERSION: Final = 1
_AGAIN: Final = "pack the dataset again"
ALIGNMENT: Final = 64

# Magic, version, sum of the index, where the index is, its length, length of the file, and at the
# end the sum of all that.
_HEADER: Final = struct.Struct("<8sIIQQQ20xI")
_HEADER_BYTES: Final = _HEADER.size
_CHUNK_BYTES: Final = 16 << 20
_MOST_SIDES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Where the bytes of one file are."""

    name: str
    """Path within the dataset, with slashes."""
    field: str
    """What kind of thing it is to the workload."""
    offset: int
    size_bytes: int
    crc32: int
    shape: tuple[int, ...] | None
    """Of decoded pixels; None where the bytes are those of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSummary:
    """What was packed."""

    path: str
    workload: str
    members: int
    size_bytes: int
    """Of the pack."""
    source_bytes: int
    """Of the files that went in."""
    field_bytes: Mapping[str, int]
    """Bytes by kind of member."""
    took_s: float


@runtime_checkable
class ChecksData(Protocol):
    """A task whose dataset can be read through by its settings: for `pitstop data check`."""

    def check_data(self) -> DataCheck:
        """Read everything the task trains and evaluates on."""
        ...


@runtime_checkable
class PacksData(Protocol):
    """A task whose dataset can be put into one file: for `pitstop data pack`."""

    def pack_data(self, output: Path | None, *, frames: Frames) -> PackSummary:
        """Write the dataset into one file, `beside` it unless said; the task decides what goes in.

        Raises:
            DataError: Where something is missing or cannot be read; nothing is left behind.
        """
        ...


class PackWriter:
    """Writes a pack beside its final place and moves it there when it is whole.

    Raises:
        DataError: Where there is something already, or it cannot be written.
    """

    def __init__(self, path: Path, *, workload: str) -> None:
        if path.exists():
            raise DataError(f"{path} is there already; name another file, or remove it first")
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        self.workload = workload
        self._names: set[str] = set()
        self._begun_s = time.perf_counter()
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        with os_errors_as(DataError, f"cannot write {self._path}"):
            self._file = self._temporary.open("xb")
            self._file.write(bytes(_HEADER_BYTES))
        return self

    def add(self, name: str, field: str, data: bytes | Bytes) -> None:
        """Append a member: bytes of a file, or an array of decoded pixels.

        Raises:
            DataError: Where the disk is full, or the name is taken.
        """
        if name in self._names:
            raise DataError(f"{name} cannot be packed twice")
        shape = data.shape if isinstance(data, np.ndarray) else None
        content = data if isinstance(data, bytes) else data.tobytes()
        try:
            offset = self._align()
            self._file.write(content)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._names.add(name)
        self.members.append(
            Member(
                name=name,
                field=field,
                offset=offset,
                size_bytes=len(content),
                crc32=zlib.crc32(content),
                shape=shape,
            )
        )

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None:
                self._finish()
        except OSError as failure:
            raise self._cannot_write(failure) from failure
        finally:
            self._file.close()
            with suppress(OSError):
                self._temporary.unlink()

    def _finish(self) -> None:
        index = json.dumps(
            {
                "workload": self.workload,
                "members": [
                    [m.name, m.field, m.offset, m.size_bytes, m.crc32, m.shape]
                    for m in self.members
                ],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        offset = self._align()
        self._file.write(index)
        facts = (MAGIC, VERSION, zlib.crc32(index), offset, len(index), offset + len(index))
        unsigned = _HEADER.pack(*facts, 0)[:-4]
        self._file.seek(0)
        self._file.write(_HEADER.pack(*facts, zlib.crc32(unsigned)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)

    def _align(self) -> int:
        offset = self._file.tell()
        padding = -offset % ALIGNMENT
        self._file.write(bytes(padding))
        return offset + padding

    def summary(self, *, source_bytes: int) -> PackSummary:
        """Sum up what was written, once it is closed, from files of so many bytes."""
        field_bytes = Counter[str]()
        for member in self.members:
            field_bytes[member.field] += member.size_bytes
        return PackSummary(
            path=str(self._path),
            workload=self.workload,
            members=len(self.members),
            size_bytes=self._path.stat().st_size,
            source_bytes=source_bytes,
            field_bytes=dict(field_bytes),
            took_s=time.perf_counter() - self._begun_s,
        )

    def _cannot_write(self, error: OSError) -> DataError:
        return DataError(f"cannot write {self._path}: {error.strerror}; nothing was left behind")


class Pack:
    """A pack, open for reading. Travels to other processes as its path and is opened again there.

    Raises:
        DataError: Where the file is no pack, or is damaged or cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        with os_errors_as(DataError, f"cannot read {path}"), open_regular(path) as file:
            header = file.read(_HEADER_BYTES)
            self._index_crc, where, length = _checked_header(path, header)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        index = self._map[where : where + length]
        if zlib.crc32(index) != self._index_crc:
            raise DataError(f"{path} is damaged: the checksum of its index differs; {_AGAIN}")
        # Right sums say that nothing was damaged, not that it was written by us.
        try:
            workload, members = _read_index(index, end=where)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} has an index that no pack has: {error}; {_AGAIN}") from error
        self.workload: Final[str] = workload
        self.members: Final[Mapping[str, Member]] = {member.name: member for member in members}

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path, self._index_crc)

    def content(self, name: str) -> Bytes:
        """Give a member as a view of the mapped file: pixels in their shape, else plain bytes.

        Raises:
            DataError: Where there is no such member.
        """
        member = self.members.get(name)
        if member is None:
            raise DataError(f"{self.path} has no member {name}")
        plain = np.frombuffer(self._map, np.uint8, member.size_bytes, member.offset)
        return plain if member.shape is None else plain.reshape(member.shape)

    def damaged(self) -> Iterator[str]:
        """Read everything and name the members whose bytes are not those that were packed."""
        for member in self.members.values():
            if _crc32(self.content(member.name).reshape(-1)) != member.crc32:
                yield member.name


def _open_again(path: Path, index_crc: int) -> Pack:
    pack = Pack(path)
    if pack.__reduce__()[1][1] != index_crc:
        raise DataError(f"{path} was replaced by another pack while it was in use; start again")
    return pack


def beside(root: Path) -> Path:
    """Name the pack that goes with a dataset: the folder's own name with an ending.

    Raises:
        DataError: Where there is nothing beside it.
    """
    named = root if root.name not in ("", "..") else root.resolve()
    if not named.name:
        raise DataError(
            f"there is no folder beside {root} to write to; name the pack with --output"
        )
    return named.with_name(f"{named.name}.pack")


def is_pack(path: Path) -> bool:
    """Tell whether a path is a file that begins like a pack."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _checked_header(path: Path, header: bytes) -> tuple[int, int, int]:
    """Give the sum of the index, where it is and how long."""
    if header[: len(MAGIC)] != MAGIC:
        raise DataError(f"{path} is not a pack; make one with `pitstop data pack`")
    if len(header) < _HEADER_BYTES:
        raise DataError(f"{path} is cut off: it has {len(header)} bytes; {_AGAIN}")
    _, version, index_crc, where, length, file_bytes, own_crc = _HEADER.unpack(header)
    if version > VERSION:
        raise DataError(f"{path} has version {version}; this pitstop reads up to {VERSION}")
    if zlib.crc32(header[:-4]) != own_crc:
        raise DataError(f"{path} is damaged: the checksum of its header differs; {_AGAIN}")
    actual = path.stat().st_size
    if actual != file_bytes:
        raise DataError(f"{path} is cut off: it has {actual} of {file_bytes} bytes; {_AGAIN}")
    if not _HEADER_BYTES <= where <= where + length <= file_bytes:
        raise DataError(f"{path} is damaged: its index lies outside the file; {_AGAIN}")
    return index_crc, where, length


def _read_index(index: bytes, *, end: int) -> tuple[str, list[Member]]:
    """Read the index of a pack whose members end before byte `end`.

    Raises:
        ValueError, TypeError, LookupError, AttributeError, RecursionError: It is none.
    """
    content = json.loads(index)
    workload, rows = content["workload"], content["members"]
    if type(workload) is not str or type(rows) is not list:
        raise ValueError("it names no workload or no members")
    members = [_member(row, end=end) for row in rows]
    if len({member.name for member in members}) != len(members):
        raise ValueError("a name stands in it twice")
    return workload, members


def _member(row: Sequence[Any], *, end: int) -> Member:
    name, field, offset, size_bytes, crc32, shape = row
    if type(name) is not str or type(field) is not str or not _is_inner(name):
        raise ValueError(f"{str(name)[:80]!r} is no name of a member")
    if not all(type(number) is int for number in (offset, size_bytes, crc32)):
        raise ValueError(f"the place of {name!r} is not given in whole numbers")
    if not (_HEADER_BYTES <= offset <= offset + size_bytes <= end and 0 <= crc32 < 1 << 32):
        raise ValueError(f"{name!r} lies outside the file")
    if shape is not None and (
        not 1 <= len(shape) <= _MOST_SIDES
        or not all(type(side) is int and side >= 0 for side in shape)
        or math.prod(shape) != size_bytes
    ):
        raise ValueError(f"the shape of {name!r} does not fit its size")
    return Member(
        name=name,
        field=field,
        offset=offset,
        size_bytes=size_bytes,
        crc32=crc32,
        shape=None if shape is None else tuple(shape),
    )


def _is_inner(name: str) -> bool:
    """Whether a name is a path that stays inside its dataset."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def _crc32(content: Bytes) -> int:
    """Sum up in pieces, so that a large member does not fill memory with its pages at once."""
    crc = 0
    for start in range(0, len(content), _CHUNK_BYTES):
        crc = zlib.crc32(content[start : start + _CHUNK_BYTES].tobytes(), crc)
    return crc
