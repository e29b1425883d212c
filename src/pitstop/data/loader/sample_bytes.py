"""How large samples are, found out by reading some."""

from collections.abc import Callable
from typing import Any, Final

import torch

from pitstop.config.sections import CacheSection, LoaderSection, TrainSection
from pitstop.data.host_memory import DataStats, LoaderPlan, Seen, SizedSamples, plan_memory
from pitstop.data.loader.fetch import Samples
from pitstop.data.loader.worker_settings import resolve_workers
from pitstop.data.tensors import tensors_in
from pitstop.errors import DataError
from pitstop.measure.host.limits import read_host_limits
from pitstop.measure.host.memory import shm_space

# Spread over the dataset: enough to meet more than one size, and read in a few seconds.
_MOST_READ: Final = 8


def data_stats(
    config: str,
    samples: Samples,
    collate: Callable[[list[Any]], Any],
    *,
    sections: tuple[LoaderSection, CacheSection, TrainSection],
    ranks: int | None,
) -> DataStats:
    """Read a few samples and add up what loading the data of a run takes of this host's memory.

    Args:
        config: Name of the configuration, for the record.
        samples: The training data.
        collate: Joins samples into a batch, whose tensors are what is counted.
        sections: The settings.
        ranks: Training processes on this host; None for one a GPU, or one.

    Raises:
        ConfigError: Where the settings cannot be had on this host.
        DataError: None of the samples that were tried can be read.
    """
    loader, cache, train = sections
    host, shm = read_host_limits(), shm_space()
    ranks = ranks or torch.cuda.device_count() or 1
    workers = resolve_workers(loader.workers, world_size_on_host=ranks, cores=host.cores)
    tensor_bytes, samples_read, samples_damaged = estimate_sample_bytes(
        samples, collate, (0, *(at for at, _ in train.crop_schedule))
    )
    plan = LoaderPlan(
        ranks=ranks,
        workers=workers,
        prefetch=loader.prefetch if workers else None,
        prefetch_bytes=loader.prefetch_bytes if workers else None,
        batch_size=train.batch_size,
        pinned=loader.pin and torch.cuda.is_available(),
        cache_budget_bytes=cache.budget,
    )
    seen = Seen(
        samples=len(samples),
        tensor_bytes=tensor_bytes,
        samples_read=samples_read,
        samples_damaged=samples_damaged,
        decoded_bytes=samples.decoded_bytes if isinstance(samples, SizedSamples) else None,
        host_limit_bytes=host.memory_bytes,
        shm_free_bytes=None if shm is None else shm.free_bytes,
    )
    return plan_memory(config, plan, seen, drop_last=loader.drop_last)


def estimate_sample_bytes(
    samples: Samples, collate: Callable[[list[Any]], Any], epochs: tuple[int, ...]
) -> tuple[tuple[int, ...], int, int]:
    """Give the bytes of each tensor of the largest sample, and how many were read and damaged.

    A damaged sample says nothing of the others' size, so it is passed over.

    Raises:
        DataError: All that were tried are damaged; it is the first one's.
    """
    step = max(1, len(samples) // _MOST_READ)
    places = [(epoch, index) for epoch in epochs for index in range(0, len(samples), step)]
    found: list[tuple[int, ...]] = []
    damaged: list[DataError] = []
    for epoch, index in places[: _MOST_READ * len(epochs)]:
        try:
            sample = samples.sample(epoch, index)
        except DataError as error:
            damaged.append(error)
        else:
            found.append(tensor_sizes(collate([sample])))
    if not found and damaged:
        raise damaged[0]
    return max(found, key=sum), len(found), len(damaged)


def tensor_sizes(batch: Any) -> tuple[int, ...]:
    """Give the bytes of each tensor of a batch."""
    return tuple(tensor.nbytes for tensor in tensors_in(batch))
