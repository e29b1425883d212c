"""Which steps are slowed down to see more of them, early in a training, and what that gave.

All of it comes within the first steps, so that a script that ends soon is judged by the same
evidence as one that goes on. What could not be sampled is written with its reason.
"""

import contextlib
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.deep.kernel_profile import KernelProfile, device_rates
from pitstop_probe.deep.module_profile import ModuleProfile
from pitstop_probe.deep.work_profile import WorkProfile
from pitstop_probe.forks import keep_for_parent
from pitstop_probe.hooks.torch_hooks import Models
from pitstop_probe.inventory import compile_counts
from pitstop_probe.steps.step_tracker import StepTracker

PURPOSE = "pitstop"
"""What a step that is slowed down is called in the record."""

_MODULE_STEP = 4
_MODULE_STEPS = 3
_WORK_STEP = 7
_KERNEL_STEP = 10
_KERNEL_STEPS = 3

Write = Callable[[str, Dict[str, Any]], None]


class DeepProfile:
    """Slows steps down to see more of them: by module, by operation, by kernel.

    Args:
        torch: The script's torch.
        tracker: Whose steps they are.
        models: Which modules the script calls.
        last_step: Where kernels are profiled if they were not before; None leaves them out.
        write: Takes readings.
    """

    def __init__(
        self,
        torch: Any,
        tracker: StepTracker,
        models: Models,
        *,
        last_step: Optional[int],
        write: Write,
    ) -> None:
        self._torch = torch
        self._tracker = tracker
        self._models = models
        self._last_step = last_step
        self._write = write
        self.running: Any = None
        """What the step under way is slowed down for."""
        self._until = 0
        self._unread: List[Tuple[Any, int]] = []
        self._has_kernels = False

    def end(self, steps: int) -> None:
        """End at the border after so many steps what reaches to it; write what is complete."""
        if self.running is not None and steps < self._until:
            self._tracker.special(PURPOSE)
            getattr(self.running, "border", _nothing)()
            return
        ended = self.drop()
        if ended is not None:
            self._unread.append((ended, steps - 1))
        if self._unread:
            self.write_complete()

    def begin(self, steps: int) -> None:
        """Begin what the step after so many is for."""
        if steps == _MODULE_STEP:
            self._by_module()
        elif steps == _WORK_STEP:
            self._by_operation()
        elif self._profiles_from(steps):
            self.start(
                KernelProfile, self._tracker, self._torch, _KERNEL_STEPS, steps=_KERNEL_STEPS
            )
        elif steps == _KERNEL_STEP + _KERNEL_STEPS:
            self._measure_rates()

    def _profiles_from(self, steps: int) -> bool:
        """Whether kernels are profiled from here: early, and late where that failed."""
        if self._last_step is None or not self._torch.cuda.is_initialized():
            return False
        return steps == _KERNEL_STEP or (steps == self._last_step and not self._has_kernels)

    def start(self, make: Any, *args: Any, steps: int = 1) -> None:
        """Slow the steps that begin here down, to see more of them; where that can be done."""
        self._tracker.special(PURPOSE)
        self._until = self._tracker.steps + steps
        try:
            self.running = make(*args)
            self.running.on()
        except Exception as error:  # noqa: BLE001 - what cannot be seen into is still measured
            self._leave_out(make.kind, str(error))
            self.drop()

    def drop(self) -> Any:
        """Take off what is under way and give it; in the middle, half of it is no reading."""
        running, self.running = self.running, None
        try:
            if running is not None:
                running.off()
        except Exception:  # noqa: BLE001 - a reading less; everything else is still measured
            return None
        return running

    def write_complete(self) -> None:
        """Write what was seen, on a GPU once that has got so far: it is not waited for."""
        unread, self._unread = self._unread, []
        for ended, step in unread:
            if not getattr(ended, "is_complete", True):
                self._unread.append((ended, step))
                continue
            try:
                self._write(ended.kind, ended.values(step))
            except Exception as error:  # noqa: BLE001 - as above
                self._leave_out(ended.kind, str(error))
            else:
                self._has_kernels = self._has_kernels or ended.kind == KernelProfile.kind

    def forked(self) -> None:
        """Become a child's: what it holds of a GPU is the parent's, and is kept but never used."""
        keep_for_parent((self.running, self._unread))
        self._unread = []
        # A profile is not ended here: it is the parent's, and so are its threads.
        if isinstance(self.running, KernelProfile):
            self.running = None
        self.drop()

    def _by_module(self) -> None:
        models = self._outermost()
        if compile_counts() is not None:
            self._leave_out(ModuleProfile.kind, "the script compiles")
        elif models:
            self.start(ModuleProfile, self._tracker, self._torch, models, steps=_MODULE_STEPS)

    def _by_operation(self) -> None:
        if compile_counts() is not None:
            self._leave_out(WorkProfile.kind, "the script compiles")
        else:
            self.start(WorkProfile, self._torch, self._outermost())

    def _outermost(self) -> List[Any]:
        with contextlib.suppress(Exception):  # an odd module: then none is seen into
            return self._models.outermost
        return []

    def _measure_rates(self) -> None:
        """Time what the device can do, outside steps."""
        if self._last_step is None or not self._torch.cuda.is_initialized():
            return
        self._tracker.enter(PURPOSE)
        try:
            device = "cuda:{}".format(self._torch.cuda.current_device())
            self._write("rates", device_rates(self._torch, device))
        except Exception as error:  # noqa: BLE001 - then they are not known
            self._leave_out("rates", str(error))
        self._tracker.leave(PURPOSE)

    def _leave_out(self, what: str, why: str) -> None:
        self._write("not_sampled", {"what": what, "why": why[:200]})


def _nothing() -> None:
    pass
