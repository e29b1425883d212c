"""Looks at the training thread's stack now and then: which line the script's own time goes to.

A look takes the interpreter's lock for some tens of microseconds, so they are a hundredth of a
second apart, at distances that share no period with a loop.
"""

import linecache
import os
import sys
import sysconfig
import threading
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

from pitstop_probe.watch import Watch

EVERY_S = 0.010
_GENERATOR = 0x20  # inspect.CO_GENERATOR, without importing inspect
_MOST_LINES = 40
_FEWEST_LOOKS = 5

_OWN = os.path.dirname(os.path.abspath(__file__))

# Where, file, line, function, what it had called.
Place = Tuple[str, str, int, str, Optional[str]]


class Looks:
    """A thread that looks at the watched one.

    Args:
        watch: The thread under observation.
        every_s: Mean distance of two looks.
    """

    def __init__(self, watch: Watch, every_s: float = EVERY_S) -> None:
        self._watch = watch
        self._every_s = every_s
        self._stop = threading.Event()
        self._places: "Counter[Place]" = Counter()
        self._generators: Dict[Optional[str], List[int]] = {}
        self._present: "Counter[Place]" = Counter()
        self._step = 0
        self.taken = 0
        self._taken = 0
        self._foreign = _library_folders()
        self._thread = threading.Thread(target=self._run, name="pitstop-looks", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()

    def forget(self) -> None:
        """Begin counting anew, after warm-up."""
        self._places.clear()
        self._present.clear()
        self.taken = self._taken = 0

    def summary(self) -> Dict[str, Any]:
        """Give the lines found, most looks first."""
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
        return {"samples": self.taken, "every_us": round(self._every_s * 1e6), "lines": lines}

    def _run(self) -> None:
        turn = 0
        while True:
            turn += 1
            # Distances between half and one and a half of the mean, by the golden ratio.
            jitter = 0.5 + (turn * 0.6180339887) % 1.0
            if self._stop.wait(self._every_s * jitter):
                return
            self._look()

    def _look(self) -> None:
        watch = self._watch
        if not watch.active or watch.raw is None:
            return
        frame = sys._current_frames().get(watch.thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        is_open = bool(watch.open)
        part = watch.open[-1].kind if is_open else "host"
        before = watch.last_kind
        frames = _stack(frame)
        del frame
        if not is_open:
            part = self._gap_part(before, frames)
        if watch.steps != self._step:
            self._settle(watch.steps)
        self._taken += 1
        place = self._place(part, frames)
        if place is not None:
            self._present[place] += 1

    def _settle(self, step: int) -> None:
        """Count the looks of a step once it has ended: after the last one comes no training."""
        self._places.update(self._present)
        self.taken += self._taken
        self._present.clear()
        self._step, self._taken = step, 0

    def _gap_part(self, before: Optional[str], frames: List[Any]) -> str:
        """Tell a generator that prepares batches from other work between two observed points."""
        tally = self._generators.setdefault(before, [0, 0])
        feeding = any(
            code.co_flags & _GENERATOR and not self._is_library(code.co_filename)
            for code, _ in frames[1:]
        )
        tally[feeding] += 1
        fed = tally[1] >= _FEWEST_LOOKS and tally[1] > tally[0]
        for after in ("forward", "copy", "zero_grad"):
            if fed:
                self._watch.gap_names[(before, after)] = "data"
            else:
                self._watch.gap_names.pop((before, after), None)
        return "data" if feeding else "host"

    def _place(self, part: str, frames: List[Any]) -> Optional[Place]:
        """The innermost line of the script's own, and what it had called outside."""
        for depth in range(len(frames) - 1, -1, -1):
            code, line = frames[depth]
            if not self._is_library(code.co_filename):
                below = [c for c, _ in frames[depth + 1 :] if not c.co_filename.startswith(_OWN)]
                calls = " > ".join(_name(callee) for callee in below[:2]) or None
                return part, code.co_filename, line, code.co_name, calls
        return None

    def _is_library(self, file: str) -> bool:
        return file.startswith(self._foreign)


def _stack(frame: Any) -> List[Any]:
    """Code and line of each frame, outermost first."""
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    found.reverse()
    return found


def _name(code: Any) -> str:
    module = os.path.splitext(os.path.basename(code.co_filename))[0]
    return "{}.{}".format(module, getattr(code, "co_qualname", code.co_name))


def _library_folders() -> Tuple[str, ...]:
    """Where code is that the script did not write: the standard library, packages, the probe."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*folders, _OWN, "<frozen")
