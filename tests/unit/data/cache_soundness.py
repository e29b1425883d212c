"""What must hold for a cache at any moment, and items whose every byte follows from their key.

Processes that tests start import this, and so not pytest.
"""

from functools import cache
from itertools import pairwise

import numpy as np

from pitstop.data.cache.arena import leave_arena, open_arena
from pitstop.data.cache.blocks import (
    DATA_START,
    DIRTY,
    EVICTIONS,
    FILL,
    HASH,
    HOLE,
    ITEMS,
    KNOWN_ORDER,
    LENGTHS,
    LIMIT,
    OFFSET,
    ORDER,
    READY,
    SIZE,
    STATE,
    UNUSED,
    USED_BYTES,
)
from pitstop.data.cache.index import Index
from pitstop.data.cache.items import decode_layout
from pitstop.data.cache.shared import SharedCache

KEYS = 150


@cache
def item_of(key: int, size: int | None = None) -> np.ndarray:
    """An array that no other key has, to be read only; sizes differ unless one is asked for."""
    rng = np.random.default_rng(key)
    rows = int(rng.integers(1, 40)) if size is None else size
    values = rng.integers(0, 256, (rows, 100), np.uint8)
    item = values > 127 if key % 5 == 4 and size is None else values
    item.flags.writeable = False
    return item


def read_all(cache: SharedCache, seed: int, rounds: int) -> None:
    """Read every key in an order of its own, and check every byte."""
    rng = np.random.default_rng(seed)
    for key in rng.permuted(np.tile(np.arange(KEYS), rounds)).tolist():
        found = cache.get(key)
        if found is None:
            cache.put(key, item_of(key))
        else:
            np.testing.assert_array_equal(found, item_of(key))


def assert_sound(cache: SharedCache, *, filling: int = 0, size: int | None = None) -> None:
    """Check the index from its entries alone, and every byte of every item."""
    [handle] = cache.__reduce__()[1]
    arena = open_arena(handle)
    index = Index(arena)
    try:
        with index:
            _assert_tiled(index, filling)
            _assert_items(index, size)
            assert index.words[DIRTY] == 1
        assert index.words[DIRTY] == 0
        assert index.words[EVICTIONS] >= 0
    finally:
        del index
        leave_arena(arena)


def _assert_tiled(index: Index, filling: int) -> None:
    table = index.table().copy()
    kinds = table[:, STATE] & 0xFF
    blocks = sorted(
        (int(row[OFFSET]), int(row[SIZE]), int(kind))
        for row, kind in zip(table, kinds, strict=True)
        if kind != UNUSED
    )
    edge = index.words[DATA_START]
    for offset, size, _ in blocks:
        assert offset == edge, "blocks leave a gap or overlap"
        edge = offset + size
    assert edge == index.arena.size_bytes - len(table) * 96
    assert not any(a[2] == b[2] == HOLE for a, b in pairwise(blocks))
    assert int((kinds == FILL).sum()) == filling
    assert int((kinds == KNOWN_ORDER).sum()) == (index.words[ORDER] > 0)
    assert index.words[ITEMS] == int((kinds == READY).sum())
    assert index.words[USED_BYTES] == sum(size for _, size, kind in blocks if kind == READY)
    assert all(o + s <= index.words[LIMIT] for o, s, kind in blocks if kind == READY)


def _assert_items(index: Index, size: int | None) -> None:
    for row in np.flatnonzero(index.table()[:, STATE] == READY):
        entry = index.entry_of_row(int(row))
        start = index.words[entry + OFFSET]
        length = index.words[entry + LENGTHS] & 0xFFFFFFFF
        name = bytes(index.arena.memory[start : start + length])
        assert index.find(name, index.words[entry + HASH]) == entry
        text, payload = index.place(entry)
        stored = decode_layout(text).whole(index.arena.view, payload)
        np.testing.assert_array_equal(stored, item_of(int(name[1:]), size))
