"""One bounded cache for all workers and all ranks of a host.

    cache = SharedCache(20 << 30)
    frame = cache.get(key)
    if frame is None:
        frame = decode(key)
        cache.put(key, frame)

The budget is the budget: items, index and whatever space lies idle between items are in it, once
for the host, however many processes look into it. Any of them may be killed at any moment; the
others neither hang nor ever see half an item. How that is done is in docs/cache.md.
"""

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil

from pitstop.config.quantities import parse_bytes
from pitstop.data.cache.arena import (
    PAGE_BYTES,
    Arena,
    Handle,
    create_arena,
    leave_arena,
    open_arena,
)
from pitstop.data.cache.blocks import (
    EVICTIONS,
    ITEMS,
    OFFSET,
    ORDERED_STORES,
    POLICY,
    SERIAL,
    SMALLEST_ARENA,
    USED_BYTES,
)
from pitstop.data.cache.eviction import POLICIES, Eviction, Policy
from pitstop.data.cache.index import EVICTED, HITS, MISSES, TOO_LARGE, Index, Tangled
from pitstop.data.cache.items import (
    Array,
    ItemLayout,
    Key,
    Window,
    aligned,
    decode_layout,
    encode_key,
    hash_key,
    layout_of,
)
from pitstop.data.cache.upcoming import NewOrder
from pitstop.errors import ConfigError, DataError
from pitstop.measure.host.cgroup import read_cgroup
from pitstop.measure.host.limits import read_host_limits
from pitstop.records.loader import CacheCounts
from pitstop.records.units import bytes_text, share_text

# An item that is dropped again and again while it is being copied counts as not there.
_ATTEMPTS: Final = 3


class CacheStats(CacheCounts):
    """Counts of a cache that print as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        used = f"{bytes_text(self.used_bytes)} of {bytes_text(self.budget_bytes)}"
        full, rate = share_text(self.used_bytes / self.budget_bytes), share_text(self.hit_rate)
        rows = (
            ("cache", f"{self.policy}, {self.backing}"),
            ("items", f"{self.items:,}"),
            ("memory", f"{used}, {full}"),
            ("hit rate", f"{rate} ({self.hits:,} hits, {self.misses:,} misses)"),
            ("evictions", f"{self.evictions:,}"),
            ("too large", f"{self.too_large:,}"),
        )
        return "\n".join(f"{name:<10} {value}" for name, value in rows)


class SharedCache:
    """A cache of arrays in memory that all processes of a host share.

    Pickled, it becomes a handle: workers started by fork, spawn or forkserver, and other ranks of
    the same user on this host, get the same cache. The maker must live until they have opened it.

    What is stored for a key never changes: to put a key again leaves the first array there.

    Args:
        budget: Most memory the cache may take on this host, rounded down to whole pages: bytes, or
            text with a unit such as ``"64MiB"``.
        policy: What happens when it is full. `keep` keeps what is there, which no policy beats
            when every item is used once an epoch in shuffled order; `lru` drops the least recently
            used, for readers that come back soon; `epoch` drops what the order given to
            `set_order` needs last, and stores nothing that is needed later than all it holds.
        folder: Put the memory into a named file in this folder. Only needed where processes that
            cannot see each other, as in two containers, share a cache.

    Raises:
        ConfigError: Where there cannot be such a cache on this host.
    """

    def __init__(
        self, budget: int | str, policy: Policy = "keep", *, folder: Path | None = None
    ) -> None:
        budget_bytes = _budget_bytes(budget)
        _check(budget_bytes, policy)
        size_bytes = budget_bytes // PAGE_BYTES * PAGE_BYTES
        code = POLICIES.index(policy)

        def prepare(arena: Arena) -> None:
            Index.prepare(arena, code)
            Index(arena).join()

        self._open(create_arena(size_bytes, folder=folder, prepare=prepare))

    def __repr__(self) -> str:
        if self.is_closed:
            return "SharedCache(closed)"
        now = self.stats()
        used = f"{bytes_text(now.used_bytes)} of {bytes_text(now.budget_bytes)}"
        return f"SharedCache({now.policy}, {now.items:,} items, {used})"

    def get(self, key: Key, *, window: Window | None = None) -> Array | None:
        """Look an item up.

        Args:
            key: Text, a whole number, or a tuple of those.
            window: Slices for the leading axes: only this part is copied.

        Returns:
            None where the item is not there. A window is a copy. A whole item is a read-only view
            of the cache under `keep` (truth values, which are unpacked, are a copy), and a copy
            under the policies that drop items.
        """
        name = encode_key(key)
        digest = hash_key(name)
        index = self._index
        if self._keeps:
            array = self._view(index, name, digest, window)
        else:
            array = self._copy(index, name, digest, window)
        index.count(MISSES if array is None else HITS)
        return array

    def put(self, key: Key, array: Array) -> bool:
        """Store a copy of an array, if it fits.

        Returns:
            Whether the cache now has an item of this key, be it this one or an earlier one.

        Raises:
            DataError: Where the array holds objects or records.
        """
        array = np.asarray(array)
        name, layout = encode_key(key), layout_of(array)
        text = layout.encode()
        payload = aligned(len(name) + len(text))
        size_bytes = aligned(payload + layout.stored_bytes)
        index = self._index
        if size_bytes > index.largest_bytes:
            index.count(TOO_LARGE)
            return False
        digest = hash_key(name)
        entry, is_there = self._reserve(name, digest, size_bytes)
        if entry is None:
            return is_there
        try:
            start = index.words[entry + OFFSET]
            memory = index.arena.memory
            memory[start : start + len(name)] = name
            memory[start + len(name) : start + len(name) + len(text)] = text
            layout.write(array, memory, start + payload)
        except BaseException:
            with index:
                index.abandon(entry)
            raise
        self._commit(entry, name, digest, len(text))
        return True

    def set_order(self, keys_in_order: Iterable[Key]) -> None:
        """Tell the policy `epoch` which keys will be asked for, in which order, from now on.

        One process of the host does this for all, before an epoch, with the order of all its ranks
        merged. An eighth of the next epoch's order at the end of this one's keeps the last part of
        the epoch from guessing. The order takes 16 bytes of the budget for each key and 4 for each
        use.

        Raises:
            ConfigError: Where the policy is another one, which would not look at the order.
            DataError: Where the order does not fit into the budget.
        """
        if self._policy != "epoch":
            raise ConfigError(
                f"the policy {self._policy} does not use the order of keys; make the cache with "
                "cache.policy=epoch, or do not give it an order"
            )
        order = NewOrder(keys_in_order)
        index = self._index
        member = self._member()
        with index:
            dropped = self._eviction.set_order(order, member)
        for _ in range(dropped):
            index.count(EVICTED)

    def stats(self) -> CacheStats:
        """Count over all processes of the host, also those that have ended or were killed."""
        index = self._index
        with index:
            items, used_bytes = index.words[ITEMS], index.words[USED_BYTES]
        return CacheStats(
            policy=self._policy,
            backing=index.arena.backing,
            items=items,
            used_bytes=used_bytes,
            budget_bytes=index.arena.size_bytes,
            hits=index.counted(HITS),
            misses=index.counted(MISSES),
            evictions=index.counted(EVICTED),
            too_large=index.counted(TOO_LARGE),
        )

    @property
    def is_closed(self) -> bool:
        """Whether this process has left the cache."""
        return not self._leave.alive

    def close(self) -> None:
        """Leave the cache; others go on using it. Views that were handed out stay valid.

        Harmless when repeated. Garbage collection and a normal exit do it too.
        """
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[Handle], "SharedCache"], tuple[Handle]]:
        return SharedCache._attached, (self._index.arena.handle(),)

    @classmethod
    def _attached(cls, handle: Handle) -> "SharedCache":
        """Open a cache that another process made, as it comes out of a pickle."""
        cache = cls.__new__(cls)
        cache._open(open_arena(handle))
        return cache

    def _open(self, arena: Arena) -> None:
        self._opened_index = Index(arena)
        self._policy: Policy = POLICIES[self._opened_index.words[POLICY]]
        self._keeps = self._policy == "keep"
        self._eviction = Eviction(self._opened_index, self._policy)
        self._leave = weakref.finalize(self, _leave, self._eviction, arena)
        _opened.add(self)

    @property
    def _index(self) -> Index:
        if self.is_closed:
            raise DataError("the shared cache is closed; make another one")
        return self._opened_index

    def _member(self) -> int:
        member = self._index.arena.member
        return self._index.join() if member is None else member

    def _view(self, index: Index, name: bytes, digest: int, window: Window | None) -> Array | None:
        """Read an item that will stay where it is."""
        entry = self._find_kept(index, name, digest)
        if entry is None:
            return None
        text, start = index.place(entry)
        layout = decode_layout(text)
        if window is not None:
            return layout.crop(index.arena.view, start, window)
        array = layout.whole(index.arena.view, start)
        array.flags.writeable = False
        return array

    @staticmethod
    def _find_kept(index: Index, name: bytes, digest: int) -> int | None:
        if ORDERED_STORES:
            try:
                return index.find(name, digest)
            except Tangled:
                pass
        with index:
            return index.find(name, digest)

    def _copy(self, index: Index, name: bytes, digest: int, window: Window | None) -> Array | None:
        """Copy an item that may be dropped meanwhile; then what was copied does not count."""
        for attempt in range(_ATTEMPTS):
            with index:
                entry = index.find(name, digest)
                if attempt == 0:
                    self._eviction.touch(entry, digest)
                if entry is None:
                    return None
                serial, evictions = index.words[entry + SERIAL], index.words[EVICTIONS]
                text, start = index.place(entry)
            array = _copied(decode_layout(text), index.arena.view, start, window)
            if ORDERED_STORES and index.words[EVICTIONS] == evictions:
                return array
            with index:
                if index.find(name, digest) == entry and index.words[entry + SERIAL] == serial:
                    return array
        return None

    def _reserve(self, name: bytes, digest: int, size_bytes: int) -> tuple[int | None, bool]:
        """Allocate a block for an item that is not there; the second answer says whether it is."""
        index, eviction = self._index, self._eviction
        member = self._member()
        with index:
            if index.find(name, digest) is not None:
                return None, True
            priority = 0 if self._keeps else eviction.priority(digest)
            entry, dropped = eviction.allocate(size_bytes, member, priority)
        for _ in range(dropped):
            index.count(EVICTED)
        return entry, False

    def _commit(self, entry: int, name: bytes, digest: int, layout_length: int) -> None:
        index = self._index
        with index:
            # Another process may have stored the same item while this one wrote.
            if index.find(name, digest) is not None:
                index.abandon(entry)
                return
            priority = 0 if self._keeps else self._eviction.priority(digest)
            index.commit(entry, digest, (len(name), layout_length), priority)


_opened: Final[weakref.WeakSet[SharedCache]] = weakref.WeakSet()


def open_caches() -> list[SharedCache]:
    """Give the caches that this process has open, for whoever measures it."""
    return [cache for cache in _opened if not cache.is_closed]


def _leave(eviction: Eviction, arena: Arena) -> None:
    eviction.let_go()
    leave_arena(arena)


def _copied(layout: ItemLayout, memory: Array, start: int, window: Window | None) -> Array:
    if window is not None:
        return layout.crop(memory, start, window)
    array = layout.whole(memory, start)
    return array.copy() if layout.packing == "plain" else array


def _budget_bytes(budget: int | str) -> int:
    if not isinstance(budget, str):
        return budget
    try:
        return parse_bytes(budget)
    except ValueError as error:
        raise ConfigError(
            f'cache.budget is a size with its unit such as "64MiB", not {budget!r}'
        ) from error


def _check(budget_bytes: int, policy: str) -> None:
    if policy not in POLICIES:
        raise ConfigError(f"cache.policy is one of {', '.join(POLICIES)}, not {policy!r}")
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int):
        raise ConfigError(f"cache.budget is a whole number of bytes, not {budget_bytes!r}")
    if budget_bytes < SMALLEST_ARENA:
        raise ConfigError(
            f"cache.budget is {bytes_text(budget_bytes)}, and the index of a cache alone takes "
            f"{bytes_text(SMALLEST_ARENA)}; raise it, or make no cache"
        )
    limit_bytes = read_host_limits().memory_bytes
    if budget_bytes > limit_bytes:
        raise ConfigError(
            f"cache.budget is {bytes_text(budget_bytes)}, and this host lets its processes use "
            f"{bytes_text(limit_bytes)} together; lower it"
        )
    available_bytes = _available_bytes()
    if budget_bytes > available_bytes:
        raise ConfigError(
            f"cache.budget is {bytes_text(budget_bytes)}, and {bytes_text(available_bytes)} of "
            "this host's memory are free; lower it, or end what uses the rest"
        )


def _available_bytes() -> int:
    available = psutil.virtual_memory().available
    cgroup = read_cgroup()
    if cgroup.memory_limit_bytes is not None and cgroup.memory_working_bytes is not None:
        available = min(available, cgroup.memory_limit_bytes - cgroup.memory_working_bytes)
    return available
