"""Settings that are fine in themselves and too much for the host at hand."""

from collections.abc import Iterator

from pitstop.config.host_limits import HostLimits
from pitstop.config.problems import Problem
from pitstop.config.quantities import format_bytes
from pitstop.config.sections import CacheSection, LoaderSection, RunConfig
from pitstop.records.units import bytes_text, share_text


def host_risks(config: RunConfig, host: HostLimits) -> tuple[Problem, ...]:
    """Name the settings that ask for more than this host can give."""
    return (
        *_too_many_workers(config.loader, host),
        *_too_much_memory(config.cache, config.loader, host),
    )


def _too_many_workers(loader: LoaderSection, host: HostLimits) -> Iterator[Problem]:
    for name, workers in (("workers", loader.workers), ("eval_workers", loader.eval_workers)):
        if isinstance(workers, int) and workers > host.cores:
            cores = f"{host.cores} core{'s' if host.cores > 1 else ''}"
            message = f"is {workers}, more than the {cores} this process may use; try auto"
            yield Problem(key=f"loader.{name}", message=message)


def _too_much_memory(
    cache: CacheSection, loader: LoaderSection, host: HostLimits
) -> Iterator[Problem]:
    total = cache.budget
    if total > host.memory_bytes / 2:
        yield Problem(key="cache.budget", message=_over_half(total, host))
    elif loader.prefetch_bytes and total + loader.prefetch_bytes > host.memory_bytes / 2:
        total += loader.prefetch_bytes
        message = f"together with cache.budget {_over_half(total, host)}"
        yield Problem(key="loader.prefetch_bytes", message=message)


def _over_half(size_bytes: int, host: HostLimits) -> str:
    limit = bytes_text(host.memory_bytes)
    share = size_bytes / host.memory_bytes
    return f"is {format_bytes(size_bytes)}, {share_text(share)} of the {limit} this process may use"
