"""torch's caching allocator, replayed: what it holds for the pieces that a step asks for.

The rules are those of CUDACachingAllocator with its usual settings: pieces up to 1 MiB come out of
segments of 2 MiB, larger ones below 10 MiB out of segments of 20 MiB, the largest have a segment of
their own, rounded to 2 MiB. The smallest free block that is large enough is taken, and what is
left of it stays free. Neighbours that are free become one block.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_MIB: Final = 2**20
_SMALL: Final = _MIB
_SMALL_SEGMENT: Final = 2 * _MIB
_LARGE_FROM: Final = 10 * _MIB
_LARGE_SEGMENT: Final = 20 * _MIB
_ROUND_LARGE: Final = 2 * _MIB
_LEAST_LEFT: Final = {True: 512, False: _MIB}
"""Bytes that must be left of a small or a large block for it to be split."""


@dataclass(slots=True, eq=False)
class _Block:
    size: int
    is_small: bool
    number: int
    is_free: bool = True
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass(slots=True)
class Allocator:
    """Hands out pieces and takes them back."""

    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _made: int = 0

    def take(self, size: int) -> int:
        """Hand out a piece; give its number."""
        is_small = size <= _SMALL
        block = self._find(size, is_small=is_small) or self._reserve(size, is_small=is_small)
        block.is_free = False
        left = block.size - size
        if left >= _LEAST_LEFT[is_small] and (is_small or left > _LEAST_LEFT[False]):
            self._split(block, size)
        return block.number

    def give_back(self, number: int) -> None:
        """Take a piece back."""
        block = self._blocks[number]
        block.is_free = True
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._forget(other)
                block = self._join(block, other)
        insort(self._free[block.is_small], (block.size, block.number))

    def _find(self, size: int, *, is_small: bool) -> _Block | None:
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        if place == len(free):
            return None
        _, number = free.pop(place)
        return self._blocks[number]

    def _reserve(self, size: int, *, is_small: bool) -> _Block:
        if is_small:
            segment = _SMALL_SEGMENT
        elif size < _LARGE_FROM:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return self._new(segment, is_small=is_small)

    def _new(self, size: int, *, is_small: bool) -> _Block:
        self._made += 1
        block = _Block(size, is_small, self._made)
        self._blocks[block.number] = block
        return block

    def _split(self, block: _Block, size: int) -> None:
        rest = self._new(block.size - size, is_small=block.is_small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        insort(self._free[block.is_small], (rest.size, rest.number))

    def _forget(self, block: _Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size, block.number))]

    def _join(self, block: _Block, other: _Block) -> _Block:
        first, second = (other, block) if other is block.before else (block, other)
        first.size += second.size
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        first.is_free = True
        del self._blocks[second.number]
        return first


def replay(events: Iterable[tuple[int, int]]) -> Allocator:
    """Hand out and take back in order.

    Args:
        events: (piece, bytes) where a piece comes, (piece, 0) where it goes.
    """
    allocator = Allocator()
    held: dict[int, int] = {}
    for piece, size in events:
        if size:
            held[piece] = allocator.take(size)
        else:
            allocator.give_back(held.pop(piece))
    return allocator
