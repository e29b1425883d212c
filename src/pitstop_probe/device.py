"""CUDA events as marks on the device's time line: pooled, polled, never waited for."""

import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from pitstop_probe.forks import stays_here


class CudaTimer:
    """Marks points of the current CUDA stream with reused timing events.

    Args:
        torch: The script's own torch module; passed in so that the probe never imports it.
    """

    def __init__(self, torch: Any) -> None:
        self._event = torch.cuda.Event
        # torch.cuda.Event wraps these two in Python; a mark is made twenty times a step.
        base = torch.cuda.Event.__mro__[1]
        self._record = base.record
        self._elapsed_ms = base.elapsed_time
        self._pool: List[Any] = []
        self._current_stream = torch.cuda.current_stream
        # Asking for the stream object costs several times the recording itself (5 us against 1.8
        # on the host of an H200), its bare handle next to nothing; the object is kept by handle.
        self._handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self._streams: Dict[Tuple[int, int], Any] = {}
        self.span_marks_every = 4
        stays_here(self)
        self.same_point_us = max(1, _quickest_launch_ns(torch) * 4 // 5 // 1000)

    def mark(self) -> Any:
        """Record an event on the current stream."""
        pool = self._pool
        event = pool.pop() if pool else stays_here(self._event(enable_timing=True))
        if self._handle is None:
            self._record(event, self._current_stream())
            return event
        device = self._current_device()
        key = (device, self._handle(device))
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._current_stream()
        self._record(event, stream)
        return event

    def passed(self, mark: Any) -> bool:
        """Ask whether the device has gone past the event; returns at once."""
        return mark.query()

    def elapsed_us(self, start: Any, end: Any) -> Optional[int]:
        """Device microseconds between two events, rounded; None when one was not passed yet."""
        if start is end:
            return 0
        try:
            return round(self._elapsed_ms(start, end) * 1000.0)
        except (RuntimeError, ValueError):  # a side stream, which no border waits for
            return None

    def release(self, marks: List[Any]) -> None:
        """Put events back into the pool."""
        self._pool += marks


def _quickest_launch_ns(torch: Any) -> int:
    """Time the smallest launches from Python: between two points closer than that there is none."""
    tiny = torch.empty(1, device="cuda")
    took_ns = []
    for _ in range(21):
        start_ns = time.perf_counter_ns()
        tiny.zero_()
        took_ns.append(time.perf_counter_ns() - start_ns)
    return min(took_ns)


def cuda_timer() -> Optional[CudaTimer]:
    """Give a timer for the script's CUDA device, or None where it has no torch or no CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return CudaTimer(torch)
