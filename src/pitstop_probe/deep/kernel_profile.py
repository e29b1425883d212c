"""Steps that are profiled on a GPU: every kernel, copy and wait; and what the device could do.

The steps count for nothing else, and their ends wait for the device; ordinary steps never do.
"""

import functools
import gc
import time
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from pitstop_probe.deep.device_track import EndedStep, Ran, device_track, epoch_offset_ns
from pitstop_probe.deep.kernel_classes import PRODUCTS, class_of, is_on_tensor_cores
from pitstop_probe.forks import let_go, skip_exit_handlers_in_children, stays_here
from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.inventory import Float32Products
from pitstop_probe.steps.step_tracker import StepTracker

_SYNC_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_TOP_KERNELS = 12
# Ranges that somebody named, which a profiler draws on the device as well.
_NAMED = ("gpu_user_annotation", "Optimizer.", "ProfilerStep", "DistributedDataParallel.", "## ")

_SIDE = 4096
_COPIED_BYTES = 1 << 27
_FREE_BYTES = 1 << 30
_REPEATS = 5


class Profiled(NamedTuple):
    """One profiled event; nanoseconds."""

    name: str
    on_device: bool
    start: int
    took: int
    operation: Optional[str] = None
    """What launched it."""


class KernelProfile:
    """Profiles some steps on a GPU: every kernel, copy and wait.

    One profile for all of them. It begins and ends inside an optimizer's step, which torch records
    as a range of its own: a second profile begun before that range ends would be handed the end of
    a range of the first, which is gone by then, and crash the process.
    """

    kind = "kernels"

    def __init__(self, tracker: StepTracker, torch: Any, steps: int) -> None:
        self._tracker = tracker
        self._steps = steps
        self._torch = torch
        self._synchronize = unwrapped(torch.cuda.synchronize)
        self._profile: Any = None
        self._began = self._ended = 0
        self._offset_ns = 0
        self._step: Optional[EndedStep] = None
        self._given_up: Optional[str] = None
        self._patches: List[Patch] = []

    def on(self) -> None:
        """Begin to profile, unless the script does: a second profile would end the first."""
        kind = self._torch.profiler.profile
        if self._torch.autograd._profiler_enabled() or _has_any(kind):
            raise RuntimeError("the script profiles itself")
        activities = self._torch.profiler.ProfilerActivity
        self._synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profile = kind(activities=[activities.CPU, activities.CUDA])
            profile.start()
        skip_exit_handlers_in_children()
        self._profile = stays_here(profile)
        self._began = self._tracker.now()
        self._offset_ns = epoch_offset_ns(self._tracker.now)
        graph = getattr(self._torch.cuda, "CUDAGraph", None)
        for owner, name, why in (
            (kind, "start", "the script profiles itself"),
            (graph, "capture_begin", "the script captured a CUDA graph"),
        ):
            self._patches.append(replace(owner, name, self._giving_up(why)))

    def border(self) -> None:
        """Go on with the next step; keep the one that ended, for the last of them waits."""
        ended = self._tracker.last_ended()
        self._step = None if ended is None else EndedStep(*ended)

    def _giving_up(self, why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make way for something of the script's that would not go together with a profile."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                self._given_up = why
                self.off()
                return original(*args, **kwargs)

            return call

        return make

    def off(self) -> None:
        """Stop profiling, where it began; a second time does nothing."""
        for patch in self._patches:
            patch.off()
        if self._profile is None or self._ended:
            return
        self._synchronize()
        self._ended = self._tracker.now()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profile.stop()
        let_go(self._profile)  # it holds every event of the steps, and is read and dropped next

    def values(self, step: int) -> Dict[str, Any]:
        """Give the means of a step as a reading."""
        if self._given_up is not None:
            raise RuntimeError(self._given_up)
        events = profiled(self._profile.profiler.kineto_results.events())
        wall_us = (self._ended - self._began) / 1000 / self._steps
        totals = kernel_totals(events, self._steps)
        return {"step": step, "wall_us": wall_us, **totals, "track": self._track(events)}

    def _track(self, events: List[Profiled]) -> Optional[Dict[str, Any]]:
        if self._step is None:
            return None
        ran = [Ran(event.name, event.start, event.took) for event in events if event.on_device]
        try:
            return device_track(self._step, ran, self._offset_ns, (self._began, self._ended))
        except Exception:  # noqa: BLE001 - the totals stand without it
            return None


def _has_any(kind: Any) -> bool:
    """Whether an object of a class lives; a profile between its steps is not seen otherwise."""
    return any(type(found) is kind for found in gc.get_objects())


def profiled(events: Any) -> List[Profiled]:
    """Read the profiler's events, each kernel with the operation that launched it."""
    operations: Dict[int, str] = {}
    found = []
    for event in events:
        name, on_device = event.name(), "CUDA" in str(event.device_type())
        linked = getattr(event, "linked_correlation_id", int)()
        identity = getattr(event, "correlation_id", int)()
        if identity and not on_device and not linked:
            operations[identity] = name
        if on_device and (_is_annotation(event) or name.startswith(_NAMED)):
            continue
        start, took = _times_ns(event)
        found.append((Profiled(name, on_device, start, took), linked))
    # An operation may be listed behind what it launched.
    return [event._replace(operation=operations.get(linked)) for event, linked in found]


def _is_annotation(event: Any) -> bool:
    return bool(getattr(event, "is_user_annotation", bool)())


def _times_ns(event: Any) -> Tuple[int, int]:
    """Start and duration of a profiled event; before torch 2.4 they were in microseconds."""
    if hasattr(event, "start_ns"):
        return event.start_ns(), event.duration_ns()
    return event.start_us() * 1000, event.duration_us() * 1000


def unwrapped(function: Any) -> Any:
    """Give a function of torch's as it was before the hooks: what the probe does is not counted."""
    return getattr(function, "__wrapped__", function)


def device_rates(torch: Any, device: str) -> Dict[str, Any]:
    """Time products and copies on the script's own device: what it can do.

    Raises:
        RuntimeError: There is too little memory to try.
    """
    if device.startswith("cuda"):
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if torch.cuda.mem_get_info(device)[0] + kept < _FREE_BYTES:
            raise RuntimeError("the device's memory is full")
    copies = _copy_rate(torch, device) if device.startswith("cuda") else None
    return {**matrix_rates(torch, device), "bytes_per_s": copies}


def matrix_rates(torch: Any, device: str) -> Dict[str, Any]:
    """Time products on the script's own device: how much faster another number format is."""
    products = Float32Products(torch)
    before = products.precision
    rates: Dict[str, float] = {}
    try:
        for name, dtype, precision in (
            ("fp32", torch.float32, products.full),
            ("tf32", torch.float32, products.tf32),
            ("bf16", torch.bfloat16, products.full),
        ):
            products.precision = precision
            one = torch.zeros(_SIDE, _SIDE, device=device, dtype=dtype)
            took_s = _seconds(torch, functools.partial(torch.mm, one, one))
            rates[name] = 2 * _SIDE**3 / took_s
    finally:
        products.precision = before
    return {"device": device, "flops_per_s": rates}


def _copy_rate(torch: Any, device: str) -> float:
    """Bytes read and written a second where one block of the device's memory becomes another."""
    block = torch.empty(2, _COPIED_BYTES, device=device, dtype=torch.uint8)
    return 2 * _COPIED_BYTES / _seconds(torch, functools.partial(block[0].copy_, block[1]))


def _seconds(torch: Any, action: Callable[[], Any]) -> float:
    synchronize = unwrapped(torch.cuda.synchronize)
    action()
    synchronize()
    start = time.perf_counter()
    for _ in range(_REPEATS):
        action()
    synchronize()
    return (time.perf_counter() - start) / _REPEATS


def kernel_totals(events: List[Profiled], steps: int) -> Dict[str, Any]:
    """Sum up profiled events and give the means of a step."""
    per_step = 1000 * steps
    device = [event for event in events if event.on_device]
    waits = [event.took for event in events if not event.on_device and event.name in _SYNC_CALLS]
    kernels = [event for event in device if not event.name.startswith(("Memcpy", "Memset"))]
    classes: Dict[str, float] = {}
    for event in device:
        name = class_of(event.name)
        classes[name] = classes.get(name, 0.0) + event.took / per_step
    products = [event for event in kernels if class_of(event.name) in PRODUCTS]
    products_ns = sum(event.took for event in products)
    tensor_ns = sum(event.took for event in products if is_on_tensor_cores(event.name))
    return {
        "launches": round(len(kernels) / steps),
        "busy_us": _covered([(event.start, event.start + event.took) for event in kernels])
        / per_step,
        "matmul_us": products_ns / per_step,
        "tensor_core_us": tensor_ns / per_step,
        "other_us": (sum(event.took for event in kernels) - products_ns) / per_step,
        "copy_to_device_us": _copied_ns(device, "HtoD") / per_step,
        "copy_to_host_us": _copied_ns(device, "DtoH") / per_step,
        # The profile itself waits once, at its end.
        "sync_calls": round(max(0, len(waits) - 1) / steps),
        "sync_us": sum(waits) / per_step,
        "classes": classes,
        "top": _top(device, steps),
    }


def _copied_ns(events: List[Profiled], direction: str) -> int:
    copies = [event for event in events if event.name.startswith("Memcpy")]
    return sum(event.took for event in copies if direction in event.name)


def _top(events: List[Profiled], steps: int) -> List[Dict[str, Any]]:
    """Give the kernels that take longest, each with what launched most of it."""
    totals: Dict[str, List[int]] = {}
    launchers: Dict[str, Dict[str, int]] = {}
    for event in events:
        entry = totals.setdefault(event.name, [0, 0])
        entry[0] += 1
        entry[1] += event.took
        if event.operation is not None:
            by = launchers.setdefault(event.name, {})
            by[event.operation] = by.get(event.operation, 0) + event.took
    longest = sorted(totals.items(), key=lambda item: -item[1][1])[:_TOP_KERNELS]
    return [
        {
            "name": name[:200],
            "count": round(count / steps) or 1,
            "total_us": took / 1000 / steps,
            "class_name": class_of(name),
            "operation": max(launchers[name], key=launchers[name].__getitem__)
            if name in launchers
            else None,
        }
        for name, (count, took) in longest
    ]


def _covered(intervals: List[Tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, reach = 0, 0
    for start, end in sorted(intervals):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
