"""Tracks one training thread: gathers regions, finds the borders of its steps, hands steps over.

Hooks call `enter` and `leave` around what they observe; an optimizer's step ends a step of the
training. Everything that takes thought (what was an evaluation, what is a part) happens when a
step is handed over, some steps later.

Short steps are not all sampled: see `StepTracker.is_sampling`.
"""

import sys
import time
from bisect import bisect
from collections import deque
from itertools import islice
from operator import sub
from threading import get_ident
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from pitstop_probe.clock import (
    HAND_OVER_US,
    DeviceTimer,
    Sink,
    Span,
    Step,
    Timeline,
    UnsampledSteps,
    chosen,
)
from pitstop_probe.forks import keep_for_parent
from pitstop_probe.stderr import say
from pitstop_probe.steps.gaps import Gaps
from pitstop_probe.steps.parts import (
    ALWAYS_OUTSIDE,
    CLOSURE,
    MODE,
    RECOMPUTE,
    GapNames,
    Noted,
    Region,
    Times,
    Unset,
    after_aside,
    evaluates,
    is_plain,
    outside_intervals,
    rounds_of,
    split,
    split_plain,
)
from pitstop_probe.steps.samples import Call, Counts
from pitstop_probe.steps.sampling import SHORT, Rate, Sampling

# Steps are handed over together: one by one the same work takes twice as long, for the script's
# own has driven it out of the processor's caches in between.
_HAND_OVER_STEPS = 64
_MOST_PENDING = 4 * _HAND_OVER_STEPS
_TIMELINE_EVERY = 64
# So many steps a timeline waits for one whose parts are marked on the device.
_TIMELINE_PATIENCE = 32
# Regions that a timeline does not show: no time of their own, or no part of the step.
_UNDRAWN = frozenset((CLOSURE, MODE, *ALWAYS_OUTSIDE))
_MOST_OUTSIDE = 1024
_MOST_UNDECIDED = 1 << 14
# An optimizer that steps this much more rarely than the others does not set the pace.
_RARE = 20

_NS = 1000

# Places in a noted region.
_KIND, _START, _END, _DETAIL, _START_MARK, _END_MARK = range(6)


class _Raw:
    """A step as the hooks saw it, or some steps in a row that were not sampled."""

    __slots__ = (
        "calls",
        "end",
        "end_mark",
        "index",
        "marks",
        "recompute",
        "regions",
        "sampled",
        "special",
        "start",
        "start_mark",
    )

    end: int
    end_mark: Any

    def __init__(self, index: int, start: int, start_mark: Any, *, sampled: bool) -> None:
        self.index = index
        self.sampled = sampled
        """Whether it was sampled, from its beginning."""
        self.start = start
        self.start_mark = start_mark
        self.regions: List[Noted] = []
        """In the order in which they began, those noted afterwards excepted. Of several steps
        they lie in the last."""
        self.calls: List[Any] = []
        """Training calls: model and samples. Of several steps also the border after each but the
        last, which is a bare number."""
        self.marks: Optional[List[Any]] = None
        self.recompute: Optional[List[Tuple[int, int]]] = None
        self.special: Optional[str] = None

    def by_step(self) -> Tuple[List[int], List[Sequence[Call]]]:
        """Give the end of each of its steps, and the training calls made in it."""
        made, ends = self.calls[::2], self.calls[1::2]
        if len(made) > len(ends) and set(map(type, ends)) <= {int} and int not in map(type, made):
            return [*ends, self.end], list(zip(made))  # one call a step, as in most trainings
        ends, calls = [], []
        by_step: List[Sequence[Call]] = [calls]
        for item in self.calls:
            if item.__class__ is int:
                ends.append(item)
                calls = []
                by_step.append(calls)
            else:
                calls.append(item)
        return [*ends, self.end], by_step


class StepSink(Sink, Protocol):
    """Receives steps that were sampled one by one, and others together."""

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        """Take steps whose parts were not sampled."""
        ...


class StepEnds:
    """Says which optimizer's step ends a step of the training.

    With several, it is the one that came into play last: a cycle of A and B ends with B. One that
    then hardly ever steps does not set the pace.
    """

    def __init__(self) -> None:
        self.closer: Optional[int] = None
        self._seen: Set[int] = set()
        self.others = 0

    def closes(self, optimizer: int) -> bool:
        """Take note of an optimizer's step; tell whether it ends a step of the training."""
        if optimizer == self.closer:
            self.others = 0
            return True
        if optimizer not in self._seen:
            self._seen.add(optimizer)
            self.closer = optimizer
            self.others = 0
            return True
        self.others += 1
        if self.others > _RARE * len(self._seen):
            self.closer = optimizer
            self.others = 0
            return True
        return False


class Recorded:
    """What was recorded into a CUDA graph.

    Attributes:
        optimizer: Identity of the one whose step it holds, the last of several.
        has_gradients: Whether it holds a backward pass.
    """

    __slots__ = ("has_gradients", "optimizer", "wanted_loss")

    def __init__(self) -> None:
        self.optimizer: Optional[int] = None
        self.has_gradients = False
        self.wanted_loss = False


class StepTracker:
    """One training thread under observation.

    Args:
        sink: Receives steps and events.
        device: Marks on the device's time line, if there is one.
        now_ns: The host's clock.
    """

    # Found by place: a dictionary of so many names is read more slowly, from memory gone cold.
    __slots__ = (
        "_around",
        "_counts",
        "_hand_over_at",
        "_last_mark",
        "_last_marked",
        "_marking",
        "_next_timeline",
        "_paused_at",
        "_plain_until",
        "_root",
        "_sampling",
        "_waiting",
        "active",
        "at",
        "at_border",
        "at_failure",
        "device",
        "evaluates",
        "gaps",
        "is_capturing",
        "is_sampling",
        "last_kind",
        "loss",
        "next_stop",
        "now",
        "open",
        "outside",
        "raw",
        "recorded",
        "sampled_steps",
        "settled",
        "sink",
        "step_ends",
        "steps",
        "thread",
        "trains",
        "wants_loss",
    )

    def __init__(
        self,
        sink: StepSink,
        device: Optional[DeviceTimer] = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.sink = sink
        self.now = now_ns
        self.active = True
        self.at_border: Callable[[int], None] = lambda _: None
        self.at_failure: Callable[[Exception], None] = lambda _: None
        self.recorded: Optional[Recorded] = None
        """What a CUDA graph holds that is being recorded; nothing of it is made yet."""
        self.wants_loss = False
        self.loss: Any = None
        """The last loss of a step whose loss was wanted, without its graph."""
        self.evaluates: Set[int] = set()
        """Loaders that feed evaluations."""
        self.trains: Set[int] = set()
        """Loaders that feed training steps, and models that train though set to evaluate."""
        self._last_mark: Any = None
        self._last_marked = 0
        self._hand_over_at = now_ns() + HAND_OVER_US * _NS
        self._paused_at = 0
        self._root = Span(None, "", None)  # type: ignore[arg-type]  # never entered
        self.restart()
        self.device = device

    def forked(self) -> None:
        """Forget the parent's steps, in a process just forked; it may train by itself."""
        keep_for_parent(
            (self.device, self.raw, self._waiting, self.open, self._last_mark, self.loss)
        )
        self._last_mark = self.loss = None
        self.wants_loss = False
        self.restart()

    def restart(self) -> None:
        """Forget all steps."""
        self.thread = get_ident()
        self.step_ends = StepEnds()
        self.device: Optional[DeviceTimer] = None
        self.is_sampling = True
        """Whether the parts of the step under way are noted. Where not, hooks do no more than keep
        `at` and `last_kind`; what `is_plain` knows nothing of (a loader's start, an evaluation, a
        checkpoint) is noted all the same, and with it the rest of its step."""
        self.at: Optional[str] = None
        """What the thread is in, innermost, while it is not noted."""
        self.open: List[Noted] = []
        self.last_kind: Optional[str] = None
        self.raw: Optional[_Raw] = None
        self.steps = 0
        """Steps that ended, special ones included."""
        self.next_stop = 0
        """The step before which `at_border` is called next; unless it says so, before each."""
        self.settled = 0
        """The step before which all were handed over."""
        self.outside: List[Tuple[int, int, str]] = []
        """Of these, what lay outside steps lately, special steps among it: start and end in us."""
        # Tells whether work for a GPU is being recorded into a graph; None without a GPU.
        self.is_capturing: Optional[Callable[[], bool]] = None
        self.gaps = Gaps()
        self.sampled_steps = 0
        """Steps that ended and were sampled, special ones excepted."""
        self._counts = Counts()
        self._sampling = Sampling()
        # Borders that lead to a step before this one only add to the run of steps under way.
        self._plain_until = 0
        self._around: List[Optional[str]] = []
        self._next_timeline, self._marking = 0, False
        self._waiting: Deque[_Raw] = deque()

    @property
    def is_mine(self) -> bool:
        """Whether the caller is the training thread, and it is being tracked."""
        return self.active and get_ident() == self.thread

    @property
    def rate(self) -> Optional[Rate]:
        """How closely steps are observed; None where all are sampled."""
        return self._sampling.rate

    @property
    def samples_per_step(self) -> Optional[float]:
        """Mean over the steps whose samples are known; None where no batch was seen."""
        return self._counts.samples_per_step

    def begin(self, kind: str, detail: Any = None) -> Optional[Noted]:
        """Note that something begins; None when it is not to be noted, then there is no end.

        With `end` the hot path of all tracking. Between two calls the script's own work has driven
        everything out of the processor's caches, so what counts is how little is touched.
        """
        if get_ident() != self.thread or not self.active:
            return None
        if not self.is_sampling:
            if is_plain(kind, detail, self.trains):
                return None
            self.is_sampling, self._plain_until = True, 0
        now = self.now()
        region: Noted = [kind, now, 0, detail, None, None]
        if self._marking:
            region[_START_MARK] = self._mark_near(now)
        self.open.append(region)
        if self.raw is not None:
            self.raw.regions.append(region)
        return region

    def end(self, region: Noted) -> None:
        """Note that something that was begun ends, and with it all that was left open inside."""
        end = self.now()
        open_regions = self.open
        is_innermost = open_regions and open_regions[-1] is region
        if not is_innermost and not self._end_inside(region, end):
            return
        open_regions.pop()
        region[_END] = end
        if self._marking:
            region[_END_MARK] = self._mark()
        self.last_kind = after_aside(self.last_kind, region[_KIND])

    def _end_inside(self, region: Noted, end: int) -> bool:
        """End whatever was left open inside a region; False if that is not open itself."""
        if not any(other is region for other in self.open):
            return False
        while self.open[-1] is not region:
            self.open.pop()[_END] = end
        return True

    def enter(self, kind: str, detail: Any = None) -> bool:
        """Begin a region that is ended by its kind; False when it is not to be noted."""
        if self.begin(kind, detail) is not None:
            return True
        if self.is_sampling or not self.is_mine:
            return False
        self._around.append(self.at)
        self.at = kind
        return True

    def leave(self, kind: str) -> None:
        """End the innermost region of a kind."""
        if self._around and self.at == kind:
            self.at, self.last_kind = self._around.pop(), after_aside(self.last_kind, kind)
            return
        for region in reversed(self.open):
            if region[_KIND] == kind:
                self.end(region)
                return

    def note(self, kind: str, start: int, detail: Any = None) -> None:
        """Note something that has just ended and that began at `start`."""
        if get_ident() == self.thread and self.active and self.raw is not None:
            self.raw.regions.append([kind, start, self.now(), detail, None, None])
            self._plain_until = 0

    def mode(self, purpose: str) -> None:
        """Note the moment in which a model that trains was set to evaluate, or back."""
        if get_ident() != self.thread or not self.active or self.raw is None:
            return
        self.is_sampling, self._plain_until = True, 0
        now = self.now()
        self.raw.regions.append([MODE, now, now, purpose, None, None])

    def inside(self, kind: str) -> bool:
        """Whether a region of this kind is open."""
        for region in self.open:  # noqa: SIM110 - the hot path: `any` takes three times as long
            if region[_KIND] == kind:
                return True
        return False

    def count(self, model: int, samples: Optional[int]) -> None:
        """Add a training call of a model to the step under way."""
        if self.raw is not None:
            self.raw.calls.append((model, samples))

    def recomputed(self, start: int, end: int) -> None:
        """Take in that activations were computed again, on whatever thread."""
        if self.is_sampling and self.raw is not None and self.active:
            if self.raw.recompute is None:
                self.raw.recompute = []
            self.raw.recompute.append((start, end))

    def special(self, purpose: str) -> None:
        """Keep the step under way out of the times: it was slowed down for a deep profile."""
        if self.raw is not None:
            self.raw.special = purpose

    def steps_by(self, optimizer: int, around: Optional[str]) -> bool:
        """Take in a border between two steps that are not sampled; False where it is another.

        Args:
            optimizer: Identity of the one that has stepped.
            around: What its step was called in.
        """
        step, step_ends = self.steps + 1, self.step_ends
        if step >= self._plain_until or optimizer != step_ends.closer or get_ident() != self.thread:
            return False
        now = self.now()
        if now >= self._hand_over_at:
            return False
        step_ends.others = 0
        self.steps, self.at, self.last_kind = step, around, None
        self.raw.calls.append(now)  # type: ignore[union-attr]  # there is a run
        return True

    def last_ended(self) -> Optional[Tuple[int, int, int, List[Tuple[str, int, int]]]]:
        """Give the step that ended at this border: number, start, end and its parts, all in ns.

        None where its parts were not noted.
        """
        raw = self._waiting[-1] if self._waiting else None
        if raw is None or not raw.sampled:
            return None
        parts = [
            (kind, max(start, raw.start), min(end, raw.end))
            for kind, start, end, *_ in raw.regions
            if kind not in _UNDRAWN and end > raw.start
        ]
        return raw.index, raw.start, raw.end, sorted(parts, key=lambda part: (part[1], -part[2]))

    def record(self, recorded: Optional[Recorded]) -> None:
        """Begin to record into a CUDA graph, or end it: meanwhile no step ends."""
        if recorded is not None:
            # Where gradients begin they are seen; no border is passed by unseen.
            recorded.wanted_loss, self.wants_loss, self._plain_until = self.wants_loss, True, 0
        elif self.recorded is not None:
            self.wants_loss = self.recorded.wanted_loss
        self.recorded = recorded

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped: a border, if it is the one that sets the pace.

        Whatever goes wrong in here is ours: the script goes on, unmeasured.
        """
        if self.steps_by(optimizer, self.at) or not self.active:
            return
        if self.recorded is not None:
            self.recorded.optimizer = optimizer
            return
        if self.raw is None and self.steps == 0:
            self.thread, self.is_capturing = get_ident(), _capture_test()
        if get_ident() != self.thread or not self.step_ends.closes(optimizer):
            return
        try:
            if self.is_capturing is None or not self.is_capturing():  # else it was only recorded
                self._border()
        except Exception as error:  # noqa: BLE001 - measuring must never stop a training
            self.active = False
            say("measuring stopped: {!r}".format(error))
            self.at_failure(error)

    def use_device(self, device: Optional[DeviceTimer]) -> None:
        """Measure on the device's clock, too, from the step that begins here."""
        self.device = device
        if device is not None and self.raw is not None:
            self.raw.start_mark = device.mark()

    def _border(self) -> None:
        """End the step under way and begin the next."""
        now = self.now()
        if now >= self._hand_over_at or len(self._waiting) >= _HAND_OVER_STEPS:
            self._hand_over_all(now)
            now = self.now()
        raw, step = self.raw, self.steps
        if raw is not None:
            self._take_in(raw, now)
            step += 1
        next_sampled = self._sampling.next_sampled(step)
        self.is_sampling = is_sampling = next_sampled == step
        mark = None if self.device is None else self._mark_border(self.device, now, step)
        if raw is not None:
            raw.end, raw.end_mark = now, mark
            self._waiting.append(raw)
            self.steps = step
        self.raw = following = _Raw(step, now, mark, sampled=is_sampling)
        if self.open:
            self._divide_open(raw, following)
        if is_sampling and self.at is not None:
            self._take_up()
        if self._marking:
            following.marks = []
        self.last_kind = None
        if step >= self.next_stop:
            self.at_border(step)
        is_plain_run = not self.is_sampling and following.special is None and not following.regions
        self._plain_until = min(next_sampled, self.next_stop) if is_plain_run else 0

    def _take_in(self, raw: _Raw, end: int) -> None:
        """Learn from a step that was sampled how many to sample.

        Those that were not tell it when they are handed over.
        """
        if not raw.sampled:
            return
        sampling, all_were = self._sampling, self._sampling.rate is None
        self.sampled_steps += raw.special is None
        sampling.ended(end - raw.start)
        if all_were and sampling.rate is not None:
            # Which loaders train is known once steps are handed over, and asked for from here on.
            self._hand_over_at = 0

    def _mark_border(self, device: DeviceTimer, now: int, step: int) -> Any:
        """Decide whether the next step is marked; mark a border that a marked step lies at.

        Of long steps all borders are marked, whatever is inside.
        """
        raw, was_marked = self.raw, self._marking
        self._last_mark = None
        rate = self._sampling.rate
        if rate is not None:
            self._marking = self.is_sampling and chosen(step, rate.mark_every)
            return device.mark() if was_marked or self._marking else None
        is_short = raw is not None and now - raw.start < SHORT.limit_ns
        self._marking = chosen(step, device.span_marks_every * (2 if is_short else 1))
        return device.mark() if not is_short or was_marked or self._marking else None

    def _take_up(self) -> None:
        """Note what was not noted and reaches over the border into a step that is sampled.

        Whoever is in there ends it by its kind.
        """
        kind, self.at = self.at, None
        assert kind is not None
        self._around.clear()
        self.begin(kind)

    def _divide_open(self, ended: Optional[_Raw], following: _Raw) -> None:
        """Cut what reaches over the border: each step gets what lies on its side."""
        now = following.start
        for region in self.open:
            if ended is not None:
                place = next(n for n, other in enumerate(ended.regions) if other is region)
                first = [region[_KIND], region[_START], now, region[_DETAIL], None, None]
                ended.regions[place] = first
            region[_START], region[_START_MARK] = now, None
            following.regions.append(region)

    def pause(self) -> None:
        """Stop tracking; the step under way is dropped, for its end is not seen."""
        self._paused_at = self.now()
        self.wants_loss, self.loss = False, None
        if self._stop():
            self.steps += 1  # no other step gets its number

    def resume(self) -> None:
        """StepTracker again, from the next border on."""
        self._hand_over_at += self.now() - self._paused_at
        self.open.clear()
        self._around.clear()
        self.at = self.last_kind = None
        self.active = self.is_sampling = True

    def close(self) -> None:
        """Hand over all finished steps; the one under way is dropped, its end was not seen."""
        self._stop()
        self._collect(finish=True)

    def _stop(self) -> bool:
        """Stop tracking; tell whether a step was under way."""
        raw = self.raw
        self.active = False
        self._plain_until = 0
        self.raw = None
        if raw is not None and not raw.sampled and _cut_at_last_border(raw):
            self._waiting.append(raw)
        return raw is not None

    def _mark_near(self, now: int) -> Any:
        """Take the last mark where nothing can have been launched since; else make one."""
        near = self.device.same_point_us * _NS  # type: ignore[union-attr]
        if self._last_mark is not None and now - self._last_marked <= near:
            return self._last_mark
        return self._mark()

    def _mark(self) -> Any:
        if self.is_capturing is not None and self.is_capturing():
            # A mark would go into the graph; and half of the marks tell nothing of the step.
            self._marking = False
            if self.raw is not None:
                self.raw.start_mark = None
            return None
        mark = self.device.mark()  # type: ignore[union-attr]  # only called where there is one
        if self.raw is not None and self.raw.marks is not None:
            self.raw.marks.append(mark)
        self._last_mark, self._last_marked = mark, self.now()
        return mark

    def _hand_over_all(self, now: int) -> None:
        """Hand steps over once some have gathered; the time this takes is ours, not the step's."""
        self._hand_over_at = now + HAND_OVER_US * _NS
        if self._waiting:
            self._collect(finish=False)
            self.note("pitstop", now)

    def _collect(self, *, finish: bool) -> None:
        waiting, device = self._waiting, self.device
        passed = len(waiting) if device is None else _count_passed(waiting, device)
        # First all that was seen of them: it says what to call the gaps of each.
        for raw in islice(waiting, passed):
            self._place_stack_samples(raw)
        for _ in range(passed):
            self._hand_over(waiting.popleft(), device)
        while waiting and (finish or len(waiting) > _MOST_PENDING):
            self._hand_over(waiting.popleft(), None)

    def _place_stack_samples(self, raw: _Raw) -> None:
        """Take in what stack samples found between the regions of a step."""
        if not raw.sampled:
            self.gaps.pass_by(raw.index + len(raw.by_step()[0]) - 1)
        elif raw.special is not None or evaluates(raw.regions, self.evaluates):
            self.gaps.forget(raw.index)
        else:
            names = self.gaps.names if raw.calls else self.gaps.blind_names
            self.gaps.place(raw.index, raw.regions, (raw.start, raw.end), names)

    def _hand_over(self, raw: _Raw, device: Optional[DeviceTimer]) -> None:
        if raw.special is not None:
            self._hand_over_outside(raw.special, raw.index, raw.start // _NS, raw.end // _NS)
            self.settled = raw.index + 1
        elif raw.sampled:
            self._hand_over_sampled(raw, device)
            self.settled = raw.index + 1
        else:
            self.settled = self._hand_over_run(raw)
            if device is not None and raw.start_mark is not None:
                self._release(raw, device)

    def _hand_over_sampled(self, raw: _Raw, device: Optional[DeviceTimer]) -> None:
        start_us, end_us = raw.start // _NS, raw.end // _NS
        step = Step(raw.index, start_us)
        names = self.gaps.names if raw.calls else self.gaps.blind_names
        times = split_plain(raw.regions, self.trains, (raw.start, raw.end), names)
        if times is None:
            times = self._split(step, raw, names, raw.calls)
        step.wall_us = end_us - start_us - step.outside_us
        self._fill(step, raw, times)
        if raw.calls:
            self._counts.add(step, raw.calls, rounds_of(raw.regions, self.trains))
        places: Dict[int, Optional[int]] = {}
        if device is not None:
            places = self._add_device(step, raw, device, names)
            self._release(raw, device)
        if self._is_drawn(raw, is_placed=bool(places)):
            self._next_timeline = raw.index - raw.index % _TIMELINE_EVERY + _TIMELINE_EVERY
            regions = _in_order(raw.regions, start_us, end_us)
            step.timeline = self._timeline(regions, start_us, places)
        self.sink.step(step)

    def _is_drawn(self, raw: _Raw, *, is_placed: bool) -> bool:
        """Whether the places of a step's parts are kept; rather where they are known on the device.

        Only some steps are marked there, and of short ones few.
        """
        late = raw.index - self._next_timeline
        return late >= 0 and (is_placed or self.device is None or late >= _TIMELINE_PATIENCE)

    def _hand_over_run(self, raw: _Raw) -> int:
        """Hand over steps whose parts were not sampled: how long they took, what lay outside.

        Returns:
            The number of the step after them.
        """
        ends, made = raw.by_step()
        self._sampling.all_ended(list(map(sub, ends, [raw.start, *ends])))
        ends_us = [end // _NS for end in ends]
        count = len(ends) - 1 if raw.regions else len(ends)
        if count:
            starts_us = [raw.start // _NS, *ends_us]
            samples, micro_steps = self._counts.add_run(made[:count])
            wall_us = list(map(sub, ends_us[:count], starts_us))
            self.sink.unsampled_steps(
                UnsampledSteps(raw.index, starts_us[0], wall_us, samples, micro_steps)
            )
        if raw.regions:
            raw.index, raw.start = raw.index + count, [raw.start, *ends][count]
            self._hand_over_last(raw, made[-1])
            return raw.index + 1
        return raw.index + count

    def _hand_over_last(self, raw: _Raw, calls: Sequence[Call]) -> None:
        """Hand over the step of a run in which something was noted all the same."""
        step = Step(raw.index, raw.start // _NS)
        step.sampled = False
        self._split(step, raw, self.gaps.names, calls)
        step.wall_us = raw.end // _NS - step.start_us - step.outside_us
        if calls:
            self._counts.add(step, calls)
        self.sink.step(step)

    def _release(self, raw: _Raw, device: DeviceTimer) -> None:
        """Give marks back; the one at the end is where the next step begins."""
        marks = [raw.start_mark, *(raw.marks or ())]
        ours = [mark for mark in marks if mark is not None and mark is not raw.end_mark]
        if ours:
            device.release(ours)

    def _split(self, step: Step, raw: _Raw, names: GapNames, calls: Sequence[Call]) -> Times:
        """Divide a step of which something nests or lies outside; hand over what does."""
        regions = _in_order(raw.regions, raw.start // _NS, raw.end // _NS)
        # What a whole step did not set to train trains as it is.
        set_to_train = {model for model, _ in calls}
        unset = {region.detail.model for region in regions if isinstance(region.detail, Unset)}
        self.trains |= unset - set_to_train
        outside = outside_intervals(regions, self.evaluates, self.trains)
        times, intervals = split(regions, outside, (raw.start // _NS, raw.end // _NS), names)
        for name, start, end in intervals:
            step.outside_us += end - start
            self._hand_over_outside(name, step.index, start, end)
        return times

    def _hand_over_outside(self, name: str, step: int, start_us: int, end_us: int) -> None:
        """Hand over what is no part of a step."""
        self.sink.event(name, step=step, start_us=start_us, wall_us=end_us - start_us)
        self.outside.append((start_us, end_us, name))
        if len(self.outside) > 2 * _MOST_OUTSIDE:
            self.outside = self.outside[_MOST_OUTSIDE:]  # another thread may be reading the other

    def _fill(self, step: Step, raw: _Raw, times: Times) -> None:
        """Give a step its host times and what was counted."""
        spans, host_us = self._root.children, step.host_us
        for name, entry in times.items():
            if entry[1]:
                host_us[spans.get(name) or self._span(name)] = entry
        if raw.recompute is not None:
            self._add_recompute(step, raw.recompute)

    def _span(self, name: str, parent: Optional[Span] = None) -> Span:
        place = self._root if parent is None else parent
        span = place.children.get(name)
        if span is None:
            span = place.children[name] = Span(None, name, place)  # type: ignore[arg-type]
        return span

    def _add_recompute(self, step: Step, intervals: List[Tuple[int, int]]) -> None:
        backward = self._root.children.get("backward")
        if backward is None or backward not in step.host_us:
            return
        total_us = sum(end // _NS - start // _NS for start, end in _union(intervals))
        # Autograd threads of a GPU run beside each other and may end after the call returned.
        total_us = min(total_us, step.host_us[backward][1])
        step.host_us[self._span(RECOMPUTE, backward)] = [len(intervals), total_us]

    def _add_device(
        self, step: Step, raw: _Raw, device: DeviceTimer, names: GapNames
    ) -> Dict[int, Optional[int]]:
        """Divide the device's time among the parts, in the way the host's was.

        Returns:
            Where the marks of parts lie since the step began, by identity; nothing where they are
            not marked, or astray.
        """
        if raw.start_mark is None or raw.end_mark is None:
            return {}
        wall_us = device.elapsed_us(raw.start_mark, raw.end_mark)
        if wall_us is None:
            return {}
        if not raw.marks:
            step.device_wall_us = max(0, wall_us - step.outside_us)
            return {}
        places = _places(raw, raw.marks, device, wall_us)
        placed = _on_device(raw, places, wall_us)
        if placed is None:
            return {}
        times = split_plain(placed, self.trains, (0, wall_us * _NS), names)
        step.device_wall_us = wall_us
        if times is None:
            regions = _in_order(placed, 0, wall_us)
            outside = outside_intervals(regions, self.evaluates, self.trains)
            times, intervals = split(regions, outside, (0, wall_us), names)
            step.device_wall_us -= sum(end - start for _, start, end in intervals)
        for name, entry in times.items():
            span = self._root.children.get(name)
            if span is not None and span in step.host_us:
                step.device_us[span] = entry[1]
        return places

    def _timeline(
        self, regions: List[Region], zero_us: int, places: Dict[int, Optional[int]]
    ) -> Tuple[Timeline, ...]:
        rows = []
        for region in regions:
            if region.kind in _UNDRAWN:
                continue
            start, end = places.get(id(region.start_mark)), places.get(id(region.end_mark))
            device = (start, end) if start is not None and end is not None else (None, None)
            span = self._span(region.kind)
            rows.append(Timeline(span, region.start - zero_us, region.end - zero_us, *device))
        return tuple(rows)


class Undecided:
    """What was seen at moments of steps that are not handed over yet.

    Only then is it known what lay outside steps. The latest are kept: a script that has
    ended its training runs on, and its last step is never handed over.
    """

    def __init__(self, tracker: StepTracker) -> None:
        self._tracker = tracker
        self._seen: Deque[Tuple[int, int, Any]] = deque(maxlen=_MOST_UNDECIDED)
        self.outside: Deque[Tuple[str, Any]] = deque(maxlen=_MOST_UNDECIDED)
        """What turned out to lie outside steps, with the name of what it lay in."""

    def add(self, moment_ns: int, what: Any) -> None:
        """Keep something until its step is handed over."""
        self._seen.append((self._tracker.steps, moment_ns // _NS, what))

    def clear(self) -> None:
        """Let go of everything."""
        self._seen.clear()

    def drop_step(self) -> None:
        """Let go of what was seen of the step under way, for nobody will see its end."""
        while self._seen and self._seen[-1][0] >= self._tracker.steps:
            self._seen.pop()

    def decided(self) -> Iterator[Any]:
        """Give what was seen of the training itself, of all steps handed over since."""
        settled, seen = self._tracker.settled, self._seen
        try:
            while seen[0][0] < settled:
                _, moment_us, what = seen.popleft()
                name = _name_at(self._tracker.outside, moment_us)
                if name is None:
                    yield what
                else:
                    self.outside.append((name, what))
        except IndexError:
            return  # no more, or another thread has cleared it


def _name_at(intervals: List[Tuple[int, int, str]], moment_us: int) -> Optional[str]:
    """Name what lay outside steps at a moment; None where nothing did."""
    place = bisect(intervals, (moment_us, sys.maxsize, "")) - 1
    return intervals[place][2] if place >= 0 and moment_us < intervals[place][1] else None


def _capture_test() -> Optional[Callable[[], bool]]:
    """Give what tells whether a CUDA graph is being captured; None where CUDA is not in use."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.is_current_stream_capturing


def _cut_at_last_border(raw: _Raw) -> bool:
    """Take the step under way off a run of steps; False where that leaves none."""
    for place in range(len(raw.calls) - 1, -1, -1):
        if raw.calls[place].__class__ is int:
            raw.end, raw.end_mark = raw.calls[place], None
            del raw.calls[place:]
            raw.regions.clear()
            return True
    return False


def _count_passed(waiting: Sequence[_Raw], device: DeviceTimer) -> int:
    """Count the steps whose end the device has passed; they end in order, so few are asked."""
    marked = [place for place, raw in enumerate(waiting) if raw.end_mark is not None]
    low, high = 0, len(marked)
    while low < high:
        middle = (low + high) // 2
        if device.passed(waiting[marked[middle]].end_mark):
            low = middle + 1
        else:
            high = middle
    return len(waiting) if low == len(marked) else marked[low]


def _in_order(noted: List[Noted], low: int, high: int) -> List[Region]:
    """Regions in whole microseconds, inside these bounds, parents before their children."""
    regions = [
        Region(kind, max(start // _NS, low), min(end // _NS, high), detail, mark, end_mark)
        for kind, start, end, detail, mark, end_mark in noted
    ]
    regions.sort(key=_place)
    return regions


def _places(
    raw: _Raw, marks: List[Any], device: DeviceTimer, wall_us: int
) -> Dict[int, Optional[int]]:
    """Places of a step's marks on the device's clock since it began, by identity."""
    places: Dict[int, Optional[int]] = {id(raw.start_mark): 0, id(raw.end_mark): wall_us}
    for mark in marks:
        places[id(mark)] = device.elapsed_us(raw.start_mark, mark)
    return places


def _on_device(raw: _Raw, places: Dict[int, Optional[int]], wall_us: int) -> Optional[List[Noted]]:
    """Regions on the device's clock since the step began; None where marks are astray."""
    placed: List[Noted] = []
    for kind, _, _, detail, start_mark, end_mark in raw.regions:
        if start_mark is None or end_mark is None:
            continue
        start, end = places.get(id(start_mark)), places.get(id(end_mark))
        if start is None or end is None or not 0 <= start <= end <= wall_us:
            return None
        placed.append([kind, start * _NS, end * _NS, detail, None, None])
    return placed


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
