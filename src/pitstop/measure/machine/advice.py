"""What a machine's numbers mean for loader and cache, with the sum written out.

Pure arithmetic on a record. What is assumed rather than measured is called so.
"""

import math
from typing import Final

from pitstop.records.host.machine import Advice, Cpu, DecodeRate, Ram, Volume
from pitstop.records.units import bytes_text, digits, share_text

GIB: Final = 1 << 30

# Four forked workers decoding 4 MB items held 1.9 GB under the C library's default allocator.
WORKER_BYTES: Final = GIB // 2

# Left to the page cache and to what nobody planned: at the limit the kernel kills the largest.
KEEP_FREE_SHARE: Final = 0.10

# A cache beyond this share of the limit is warned of when a configuration is loaded.
MOST_CACHE_SHARE: Final = 0.5

# Workers hand batches over through it: 15 workers with two 16 MB batches each take half of this.
SMALL_SHM_BYTES: Final = GIB


def advise(
    cpu: Cpu, ram: Ram, *, gpus: int, decoding: tuple[DecodeRate, ...], volume: Volume | None
) -> tuple[Advice, ...]:
    """Suggest loader workers, a cache budget and, where it is small, space in /dev/shm."""
    ranks = max(1, gpus)
    found: list[Advice] = []
    workers = workers_per_rank(cpu.usable_cores, ranks)
    if workers is not None and cpu.usable_cores is not None:
        found.append(_workers_advice(workers, cpu.usable_cores, ranks, decoding))
    if ram.free_bytes is not None:
        found.append(_cache_advice(ram, (workers or 0) * ranks, volume))
    if ram.shm_bytes is not None and ram.shm_bytes < SMALL_SHM_BYTES:
        found.append(_shm_advice(ram.shm_bytes))
    return tuple(found)


def workers_per_rank(usable_cores: float | None, ranks: int) -> int | None:
    """Share the usable cores among ranks and leave one core of each share to the training loop."""
    if usable_cores is None:
        return None
    return max(1, math.floor(usable_cores / ranks) - 1)


def cache_budget_bytes(free_bytes: int, limit_bytes: int | None, workers: int) -> int:
    """Largest cache for the host in whole GiB: what is left over, but at most half of the limit."""
    left = free_bytes * (1 - KEEP_FREE_SHARE) - workers * WORKER_BYTES
    if limit_bytes is not None:
        left = min(left, limit_bytes * MOST_CACHE_SHARE)
    return max(0, math.floor(left / GIB)) * GIB


def _workers_advice(
    workers: int, usable: float, ranks: int, decoding: tuple[DecodeRate, ...]
) -> Advice:
    share = f"{usable:g} usable cores / {ranks} rank{'s' if ranks > 1 else ''}"
    text = f"{share}, less one core for the training loop = {workers} at most"
    text += f" a rank, {workers * ranks} for the host" if ranks > 1 else ""
    if usable / ranks < 2:
        text = f"{share} leave no core to spare: one worker shares a core with the training loop"
    for rate in decoding:
        each, together = rate.images.value, workers * rate.images.value
        what = f"{rate.codec.upper()} images of {rate.width}x{rate.height}"
        sum_text = f"{workers} x {digits(each)} = no more than {digits(together)}"
        text += f"; {sum_text} {what} a second and rank"
    # The setting counts the workers of the host, whatever the number of ranks.
    return Advice(setting="loader.workers", value=str(workers * ranks), arithmetic=text)


def _cache_advice(ram: Ram, workers: int, volume: Volume | None) -> Advice:
    free, limit = ram.free_bytes, ram.limit_bytes
    assert free is not None
    budget = cache_budget_bytes(free, limit, workers)
    text = (
        f"{bytes_text(free)} free to this process, less {share_text(KEEP_FREE_SHARE)} kept free "
        f"and {workers} x {bytes_text(WORKER_BYTES)} for workers (assumed)"
    )
    if limit is not None:
        text += f", but at most half of the limit of {bytes_text(limit)}"
    text += f" = {budget // GIB} whole GiB for the host"
    if volume is not None and volume.bytes_seen:
        size = ("" if volume.complete else "at least ") + bytes_text(volume.bytes_seen)
        if volume.bytes_seen > budget:
            share = budget / volume.bytes_seen
            text += f"; the files are {size}, so shuffled epochs hit at most {share_text(share)}"
        elif volume.complete:
            text += f"; the files are {size} and fit as they are stored"
    return Advice(setting="cache.budget", value=f"{budget // GIB}GiB", arithmetic=text)


def _shm_advice(shm: int) -> Advice:
    return Advice(
        setting="/dev/shm",  # noqa: S108 - the mount itself is what the advice is about
        value="8GiB or more",
        arithmetic=(
            f"{bytes_text(shm)} now; workers x prefetch x batch bytes must fit, or workers die "
            "with a bus error; containers set it with --shm-size or --ipc=host"
        ),
    )
