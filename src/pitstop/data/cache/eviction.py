"""Who has to go when a cache is full: the least recently used, or the one needed last.

Every item has a priority, and the lowest goes first. For `lru` it is the time of the last use, for
`epoch` how soon the known order uses the item again.
"""

from typing import Final, Literal, TypeAlias

import numpy as np

from pitstop.data.cache.blocks import HASH, OFFSET, PRIORITY, READY, SERIAL, STATE
from pitstop.data.cache.index import Index
from pitstop.data.cache.upcoming import NEVER, NewOrder, Order
from pitstop.errors import DataError
from pitstop.records.units import bytes_text

Policy: TypeAlias = Literal["keep", "lru", "epoch"]
POLICIES: Final[tuple[Policy, ...]] = ("keep", "lru", "epoch")

# Choosing a victim reads every entry. Of many, the lowest 1/64 are set aside at once.
_SHARE_SET_ASIDE: Final = 64


class Eviction:
    """Frees blocks of an index after one policy. All methods are called under its lock."""

    def __init__(self, index: Index, policy: Policy) -> None:
        self._index = index
        self._policy = policy
        self._set_aside: list[tuple[int, int, int]] = []
        self._order: tuple[int, Order] | None = None

    def touch(self, entry: int | None, digest: int) -> None:
        """Note a use of a key, whether its item is there or not."""
        if self._policy == "lru":
            priority = self._index.tick()
        else:
            order = self._known_order()
            priority = self._epoch_priority(NEVER if order is None else order.use(digest))
        if entry is not None:
            self._index.words[entry + PRIORITY] = priority

    def priority(self, digest: int) -> int:
        """Say how dear the item of a key is, before it is stored."""
        if self._policy != "epoch":
            return self._index.tick()
        order = self._known_order()
        return self._epoch_priority(NEVER if order is None else order.next_use(digest))

    def allocate(self, size_bytes: int, member: int, priority: int) -> tuple[int | None, int]:
        """Allocate a block, evicting items where the policy allows it.

        Returns:
            The entry of the block, being filled from now on, or None where it does not fit; and
            how many items were dropped for it.
        """
        index = self._index
        dropped = 0
        while (entry := index.allocate(size_bytes, member)) is None:
            victim = None if self._policy == "keep" else self._victim(priority)
            if victim is None:
                break
            dropped += self._drop_around(victim, size_bytes)
        return entry, dropped

    def set_order(self, order: NewOrder, member: int) -> int:
        """Store a new order and give every item its priority; returns how many were dropped.

        Raises:
            DataError: Where the order itself does not fit into the budget.
        """
        index = self._index
        entry, dropped = self.allocate(order.size_bytes, member, NEVER)
        if entry is None:
            raise DataError(
                f"the order of an epoch takes {bytes_text(order.size_bytes)}, which the cache does "
                "not have; raise cache.budget, or use cache.policy=keep"
            )
        order.write(index.arena.memory, index.words[entry + OFFSET])
        self._order = None
        index.publish_order(entry)
        table, stored = index.table(), self._known_order()
        assert stored is not None
        rows = np.flatnonzero(table[:, STATE] == READY)
        nexts = stored.next_uses(table[rows, HASH])
        table[rows, PRIORITY] = np.where(nexts == NEVER, index.tick() - 2 * NEVER, -nexts)
        return dropped

    def let_go(self) -> None:
        """Let go of the arena's memory."""
        self._order = None

    def _epoch_priority(self, next_use: int) -> int:
        # Among those that are never used again, the least recently used goes first.
        return self._index.tick() - 2 * NEVER if next_use == NEVER else -next_use

    def _known_order(self) -> Order | None:
        """Read the order that is stored now; another process may have stored a new one."""
        entry = self._index.order_entry()
        if entry is None:
            return None
        start, serial = self._index.words[entry + OFFSET], self._index.words[entry + SERIAL]
        if self._order is None or self._order[0] != serial:
            self._order = (serial, Order(self._index.arena.memory, start))
        return self._order[1]

    def _victim(self, priority: int) -> int | None:
        """Choose the item to drop for one of this priority; None where all are dearer."""
        words = self._index.words
        # The last of those set aside may have been the lowest when it was, and not be it now.
        while len(self._set_aside) > 1 or self._set_some_aside():
            lowest, entry, serial = self._set_aside[-1]
            unchanged = words[entry] == READY and words[entry + SERIAL] == serial
            if not unchanged or words[entry + PRIORITY] != lowest:
                self._set_aside.pop()
                continue
            if self._policy == "epoch" and not self._is_dearer(priority, lowest):
                return None
            self._set_aside.pop()
            return entry
        return None

    @staticmethod
    def _is_dearer(priority: int, other: int) -> bool:
        """Tell whether an item is used sooner; of two that are never used, neither is."""
        return priority > other and priority > -NEVER

    def _set_some_aside(self) -> bool:
        table = self._index.table()
        rows = np.flatnonzero(table[:, STATE] == READY)
        if not len(rows):
            return False
        priorities = table[rows, PRIORITY]
        count = max(1, len(rows) // _SHARE_SET_ASIDE)
        lowest = np.argpartition(priorities, count - 1)[:count]
        lowest = lowest[np.argsort(priorities[lowest])[::-1]]
        self._set_aside = [
            (int(priorities[at]), self._index.entry_of_row(row), int(table[row, SERIAL]))
            for at, row in ((at, int(rows[at])) for at in lowest)
        ]
        return True

    def _drop_around(self, victim: int, size_bytes: int) -> int:
        """Drop an item and then what lies beside it, until the hole is large enough.

        Dropping strictly by priority would leave many holes of which none is large enough.
        """
        index = self._index
        hole, dropped = index.evict(victim), 1
        while not index.is_fitting(hole, size_bytes):
            beside = index.neighbours(hole)
            if not beside:
                break
            hole = index.evict(min(beside, key=lambda entry: index.words[entry + PRIORITY]))
            dropped += 1
        return dropped
