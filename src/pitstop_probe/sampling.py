"""Which steps are looked at: all, but of short ones a sample.

Looking at a step takes some 60 us on a quick host and 250 on a slow one with a GPU. That is nothing
to a step of 20 ms and a third of one of half a millisecond.
"""

SHORT_NS = 5_000_000
"""Steps shorter than this are not all looked at."""

LOOK_EVERY = 10
"""Of short steps, one in so many is. Of the others there is the wall clock, what was counted and
what lay apart; nothing is marked on the device."""

# So many more of the steps were short than long, or the other way round, before that counts.
_SURE = 24

_MASK = (1 << 64) - 1


class Sampling:
    """Says which steps to look at: all of them, but of short ones a sample.

    The sample has one step of every `LOOK_EVERY`, at a place that is drawn anew each time, so that
    every step is as likely as any other whatever period the script has. It is drawn from the
    step's number alone: all ranks look at the same steps.
    """

    __slots__ = ("_balance", "_next", "is_sparse")

    def __init__(self) -> None:
        self.is_sparse = False
        """Whether steps are short, so that few are looked at."""
        self._balance = 0
        self._next = 0

    def ended(self, took_ns: int) -> None:
        """Take in how long a step took."""
        if took_ns < SHORT_NS:
            if self._balance < _SURE:
                self._balance += 1
                self.is_sparse = self.is_sparse or self._balance == _SURE
        elif self._balance > 0:
            self._balance -= 1
            self.is_sparse = self.is_sparse and self._balance > 0

    def next_look(self, step: int) -> int:
        """Give the first step, from one on, that is to be looked at; asked in their order."""
        if not self.is_sparse:
            return step
        if step > self._next:
            stretch = step // LOOK_EVERY
            self._next = _place_in(stretch)
            if self._next < step:
                self._next = _place_in(stretch + 1)
        return self._next


def _place_in(stretch: int) -> int:
    """The step that is looked at among those of a stretch."""
    return stretch * LOOK_EVERY + _drawn(stretch) % LOOK_EVERY


def _drawn(number: int) -> int:
    """Draw from a number what looks like chance (the mixing of SplitMix64)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
