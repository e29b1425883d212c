"""When each key is used next, in memory that all processes of a host share.

The order in which a sampler will ask for keys is known before an epoch begins. It is stored as the
places of each key in that order. A cursor for each key counts the uses that have been: workers
run ahead of each other, so there is no one place that all of them have reached.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pitstop.data.cache.items import Key, aligned, encode_key, hash_key

NEVER: Final = 2**62
"""Stands for a use that the order does not tell of."""

_HEAD_BYTES: Final = 16


class Order:
    """The known order, as it lies in a block of the arena.

    Single numbers are read through memory views, which is faster than through arrays.
    """

    def __init__(self, memory: memoryview, start: int) -> None:
        keys, uses = memory[start : start + _HEAD_BYTES].cast("q")
        edges = [start + _HEAD_BYTES]
        for size_bytes in (8 * keys, 4 * (keys + 1), 4 * keys, 4 * uses):
            edges.append(edges[-1] + size_bytes)
        parts = [memory[first:stop] for first, stop in pairwise(edges)]
        self._hashes = parts[0].cast("q")
        self._firsts, self._cursors, self._places = (part.cast("I") for part in parts[1:])

    def next_use(self, digest: int) -> int:
        """Say at which place a key is used next, `NEVER` where the order does not say."""
        row = self._row(digest)
        return NEVER if row is None else self._next_of(row)

    def use(self, digest: int) -> int:
        """Count one use of a key and say where the one after it is."""
        row = self._row(digest)
        if row is None:
            return NEVER
        if self._cursors[row] < self._firsts[row + 1] - self._firsts[row]:
            self._cursors[row] += 1
        return self._next_of(row)

    def next_uses(
        self, digests: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Say the same for many keys at once."""
        nexts = np.full(len(digests), NEVER, np.int64)
        if not len(self._hashes):
            return nexts
        hashes = np.asarray(self._hashes)
        firsts, cursors = np.asarray(self._firsts, np.int64), np.asarray(self._cursors)
        rows = np.minimum(hashes.searchsorted(digests), len(hashes) - 1)
        places = firsts[rows] + cursors[rows]
        known = (hashes[rows] == digests) & (places < firsts[rows + 1])
        nexts[known] = np.asarray(self._places)[places[known]]
        return nexts

    def _row(self, digest: int) -> int | None:
        row = bisect_left(self._hashes, digest)
        return row if row < len(self._hashes) and self._hashes[row] == digest else None

    def _next_of(self, row: int) -> int:
        place = self._firsts[row] + self._cursors[row]
        return self._places[place] if place < self._firsts[row + 1] else NEVER


class NewOrder:
    """An order on its way into the arena."""

    def __init__(self, keys: Iterable[Key]) -> None:
        digests = np.fromiter((hash_key(encode_key(key)) for key in keys), np.int64)
        self._hashes, row_of_use, uses = np.unique(digests, return_inverse=True, return_counts=True)
        self._places = np.argsort(row_of_use, kind="stable").astype(np.uint32)
        self._firsts = np.concatenate([[0], np.cumsum(uses)]).astype(np.uint32)

    @property
    def size_bytes(self) -> int:
        """Bytes the order takes of the budget."""
        keys, uses = len(self._hashes), len(self._places)
        return aligned(_HEAD_BYTES + 16 * keys + 4 + 4 * uses)

    def write(self, memory: memoryview, start: int) -> None:
        """Store the order; an `Order` reads it."""
        parts = (
            np.array([len(self._hashes), len(self._places)], np.int64),
            self._hashes,
            self._firsts,
            np.zeros(len(self._hashes), np.uint32),
            self._places,
        )
        for part in parts:
            np.ndarray(part.shape, part.dtype, memory, start)[...] = part
            start += part.nbytes
