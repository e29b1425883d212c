"""One cache for all ranks of a host: made by the first of them, opened by the others."""

import pickle
from dataclasses import asdict, dataclass, field

from torch import distributed

from pitstop.config.sections import CacheSection
from pitstop.data.cache.cached_samples import CacheableSamples, Demand, coming_keys, demand_of
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import Batches
from pitstop.errors import ConfigError
from pitstop.records.loader import CacheReading
from pitstop.train.ranks import Ranks


def require_cacheable(samples: Samples, workload: str) -> CacheableSamples:
    """Give samples that can use a cache.

    Raises:
        ConfigError: Where these cannot: a cache would hold nothing.
    """
    if isinstance(samples, CacheableSamples):
        return samples
    raise ConfigError(
        f"cache.budget has no effect: samples of the workload {workload} do not use a cache; set "
        "it to 0"
    )


def open_cache(section: CacheSection, ranks: Ranks) -> SharedCache:
    """Make the cache of this host on its first rank, and open it on the others.

    Raises:
        ConfigError: Where there cannot be such a cache on this host; on all of its ranks.
    """
    if ranks.world_size == 1:
        return SharedCache(section.budget, section.policy)
    own: SharedCache | None = None
    offer: bytes | str | None = None
    if ranks.local_rank == 0:
        try:
            own = SharedCache(section.budget, section.policy)
            offer = pickle.dumps(own)
        except ConfigError as error:
            offer = str(error)
    offers: list[bytes | str | None] = [None] * ranks.world_size
    distributed.all_gather_object(offers, offer)
    first = offers[ranks.rank - ranks.local_rank]
    if not isinstance(first, bytes):
        raise ConfigError(first)
    # The bytes are those that the first rank of this run wrote a moment ago.
    opened = own if own is not None else pickle.loads(first)  # noqa: S301
    # The maker must not leave before everybody has opened what it made.
    ranks.barrier()
    return opened


@dataclass(slots=True, kw_only=True)
class HostCache:
    """The cache of a host, as one of its ranks looks after it."""

    shared: SharedCache
    section: CacheSection
    samples: CacheableSamples
    batches: Batches
    ranks: Ranks
    _announced_epoch: int | None = field(init=False, default=None)
    _demand: Demand | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Count what samples ask for, before the first step: it takes a while."""
        if self.ranks.local_rank == 0:
            self._demand = demand_of(self.samples, self.batches)

    @property
    def wants_order(self) -> bool:
        """Whether an epoch has begun whose order the cache does not know."""
        is_maker = self.ranks.local_rank == 0
        return (
            is_maker
            and self.section.policy == "epoch"
            and self._announced_epoch != self.batches.epoch
        )

    def announce_order(self, *, in_flight: int) -> None:
        """Tell the cache which samples will be asked for until the end of the next epoch.

        Args:
            in_flight: Batches of a rank that workers have begun with beyond the trainer's place.

        Raises:
            DataError: Where the order does not fit into the budget.
        """
        first = self.ranks.rank - self.ranks.local_rank
        sharers = range(first, first + self.ranks.local_world_size)
        keys = coming_keys(self.samples, self.batches, ranks=sharers, in_flight=in_flight)
        self.shared.set_order(keys)
        self._announced_epoch = self.batches.epoch

    def cached_samples(self) -> Samples:
        """Give the samples as they are read through the cache."""
        return self.samples.with_cache(self.shared)

    def reading(self) -> CacheReading | None:
        """Count over the whole host; on its first rank, which speaks for the others."""
        if self.ranks.local_rank != 0:
            return None
        demand = {} if self._demand is None else asdict(self._demand)
        return CacheReading(**asdict(self.shared.stats()), **demand)
