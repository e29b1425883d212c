"""Which steps are sampled: all, but of short ones some.

Sampling a step takes some 60 us on a quick host in a row, 200 us between two steps of 20 ms that
drive it out of the processor's caches, and 250 us on a slow host with a GPU. That is nothing to a
step of a tenth of a second, a hundredth of one of 20 ms and a third of one of half a millisecond.
"""

from bisect import bisect_right
from typing import NamedTuple, Optional, Sequence, Tuple


class Rate(NamedTuple):
    """How closely steps shorter than a limit are observed."""

    limit_ns: int
    sure: int
    """So many more of the steps were shorter than longer, or the other way round, before that
    counts."""
    sample_every: Tuple[int, int, int]
    """One step in so many is sampled: at first, and from each of the steps `LATER` on, when there
    are more samples to judge by. Of the others there is the wall clock, what was counted and what
    lay outside; nothing is marked on the device."""
    mark_every: int
    """Of those that are sampled, one in so many is marked on the device."""

    def sample_every_at(self, step: int) -> int:
        """Give the length of the windows, of which one step is sampled each, from a step on."""
        return self.sample_every[bisect_right(LATER, step)]


SHORT = Rate(limit_ns=5_000_000, sure=24, sample_every=(10, 20, 40), mark_every=2)
# It takes longer to be sure of them: a script of few steps is then seen whole.
MIDDLING = Rate(limit_ns=40_000_000, sure=64, sample_every=(8, 8, 8), mark_every=1)

# Windows of either length end here.
LATER = (640, 2560)

_MASK = (1 << 64) - 1


class _Vote:
    """Whether steps are shorter than a limit: not changed by a few that are not."""

    __slots__ = ("_balance", "_limit_ns", "_sure", "is_won")

    def __init__(self, rate: Rate) -> None:
        self.is_won = False
        self._balance = 0
        self._limit_ns = rate.limit_ns
        self._sure = rate.sure

    @property
    def is_sure(self) -> bool:
        """Whether a further short step changes nothing."""
        return self._balance == self._sure

    def ended(self, took_ns: int) -> bool:
        """Take in how long a step took; tell whether that changed the outcome."""
        was_won = self.is_won
        if took_ns < self._limit_ns:
            if self._balance < self._sure:
                self._balance += 1
                self.is_won = was_won or self._balance == self._sure
        elif self._balance > 0:
            self._balance -= 1
            self.is_won = was_won and self._balance > 0
        return self.is_won != was_won


class Sampling:
    """Says which steps to sample: all of them, but of short ones some.

    Sampled is one step of every so many, at a place that is drawn anew each time, so that
    every step is as likely as any other whatever period the script has. It is drawn from the
    step's number alone: all ranks sample the same steps.
    """

    __slots__ = ("_middling", "_next", "_short", "rate")

    def __init__(self) -> None:
        self.rate: Optional[Rate] = None
        """How closely steps are observed now; None where all are sampled."""
        self._short = _Vote(SHORT)
        self._middling = _Vote(MIDDLING)
        self._next = 0

    def ended(self, took_ns: int) -> None:
        """Take in how long a step took."""
        changed = self._short.ended(took_ns)
        if self._middling.ended(took_ns) or changed:
            middling = MIDDLING if self._middling.is_won else None
            self.rate = SHORT if self._short.is_won else middling

    def all_ended(self, took_ns: Sequence[int]) -> None:
        """Take in how long some steps took."""
        # Further short ones tell nothing new to who is sure of them.
        if self._short.is_sure and self._middling.is_sure and max(took_ns) < SHORT.limit_ns:
            return
        for took in took_ns:
            self.ended(took)

    def next_sampled(self, step: int) -> int:
        """Give the first step, from one on, that is to be sampled; asked in their order."""
        if self.rate is None:
            return step
        if step > self._next:
            every = self.rate.sample_every_at(step)
            window = step // every
            self._next = _place_in(window, every)
            if self._next < step:
                self._next = _place_in(window + 1, every)
        return self._next


def _place_in(window: int, every: int) -> int:
    """The step that is sampled among those of a window."""
    return window * every + _drawn(window) % every


def _drawn(number: int) -> int:
    """Draw from a number what looks like chance (the mixing of SplitMix64)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
