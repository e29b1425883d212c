"""CUDA graphs that the script records itself: playing one back is a step if it holds an update.

While a graph is recorded nothing is made, so there is no step, and nothing is asked of the device.
"""

import functools
import weakref
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.steps.step_tracker import Recorded, StepTracker

REPLAY = "graph replay"

_PATIENCE = 10
"""Replays with gradients and without any step, before each of them counts as one."""


class Graphs:
    """Observes the script's own CUDA graphs.

    Args:
        tracker: Receives what is observed.
        torch: The script's torch.
    """

    def __init__(self, tracker: StepTracker, torch: Any) -> None:
        self._tracker = tracker
        self._recorded: Dict[Any, Recorded] = weakref.WeakKeyDictionary()  # type: ignore[assignment]
        self._ends_steps = False
        self._without_step = 0
        self._steps_before = 0
        kind = getattr(torch.cuda, "CUDAGraph", None)
        self.patches: List[Patch] = [
            replace(kind, "capture_begin", self._begin),
            replace(kind, "capture_end", self._end),
            replace(kind, "replay", self._replay),
        ]

    def _begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            if get_ident() == self._tracker.thread:
                self._tracker.record(Recorded())
            return result

        return capture_begin

    def _end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                recorded = self._tracker.recorded
                if recorded is not None and get_ident() == self._tracker.thread:
                    self._recorded[graph] = recorded
                    self._tracker.record(None)

        return capture_end

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        @functools.wraps(original)
        def replay(graph: Any) -> Any:
            recorded = self._recorded.get(graph)
            if recorded is None or get_ident() != tracker.thread:
                return original(graph)
            is_outer = not tracker.inside("backward") and tracker.at != "backward"
            entered = tracker.enter(REPLAY)
            try:
                result = original(graph)
            finally:
                if entered:
                    tracker.leave(REPLAY)
            update = self._update_of(graph, recorded) if is_outer else None
            if update is not None:
                tracker.stepped(update)
            return result

        return replay

    def _update_of(self, graph: Any, recorded: Recorded) -> Optional[int]:
        """Say whose update a replay was; None where it holds none.

        Gradients alone are for an optimizer that steps outside of the graph; where none ever does,
        the weights are updated by the graph in a way that was not seen.
        """
        if recorded.optimizer is not None:
            return recorded.optimizer
        if not recorded.has_gradients:
            return None
        if not self._ends_steps:
            if self._tracker.steps != self._steps_before:
                self._without_step, self._steps_before = 0, self._tracker.steps
            self._without_step += 1
            self._ends_steps = self._without_step > _PATIENCE
        return id(graph) if self._ends_steps else None
