"""How many workers, how they start, how far they read ahead: settings turned into numbers."""

import dataclasses
import multiprocessing
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from pitstop.config.sections import LoaderSection
from pitstop.errors import ConfigError
from pitstop.measure.host.limits import read_host_limits
from pitstop.measure.machine.advice import workers_per_rank
from pitstop.records.units import bytes_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedLoader:
    """What the settings came to on this host, for the record."""

    workers: int
    prefetch: int | None
    """Batches each worker prepares ahead; None where there are no workers."""
    pinned: bool
    persistent: bool
    start_method: str | None
    """None where there are no workers."""


def applied_loader(
    section: LoaderSection, *, world_size_on_host: int, for_eval: bool
) -> AppliedLoader:
    """Say what a section comes to here for one rank, before the size of a batch was estimated.

    Tuning begins with one worker and adds to it.

    Raises:
        ConfigError: Where the settings cannot be had on this host.
    """
    wanted, prefetch = section.workers, section.prefetch
    if for_eval:
        wanted = wanted if section.eval_workers is None else section.eval_workers
        prefetch = section.eval_prefetch or prefetch
    cores = read_host_limits().cores
    workers = resolve_workers(wanted, world_size_on_host=world_size_on_host, cores=cores)
    if section.tune == "auto" and not for_eval:
        workers = min(workers, 1)
    return AppliedLoader(
        workers=workers,
        prefetch=prefetch if workers else None,
        # Page-locked memory only serves copies to a GPU; without one it is refused.
        pinned=section.pin and torch.cuda.is_available(),
        persistent=section.persistent and workers > 0 and not for_eval,
        start_method=resolve_start_method(section.start_method) if workers else None,
    )


def resolve_workers(
    workers: Literal["auto"] | int | float, *, world_size_on_host: int, cores: int
) -> int:
    """Turn the setting, a total for the host, into the workers of one rank.

    Raises:
        ConfigError: Where a count is too small for every rank to have one.
    """
    if workers == "auto":
        return workers_per_rank(cores, world_size_on_host) or 1
    if isinstance(workers, float):
        return max(1, int(workers * cores) // world_size_on_host)
    if 0 < workers < world_size_on_host:
        raise ConfigError(
            f"loader.workers={workers} cannot be shared by the {world_size_on_host} ranks of this "
            f"host; give at least {world_size_on_host}, or 0 to load in the training processes"
        )
    return workers // world_size_on_host


def resolve_start_method(method: str) -> str:
    """Choose how workers start.

    Fork is fastest and needs nothing to be picklable, but a child of a process that uses CUDA
    inherits a context it cannot use, with locks and threads that are gone. Forkserver forks from
    a clean process, which imports torch once for all workers. Outside Linux system libraries do
    not survive a fork, so workers start from nothing.

    Raises:
        ConfigError: Where this platform does not have the method.
    """
    known = multiprocessing.get_all_start_methods()
    if method == "auto":
        if sys.platform != "linux" or "fork" not in known:
            return "spawn"
        return "forkserver" if torch.cuda.is_initialized() else "fork"
    if method not in known:
        raise ConfigError(
            f"loader.start_method={method} does not exist here; use one of {', '.join(known)}"
        )
    return method


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchBudget:
    """What prepared batches of one rank may hold."""

    bytes: int
    is_filled: bool
    """Whether to read as far ahead as fits; otherwise as far as asked for, if that fits."""


def within_budget(
    asked: AppliedLoader, budget: PrefetchBudget, batch_bytes: int, *, batches: int
) -> AppliedLoader:
    """Let workers prepare as many batches as the budget holds, and no more.

    Where it does not hold one batch of each worker, there are fewer workers.

    Args:
        asked: What the settings come to without a budget.
        budget: What prepared batches may hold.
        batch_bytes: Size of one batch.
        batches: Batches of an epoch; reading further ahead is not possible.

    Raises:
        ConfigError: Where the budget does not hold one batch.
    """
    assert asked.prefetch is not None
    ahead = budget.bytes // max(1, batch_bytes)
    if ahead < 1:
        raise ConfigError(
            f"loader.prefetch_bytes leaves {bytes_text(budget.bytes)} for each rank of "
            f"this host, less than one batch of {bytes_text(batch_bytes)}; raise it, or use "
            "loader.prefetch"
        )
    workers = min(asked.workers, ahead)
    most = max(1, -(-batches // workers)) if budget.is_filled else asked.prefetch
    return dataclasses.replace(asked, workers=workers, prefetch=min(ahead // workers, most))


def slots_for(applied: AppliedLoader) -> int:
    """Count the batches that may be under way, with two in the trainer's hands; 0 without workers.

    The batch that is trained on and one that something between loader and trainer holds.
    """
    return 0 if applied.prefetch is None else applied.workers * applied.prefetch + 2
