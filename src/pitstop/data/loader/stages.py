"""What a worker spends its time on, in the dataset's own words.

    with stage("read"):
        data = path.read_bytes()
    with stage("decode"):
        frame = decode(data)

Knows neither torch nor processes. Where nobody gathers, a stage costs next to nothing. Times are
those of the stage itself: what a stage opened inside it took is not in it, so they add up.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Now = Callable[[], int]


class StageTimes:
    """Time by stage, in nanoseconds of the host's monotonic clock."""

    __slots__ = ("_inside_ns", "_now_ns", "total_ns")

    def __init__(self, now_ns: Now = time.perf_counter_ns) -> None:
        self.total_ns: dict[str, int] = {}
        self._now_ns = now_ns
        self._inside_ns: list[int] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time until the end of the block, less what stages inside it take."""
        self._inside_ns.append(0)
        begun_ns = self._now_ns()
        try:
            yield
        finally:
            whole_ns = self._now_ns() - begun_ns
            own_ns = whole_ns - self._inside_ns.pop()
            self.total_ns[name] = self.total_ns.get(name, 0) + own_ns
            if self._inside_ns:
                self._inside_ns[-1] += whole_ns


class _Gathering(threading.local):
    times: StageTimes | None = None


_GATHERING: Final = _Gathering()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name what the block does, for whoever gathers times in this thread."""
    times = _GATHERING.times
    if times is None:
        yield
        return
    with times.timed(name):
        yield


@contextmanager
def gathering(now_ns: Now = time.perf_counter_ns) -> Iterator[StageTimes]:
    """Gather the stages that are opened in this thread meanwhile."""
    before, times = _GATHERING.times, StageTimes(now_ns)
    _GATHERING.times = times
    try:
        yield times
    finally:
        _GATHERING.times = before
