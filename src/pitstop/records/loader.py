"""What loading data took: time inside workers, settings tried, samples skipped.

Sums are over the batches taken since the reading before; microseconds of the host's clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderReading:
    """How the batches of a window of training were made."""

    batches: int
    """Batches taken since the reading before."""
    workers: int
    """Worker processes of this rank; 0 where the training process reads by itself."""
    prefetch: int | None
    """Batches each worker prepares ahead; None where there are no workers."""
    stages_us: Mapping[str, int]
    """Time by stage, in workers: the dataset's own names, `sample` for what it left unnamed,
    `collate`, and `send` for putting the batch where the training process finds it. Together they
    are `busy_us`, but for what measuring took."""
    busy_us: int
    """From the begin to the end of making each batch."""
    cpu_us: int
    """Processor time of that; the rest waited for storage, or for a processor."""
    queue_us: int
    """How long finished batches lay, and travelled, before they were taken."""
    wait_us: int
    """How long the training loop waited for them."""
    short_us: int
    """How long of that they were not finished; the rest was handing them over."""
    largest_bytes: int
    """Size of the largest batch."""


def sum_of_stages_us(readings: Iterable[LoaderReading]) -> dict[str, int]:
    """Add up the time of each stage over several windows."""
    stages: dict[str, int] = {}
    for reading in readings:
        for name, us in reading.stages_us.items():
            stages[name] = stages.get(name, 0) + us
    return stages


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTry:
    """One setting of the loader, tried on steps of the run itself. Microseconds a batch."""

    workers: int
    prefetch: int
    batches: int
    """Batches it was judged by."""
    own_us: int
    """What the training loop did with a batch: the median."""
    wait_us: int
    """How long it waited for the next one: the mean."""
    short_us: int
    """How long of that the next one was not finished; the rest was handing it over."""
    busy_us: int
    """What a worker took to make one: the mean."""
    cpu_us: int
    """Processor time of that."""
    late_share: float
    """Share of the batches that were not finished when they were asked for."""
    batch_bytes: int
    """Size of the largest batch."""

    @property
    def wait_share(self) -> float:
        """Share of the loop's time that went into waiting."""
        whole = self.own_us + self.wait_us
        return self.wait_us / whole if whole else 0.0

    @property
    def short_share(self) -> float:
        """Share of the loop's time for which workers were late."""
        whole = self.own_us + self.wait_us
        return self.short_us / whole if whole else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningReading:
    """What the loader was tuned to, and why."""

    tries: tuple[TuningTry, ...]
    workers: int
    prefetch: int
    reason: str
    spent_s: float
    """From the first step to the decision; training went on meanwhile."""

    @property
    def chosen(self) -> TuningTry | None:
        """The latest try of the setting that was chosen; None where it was not judged itself."""
        setting = (self.workers, self.prefetch)
        tries = [one for one in self.tries if (one.workers, one.prefetch) == setting]
        return tries[-1] if tries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedReading:
    """Damaged samples that others stood in for, since the reading before."""

    samples: Mapping[str, int]
    """What was wrong with each, and how often it was met."""
    total: int
    """Reads passed over since the run, or its latest attempt, began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """What all processes of a host have done with their cache since it was made."""

    policy: str
    backing: str
    """Where the memory comes from, as text."""
    items: int
    used_bytes: int
    """Held by items now, what rounds them up to whole blocks with them."""
    budget_bytes: int
    hits: int
    misses: int
    evictions: int
    too_large: int
    """Times an item was passed by since it is larger than the whole cache."""

    @property
    def hit_rate(self) -> float | None:
        """Hits of all lookups; None before the first one."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReading(CacheCounts):
    """The same with what samples ask a cache for. Kind ``cache``."""

    copies: int = 1
    """Caches of this kind on the host: 1 where all its processes share one."""
    order: str = "not known"
    """How samples are read: ``"shuffled"``, ``"by sequence"``, ``"by identity"``, ``"in order"``
    or ``"not known"``."""
    dataset_items: int | None = None
    """Items that all samples together ask for; None where not known."""
    item_uses: float = 1.0
    """Samples that ask for the same item, on average."""
