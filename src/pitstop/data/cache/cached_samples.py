"""Samples that come out of a cache, and the order in which they will ask it."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, Protocol, runtime_checkable

from pitstop.data.cache.items import Key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import Batches


@runtime_checkable
class CacheableSamples(Protocol):
    """A dataset that can look into a cache before it reads."""

    def __len__(self) -> int:
        """Count the samples."""
        ...

    def with_cache(self, cache: SharedCache) -> Samples:
        """Give the same samples, read through a cache."""
        ...

    def cache_keys(self, index: int) -> Iterable[Key]:
        """List what sample `index` will ask the cache for, in its order."""
        ...


_ORDERS: Final = {"shuffled": "shuffled", "sequence": "by sequence", "pk": "by identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What reading all samples once asks a cache for; as in `records.loader.CacheReading`."""

    order: str
    dataset_items: int
    item_uses: float


def demand_of(samples: CacheableSamples, batches: Batches) -> Demand | None:
    """Count what samples ask for; None where they ask for nothing."""
    # Not the keys themselves, which are paths: of a large dataset these take too much memory.
    digests: set[int] = set()
    lookups = 0
    for index in range(len(samples)):
        for key in samples.cache_keys(index):
            digests.add(hash(key))
            lookups += 1
    if not digests:
        return None
    items = len(digests)
    return Demand(order=_order_of(batches), dataset_items=items, item_uses=lookups / items)


def _order_of(batches: Batches) -> str:
    about = batches.state_dict()
    if not about.get("shuffle", True):
        return "in order"
    return _ORDERS.get(str(about.get("kind")), "not known")


def coming_keys(
    samples: CacheableSamples, batches: Batches, *, ranks: range, in_flight: int
) -> Iterator[Key]:
    """List what workers will ask for in the rest of this epoch and in the next one.

    Args:
        samples: What is read.
        batches: The order, standing at the place of the trainer; it is left there.
        ranks: Ranks whose workers share the cache. They read at the same rate.
        in_flight: Batches of each rank beyond that place that workers have begun with already.
    """
    orders = [_rest_and_next(_of_rank(batches, rank), in_flight) for rank in ranks]
    for together in zip_longest(*orders, fillvalue=()):
        for indices in together:
            for index in indices:
                yield from samples.cache_keys(index)


def _of_rank(batches: Batches, rank: int) -> Batches:
    """Give another rank's order: that of the same epoch, at the same place."""
    other = copy.copy(batches)
    if getattr(other, "rank", rank) != rank:
        other.rank = rank  # type: ignore[attr-defined]  # an order without ranks is everyone's
    return other


def _rest_and_next(batches: Batches, in_flight: int) -> Iterator[list[int]]:
    rest = batches.rest()
    following = copy.copy(batches)
    following.set_epoch(batches.epoch + 1)
    both = chain(rest, following.rest())
    for _ in range(in_flight):
        next(both, None)
    return both
