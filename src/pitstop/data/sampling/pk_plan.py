"""The batches of one epoch of people, as one table, from counts and random bits alone.

Three steps, each a few array operations over the whole epoch:

1. `deal_turns`: how often each person comes up. In an epoch over records as often as its records
   fill K places; over people, once.
2. `mix`: which batch each turn goes to, no person twice in a batch. Turns are laid out so that
   this holds, then batches trade people at random; a trade keeps both conditions.
3. `draw_records`: the K records of each turn. A person's records lie in three queues (RGB only,
   others only, both), and a turn takes from each in proportion, at least one RGB record and one
   of another modality where that is wanted. A queue starts over only when it is used up.

Nothing is drawn until it fits, so nothing can hang.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.data.sampling.samplers import shuffled

Ints = npt.NDArray[np.int64]

RGB_ONLY: Final = 0
OTHER_ONLY: Final = 1
BOTH: Final = 2
KINDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The records of those people that take part, by person and kind."""

    records: Ints
    """Places of the records in the dataset."""
    queue_of: Ints
    """Number of the queue of each of `records`: three a person."""
    sizes: Ints
    """(people, 3), records in each queue."""

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.sizes)

    @property
    def has_rgb(self) -> npt.NDArray[np.bool_]:
        """Which people own an RGB record."""
        return (self.sizes[:, RGB_ONLY] + self.sizes[:, BOTH]) > 0

    @property
    def has_pair(self) -> npt.NDArray[np.bool_]:
        """Which people own an RGB record and one of another modality."""
        return self.has_rgb & ((self.sizes[:, OTHER_ONLY] + self.sizes[:, BOTH]) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large an epoch is and what a batch looks like."""

    groups: int
    """Steps of an epoch; in each, every rank takes one batch."""
    world_size: int
    people: int
    """P: different people in a batch."""
    records: int
    """K: records of each of them."""
    by_records: bool
    """Whether people come up in proportion to their records, or all equally often."""
    ensure_rgb: bool


def plan_epoch(queues: Queues, shape: Shape, bits: np.random.PCG64) -> Ints:
    """Give the batches of all ranks as (groups, ranks, P * K) places in the dataset.

    Where there are enough people, none comes up twice in a group, whatever its ranks. Otherwise
    none comes up twice in a batch, and its batches of one group take different records as far as
    it has enough of them.
    """
    batches = shape.groups * shape.world_size
    together = shape.people * shape.world_size
    width = together if queues.people >= together else shape.people
    units = batches * shape.people // width
    weights = queues.sizes.sum(axis=1) if shape.by_records else np.ones(queues.people, np.int64)
    turns = deal_turns(weights, total=units * width, most=units, bits=bits)
    people = mix(turns, units=units, width=width, bits=bits)
    drawn = draw_records(queues, people.ravel(), shape, bits)
    return drawn.reshape(shape.groups, shape.world_size, shape.people * shape.records)


def deal_turns(weights: Ints, *, total: int, most: int, bits: np.random.PCG64) -> Ints:
    """Share `total` turns in proportion to weights, none above `most`, remainders at random.

    Each share is its exact proportion rounded up or down, with the chances that make it right on
    average.
    """
    turns = np.zeros(len(weights), np.int64)
    is_open = np.ones(len(weights), bool)
    left = total
    while (over := is_open & (weights * left > most * weights[is_open].sum())).any():
        turns[over] = most
        is_open &= ~over
        left -= most * int(over.sum())
    # One cut into equal pieces of everybody's segments, laid end to end in a random order.
    who = np.flatnonzero(is_open)
    who = who[shuffled(len(who), bits)]
    ends = np.cumsum(weights[who])
    if len(who) > 0:
        start = int(bits.random_raw()) % int(ends[-1])
        turns[who] = np.diff((ends * left + start) // ends[-1], prepend=0)
    return turns


def mix(turns: Ints, *, units: int, width: int, bits: np.random.PCG64) -> Ints:
    """Spread turns over units at random: (units, width) numbers of people, none twice in a unit."""
    people = shuffled(len(turns), bits)
    # A person's turns are neighbours in the list and go to units one after the other. They are no
    # more than there are units, so no unit gets two.
    table = np.repeat(people, turns[people]).reshape(width, units).T
    table = table[shuffled(units, bits)]
    # A person is passed on to twice as many units with each round of trades.
    rounds = 2 * units.bit_length() + 4 if units > 1 else 0
    for _ in range(rounds):
        one, other = shuffled(units, bits)[: units // 2 * 2].reshape(2, -1)
        table[one], table[other] = _trade(table[one], table[other], bits)
    return _shuffle_rows(table, bits)


def _trade(one: Ints, other: Ints, bits: np.random.PCG64) -> tuple[Ints, Ints]:
    """Put the people of two units together and share them out anew, in many pairs at once."""
    both = np.sort(np.concatenate((one, other), axis=1), axis=1)
    keys = (bits.random_raw(both.size) >> np.uint64(1)).reshape(both.shape) + np.uint64(1)
    is_twin = both[:, 1:] == both[:, :-1]
    # Somebody who is in both stays in both: one goes first, the other last.
    keys[:, :-1][is_twin] = 0
    keys[:, 1:][is_twin] = np.iinfo(np.uint64).max
    shared = np.take_along_axis(both, np.argsort(keys, axis=1, kind="stable"), axis=1)
    return shared[:, : one.shape[1]], shared[:, one.shape[1] :]


def _shuffle_rows(table: Ints, bits: np.random.PCG64) -> Ints:
    keys = bits.random_raw(table.size).reshape(table.shape)
    return np.take_along_axis(table, np.argsort(keys, axis=1, kind="stable"), axis=1)


def draw_records(queues: Queues, people: Ints, shape: Shape, bits: np.random.PCG64) -> Ints:
    """Give (turns, K) records for people in the order of their turns, a person's RGB ones first."""
    keys = bits.random_raw(len(queues.records))
    shuffled_queues = queues.records[np.lexsort((keys, queues.queue_of))]
    by_person = np.argsort(people, kind="stable")
    who = people[by_person]
    starts_anew = np.diff(who, prepend=-1) != 0
    first_turn = np.flatnonzero(starts_anew)[np.cumsum(starts_anew) - 1]
    turn = np.arange(len(who)) - first_turn
    counts = _counts(queues, who, turn, per_turn=shape.records, bits=bits)
    _ensure(counts, queues, who, ensure_rgb=shape.ensure_rgb)
    used_before = np.cumsum(counts, axis=0) - counts
    used_before -= used_before[first_turn]

    # Which queue each of the K places takes from, and how many it has taken in this turn already.
    places = np.arange(shape.records)
    edges = np.cumsum(counts, axis=1)
    kinds = (places >= edges[:, :1]).astype(np.int64) + (places >= edges[:, 1:2])
    taken = places - np.take_along_axis(edges - counts, kinds, axis=1)
    at = np.take_along_axis(used_before, kinds, axis=1) + taken
    at %= np.take_along_axis(queues.sizes[who], kinds, axis=1)
    queue_starts = (np.cumsum(queues.sizes) - queues.sizes.ravel()).reshape(-1, KINDS)
    drawn = shuffled_queues[np.take_along_axis(queue_starts[who], kinds, axis=1) + at]
    in_turn_order = np.empty_like(drawn)
    in_turn_order[by_person] = drawn
    return in_turn_order


def _counts(queues: Queues, who: Ints, turn: Ints, *, per_turn: int, bits: np.random.PCG64) -> Ints:
    """Say how many records each turn takes from each of the three queues: (turns, 3).

    By proportion, rounded so that sums over turns are right to within one. A turn never takes
    more from a queue than it holds, unless the person has fewer records than the turn takes.
    """
    rgb, other, both = queues.sizes[who].T
    everything, single = rgb + other + both, rgb + other
    start = (bits.random_raw(queues.people) >> np.uint64(1)).astype(np.int64)[who]

    def from_both(turns: Ints) -> Ints:
        return (turns * per_turn * both + start % everything) // everything

    def from_rgb(turns: Ints) -> Ints:
        rest = turns * per_turn - from_both(turns)
        parts = np.maximum(single, 1)
        return (rest * rgb + start % parts) // parts

    of_both = from_both(turn + 1) - from_both(turn)
    of_rgb = from_rgb(turn + 1) - from_rgb(turn)
    return np.stack((of_rgb, per_turn - of_both - of_rgb, of_both), axis=1)


def _ensure(counts: Ints, queues: Queues, who: Ints, *, ensure_rgb: bool) -> None:
    """Change turns that lack an RGB record, or one of another modality, where one is wanted."""
    sizes = queues.sizes[who]
    wants_rgb = queues.has_rgb[who] & ensure_rgb
    wants_other = queues.has_pair[who] & (counts.sum(axis=1) > 1)
    for wanted, own, opposite in (
        (wants_rgb, RGB_ONLY, OTHER_ONLY),
        (wants_other, OTHER_ONLY, RGB_ONLY),
    ):
        lacking = np.flatnonzero(wanted & (counts[:, own] + counts[:, BOTH] == 0))
        source = np.where(sizes[lacking, own] > 0, own, BOTH)
        counts[lacking, source] += 1
        counts[lacking, opposite] -= 1
