"""What the data of a run take of a host's memory, before the run.

Pure arithmetic on sizes that were measured by reading samples. What is shared is counted once:
the cache belongs to the host, not to each of its workers or ranks, and workers are those of the
host, dealt to its ranks. The processes themselves are not counted; nobody can know their size
before they run.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

MOST_SHARE: Final = 0.9
"""Share of the host's memory beyond which a plan is called too large."""


@runtime_checkable
class SizedSamples(Protocol):
    """A dataset that knows how large it is once decoded."""

    @property
    def decoded_bytes(self) -> int | None:
        """Bytes of everything samples are cut from, as it is kept in memory; None if unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """The settings that decide the sum, as they come out on this host."""

    ranks: int
    """Training processes on this host."""
    workers: int
    """Of each rank."""
    prefetch: int | None
    """Batches each worker prepares ahead; None where there are no workers."""
    prefetch_bytes: int | None
    """What prepared batches of the host may hold, where that decides instead."""
    batch_size: int
    pinned: bool
    cache_budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStats:
    """Host memory of a run's data, piece by piece. Bytes throughout."""

    config: str
    samples: int
    epoch_batches: int
    """On each rank."""
    sample_bytes: int
    """The largest of those that were read."""
    samples_read: int
    samples_damaged: int
    """Samples that were tried and could not be read."""
    decoded_bytes: int | None
    """The whole training split, decoded; None where the dataset does not say."""
    loader: LoaderPlan
    batch_bytes: int
    waiting_batches: int
    """Prepared batches that may wait at one time, over all workers and ranks."""
    waiting_bytes: int
    in_use_bytes: int
    """One batch in the hands of each rank."""
    pinned_bytes: int
    """What page-locked copies take beyond the batches themselves: torch rounds each tensor up to a
    power of two, and one batch a rank is there twice while it is copied."""
    cache_bytes: int
    """What the cache can come to hold, once for the host."""
    host_limit_bytes: int
    shm_free_bytes: int | None
    """Free bytes of /dev/shm, through which workers hand batches over; None where there is none."""
    assumed: tuple[str, ...] = ()
    """Settings that were taken where a dataset came without a configuration."""

    @property
    def total_bytes(self) -> int:
        """Everything that is counted."""
        return self.waiting_bytes + self.in_use_bytes + self.pinned_bytes + self.cache_bytes

    @property
    def fits(self) -> bool:
        """Whether the sum leaves the host a tenth of its memory."""
        return self.total_bytes <= MOST_SHARE * self.host_limit_bytes

    @property
    def shm_fits(self) -> bool:
        """Whether waiting batches fit in shared memory."""
        return self.shm_free_bytes is None or self.waiting_bytes <= self.shm_free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was measured: samples of the dataset, and the host."""

    samples: int
    tensor_bytes: tuple[int, ...]
    """Each tensor of the largest sample that was read."""
    samples_read: int
    samples_damaged: int
    decoded_bytes: int | None
    host_limit_bytes: int
    shm_free_bytes: int | None


def plan_memory(config: str, loader: LoaderPlan, seen: Seen, *, drop_last: bool) -> DataStats:
    """Add up what a run's data take of the host."""
    sample_bytes = sum(seen.tensor_bytes)
    batch_bytes = sample_bytes * loader.batch_size
    waiting = loader.ranks * loader.workers * (loader.prefetch or 0)
    if loader.prefetch_bytes is not None and batch_bytes:
        waiting = min(waiting, loader.prefetch_bytes // batch_bytes)
    pinned = 0
    if loader.pinned:
        tensors = (size * loader.batch_size for size in seen.tensor_bytes)
        rounded = sum(_next_power_of_two(size) for size in tensors)
        pinned = (waiting + loader.ranks) * (rounded - batch_bytes) + loader.ranks * rounded
    together = loader.batch_size * loader.ranks
    cache = loader.cache_budget_bytes
    if seen.decoded_bytes is not None:
        cache = min(cache, seen.decoded_bytes)
    return DataStats(
        config=config,
        samples=seen.samples,
        epoch_batches=seen.samples // together if drop_last else -(-seen.samples // together),
        sample_bytes=sample_bytes,
        samples_read=seen.samples_read,
        samples_damaged=seen.samples_damaged,
        decoded_bytes=seen.decoded_bytes,
        loader=loader,
        batch_bytes=batch_bytes,
        waiting_batches=waiting,
        waiting_bytes=waiting * batch_bytes,
        in_use_bytes=loader.ranks * batch_bytes,
        pinned_bytes=pinned,
        cache_bytes=cache,
        host_limit_bytes=seen.host_limit_bytes,
        shm_free_bytes=seen.shm_free_bytes,
    )


def _next_power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
