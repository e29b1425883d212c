"""A clock for training steps: spans that nest, on host and device time, adding up exactly.

How a step is timed::

    clock.begin_step()              <- border: ends the previous step, starts the next
      with clock.span("data"):          host time always; device time where a device timer is given
          batch = next(batches)
      with clock.span("forward"):
          with clock.span("stage1"):    a child: its time is inside "forward", never beside it
              ...
      with clock.outside_step("evaluation"):   happens between borders but is not part of the step
          ...
    clock.begin_step()

Time is read in whole microseconds. Differences of whole numbers are exact, so in every step, on
either clock, the self times of all spans plus "unaccounted" equal the wall clock to the digit.

Nothing here waits for a device. Device marks are events recorded on the stream; a step is handed
to the sink once its last mark has been passed, some steps later.
"""

import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Protocol, Tuple

from pitstop_probe.forks import keep_for_parent, notify_of_forks


def monotonic_us() -> int:
    """Read the host's monotonic clock in whole microseconds."""
    return time.perf_counter_ns() // 1000


HAND_OVER_STEPS = 16
HAND_OVER_US = 500_000


class DeviceTimer(Protocol):
    """Marks points on a device's own time line without waiting for them."""

    span_marks_every: int
    """Spans are marked on one step in so many, on average; borders of steps always are. Reading a
    mark back costs more than making it, and a quarter of the steps tells as much as all."""
    same_point_us: int
    """Two points this close on the host's clock are one point of the device's queue, for no
    launch fits between them. Sharing a mark halves the marks of spans that follow each other."""

    def mark(self) -> Any:
        """Put a mark at the present end of the device's queue."""
        ...

    def passed(self, mark: Any) -> bool:
        """Tell, without waiting, whether the device has gone past the mark."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> Optional[int]:
        """Give the device time between two marks; None while one of them was not passed."""
        ...

    def release(self, marks: List[Any]) -> None:
        """Take marks back for reuse."""
        ...


# One time a span was open: span, start and end on the host's clock, start and end device marks. A
# plain tuple, since it is made on the hot path.
Occurrence = Tuple["Span", int, int, Any, Any]

# Marks by identity, in device microseconds since their step began; None where not known.
Places = Dict[int, Optional[int]]


class Timeline(NamedTuple):
    """Where one occurrence lies inside its step; microseconds since the step began."""

    span: "Span"
    start_us: int
    end_us: int
    device_start_us: Optional[int]
    device_end_us: Optional[int]


class Step:
    """One finished step as the sink receives it. Microseconds throughout.

    ``wall_us`` is border to border less what lay outside the step. ``device_wall_us`` and
    ``Span``-wise device times are None when no device timer ran or its marks never passed.
    """

    __slots__ = (
        "broken",
        "device_us",
        "device_wall_us",
        "host_us",
        "index",
        "micro_steps",
        "outside_us",
        "sampled",
        "samples",
        "start_us",
        "timeline",
        "wall_us",
    )

    def __init__(self, index: int, start_us: int) -> None:
        self.index = index
        self.start_us = start_us
        self.wall_us = 0
        self.outside_us = 0
        self.device_wall_us: Optional[int] = None
        self.samples: Optional[int] = None
        self.micro_steps: Optional[int] = None
        self.broken = 0
        self.sampled = True
        """Whether its parts were sampled; if not, spans missing here tell nothing."""
        self.host_us: Dict["Span", List[int]] = {}
        self.device_us: Dict["Span", int] = {}
        self.timeline: Tuple[Timeline, ...] = ()

    @property
    def accounted_us(self) -> int:
        """Host time inside spans: top-level spans only, since they contain their children."""
        return sum(total for span, (_, total) in self.host_us.items() if span.depth == 1)

    @property
    def unaccounted_us(self) -> int:
        """Host time of the step that no span saw."""
        return self.wall_us - self.accounted_us

    def self_us(self, span: "Span") -> int:
        """Host time inside a span and in none of its children."""
        inside = sum(total for child, (_, total) in self.host_us.items() if child.parent is span)
        return self.host_us[span][1] - inside


class UnsampledSteps(NamedTuple):
    """Steps in a row of which no more is known than their lengths and what was counted.

    Each begins where the one before ends, and nothing in them lies outside.
    """

    first: int
    """Number of the first."""
    start_us: int
    wall_us: List[int]
    samples: List[Optional[int]]
    micro_steps: List[Optional[int]]


def known_among(counts: List[Optional[int]]) -> List[int]:
    """Leave out what is not known; most often nothing."""
    if None not in counts:
        return counts  # type: ignore[return-value]
    return [count for count in counts if count is not None]


class Sink(Protocol):
    """Receives what the clock saw, in order."""

    def step(self, step: Step) -> None:
        """Take a finished step."""
        ...

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        """Take something that happened outside steps."""
        ...


class Span:
    """A named part of the step at one place in the tree; entering it starts it.

    A span object stands for all times that this name is open under this parent, so it is made
    once and reused. Entering and leaving are the hot path of all measuring: no call that can be
    spared, no object made.
    """

    __slots__ = ("children", "clock", "depth", "name", "opened", "opened_mark", "parent")

    def __init__(self, clock: "Clock", name: str, parent: Optional["Span"]) -> None:
        self.clock = clock
        self.name = name
        self.parent = parent
        self.depth = 0 if parent is None else parent.depth + 1
        self.children: Dict[str, "Span"] = {}
        self.opened = 0
        self.opened_mark: Any = None

    @property
    def path(self) -> Tuple[str, ...]:
        """Names from the step down to this span."""
        return () if self.parent is None else (*self.parent.path, self.name)

    def __enter__(self) -> "Span":
        clock = self.clock
        if clock.current is not self.parent:
            # Kept from another place of the tree: entering it here would break the nesting.
            return self
        clock.current = self
        if clock.marking:
            self.opened, self.opened_mark = clock.point()
        else:
            self.opened = clock.now()
        return self

    def __exit__(self, *exc: object) -> None:
        clock = self.clock
        end = clock.now()
        pending = clock.pending
        if pending is None or (clock.current is not self and not clock.unwind_to(self)):
            return
        mark = clock.mark() if clock.marking else None
        pending.occurrences.append((self, self.opened, end, self.opened_mark, mark))
        clock.current = self.parent  # type: ignore[assignment]  # the root is never entered

    def __repr__(self) -> str:
        return "Span({!r})".format("/".join(self.path))


class _OutsideStep:
    """Time between step borders that does not belong to the step."""

    __slots__ = ("_clock", "_name", "_opened", "_span")

    def __init__(self, clock: "Clock", name: str) -> None:
        self._clock = clock
        self._name = name
        self._opened: OpenedOutside = (0, None, None)
        self._span: Optional[Span] = None

    def __enter__(self) -> None:
        self._span = self._clock.inner_span(self._name)
        if self._span is not None:
            self._span.__enter__()
            return
        self._opened = self._clock.open_outside()

    def __exit__(self, *exc: object) -> None:
        if self._span is not None:
            self._span.__exit__()
            return
        self._clock.close_outside(self._name, self._opened)


# Where an interval outside the step began: host clock, device mark, and the step it is taken out
# of, if any.
OpenedOutside = Tuple[int, Any, Optional["_Pending"]]


class _Nothing:
    """A context that measures nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


_NOTHING = _Nothing()


class _Pending:
    """A step whose device marks may not have been passed yet."""

    __slots__ = (
        "end_mark",
        "marks",
        "occurrences",
        "outside",
        "start_mark",
        "step",
        "wants_timeline",
    )

    def __init__(self, step: Step, start_mark: Any, *, wants_timeline: bool) -> None:
        self.step = step
        self.start_mark = start_mark
        self.end_mark: Any = None
        self.marks: List[Any] = [] if start_mark is None else [start_mark]
        self.occurrences: List[Occurrence] = []
        self.outside: List[Tuple[Any, Any]] = []
        self.wants_timeline = wants_timeline


class Clock:
    """Times steps and the spans inside them, and hands each finished step to a sink.

    Args:
        sink: Receives finished steps, and events outside steps, in order.
        device: Marks on the device's time line; None measures the host's clock only.
        now_us: The host's clock, whole microseconds; replaced by a fake in tests.
        timeline_every: Each how many steps the places of all spans are kept, not only totals.
        most_pending: How many steps may wait for the device before they are handed over without
            device times; bounds memory when a device hangs.

    In a forked process it begins anew, without a device: the parent's is out of reach there.
    """

    def __init__(
        self,
        sink: Sink,
        device: Optional[DeviceTimer] = None,
        now_us: Callable[[], int] = monotonic_us,
        *,
        timeline_every: int = 256,
        most_pending: int = 64,
    ) -> None:
        self.device = device
        self.now_us = now_us
        # The hot path reads raw ticks; they become whole microseconds when a step is handed over.
        # Each reading is cut down by itself, so differences still add up exactly.
        self.now: Callable[[], int] = time.perf_counter_ns if now_us is monotonic_us else now_us
        self.ticks_per_us = 1000 if now_us is monotonic_us else 1
        self._same_point = 0 if device is None else device.same_point_us * self.ticks_per_us
        self.foreign_spans = 0
        self._sink = sink
        self._timeline_every = timeline_every
        self._most_pending = most_pending
        self._next_index = 0
        self._begin_anew()
        notify_of_forks(self)

    def _begin_anew(self) -> None:
        self.marking = False
        self._root = Span(self, "", None)
        # Current while something outside the step is open: nothing in there belongs to the step.
        self._aside = Span(self, "", None)
        self.current = self._root
        self.pending: Optional[_Pending] = None
        self._waiting: Deque[_Pending] = deque()
        self._thread = threading.get_ident()
        self._last_mark: Any = None
        self._last_marked = 0

    def forked(self) -> None:
        """Begin anew in a process just forked; its parent's steps and marks are its parent's."""
        # Spans hold the marks at which they were opened last.
        keep_for_parent((self.device, self.pending, self._waiting, self._last_mark, self._root))
        self.device = None
        self._begin_anew()

    @property
    def step_index(self) -> int:
        """Index of the step under way, or of the next one when none is."""
        return self._next_index if self.pending is None else self.pending.step.index

    def begin_step(self, index: Optional[int] = None) -> None:
        """Mark a border: end the step under way, if any, and start the next.

        Earlier steps are handed over first, while the device still works on what this step gave
        it: there the time costs nothing.
        """
        if self.device is not None:
            self._collect_if_due()
        now, mark = self.point()
        now_us = now // self.ticks_per_us
        self._finish_step(now_us, mark)
        if index is not None:
            self._next_index = index
        self._thread = threading.get_ident()
        wants_timeline = self._next_index % self._timeline_every == 0
        self.marking = self.device is not None and (
            wants_timeline or chosen(self._next_index, self.device.span_marks_every)
        )
        self.pending = _Pending(Step(self._next_index, now_us), mark, wants_timeline=wants_timeline)
        self._next_index += 1
        if self.device is None:
            self._collect_if_due()

    def end_step(self) -> None:
        """End the step under way without starting another."""
        now, mark = self.point()
        self._finish_step(now // self.ticks_per_us, mark)
        self.collect()

    def count(self, *, samples: int, micro_steps: int = 1) -> None:
        """Add samples and micro-steps to the step under way; nothing outside it."""
        if self.pending is not None and self.current is not self._aside:
            step = self.pending.step
            step.samples = (step.samples or 0) + samples
            step.micro_steps = (step.micro_steps or 0) + micro_steps

    def span(self, name: str) -> Any:
        """Name a part of the step; use as ``with clock.span("forward"):``.

        Outside a step and inside `outside_step` nothing is measured. A span opened by another
        thread than the one that began the step would overlap its spans, so it is not measured but
        counted.
        """
        if self.pending is None:
            return _NOTHING
        if threading.get_ident() != self._thread:
            self.foreign_spans += 1
            return _NOTHING
        current = self.current
        if current is self._aside:
            return _NOTHING
        child = current.children.get(name)
        if child is None:
            child = current.children[name] = Span(self, name, current)
        return child

    def outside_step(self, name: str) -> _OutsideStep:
        """Name something that is not part of the step: evaluation, a checkpoint, start-up.

        Inside an open span it is measured as a span instead, for time cannot be taken out of the
        middle of a part that was already begun.
        """
        return _OutsideStep(self, name)

    def inner_span(self, name: str) -> Optional[Span]:
        """Give the span to use for `name` when a span is already open, else None."""
        at_top = self.current is self._root or self.current is self._aside
        if at_top or threading.get_ident() != self._thread:
            return None
        span = self.span(name)
        return span if isinstance(span, Span) else None

    def point(self) -> Tuple[int, Any]:
        """Read both clocks at one point of the program, where a part begins: ticks and a mark."""
        now = self.now()
        if self.device is None:
            return now, None
        if now - self._last_marked <= self._same_point and self._last_mark is not None:
            return now, self._last_mark
        return now, self.mark()

    def mark(self) -> Any:
        """Put a mark at the end of the device's queue, and remember whose it is."""
        mark = self.device.mark()  # type: ignore[union-attr]  # callers looked
        if self.pending is not None:
            self.pending.marks.append(mark)
        self._last_mark = mark
        self._last_marked = self.now()
        return mark

    def open_outside(self) -> OpenedOutside:
        """Begin an interval outside the step; called by its context manager.

        Only the outermost one of the step's own thread is taken out of the step: one inside it
        is in its time already, and one of another thread runs beside the step.
        """
        own = threading.get_ident() == self._thread
        if self.pending is None or self.current is not self._root or not own:
            return self.now_us(), None, None
        now, mark = self.point()
        self.current = self._aside
        return now // self.ticks_per_us, mark, self.pending

    def close_outside(self, name: str, opened: OpenedOutside) -> None:
        """Record an interval outside the step that ends now; called by its context manager."""
        start_us, start_mark, pending = opened
        index = self.step_index
        if pending is None or pending is not self.pending:
            # Its step is over: what lay in there stays unaccounted rather than being guessed.
            end_us = self.now_us()
        else:
            end, end_mark = self.point()
            end_us = end // self.ticks_per_us
            pending.step.outside_us += end_us - start_us
            pending.outside.append((start_mark, end_mark))
            self.current = self._root
        self._sink.event(name, step=index, start_us=start_us, wall_us=end_us - start_us)

    def collect(self) -> None:
        """Hand over every step whose device marks have been passed, oldest first."""
        waiting = self._waiting
        while waiting:
            passed = self.device is None or self.device.passed(waiting[0].end_mark)
            if not passed and len(waiting) <= self._most_pending:
                return
            self._hand_over(waiting.popleft(), device=self.device if passed else None)

    def _collect_if_due(self) -> None:
        """Hand over once some steps have gathered, or the oldest has waited for long enough.

        Most steps then end without the writer's work. That this is cheaper in all is not shown:
        see the lab notes.
        """
        waiting = self._waiting
        if not waiting:
            return
        waited_us = self.now() // self.ticks_per_us - waiting[0].step.start_us
        if len(waiting) >= HAND_OVER_STEPS or waited_us >= HAND_OVER_US:
            self.collect()

    def close(self) -> None:
        """End the step under way and hand over all steps, those the device never passed too."""
        if self.pending is not None:
            self.end_step()
        self.collect()
        while self._waiting:
            self._hand_over(self._waiting.popleft(), device=None)

    def unwind_to(self, span: Span) -> bool:
        """Drop spans left open inside `span`; False if `span` itself is not open."""
        assert self.pending is not None
        left_open = 0
        walker: Optional[Span] = self.current
        while walker is not None and walker is not span:
            left_open += 1
            walker = walker.parent
        if walker is None:
            self.pending.step.broken += 1
            return False
        self.pending.step.broken += left_open
        return True

    def _finish_step(self, now_us: int, mark: Any) -> None:
        pending = self.pending
        if pending is None:
            return
        if self.current is not self._root:
            # Its end was never seen, so its time stays unaccounted rather than being guessed.
            pending.step.broken += self.current.depth
            self.current = self._root
        step = pending.step
        step.wall_us = now_us - step.start_us - step.outside_us
        pending.end_mark = mark
        self.pending = None
        self._waiting.append(pending)

    def _hand_over(self, pending: _Pending, device: Optional[DeviceTimer]) -> None:
        step = pending.step
        host_us = step.host_us
        ticks = self.ticks_per_us
        for span, start, end, _, _ in pending.occurrences:
            took_us = end // ticks - start // ticks
            entry = host_us.get(span)
            if entry is None:
                host_us[span] = [1, took_us]
            else:
                entry[0] += 1
                entry[1] += took_us
        if step.broken:
            _drop_orphans(host_us)
        places = {} if device is None else _read_device(pending, device)
        if pending.wants_timeline:
            step.timeline = _timeline(pending, places, ticks)
        self._sink.step(step)
        if device is not None:
            # The end border's mark stays out of the pool: the next step begins there.
            device.release([mark for mark in pending.marks if mark is not pending.end_mark])


def _drop_orphans(host_us: Dict[Span, List[int]]) -> None:
    """Leave out parts of a part whose end was not seen: they would take more than the whole."""
    inside: Dict[Span, int] = {}
    for span, (_, total) in host_us.items():
        if span.parent is not None and span.parent.parent is not None:
            inside[span.parent] = inside.get(span.parent, 0) + total
    torn = {part for part, total in inside.items() if total > host_us.get(part, (0, 0))[1]}
    for span in list(host_us):
        above = span.parent
        while above is not None:
            if above in torn:
                del host_us[span]
                break
            above = above.parent


def chosen(index: int, every: int) -> bool:
    """Choose one step in `every` by its number, without a period that a script might share."""
    return ((index * 0x9E3779B1 & 0xFFFFFFFF) >> 16) % every == 0


def _read_device(pending: _Pending, device: DeviceTimer) -> Places:
    """Turn marks into places on the device's time line since the step began."""
    zero = pending.start_mark
    elapsed_us = device.elapsed_us
    end_mark = pending.end_mark
    places: Places = {id(zero): 0, id(end_mark): elapsed_us(zero, end_mark)}
    for mark in pending.marks:
        if id(mark) not in places:
            places[id(mark)] = elapsed_us(zero, mark)
    wall_us = _between(places, zero, end_mark)
    outside = [_between(places, start, end) for start, end in pending.outside]
    if wall_us is None or None in outside:
        return {}
    pending.step.device_wall_us = wall_us - sum(us for us in outside if us is not None)
    if pending.occurrences and pending.occurrences[0][4] is not None:
        _add_span_times(pending, places)
    return places


def _add_span_times(pending: _Pending, places: Places) -> None:
    """Add up the device time of each span; of a span with an unknown part nothing is known."""
    device_us = pending.step.device_us
    unknown = []
    for span, _, _, start, end in pending.occurrences:
        start_us, end_us = places[id(start)], places[id(end)]
        if start_us is None or end_us is None or end_us < start_us:
            unknown.append(span)
        elif span in device_us:
            device_us[span] += end_us - start_us
        else:
            device_us[span] = end_us - start_us
    for span in unknown:
        device_us.pop(span, None)


def _between(places: Places, start: Any, end: Any) -> Optional[int]:
    """Device time between two marks; None when it is not known.

    Marks on two streams need not come in the order in which they were made, and one on a side
    stream may not have been passed yet.
    """
    start_us, end_us = places.get(id(start)), places.get(id(end))
    if start_us is None or end_us is None or end_us < start_us:
        return None
    return end_us - start_us


def _timeline(pending: _Pending, places: Places, ticks: int) -> Tuple[Timeline, ...]:
    zero = pending.step.start_us
    rows = []
    for span, opened, closed, start, end in pending.occurrences:
        known = _between(places, start, end) is not None
        device = (places[id(start)], places[id(end)]) if known else (None, None)
        rows.append(Timeline(span, opened // ticks - zero, closed // ticks - zero, *device))
    return tuple(sorted(rows, key=lambda row: (row.start_us, -row.end_us, row.span.depth)))
