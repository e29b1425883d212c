"""Adds up the host memory of a job: processes as measured, batches and cache as counted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pitstop.config.sections import RunConfig
from pitstop.data.host_memory import DataStats, LoaderPlan, Seen, plan_memory
from pitstop.data.loader.worker_settings import resolve_workers
from pitstop.plan.host.trial import ProcessSizes
from pitstop.plan.memory import fit_of
from pitstop.records.plans.host import HostPlan, HostRow

LOW, HIGH = 0.9, 1.1
"""What five measured jobs were of their plans, at the least and at the most, rounded outwards; on a
processor, with libraries of their own (docs/accuracy.md)."""
WORKER_BYTES: Final = 80 * 2**20
"""Of a worker that could not be tried, since the data are not here."""

PROCESSOR_ALLOCATOR: Final = 0.22
"""Of a step's tensors on a processor, what the C library keeps of those that are gone; from one
measured job (docs/accuracy.md)."""

_MEASURED, _COUNTED, _ALLOWANCE = "measured in a trial", "counted", "allowance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where the job is to run."""

    limit_bytes: int
    limit_of: str
    cores: int
    ranks: int = 1
    has_gpu: bool = True
    """Whether batches are copied to a GPU; page-locked memory only serves that."""


def plan_host(
    config: RunConfig, sizes: ProcessSizes, host: Host, *, step_bytes: int = 0
) -> HostPlan:
    """Add up a job.

    Args:
        config: Its settings.
        sizes: Of its processes and samples.
        host: Where it is to run.
        step_bytes: Tensors of a step that lie in host memory: none where a GPU holds them.

    Raises:
        ConfigError: Where the workers cannot be shared by the ranks.
    """
    data = _data(config, sizes, host)
    rows = tuple(row for row in _rows(data, sizes, host, step_bytes) if row.num_bytes)
    total = sum(row.num_bytes for row in rows)
    return HostPlan(
        ranks=host.ranks,
        workers=data.loader.workers,
        prefetch=data.loader.prefetch,
        start_method=start_method(config, has_gpu=host.has_gpu),
        batch_bytes=data.batch_bytes,
        rows=rows,
        total_bytes=total,
        low_bytes=round(total * LOW),
        high_bytes=round(total * HIGH),
        limit_bytes=host.limit_bytes,
        limit_of=host.limit_of,
        fit=fit_of(total, host.limit_bytes),
        notes=tuple(_notes(sizes, host)),
    )


def start_method(config: RunConfig, *, has_gpu: bool) -> str | None:
    """Say how workers will start; None for what the machine does by itself."""
    if config.loader.start_method != "auto":
        return config.loader.start_method
    return "forkserver" if has_gpu else None


def _data(config: RunConfig, sizes: ProcessSizes, host: Host) -> DataStats:
    loader = config.loader
    workers = resolve_workers(loader.workers, world_size_on_host=host.ranks, cores=host.cores)
    plan = LoaderPlan(
        ranks=host.ranks,
        workers=workers,
        prefetch=loader.prefetch if workers else None,
        prefetch_bytes=loader.prefetch_bytes if workers else None,
        batch_size=config.train.batch_size,
        pinned=loader.pin and host.has_gpu,
        cache_budget_bytes=config.cache.budget,
    )
    seen = Seen(
        samples=0,
        tensor_bytes=sizes.tensor_bytes,
        samples_read=0,
        samples_damaged=0,
        decoded_bytes=sizes.decoded_bytes,
        host_limit_bytes=host.limit_bytes,
        shm_free_bytes=None,
    )
    return plan_memory("", plan, seen, drop_last=loader.drop_last)


def _rows(data: DataStats, sizes: ProcessSizes, host: Host, step_bytes: int) -> Iterator[HostRow]:
    ranks, workers = host.ranks, data.loader.workers
    # Libraries lie in files, which the ranks of a host share.
    processes = sizes.process_bytes + (ranks - 1) * sizes.private_bytes
    yield HostRow(owner="training processes", num_bytes=processes, basis=_MEASURED)
    yield HostRow(owner="tensors of the step", num_bytes=ranks * step_bytes, basis="dry run")
    kept = round(PROCESSOR_ALLOCATOR * ranks * step_bytes)
    yield HostRow(owner="freed tensors", num_bytes=kept, basis=_ALLOWANCE)
    if workers:
        yield _workers(sizes, ranks, workers)
    else:
        reading = ranks * sizes.reading_bytes
        yield HostRow(owner="reading samples", num_bytes=reading, basis=_MEASURED)
    yield HostRow(owner="batches ahead", num_bytes=data.waiting_bytes, basis=_COUNTED)
    # The batch that is trained on and the one after it; without workers there is only the first.
    in_use = data.in_use_bytes * (2 if workers else 1)
    yield HostRow(owner="batches in use", num_bytes=in_use, basis=_COUNTED)
    yield HostRow(owner="page-locked copies", num_bytes=data.pinned_bytes, basis=_COUNTED)
    yield HostRow(owner="cache", num_bytes=data.cache_bytes, basis=_COUNTED)


def _workers(sizes: ProcessSizes, ranks: int, workers: int) -> HostRow:
    first, more = sizes.first_worker_bytes, sizes.next_worker_bytes
    if first is None or more is None:
        held, basis = workers * WORKER_BYTES, _ALLOWANCE
    else:
        held, basis = first + (workers - 1) * more, _MEASURED
    return HostRow(owner=f"workers ({ranks * workers})", num_bytes=ranks * held, basis=basis)


def _notes(sizes: ProcessSizes, host: Host) -> Iterator[str]:
    yield from sizes.notes
    if host.has_gpu:
        yield "host memory of the CUDA driver and its libraries is not in the sum: not measured"
