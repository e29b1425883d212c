"""Looks at the training thread's stack now and then: which line the script's own time goes to.

A look takes the interpreter's lock for some tens of microseconds, and on a slow host for more. So
they are a hundredth of a second apart or, where that would cost too much, further, at distances
that share no period with a loop; twice as far once there are a hundred.
"""

import linecache
import opcode
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Set, Tuple

from pitstop_probe.parts import CLOSURE
from pitstop_probe.watch import Undecided, Watch

EVERY_S = 0.010
_COSTS_APART = 400  # Looks are so many times as far apart as one takes, or further.
_MANY = 100  # Looks after which they come half as often.
_FURTHEST = 10  # Times the least distance: one look that was interrupted must not be the last.
_COST_WEIGHT = 1 / 16
_GENERATOR = 0x20  # inspect.CO_GENERATOR, without importing inspect
_FOR_ITER = opcode.opmap["FOR_ITER"]
_GIVERS = ("__next__", "__getitem__")
_QUEUES = ("queue.py", "queues.py")
_MOST_LINES = 40
_FEWEST_LOOKS = 5

_OWN = os.path.dirname(os.path.abspath(__file__))

# Where, file, line, function, what it had called.
Place = Tuple[str, str, int, str, Optional[str]]


class Looks:
    """A thread that looks at the watched one.

    Args:
        watch: The thread under observation.
        every_s: Least mean distance of two looks.
    """

    def __init__(self, watch: Watch, every_s: float = EVERY_S) -> None:
        self._watch = watch
        self._every_s = every_s
        self.taken = 0
        self._cost_s = 0.0
        self._turn = 0
        self._wait_s = self._next_wait_s()
        # Held while looking; an event takes ten times as long to wait for, with the script waiting.
        self._running = threading.Lock()
        self._places: "Counter[Place]" = Counter()
        self._generators: Dict[Optional[str], List[int]] = {}
        self._undecided = Undecided(watch)
        self._loop: Set[int] = set()
        self._foreign = library_folders()
        self._libraries: Dict[str, bool] = {}
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin to look, or go on; called where a step ends, in the loop that trains."""
        self._learn_loop(sys._getframe())  # pyright: ignore[reportPrivateUsage]
        thread = threading.Thread(target=self._run, name="pitstop-looks", daemon=True)
        self._running.acquire()
        try:
            thread.start()
        except BaseException:
            self._running.release()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Stop looking; what was seen of a step that has not ended is let go."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._running.release()
            thread.join()
        self._undecided.drop_step()

    def forget(self) -> None:
        """Begin counting anew, after warm-up."""
        self._places.clear()
        self._undecided.clear()
        self.taken = 0

    def summary(self) -> Dict[str, Any]:
        """Give the lines found in steps that were handed over, most looks first."""
        self._settle()
        lines = [
            {
                "part": part,
                "file": file,
                "line": line,
                "function": function,
                "text": linecache.getline(file, line).strip()[:160],
                "samples": count,
                "calls": calls,
            }
            for (part, file, line, function, calls), count in self._places.most_common(_MOST_LINES)
        ]
        return {"samples": self.taken, "every_us": round(self.distance_s * 1e6), "lines": lines}

    @property
    def distance_s(self) -> float:
        """Mean distance of two looks, by what the last ones cost."""
        affordable_s = min(self._cost_s * _COSTS_APART, self._every_s * _FURTHEST)
        distance_s = max(self._every_s, affordable_s)
        return distance_s if self.taken < _MANY else 2 * distance_s

    def _run(self) -> None:
        while True:
            start = time.perf_counter()
            if self._running.acquire(timeout=self._wait_s):
                self._running.release()
                # The rest is waited for once it goes on, so that pauses take no look away.
                self._wait_s = max(0.0, self._wait_s - (time.perf_counter() - start))
                return
            start = time.perf_counter()
            self._look()
            self.remember_cost(time.perf_counter() - start)
            self._wait_s = self._next_wait_s()

    def _next_wait_s(self) -> float:
        """Give a distance between half and one and a half of the mean, by the golden ratio."""
        self._turn += 1
        return self.distance_s * (0.5 + (self._turn * 0.6180339887) % 1.0)

    def remember_cost(self, cost_s: float) -> None:
        """Let a look's duration move the mean of the last ones a little."""
        weight = _COST_WEIGHT if self._cost_s else 1.0
        self._cost_s += (cost_s - self._cost_s) * weight

    def _look(self) -> None:
        watch = self._watch
        if not watch.active or watch.raw is None:
            return
        frame = sys._current_frames().get(watch.thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        part = _innermost(watch.open) or watch.at if watch.looking else watch.at
        before = watch.last_kind
        if part is None:
            part = self._gap_part(before, self._is_feeding(frame))
        self._undecided.add(watch.now(), self._place(part, frame))
        self._settle()

    def _settle(self) -> None:
        """Count the looks of the steps that were handed over."""
        for place in self._undecided.decided():
            self.taken += 1
            if place is not None:
                self._places[place] += 1

    def _learn_loop(self, frame: Any) -> None:
        """Keep which functions of the script's own are around its training."""
        while frame is not None:
            if not self._is_library(frame.f_code.co_filename):
                self._loop.add(id(frame.f_code))
            frame = frame.f_back

    def _is_feeding(self, frame: Any) -> bool:
        """Whether the next batch is being made.

        By a generator of the script's own, by what gives one item at a time, or by whatever the
        training loop goes through; or it is waited for at a queue.
        """
        innermost = frame
        while frame is not None:
            code = frame.f_code
            if self._is_library(code.co_filename):
                if code.co_name == "get" and code.co_filename.endswith(_QUEUES):
                    return True
            elif id(code) in self._loop:
                return frame is not innermost and _is_iterating(frame)
            elif code.co_flags & _GENERATOR or code.co_name in _GIVERS:
                return frame.f_back is not None
            frame = frame.f_back
        return False

    def _gap_part(self, before: Optional[str], feeding: bool) -> str:  # noqa: FBT001 - a tally's key
        """Tell what prepares batches from other work between two observed points."""
        tally = self._generators.setdefault(before, [0, 0])
        tally[feeding] += 1
        fed = tally[1] >= _FEWEST_LOOKS and tally[1] > tally[0]
        for after in ("forward", "copy", "zero_grad"):
            if fed:
                self._watch.gap_names[(before, after)] = "data"
            else:
                self._watch.gap_names.pop((before, after), None)
        return "data" if feeding else "host"

    def _place(self, part: str, frame: Any) -> Optional[Place]:
        """The innermost line of the script's own, and what it had called outside."""
        below: List[Any] = []
        while frame is not None:
            code = frame.f_code
            if not self._is_library(code.co_filename):
                calls = " > ".join(_name(callee) for callee in below[:-3:-1]) or None
                return part, code.co_filename, frame.f_lineno, code.co_name, calls
            if not code.co_filename.startswith(_OWN):
                below.append(code)
            frame = frame.f_back
        return None

    def _is_library(self, file: str) -> bool:
        found = self._libraries.get(file)
        if found is None:
            found = self._libraries[file] = file.startswith(self._foreign)
        return found


def _innermost(regions: List[Any]) -> Optional[str]:
    """Kind of the innermost region; the watched thread may end it at any moment."""
    try:
        kind: str = regions[-1][0]
    except IndexError:
        return None
    return None if kind == CLOSURE else kind


def _is_iterating(frame: Any) -> bool:
    """Whether a function waits for the next item of what a loop of its goes through."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place > 0 and not code[place]:  # what an instruction keeps lies behind it
        place -= 2
    return code[place] == _FOR_ITER


def _name(code: Any) -> str:
    module = os.path.splitext(os.path.basename(code.co_filename))[0]
    return "{}.{}".format(module, getattr(code, "co_qualname", code.co_name))


def library_folders() -> Tuple[str, ...]:
    """Where code is that the script did not write: the standard library, packages, the probe."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*folders, _OWN, "<frozen")
