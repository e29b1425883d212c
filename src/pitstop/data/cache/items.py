"""How keys and arrays look as bytes: plain C order, and eight truth values in a byte.

No pickle: what is read back is a name, a type, a shape and numbers.
"""

import math
import operator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pitstop.errors import DataError

Key: TypeAlias = str | int | tuple["Key", ...]
Window: TypeAlias = slice | tuple[slice, ...]
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Packing: TypeAlias = Literal["plain", "rows", "flat"]

ALIGNMENT_BYTES: Final = 64

_BYTE: Final = np.dtype(np.uint8)
_SLICES: Final = frozenset({slice})

# Last axes this long lose at most one byte in eight when each row starts a byte of its own.
_ROWS_FROM: Final = 64

_MOST_LAYOUTS: Final = 4096

_LINE_BYTES: Final = 64
# Measured (docs/cache.md): outside of these bounds, to read ahead takes what it saves.
_AHEAD_FROM_BYTES: Final = 48 << 10
_AHEAD_TO_BYTES: Final = 512 << 10
_AHEAD_RUN_BYTES: Final = 896


def encode_key(key: Key) -> bytes:
    """Write a key so that different keys have different bytes.

    Raises:
        DataError: Where the key is neither text, nor a whole number, nor a tuple of those.
    """
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, tuple):
        parts = [encode_key(part) for part in key]
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    try:
        return b"i%d" % operator.index(key)
    except TypeError:
        raise DataError(
            f"a cache key is text, a whole number or a tuple of those, not {type(key).__name__}"
        ) from None


def hash_key(name: bytes) -> int:
    """Give 64 bits that are the same in every process, unlike the built-in hash."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little", signed=True)


def aligned(size_bytes: int) -> int:
    """Round up to where the next block may begin."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """Type and shape of an array, and how its bytes are stored. Made by `make_layout`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    packing: Packing
    """Truth values are packed row by row, or as one run of bits where rows are too short."""
    stored_dtype: np.dtype[Any]
    stored_shape: tuple[int, ...]
    stored_bytes: int
    """What the array takes in the cache. All three are here since every hit needs them."""

    def encode(self) -> bytes:
        """Write the layout so that `decode_layout` gives it back."""
        return f"{self.dtype.str};{self.packing};{','.join(map(str, self.shape))}".encode()

    def write(self, array: Array, memory: memoryview, start: int) -> None:
        """Store an array of this layout in `memory`."""
        place = np.ndarray(self.stored_shape, self.stored_dtype, memory, start)
        if self.packing == "plain":
            place[...] = array
        elif self.packing == "rows":
            place[...] = np.packbits(array, axis=-1)
        else:
            place[...] = np.packbits(array)

    def whole(self, memory: Array, start: int) -> Array:
        """Give the stored array: a view of `memory`, or a copy where it was packed."""
        stored = self._stored(memory, start)
        if self.packing == "plain":
            return stored
        if self.packing == "rows":
            return np.unpackbits(stored, axis=-1, count=self.shape[-1]).view(np.bool_)
        bits = np.unpackbits(stored, count=math.prod(self.shape))
        return bits.view(np.bool_).reshape(self.shape)

    def crop(self, memory: Array, start: int, window: Window) -> Array:
        """Copy a part of the stored array; only the bytes it lies in are touched.

        Raises:
            DataError: Where the window is not made of slices or has more axes than the array.
        """
        slices = (window,) if isinstance(window, slice) else tuple(window)
        if len(slices) > len(self.shape) or not set(map(type, slices)) <= _SLICES:
            raise DataError(
                f"a window into an array of shape {self.shape} is at most {len(self.shape)} "
                f"slices, not {window!r}"
            )
        if self.packing == "plain":
            part = self._stored(memory, start)[slices]
            if _AHEAD_FROM_BYTES <= part.nbytes <= _AHEAD_TO_BYTES and len(slices) > 1:
                read_ahead(part, len(slices) - 1)
            return np.array(part, order="C")
        if self.packing == "rows" and len(slices) == len(self.shape):
            return self._crop_bits(memory, start, slices)
        return np.array(self.whole(memory, start)[slices], order="C")

    def _stored(self, memory: Array, start: int) -> Array:
        # Not through ndarray(buffer=...): numpy would look past a read-only view of a mapping,
        # and let its users make the array writable.
        stored = memory[start : start + self.stored_bytes]
        if self.stored_dtype is not _BYTE:
            stored = stored.view(self.stored_dtype)
        return stored.reshape(self.stored_shape)

    def _crop_bits(self, memory: Array, start: int, slices: tuple[slice, ...]) -> Array:
        *leading, last = slices
        first, stop, step = last.indices(self.shape[-1])
        if step < 0 or stop <= first:
            return np.array(self.whole(memory, start)[slices], order="C")
        stored = self._stored(memory, start)
        first_byte = first // 8
        bits = np.unpackbits(stored[(*leading, slice(first_byte, -(-stop // 8)))], axis=-1)
        cut = bits[..., first - 8 * first_byte : stop - 8 * first_byte : step]
        return np.array(cut, order="C").view(np.bool_)


def read_ahead(part: Array, axis: int) -> None:
    """Read a byte of every cache line of a window, where that makes a copy of it faster.

    That is where the window is many short runs far apart, each of which the copy waits for. Reads
    on which nothing depends wait together.

    Args:
        part: The window.
        axis: The last axis that was cut, not the first one: what follows it is one run.
    """
    stride, last = part.strides[axis], part.shape[axis] - 1
    run_bytes = (last + 1) * stride
    if not (0 < stride <= _LINE_BYTES < run_bytes <= _AHEAD_RUN_BYTES):
        return
    if abs(part.strides[axis - 1]) >= 2 * run_bytes:
        # From the first to nearly the last: a run may begin anywhere in a line, and a line that
        # is left out at its end makes the copy wait after all.
        step = last // -(-last * stride // _LINE_BYTES)
        inner = (0,) * (part.ndim - 1 - axis)
        part[(..., slice(None, None, step), *inner)].copy()


def layout_of(array: Array) -> ItemLayout:
    """Say how an array would be stored.

    Raises:
        DataError: Where its elements are objects or records.
    """
    dtype = array.dtype
    if dtype.kind not in "biufcSUMm":
        raise DataError(f"a cache holds arrays of numbers, truth values or text, not of {dtype}")
    if dtype.kind != "b":
        return make_layout(dtype, array.shape, "plain")
    by_rows = array.ndim > 0 and (array.shape[-1] % 8 == 0 or array.shape[-1] >= _ROWS_FROM)
    return make_layout(dtype, array.shape, "rows" if by_rows else "flat")


def make_layout(dtype: np.dtype[Any], shape: tuple[int, ...], packing: Packing) -> ItemLayout:
    """Work out what a packing makes of a type and a shape."""
    if packing == "plain":
        stored_dtype, stored_shape = dtype, shape
    elif packing == "flat":
        stored_dtype, stored_shape = _BYTE, (-(-math.prod(shape) // 8),)
    else:
        stored_dtype, stored_shape = _BYTE, (*shape[:-1], -(-shape[-1] // 8))
    stored_bytes = math.prod(stored_shape) * stored_dtype.itemsize
    return ItemLayout(dtype, shape, packing, stored_dtype, stored_shape, stored_bytes)


_LAYOUTS: dict[bytes, ItemLayout] = {}


def decode_layout(text: bytes) -> ItemLayout:
    """Read a layout. A dataset has few of them, so each is parsed once."""
    layout = _LAYOUTS.get(text)
    if layout is None:
        dtype, packing, shape = text.decode().split(";")
        sizes = tuple(int(size) for size in shape.split(",") if size)
        assert packing in ("plain", "rows", "flat")
        layout = make_layout(np.dtype(dtype), sizes, packing)
        if len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.clear()
        _LAYOUTS[text] = layout
    return layout
