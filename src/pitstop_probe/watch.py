"""Watches one training thread: gathers regions, finds the borders of its steps, hands steps over.

Hooks call `enter` and `leave` around what they observe; an optimizer's step ends a step of the
training. Everything that takes thought (what was an evaluation, what is a part) happens when a
step is handed over, some steps later.
"""

import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from pitstop_probe.clock import (
    HAND_OVER_STEPS,
    HAND_OVER_US,
    DeviceTimer,
    Sink,
    Span,
    Step,
    Timeline,
    chosen,
)
from pitstop_probe.parts import RECOMPUTE, Region, aparts_of, name_gap, split

_MOST_PENDING = 64
_TIMELINE_EVERY = 64
# An optimizer that steps this much more rarely than the others does not set the pace.
_RARE = 20

_NS = 1000


class _Open:
    """A region that has not ended."""

    __slots__ = ("detail", "kind", "mark", "start")

    def __init__(self, kind: str, start: int, mark: Any, detail: Any) -> None:
        self.kind = kind
        self.start = start
        self.mark = mark
        self.detail = detail


# A region as it is noted, on the hot path: the fields of `Region`, times in nanoseconds.
_Noted = Tuple[str, int, int, Any, Any, Any]


class _Raw:
    """A step as the hooks saw it."""

    __slots__ = (
        "calls",
        "end",
        "end_mark",
        "index",
        "marks",
        "recompute",
        "regions",
        "samples",
        "special",
        "start",
        "start_mark",
    )

    def __init__(self, index: int, start: int, start_mark: Any) -> None:
        self.index = index
        self.start = start
        self.start_mark = start_mark
        self.end = 0
        self.end_mark: Any = None
        self.regions: List[_Noted] = []
        self.marks: List[Any] = []
        self.recompute: List[Tuple[int, int]] = []
        self.samples: Dict[int, int] = {}
        self.calls: Dict[int, int] = {}
        self.special: Optional[str] = None


class Pace:
    """Says which optimizer's step ends a step of the training.

    With several, it is the one that came into play last: a cycle of A and B ends with B. One that
    then hardly ever steps does not set the pace.
    """

    def __init__(self) -> None:
        self._closer: Optional[int] = None
        self._seen: Set[int] = set()
        self._others = 0

    def closes(self, optimizer: int) -> bool:
        """Take note of an optimizer's step; tell whether it ends a step of the training."""
        if optimizer not in self._seen:
            self._seen.add(optimizer)
            self._closer = optimizer
        if optimizer == self._closer:
            self._others = 0
            return True
        self._others += 1
        if self._others > _RARE * len(self._seen):
            self._closer = optimizer
            self._others = 0
            return True
        return False


class Watch:
    """One training thread under observation.

    Args:
        sink: Receives steps and events.
        device: Marks on the device's time line, if there is one.
        now_ns: The host's clock.
    """

    def __init__(
        self,
        sink: Sink,
        device: Optional[DeviceTimer] = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.sink = sink
        self.device = device
        self.now = now_ns
        self.active = True
        self.thread = threading.get_ident()
        self.pace = Pace()
        self.open: List[_Open] = []
        self.last_kind: Optional[str] = None
        self.raw: Optional[_Raw] = None
        self.steps = 0
        """Steps that ended, special ones included."""
        self.at_border: Callable[[int], None] = lambda _: None
        self.at_failure: Callable[[Exception], None] = lambda _: None
        self.gap_names: Dict[Tuple[Optional[str], Optional[str]], str] = {}
        """Better names for gaps, where looking at the stack has found some."""
        self.handed_over = 0
        self.wants_loss = False
        self.loss: Any = None
        """The last loss of a step whose loss was wanted, without its graph."""
        self._samples = 0
        self.evaluates: Set[int] = set()
        self.trains: Set[int] = set()
        self._marking = False
        self._last_mark: Any = None
        self._last_marked = 0
        self._waiting: Deque[_Raw] = deque()
        self._root = Span(None, "", None)  # type: ignore[arg-type]  # never entered

    @property
    def is_mine(self) -> bool:
        """Whether the caller is the watched thread, and it is being watched."""
        return self.active and threading.get_ident() == self.thread

    @property
    def samples_per_step(self) -> Optional[float]:
        """Mean over the steps handed over; None where no batch was seen."""
        return self._samples / self.handed_over if self._samples else None

    def enter(self, kind: str, detail: Any = None) -> bool:
        """Note that something begins; False when it is not to be noted, then do not leave it."""
        if not self.active or threading.get_ident() != self.thread:
            return False
        now = self.now()
        mark = self._mark_near(now) if self._marking else None
        self.open.append(_Open(kind, now, mark, detail))
        return True

    def leave(self, kind: str, detail: Any = None) -> None:
        """Note that the innermost region of this kind ends, and with it all inside it."""
        end = self.now()
        open_regions = self.open
        if not open_regions:
            return
        mark = self._mark() if self._marking else None
        top = open_regions.pop()
        if top.kind != kind:
            open_regions.append(top)
            self._leave_around(kind, end, mark)
            top = open_regions.pop() if open_regions and open_regions[-1].kind == kind else None
        if top is None or self.raw is None:
            return
        about = top.detail if detail is None else detail
        self.raw.regions.append((kind, top.start, end, about, top.mark, mark))
        self.last_kind = kind

    def _leave_around(self, kind: str, end: int, mark: Any) -> None:
        """End whatever was left open inside the innermost region of a kind, if there is one."""
        if not self.inside(kind):
            return
        while self.open[-1].kind != kind:
            lost = self.open.pop()
            if self.raw is not None:
                self.raw.regions.append((lost.kind, lost.start, end, lost.detail, lost.mark, mark))

    def note(self, kind: str, start: int, detail: Any = None) -> None:
        """Note something that has just ended and that began at `start`."""
        if self.raw is not None and self.active and threading.get_ident() == self.thread:
            self.raw.regions.append((kind, start, self.now(), detail, None, None))

    def inside(self, kind: str) -> bool:
        """Whether a region of this kind is open."""
        for region in self.open:  # noqa: SIM110 - the hot path: `any` takes three times as long
            if region.kind == kind:
                return True
        return False

    def count(self, model: int, samples: Optional[int]) -> None:
        """Add a training call of a model to the step under way."""
        if self.raw is not None:
            self.raw.calls[model] = self.raw.calls.get(model, 0) + 1
            if samples is not None:
                self.raw.samples[model] = self.raw.samples.get(model, 0) + samples

    def recomputed(self, start: int, end: int) -> None:
        """Take in that activations were computed again, on whatever thread."""
        if self.raw is not None and self.active:
            self.raw.recompute.append((start, end))

    def special(self, purpose: str) -> None:
        """Keep the step under way out of the times: it was slowed down to look more closely."""
        if self.raw is not None:
            self.raw.special = purpose

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped: a border, if it is the one that sets the pace."""
        if not self.active:
            return
        if self.raw is None and self.steps == 0:
            self.thread = threading.get_ident()
        if threading.get_ident() == self.thread and self.pace.closes(optimizer):
            self.border()

    def use_device(self, device: Optional[DeviceTimer]) -> None:
        """Measure on the device's clock, too, from the step that begins here."""
        self.device = device
        if device is not None and self.raw is not None:
            self.raw.start_mark = device.mark()

    def border(self) -> None:
        """End the step under way and begin the next.

        Whatever goes wrong in here is ours: the script goes on, unmeasured.
        """
        try:
            self._border()
        except Exception as error:  # noqa: BLE001 - measuring must never stop a training
            self.active = False
            sys.stderr.write("pitstop: measuring stopped: {!r}\n".format(error))
            self.at_failure(error)

    def _border(self) -> None:
        self._collect_if_due()
        now = self.now()
        mark = None if self.device is None else self.device.mark()
        raw = self.raw
        if raw is not None:
            self._end(raw, now, mark)
        index = self.steps
        self.raw = _Raw(index, now, mark)
        self._last_mark = None
        self._marking = self.device is not None and chosen(index, self.device.span_marks_every)
        self.last_kind = None
        self.at_border(self.steps)

    def restart(self) -> None:
        """Forget everything, in a process just forked: it may train by itself."""
        self.open, self.raw, self.steps, self.device = [], None, 0, None
        self.handed_over = self._samples = 0
        self.pace = Pace()
        self._waiting.clear()
        self._marking = False
        self.thread = threading.get_ident()

    def close(self) -> None:
        """Hand over all finished steps; the one under way is dropped, its end was not seen."""
        self.active = False
        self.raw = None
        self._collect(finish=True)

    def _end(self, raw: _Raw, now: int, mark: Any) -> None:
        for region in self.open:
            # It reaches over the border: the step gets what lies on its side.
            raw.regions.append((region.kind, region.start, now, region.detail, None, None))
            region.start = now
        raw.end, raw.end_mark = now, mark
        self._waiting.append(raw)
        self.steps += 1

    def _mark_near(self, now: int) -> Any:
        """Take the last mark where nothing can have been launched since; else make one."""
        near = self.device.same_point_us * _NS  # type: ignore[union-attr]
        if self._last_mark is not None and now - self._last_marked <= near:
            return self._last_mark
        return self._mark()

    def _mark(self) -> Any:
        mark = self.device.mark()  # type: ignore[union-attr]  # only called where there is one
        if self.raw is not None:
            self.raw.marks.append(mark)
        self._last_mark, self._last_marked = mark, self.now()
        return mark

    def _collect_if_due(self) -> None:
        """Hand steps over once some have gathered; the time this takes is ours, not the step's."""
        waiting = self._waiting
        if not waiting:
            return
        now = self.now()
        waited_us = (now - waiting[0].start) // _NS
        if len(waiting) >= HAND_OVER_STEPS or waited_us >= HAND_OVER_US:
            self._collect(finish=False)
            self.note("pitstop", now)

    def _collect(self, *, finish: bool) -> None:
        waiting, device = self._waiting, self.device
        while waiting:
            passed = device is None or device.passed(waiting[0].end_mark)
            if not passed and not finish and len(waiting) <= _MOST_PENDING:
                return
            self._hand_over(waiting.popleft(), device if passed else None)

    def _hand_over(self, raw: _Raw, device: Optional[DeviceTimer]) -> None:
        start_us = raw.start // _NS
        if raw.special is not None:
            wall_us = raw.end // _NS - start_us
            self.sink.event(raw.special, step=raw.index, start_us=start_us, wall_us=wall_us)
            return
        regions = _in_order(raw)
        aparts = aparts_of(regions, self.evaluates, self.trains)
        bounds = (start_us, raw.end // _NS)
        gap = self._gap if raw.calls else self._blind_gap
        times, stretches = split(regions, aparts, bounds, gap)
        step = Step(raw.index, start_us)
        step.apart_us = sum(end - start for _, start, end in stretches)
        step.wall_us = bounds[1] - bounds[0] - step.apart_us
        for name, entry in times.items():
            if entry[1]:
                step.host_us[self._span(name)] = entry
        self._add_recompute(step, raw)
        step.samples = max(raw.samples.values(), default=None)
        self._samples += step.samples or 0
        step.micro_steps = max(raw.calls.values(), default=None)
        if device is not None:
            self._add_device(step, raw, regions, device)
            device.release([m for m in [raw.start_mark, *raw.marks] if m is not raw.end_mark])
        if raw.index % _TIMELINE_EVERY == 0:
            step.timeline = self._timeline(regions, start_us)
        for name, start, end in stretches:
            self.sink.event(name, step=raw.index, start_us=start, wall_us=end - start)
        self.sink.step(step)
        self.handed_over += 1

    def _gap(self, before: Optional[str], after: Optional[str]) -> str:
        return self.gap_names.get((before, after)) or name_gap(before, after)

    def _blind_gap(self, before: Optional[str], after: Optional[str]) -> str:
        """Name a gap of a step in which no module was called: before gradients it is forward."""
        if after in ("backward", "zero_grad"):
            return "forward"
        return self._gap(before, after)

    def _span(self, name: str, parent: Optional[Span] = None) -> Span:
        place = self._root if parent is None else parent
        span = place.children.get(name)
        if span is None:
            span = place.children[name] = Span(None, name, place)  # type: ignore[arg-type]
        return span

    def _add_recompute(self, step: Step, raw: _Raw) -> None:
        backward = self._root.children.get("backward")
        if not raw.recompute or backward is None or backward not in step.host_us:
            return
        total_us = sum(end // _NS - start // _NS for start, end in _union(raw.recompute))
        # Autograd threads of a GPU run beside each other and may end after the call returned.
        total_us = min(total_us, step.host_us[backward][1])
        step.host_us[self._span(RECOMPUTE, backward)] = [len(raw.recompute), total_us]

    def _add_device(
        self, step: Step, raw: _Raw, regions: List[Region], device: DeviceTimer
    ) -> None:
        """Divide the device's time among the parts, in the way the host's was."""
        wall_us = device.elapsed_us(raw.start_mark, raw.end_mark)
        if wall_us is None:
            return
        if not any(region.start_mark is not None for region in regions):
            step.device_wall_us = max(0, wall_us - step.apart_us)
            return
        placed = []
        for region in regions:
            if region.start_mark is None or region.end_mark is None:
                continue
            start = device.elapsed_us(raw.start_mark, region.start_mark)
            end = device.elapsed_us(raw.start_mark, region.end_mark)
            if start is None or end is None or not 0 <= start <= end <= wall_us:
                return
            placed.append(region._replace(start=start, end=end))
        placed.sort(key=_place)
        aparts = aparts_of(placed, self.evaluates, self.trains)
        times, stretches = split(placed, aparts, (0, wall_us), self._gap)
        step.device_wall_us = wall_us - sum(end - start for _, start, end in stretches)
        for name, entry in times.items():
            span = self._root.children.get(name)
            if span is not None and span in step.host_us:
                step.device_us[span] = entry[1]

    def _timeline(self, regions: List[Region], zero_us: int) -> Tuple[Timeline, ...]:
        return tuple(
            Timeline(self._span(r.kind), r.start - zero_us, r.end - zero_us, None, None)
            for r in regions
        )


def _in_order(raw: _Raw) -> List[Region]:
    """Regions in whole microseconds, inside the step's borders, parents before their children."""
    low, high = raw.start // _NS, raw.end // _NS
    regions = [
        Region(kind, max(start // _NS, low), min(end // _NS, high), detail, mark, end_mark)
        for kind, start, end, detail, mark, end_mark in raw.regions
    ]
    # They were noted as they ended, so of two with the same place the later one is the parent.
    regions.reverse()
    regions.sort(key=_place)
    return regions


def _place(region: Region) -> Tuple[int, int]:
    return region.start, -region.end


def _union(intervals: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    merged: List[Tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
