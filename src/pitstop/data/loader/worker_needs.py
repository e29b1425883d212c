"""What workers need of the system before the first one starts: handles, and some shared memory.

Where these are short torch and Python fail on the way out of a worker, each with a traceback of its
own, after the training process has said nothing yet.
"""

import sys
from typing import Final

import psutil

from pitstop.errors import DataError
from pitstop.measure.host.memory import shm_space
from pitstop.records.units import bytes_text

# Counted with torch 2.13: four handles a worker and two for all, three semaphores of a page each a
# queue. Batches on their way, the record and a checkpoint come on top; so this is the very least.
_HANDLES: Final = 16
_HANDLES_EACH: Final = 8
_SHM_BYTES: Final = 32 << 10
_SHM_BYTES_EACH: Final = 16 << 10


def require_worker_needs(workers: int) -> None:
    """Refuse to start workers that could not live.

    Raises:
        DataError: Says what is short, how much of it is needed, and what to change.
    """
    if not workers or sys.platform != "linux":
        return
    shm = shm_space()
    lacking = what_is_lacking(
        workers,
        free_handles=_free_handles(),
        shm_free_bytes=None if shm is None else shm.free_bytes,
    )
    if lacking is not None:
        raise DataError(f"{lacking}; or set loader.workers=0 and loader.eval_workers=0")


def what_is_lacking(
    workers: int, *, free_handles: int | None, shm_free_bytes: int | None
) -> str | None:
    """Name what the system has too little of for so many workers, and what to do; None: nothing."""
    handles = _HANDLES + _HANDLES_EACH * workers
    if free_handles is not None and free_handles < handles:
        return (
            f"{workers} data workers need at least {handles} more open files, and this process may "
            f"open {max(0, free_handles)}; raise the limit (ulimit -n)"
        )
    shm_bytes = _SHM_BYTES + _SHM_BYTES_EACH * workers
    if shm_free_bytes is not None and shm_free_bytes < shm_bytes:
        return (
            f"{workers} data workers need at least {bytes_text(shm_bytes)} of /dev/shm, and "
            f"{bytes_text(shm_free_bytes)} of it are free; enlarge it (docker: --shm-size)"
        )
    return None


def _free_handles() -> int | None:
    try:
        process = psutil.Process()
        limit, _ = process.rlimit(psutil.RLIMIT_NOFILE)
        return None if limit == psutil.RLIM_INFINITY else limit - process.num_fds()
    except (psutil.Error, OSError):
        return None
