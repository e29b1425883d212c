"""Where each item lies in the arena: made so that a process may die at any instruction.

    | header | members | buckets | blocks of items and holes ... | ... entries |

Entries grow downwards from the end, as many as there are items and holes, so the index takes from
the budget only what it needs. An entry says in one 64-bit word what it stands for, and everything
else about it is written before that word. These words are the facts. Hash chains, the list of
blocks in the order of their addresses, holes by size and all counts follow from them: who takes
the lock and finds that its last owner died inside builds them anew.
"""

import platform
from typing import Any, Final, Self

import numpy as np

from pitstop.data.cache.arena import PAGE_BYTES, Arena
from pitstop.data.cache.items import ALIGNMENT_BYTES
from pitstop.data.cache.locks import MEMBERS
from pitstop.errors import ConfigError
from pitstop.records.units import bytes_text

# Words of the header; the arena itself owns the first four.
POLICY: Final = 4
BUCKETS: Final = 5
DATA_START: Final = 6
ENTRIES: Final = 7
LOW_RESERVED: Final = 8
"""Pages below are reserved; all blocks in use lie there."""
HIGH_RESERVED: Final = 9
"""Pages from here on are reserved; the entries lie there."""
LIMIT: Final = 10
"""No block may reach beyond: lowered when the system has nothing more to reserve."""
DIRTY: Final = 11
"""Not 0 while somebody works under the lock, and after somebody died doing so."""
CLOCK: Final = 12
EVICTIONS: Final = 13
"""Raised before the memory of an item is given to another."""
ORDER: Final = 14
"""Entry of the block that holds the known order of keys, plus one; 0 for none."""
FREE: Final = 15
"""First entry that stands for nothing, plus one."""
LAST: Final = 16
"""Entry of the block with the highest address, plus one."""
FILLING: Final = 17
"""Entries being written just now."""
ITEMS: Final = 18
USED_BYTES: Final = 19
_HOLES: Final = 64
"""First of 64 words: a list of holes for each power of two."""

# Counters of one member, each in a cache line that no other process writes to.
MEMBER_WORDS: Final = 8
MEMBERS_START: Final = PAGE_BYTES // 8

# Words of an entry.
STATE, HASH, OFFSET, SIZE, SERIAL, PRIORITY, LENGTHS, CHAIN, BELOW, ABOVE, BEFORE, _ = range(12)
"""`CHAIN` is the next of a hash chain, of the holes of one size or of the unused; `BELOW` and
`ABOVE` are the neighbours in memory; `BEFORE` is the hole before this one. All are entries plus
one, 0 for none."""
_ENTRY_WORDS: Final = 12
_ENTRY_BYTES: Final = 8 * _ENTRY_WORDS
# A number of entries whose bytes are a multiple of a block's alignment.
_ENTRIES_AT_ONCE: Final = 42

UNUSED, HOLE, FILL, READY, KNOWN_ORDER = range(5)

# Pages are asked of the system in steps: one call for many items, and no more than this unused.
_RESERVE_BYTES: Final = 16 << 20
_RESERVE_ENTRIES_BYTES: Final = 64 << 10
# One bucket for so much memory: items are larger than this as a rule, so chains stay short.
_BYTES_PER_BUCKET: Final = 8192
_SMALLEST_BLOCK: Final = ALIGNMENT_BYTES
# Holes of one size class that are tried before the next larger class, where the first one fits:
# an allocation under the lock has an upper bound.
_HOLES_TRIED: Final = 16

SMALLEST_ARENA: Final = 128 << 10
"""Header, buckets, the first entries, and a little to hold."""

# Elsewhere a processor may show the stores of another one in another order than they were made.
ORDERED_STORES: Final = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


class Blocks:
    """The blocks of an arena. Methods say whether the caller holds the lock (``with blocks:``)."""

    def __init__(self, arena: Arena) -> None:
        self.arena: Final = arena
        self.words: Final = arena.words
        self._links = arena.links
        self._first_bucket = (PAGE_BYTES + MEMBERS * MEMBER_WORDS * 8) // 4
        self._buckets = self.words[BUCKETS]
        self._end_word = arena.size_bytes // 8

    @staticmethod
    def prepare(arena: Arena, policy: int) -> None:
        """Lay out a new arena; its pages are all zero.

        Raises:
            ConfigError: Where not even the index fits.
        """
        words = arena.words
        buckets = max(64, arena.size_bytes // _BYTES_PER_BUCKET)
        start = PAGE_BYTES + MEMBERS * MEMBER_WORDS * 8 + 4 * buckets
        start = -(-start // PAGE_BYTES) * PAGE_BYTES
        top = arena.size_bytes - PAGE_BYTES
        if not (arena.reserve(0, start) and arena.reserve(top, arena.size_bytes)):
            raise ConfigError(
                f"a cache of {bytes_text(arena.size_bytes)} cannot hold its index in "
                f"{arena.backing}; lower cache.budget"
            )
        words[POLICY] = policy
        words[BUCKETS] = buckets
        words[DATA_START] = words[LOW_RESERVED] = start
        words[HIGH_RESERVED] = top
        words[LIMIT] = arena.size_bytes
        words[ENTRIES] = _ENTRIES_AT_ONCE
        # To build an empty index and to repair one are the same.
        words[DIRTY] = 1

    def __enter__(self) -> Self:
        self.arena.lock()
        try:
            if self.words[DIRTY]:
                self._rebuild()
            self.words[DIRTY] = 1
        except BaseException:
            self.arena.unlock()
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # What an exception interrupted is as half-done as what a death interrupted.
        if error is None:
            self.words[DIRTY] = 0
        self.arena.unlock()

    @property
    def largest_bytes(self) -> int:
        """Most bytes one block can have."""
        stop = self.arena.size_bytes - self.words[ENTRIES] * _ENTRY_BYTES
        return min(stop, self.words[LIMIT]) - self.words[DATA_START]

    def allocate(self, size_bytes: int, member: int) -> int | None:
        """Find a hole for a block and mark it as being filled. Under the lock."""
        self._provide_entries()
        entry = self._fitting_hole(size_bytes)
        if entry is None and self.words[FILLING]:
            self._free_what_the_dead_filled()
            entry = self._fitting_hole(size_bytes)
        if entry is not None:
            self._carve(entry, size_bytes)
            self.words[entry] = FILL | member << 8
            self.words[FILLING] += 1
        return entry

    def abandon(self, entry: int) -> None:
        """Give the bytes of a block back that was not filled after all. Under the lock."""
        self.words[FILLING] -= 1
        self._free(entry)

    def is_fitting(self, entry: int, size_bytes: int) -> bool:
        """Tell whether a hole takes a block of this size; reserves its pages. Under the lock."""
        words = self.words
        if words[entry + SIZE] < size_bytes:
            return False
        stop = words[entry + OFFSET] + size_bytes
        if stop > words[LIMIT]:
            return False
        low, high = words[LOW_RESERVED], words[HIGH_RESERVED]
        if stop <= low or low >= high:
            return True
        target = min(max(stop, low + _RESERVE_BYTES), high)
        if not self.arena.reserve(low, target):
            words[LIMIT] = low
            return False
        words[LOW_RESERVED] = target
        return True

    def tick(self) -> int:
        """Advance the clock that serials and recency are counted by. Under the lock."""
        self.words[CLOCK] += 1
        return self.words[CLOCK]

    def table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All entries as rows, for work on many at once; the first row is entry 1. Under the lock.

        Let go of it before the arena is left.
        """
        count = self.words[ENTRIES]
        start = self.arena.size_bytes - count * _ENTRY_BYTES
        rows = np.ndarray((count, _ENTRY_WORDS), np.int64, self.arena.memory, start)
        return rows[::-1]

    def entry_of_row(self, row: int) -> int:
        """Turn a row of the table into an entry."""
        return self._entry(row + 1)

    def _entry(self, link: int) -> int:
        return self._end_word - link * _ENTRY_WORDS

    def _link(self, entry: int) -> int:
        return (self._end_word - entry) // _ENTRY_WORDS

    def _free_what_the_dead_filled(self) -> None:
        states = self.table()[:, STATE]
        rows = np.flatnonzero((states & 0xFF) == FILL)
        found = [(int(row), int(states[row]) >> 8) for row in rows]
        for row, member in found:
            if not self.arena.is_alive(member):
                self.abandon(self._entry(row + 1))

    def _fitting_hole(self, size_bytes: int) -> int | None:
        words = self.words
        size_class = size_bytes.bit_length() - 1
        for heads in range(_HOLES + size_class, _HOLES + 64):
            link = words[heads]
            for _ in range(_HOLES_TRIED):
                if link == 0:
                    break
                entry = self._entry(link)
                if self.is_fitting(entry, size_bytes):
                    return entry
                link = words[entry + CHAIN]
        return None

    def _carve(self, entry: int, size_bytes: int) -> None:
        """Take a block from the start of a hole; the rest becomes a hole of its own.

        Without an entry for the rest, the block is the whole hole.
        """
        words = self.words
        self._unlist(entry)
        rest_bytes = words[entry + SIZE] - size_bytes
        if rest_bytes < _SMALLEST_BLOCK or not words[FREE]:
            return
        rest, above = self._take_unused(), words[entry + ABOVE]
        self._append_hole(rest, self._link(entry), words[entry + OFFSET] + size_bytes, rest_bytes)
        words[rest + ABOVE] = above
        words[entry + SIZE] = size_bytes
        if above:
            words[self._entry(above) + BELOW] = self._link(rest)
        else:
            words[LAST] = self._link(rest)

    def _free(self, entry: int) -> int:
        """Make a block a hole, one with the holes beside it."""
        words = self.words
        words[entry] = HOLE
        above = words[entry + ABOVE]
        if above and words[self._entry(above)] == HOLE:
            self._swallow_above(entry)
        below = words[entry + BELOW]
        if below and words[self._entry(below)] == HOLE:
            entry = self._entry(below)
            self._unlist(entry)
            self._swallow_above(entry, listed=False)
        self._list(entry)
        return entry

    def _swallow_above(self, entry: int, *, listed: bool = True) -> None:
        """Join a hole with the one after it, which may be in no list yet."""
        words = self.words
        above = self._entry(words[entry + ABOVE])
        if listed:
            self._unlist(above)
        words[entry + SIZE] += words[above + SIZE]
        beyond = words[entry + ABOVE] = words[above + ABOVE]
        if beyond:
            words[self._entry(beyond) + BELOW] = self._link(entry)
        else:
            words[LAST] = self._link(entry)
        self._give_unused(above)

    def _list(self, hole: int) -> None:
        """Put a hole into the list of its size."""
        words = self.words
        heads = _HOLES + words[hole + SIZE].bit_length() - 1
        after = words[hole + CHAIN] = words[heads]
        words[hole + BEFORE] = 0
        if after:
            words[self._entry(after) + BEFORE] = self._link(hole)
        words[heads] = self._link(hole)

    def _unlist(self, hole: int) -> None:
        words = self.words
        before, after = words[hole + BEFORE], words[hole + CHAIN]
        if before:
            words[self._entry(before) + CHAIN] = after
        else:
            words[_HOLES + words[hole + SIZE].bit_length() - 1] = after
        if after:
            words[self._entry(after) + BEFORE] = before

    def _take_unused(self) -> int:
        entry = self._entry(self.words[FREE])
        self.words[FREE] = self.words[entry + CHAIN]
        return entry

    def _give_unused(self, entry: int) -> None:
        self.words[entry] = UNUSED
        self.words[entry + CHAIN] = self.words[FREE]
        self.words[FREE] = self._link(entry)

    def _provide_entries(self) -> None:
        """Make the table of entries longer when none is left, at the cost of the last hole."""
        words = self.words
        last = self._entry(words[LAST])
        need = _ENTRIES_AT_ONCE * _ENTRY_BYTES
        if words[FREE] or words[last] != HOLE or words[last + SIZE] < need + _SMALLEST_BLOCK:
            return
        bottom = self.arena.size_bytes - words[ENTRIES] * _ENTRY_BYTES - need
        low, high = words[LOW_RESERVED], words[HIGH_RESERVED]
        if bottom < high and low < high:
            target = max(low, (bottom - _RESERVE_ENTRIES_BYTES) // PAGE_BYTES * PAGE_BYTES)
            if not self.arena.reserve(target, high):
                return
            words[HIGH_RESERVED] = target
        self._unlist(last)
        words[last + SIZE] -= need
        self._list(last)
        first = words[ENTRIES] + 1
        for link in range(first, first + _ENTRIES_AT_ONCE):
            self._give_unused(self._entry(link))
        words[ENTRIES] += _ENTRIES_AT_ONCE

    def _rebuild(self) -> None:
        """Derive everything from the states of the entries, after a death or at the start."""
        words = self.words
        for word in (FREE, LAST, FILLING, ITEMS, USED_BYTES, *range(_HOLES, _HOLES + 64)):
            words[word] = 0
        start = 4 * self._first_bucket
        np.ndarray((self._buckets,), np.uint32, self.arena.memory, start)[:] = 0
        below, edge = 0, words[DATA_START]
        for entry in self._living():
            below = self._append_gap(below, edge, words[entry + OFFSET])
            self._append(entry, below)
            below, edge = self._link(entry), words[entry + OFFSET] + words[entry + SIZE]
            self._account(entry)
        stop = self.arena.size_bytes - words[ENTRIES] * _ENTRY_BYTES
        below = self._append_gap(below, edge, stop)
        words[self._entry(below) + ABOVE] = 0
        words[LAST] = below

    def _living(self) -> list[int]:
        """Entries that still stand for a block, by address; all others become unused."""
        table = self.table()
        states = table[:, STATE].tolist()
        living = [row for row, state in enumerate(states) if self._stands(row, state)]
        for row in sorted(set(range(len(states))).difference(living), reverse=True):
            self._give_unused(self._entry(row + 1))
        return sorted((self._entry(row + 1) for row in living), key=self._offset)

    def _stands(self, row: int, state: int) -> bool:
        kind = state & 0xFF
        if kind == FILL:
            return self.arena.is_alive(state >> 8)
        return kind == READY or (kind == KNOWN_ORDER and self.words[ORDER] == row + 1)

    def _offset(self, entry: int) -> int:
        return self.words[entry + OFFSET]

    def _account(self, entry: int) -> None:
        words = self.words
        if words[entry] == READY:
            words[ITEMS] += 1
            words[USED_BYTES] += words[entry + SIZE]
            self._chain(entry)
        elif words[entry] & 0xFF == FILL:
            words[FILLING] += 1

    def _append(self, entry: int, below: int) -> None:
        self.words[entry + BELOW] = below
        if below:
            self.words[self._entry(below) + ABOVE] = self._link(entry)

    def _append_gap(self, below: int, start: int, stop: int) -> int:
        """Put a hole between two blocks where they do not touch; returns the last block so far."""
        assert start <= stop, "two blocks of the cache overlap"
        # A gap too many for the entries is found again at the next rebuild.
        if start == stop or not self.words[FREE]:
            return below
        hole = self._take_unused()
        self._append_hole(hole, below, start, stop - start)
        return self._link(hole)

    def _append_hole(self, hole: int, below: int, start: int, size_bytes: int) -> None:
        words = self.words
        words[hole + OFFSET] = start
        words[hole + SIZE] = size_bytes
        words[hole] = HOLE
        self._append(hole, below)
        self._list(hole)

    def _chain(self, entry: int) -> None:
        bucket = self._first_bucket + self.words[entry + HASH] % self._buckets
        self.words[entry + CHAIN] = self._links[bucket]
        self._links[bucket] = self._link(entry)
