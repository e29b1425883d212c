"""Which steps are looked at: all, but of short ones a sample.

Looking at a step takes some 60 us on a quick host in a row, 200 us between two steps of 20 ms that
drive it out of the processor's caches, and 250 us on a slow host with a GPU. That is nothing to a
step of a tenth of a second, a hundredth of one of 20 ms and a third of one of half a millisecond.
"""

from typing import Tuple

SHORT_NS = 5_000_000
MIDDLING_NS = 40_000_000

LOOK_EVERY_SHORT = 10
LOOK_EVERY_MIDDLING = 4
"""Of steps shorter than that, one in so many is looked at. Of the others there is the wall clock,
what was counted and what lay apart; nothing is marked on the device."""

# So many more of the steps were shorter than a limit than longer, or the other way round, before
# that counts. Middling ones take longer to be sure of, for a script of few steps is then all seen.
_SURE_OF_SHORT = 24
_SURE_OF_MIDDLING = 64

_MASK = (1 << 64) - 1


class _Vote:
    """Whether steps are shorter than a limit: not changed by a few that are not."""

    __slots__ = ("_balance", "_limit_ns", "_sure", "is_won")

    def __init__(self, limit_ns: int, sure: int) -> None:
        self.is_won = False
        self._balance = 0
        self._limit_ns = limit_ns
        self._sure = sure

    def ended(self, took_ns: int) -> None:
        if took_ns < self._limit_ns:
            if self._balance < self._sure:
                self._balance += 1
                self.is_won = self.is_won or self._balance == self._sure
        elif self._balance > 0:
            self._balance -= 1
            self.is_won = self.is_won and self._balance > 0


class Sampling:
    """Says which steps to look at: all of them, but of short ones a sample.

    The sample has one step of every so many, at a place that is drawn anew each time, so that
    every step is as likely as any other whatever period the script has. It is drawn from the
    step's number alone: all ranks look at the same steps.
    """

    __slots__ = ("_next", "_votes", "every")

    def __init__(self) -> None:
        self.every = 1
        """Of so many steps one is looked at."""
        self._votes: Tuple[Tuple[_Vote, int], ...] = (
            (_Vote(SHORT_NS, _SURE_OF_SHORT), LOOK_EVERY_SHORT),
            (_Vote(MIDDLING_NS, _SURE_OF_MIDDLING), LOOK_EVERY_MIDDLING),
        )
        self._next = 0

    def ended(self, took_ns: int) -> None:
        """Take in how long a step took."""
        for vote, _ in self._votes:
            vote.ended(took_ns)
        self.every = next((every for vote, every in self._votes if vote.is_won), 1)

    def next_look(self, step: int) -> int:
        """Give the first step, from one on, that is to be looked at; asked in their order."""
        every = self.every
        if every == 1:
            return step
        if step > self._next:
            stretch = step // every
            self._next = _place_in(stretch, every)
            if self._next < step:
                self._next = _place_in(stretch + 1, every)
        return self._next


def _place_in(stretch: int, every: int) -> int:
    """The step that is looked at among those of a stretch."""
    return stretch * every + _drawn(stretch) % every


def _drawn(number: int) -> int:
    """Draw from a number what looks like chance (the mixing of SplitMix64)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
