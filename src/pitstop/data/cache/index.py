"""Which item lies where: keys, their hash chains, and what processes count."""

from typing import Final

import numpy as np

from pitstop.data.cache.blocks import (
    ABOVE,
    BELOW,
    CHAIN,
    ENTRIES,
    EVICTIONS,
    FILL,
    FILLING,
    HASH,
    ITEMS,
    KNOWN_ORDER,
    LENGTHS,
    MEMBER_WORDS,
    MEMBERS_START,
    OFFSET,
    ORDER,
    PRIORITY,
    READY,
    SERIAL,
    SIZE,
    STATE,
    USED_BYTES,
    Blocks,
)
from pitstop.data.cache.items import aligned
from pitstop.data.cache.locks import MEMBERS

HITS, MISSES, TOO_LARGE, EVICTED = range(4)
"""Counters of a member."""

# A reader without the lock may follow links that are being changed, even in a circle: after so many
# it gives up and takes the lock.
_LONGEST_CHAIN: Final = 1000


class Tangled(Exception):  # noqa: N818 - a state met while reading without the lock, not a fault
    """A chain that somebody is rebuilding; look again under the lock."""


class Index(Blocks):
    """The items of an arena. Methods say whether the caller holds the lock (``with index:``)."""

    def count(self, what: int) -> None:
        """Count something that this process did. Needs no lock: nobody else writes there."""
        arena = self.arena
        if arena.member is None:
            self.join()
        with arena.count_lock:
            assert arena.member is not None
            self.words[MEMBERS_START + arena.member * MEMBER_WORDS + what] += 1

    def counted(self, what: int) -> int:
        """Add up what all processes counted, the dead ones too."""
        first = MEMBERS_START + what
        return sum(self.words[first : first + MEMBERS * MEMBER_WORDS : MEMBER_WORDS])

    def join(self) -> int:
        """Make this process a member, if it is none yet; returns its number."""
        with self:
            if self.arena.member is None:
                member = self.arena.join()
                # Left by a dead process whose place this one takes.
                for entry in self._entries_in(FILL | member << 8):
                    self.abandon(entry)
            assert self.arena.member is not None
            return self.arena.member

    def find(self, name: bytes, digest: int) -> int | None:
        """Find the entry of a key. Without the lock only where items are never dropped.

        Raises:
            Tangled: Where the chain is being rebuilt, which can only be without the lock.
        """
        words = self.words
        link = self._links[self._first_bucket + digest % self._buckets]
        for _ in range(_LONGEST_CHAIN):
            if link == 0:
                return None
            entry = self._entry(link)
            if words[entry + HASH] == digest and words[entry] == READY:
                start = words[entry + OFFSET]
                length = words[entry + LENGTHS] & 0xFFFFFFFF
                if bytes(self.arena.memory[start : start + length]) == name:
                    return entry
            link = words[entry + CHAIN]
            if not 0 <= link <= words[ENTRIES]:
                break
        raise Tangled

    def place(self, entry: int) -> tuple[bytes, int]:
        """Give the written layout of an item and where its payload starts."""
        start, lengths = self.words[entry + OFFSET], self.words[entry + LENGTHS]
        middle = start + (lengths & 0xFFFFFFFF)
        stop = middle + (lengths >> 32)
        return bytes(self.arena.memory[middle:stop]), aligned(stop)

    def commit(self, entry: int, digest: int, lengths: tuple[int, int], priority: int) -> None:
        """Make a filled block an item. Under the lock."""
        words = self.words
        words[entry + HASH] = digest
        words[entry + LENGTHS] = lengths[0] | lengths[1] << 32
        words[entry + PRIORITY] = priority
        words[entry + SERIAL] = self.tick()
        words[entry] = READY
        words[FILLING] -= 1
        words[ITEMS] += 1
        words[USED_BYTES] += words[entry + SIZE]
        self._chain(entry)

    def evict(self, entry: int) -> int:
        """Drop an item; returns the hole it leaves, joined with its neighbours. Under the lock."""
        words = self.words
        words[EVICTIONS] += 1
        words[ITEMS] -= 1
        words[USED_BYTES] -= words[entry + SIZE]
        self._unchain(entry)
        return self._free(entry)

    def neighbours(self, entry: int) -> list[int]:
        """Items directly before and after a block. Under the lock."""
        links = (self.words[entry + BELOW], self.words[entry + ABOVE])
        beside = [self._entry(link) for link in links if link]
        return [each for each in beside if self.words[each] == READY]

    def publish_order(self, entry: int) -> None:
        """Make a filled block the known order of keys and drop the one before. Under the lock."""
        before = self.words[ORDER]
        self.words[entry + SERIAL] = self.tick()
        self.words[entry] = KNOWN_ORDER
        self.words[FILLING] -= 1
        self.words[ORDER] = self._link(entry)
        if before:
            self._free(self._entry(before))

    def order_entry(self) -> int | None:
        """Give the entry of the known order. Under the lock."""
        link = self.words[ORDER]
        return self._entry(link) if link else None

    def _entries_in(self, state: int) -> list[int]:
        rows = np.flatnonzero(self.table()[:, STATE] == state)
        return [self._entry(int(row) + 1) for row in rows]

    def _unchain(self, entry: int) -> None:
        words, link = self.words, self._link(entry)
        bucket = self._first_bucket + words[entry + HASH] % self._buckets
        if self._links[bucket] == link:
            self._links[bucket] = words[entry + CHAIN]
            return
        before = self._entry(self._links[bucket])
        while words[before + CHAIN] != link:
            before = self._entry(words[before + CHAIN])
        words[before + CHAIN] = words[entry + CHAIN]
