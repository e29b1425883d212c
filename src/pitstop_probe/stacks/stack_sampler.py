"""Samples the training thread's stack now and then: which line the script's own time goes to.

A sample takes the interpreter's lock for some tens of microseconds, and on a slow host for more. So
they are a hundredth of a second apart or, where that would cost too much, further, at distances
that share no period with a loop; twice as far once there are a hundred.
"""

import linecache
import os
import sys
import threading
import time
from collections import Counter, deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from pitstop_probe.stacks.stack import Stack, innermost_own
from pitstop_probe.steps.gaps import DELAYED, part_between
from pitstop_probe.steps.parts import CLOSURE
from pitstop_probe.steps.step_tracker import StepTracker, Undecided

EVERY_S = 0.010
_COST_MULTIPLE = 400  # Samples are so many times as far apart as one takes, or further.
_MANY = 100  # Samples after which they come half as often.
_FURTHEST = 10  # Times the least distance: one sample that was interrupted must not be the last.
# Samples whose median cost counts: one that was interrupted, or that read a script's source for the
# first time, costs a thousand times as much as the next ones.
_REMEMBERED = 9
_DELAYED_NS = 300_000
_MOST_LINES = 40
_MOST_OUTSIDE = 5  # Lines of one kind outside steps, such as all evaluations.
_MOST_LONG_STEPS = 8  # Steps with most samples, of which the line is kept that most of them met.

# Where, file, line, function, what it had called.
Place = Tuple[str, str, int, str, Optional[str]]


class StackSampler:
    """A thread that samples the stack of the training thread.

    Args:
        tracker: The thread under observation.
        stack: What is known of the training loop.
        every_s: Least mean distance of two samples.
    """

    def __init__(
        self, tracker: StepTracker, stack: Optional[Stack] = None, every_s: float = EVERY_S
    ) -> None:
        self._tracker = tracker
        self.stack = Stack() if stack is None else stack
        self._every_s = every_s
        self.taken = 0
        self._costs_s: Deque[float] = deque(maxlen=_REMEMBERED)
        self._turn = 0
        self._wait_s = self._next_wait_s()
        # Held while sampling; an event takes ten times as long to wait for, the script waiting.
        self._running = threading.Lock()
        self._places: "Counter[Place]" = Counter()
        self._outside_places: "Counter[Place]" = Counter()
        self._undecided = Undecided(tracker)
        self._step = -1
        self._in_step: "Counter[Place]" = Counter()
        self._long_steps: List[Tuple[int, int, Place, int]] = []
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin to sample, or go on; called where a step ends, in the loop that trains."""
        self.stack.learn_loop(sys._getframe())  # pyright: ignore[reportPrivateUsage]
        thread = threading.Thread(target=self._run, name="pitstop-stack-sampler", daemon=True)
        self._running.acquire()
        try:
            thread.start()
        except BaseException:
            self._running.release()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Stop sampling; what was seen of a step that has not ended is let go."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._running.release()
            thread.join()
        self._undecided.drop_step()

    def forget(self) -> None:
        """Begin counting anew, after warm-up."""
        self._places.clear()
        self._outside_places.clear()
        self._undecided.clear()
        self._in_step.clear()
        del self._long_steps[:]
        self.taken = 0

    def summary(self) -> Dict[str, Any]:
        """Give the lines found in steps that were handed over, most samples first."""
        self._settle()
        self._keep_if_long()
        return {
            "samples": self.taken,
            "every_us": round(self.distance_s * 1e6),
            "lines": [_line(*found) for found in self._places.most_common(_MOST_LINES)],
            "long_steps": [
                {"step": step, "samples": count, "line": _line(place, met)}
                for count, step, place, met in self._long_steps
            ],
            "gaps": self._tracker.gaps.summary(),
        }

    def outside_lines(self) -> List[Dict[str, Any]]:
        """Give the lines found outside steps, such as in evaluations; after `summary`."""
        return _outside_lines(self._outside_places)

    @property
    def distance_s(self) -> float:
        """Mean distance of two samples, by what the last ones cost."""
        cost_s = sorted(self._costs_s)[(len(self._costs_s) - 1) // 2] if self._costs_s else 0.0
        affordable_s = min(cost_s * _COST_MULTIPLE, self._every_s * _FURTHEST)
        distance_s = max(self._every_s, affordable_s)
        return distance_s if self.taken < _MANY else 2 * distance_s

    def _run(self) -> None:
        while True:
            start = time.perf_counter()
            if self._running.acquire(timeout=self._wait_s):
                self._running.release()
                # The rest is waited for once it goes on, so that pauses take no sample away.
                self._wait_s = max(0.0, self._wait_s - (time.perf_counter() - start))
                return
            due = start + self._wait_s
            start = time.perf_counter()
            self._sample(int(due * 1e9))
            self.remember_cost(time.perf_counter() - start)
            self._wait_s = self._next_wait_s()

    def _next_wait_s(self) -> float:
        """Give a distance between half and one and a half of the mean, by the golden ratio."""
        self._turn += 1
        return self.distance_s * (0.5 + (self._turn * 0.6180339887) % 1.0)

    def remember_cost(self, cost_s: float) -> None:
        """Keep what a sample took."""
        self._costs_s.append(cost_s)

    def _sample(self, due_ns: int = sys.maxsize) -> None:
        """Sample the stack; on time, or once the thread that trains has let go of the lock."""
        tracker = self._tracker
        if not tracker.active or tracker.raw is None:
            return
        frame = sys._current_frames().get(tracker.thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        part = _innermost(tracker.open) or tracker.at if tracker.is_sampling else tracker.at
        step, moment, before = tracker.steps, tracker.now(), tracker.last_kind
        if part is None:
            purpose = self.stack.purpose(frame)
            tracker.gaps.add_sample(step, moment, before, purpose)
            part = part_between(before, purpose)
        elif moment - due_ns > _DELAYED_NS:
            tracker.gaps.add_sample(step, due_ns, before, DELAYED)
        place = self._place(part, frame)
        self._undecided.add(moment, place)
        if place is not None:
            self._count_in_step(place)
        self._settle()

    def _count_in_step(self, place: Place) -> None:
        """Count a sample of the step under way, time outside steps included."""
        if self._tracker.steps != self._step:
            self._keep_if_long()
            self._step = self._tracker.steps
        self._in_step[place] += 1

    def _keep_if_long(self) -> None:
        """Keep where a step was met most often, if few others were met as often as it."""
        if not self._in_step:
            return
        place, count = self._in_step.most_common(1)[0]
        self._long_steps.append((sum(self._in_step.values()), self._step, place, count))
        self._long_steps.sort(key=lambda found: -found[0])
        del self._long_steps[_MOST_LONG_STEPS:]
        self._in_step.clear()

    def _settle(self) -> None:
        """Count the samples of the steps that were handed over."""
        for place in self._undecided.decided():
            self.taken += 1
            if place is not None:
                self._places[place] += 1
        outside = self._undecided.outside
        while outside:
            name, place = outside.popleft()
            if place is not None:
                self._outside_places[(name, *place[1:])] += 1

    def _place(self, part: str, frame: Any) -> Optional[Place]:
        """The innermost line of the script's own, and what it had called outside."""
        found = innermost_own(self.stack, frame)
        if found is None:
            return None
        own, below = found
        calls = " > ".join(_name(callee) for callee in below[:-3:-1]) or None
        line = own.f_lineno or 0  # None where a frame has just begun
        return part, own.f_code.co_filename, line, own.f_code.co_name, calls


def _line(place: Place, count: int) -> Dict[str, Any]:
    part, file, line, function, calls = place
    return {
        "part": part,
        "file": file,
        "line": line,
        "function": function,
        "text": linecache.getline(file, line).strip()[:160],
        "samples": count,
        "calls": calls,
    }


def _outside_lines(places: "Counter[Place]") -> List[Dict[str, Any]]:
    """Describe the lines met most often outside steps, by kind: evaluation, checkpoint."""
    left: Dict[str, int] = {}
    lines: List[Dict[str, Any]] = []
    for place, count in places.most_common():
        part = place[0]
        left[part] = left.get(part, _MOST_OUTSIDE) - 1
        if left[part] >= 0:
            lines.append(_line(place, count))
    return lines


def _innermost(regions: List[Any]) -> Optional[str]:
    """Kind of the innermost region; the training thread may end it at any moment."""
    try:
        kind: str = regions[-1][0]
    except IndexError:
        return None
    return None if kind == CLOSURE else kind


def _name(code: Any) -> str:
    module = os.path.splitext(os.path.basename(code.co_filename))[0]
    return "{}.{}".format(module, getattr(code, "co_qualname", code.co_name))
