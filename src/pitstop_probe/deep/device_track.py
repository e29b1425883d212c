"""What a device did in one profiled step, from moment to moment, beside the host's parts.

A profiler counts from the epoch, the tracker from wherever its clock began: one reading of both
lays one on the other.
"""

import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from pitstop_probe.deep.kernel_classes import class_of

COMMUNICATION, TRANSFERS = "communication", "transfers"
"""Classes that a device does beside its other work, so they are drawn apart."""

_MOST_WRITTEN = 2000
# Neighbours of one class with less than this share of the step between them are one piece.
_NEAR = 1 / 4000
# Where more than this share of events lies outside the profile, the clocks do not agree.
_MOST_ASTRAY = 0.1


class EndedStep(NamedTuple):
    """A step as the tracker saw it; nanoseconds of the tracker's clock."""

    number: int
    start: int
    end: int
    parts: List[Tuple[str, int, int]]


class Ran(NamedTuple):
    """Something that ran on a device; nanoseconds since the epoch."""

    name: str
    start: int
    took: int


class _Piece:
    """Kernels of one class in a row."""

    __slots__ = ("class_name", "count", "end", "start")

    def __init__(self, class_name: str, start: int, end: int) -> None:
        self.class_name = class_name
        self.start = start
        self.end = end
        self.count = 1


def epoch_offset_ns(now_ns: Callable[[], int]) -> int:
    """Say by how much the time since the epoch is ahead of a clock."""
    readings = [(now_ns(), time.time_ns(), now_ns()) for _ in range(5)]
    # The closest pair: between any two readings the process may have been put aside.
    before, epoch, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return epoch - (before + after) // 2


def device_track(
    step: EndedStep, events: Sequence[Ran], offset_ns: int, profiled: Tuple[int, int]
) -> Optional[Dict[str, Any]]:
    """Give host and device of a step as a reading; None where their clocks do not agree.

    Args:
        step: One of the profiled steps.
        events: All that ran on the device while it was profiled.
        offset_ns: What `epoch_offset_ns` said.
        profiled: Beginning and end of the profile, on the tracker's clock.
    """
    placed = [event._replace(start=event.start - offset_ns) for event in events]
    began, ended = profiled
    inside = sum(began <= event.start and event.start + event.took <= ended for event in placed)
    if not placed or inside < (1 - _MOST_ASTRAY) * len(placed):
        return None
    pieces = _pieces(_within(placed, step), near_ns=int(_NEAR * (step.end - step.start)))
    longest = sorted(pieces, key=lambda piece: piece.start - piece.end)[:_MOST_WRITTEN]
    classes = sorted({piece.class_name for piece in longest})
    places = {name: place for place, name in enumerate(classes)}
    return {
        "step": step.number,
        "wall_us": (step.end - step.start) // 1000,
        "host": [[kind, *_since(step, start, end)] for kind, start, end in step.parts],
        "classes": classes,
        "pieces": [
            [*_since(step, piece.start, piece.end), places[piece.class_name], piece.count]
            for piece in sorted(longest, key=lambda piece: piece.start)
        ],
        "left_out": len(pieces) - len(longest),
    }


def _within(events: Sequence[Ran], step: EndedStep) -> Iterable[Ran]:
    """Cut events off at the step's borders, and leave out those that lie beyond."""
    for event in sorted(events, key=lambda event: event.start):
        start, end = max(event.start, step.start), min(event.start + event.took, step.end)
        if start < end:
            yield Ran(event.name, start, end - start)


def _pieces(events: Iterable[Ran], near_ns: int) -> List[_Piece]:
    """Join neighbours of one class."""
    found: List[_Piece] = []
    last: Dict[str, _Piece] = {}  # what each row of the drawing ends with
    for event in events:
        name, end = _class_of(event.name), event.start + event.took
        row = name if name in (COMMUNICATION, TRANSFERS) else ""
        before = last.get(row)
        if before is not None and before.class_name == name and event.start - before.end <= near_ns:
            before.end = max(before.end, end)
            before.count += 1
            continue
        last[row] = piece = _Piece(name, event.start, end)
        found.append(piece)
    return found


def _class_of(kernel: str) -> str:
    is_transfer = kernel.startswith("Memcpy") and ("HtoD" in kernel or "DtoH" in kernel)
    return TRANSFERS if is_transfer else class_of(kernel)


def _since(step: EndedStep, start: int, end: int) -> Tuple[float, float]:
    """Microseconds since the step began, to a tenth: kernels may be shorter than one."""
    return round((start - step.start) / 1000, 1), round((end - step.start) / 1000, 1)
