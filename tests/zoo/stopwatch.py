"""A stopwatch that knows nothing of pitstop: where the steps of a script spend their time.

    python stopwatch.py OUT.json '{"data": ["get_batch"]}' train.py --its --arguments

It runs the script with clocks around the loader's ``__next__``, the outermost call of a module,
``backward``, ``autograd.grad``, ``zero_grad``, clipping and every optimizer's step, and around
functions that it is given by name. Only the outermost clock runs, but for what the closure of an
optimizer calls, which is taken out of the optimizer's time: nothing counts twice. A step lasts from
the end of one optimizer step to the end of the next; of a script that never calls an optimizer,
from the end of one backward pass to the end of the next. A module in whose call an optimizer steps
is a loop, not a model: from then on it is looked into.

The first ten steps are left out. What lies between two steps and belongs to neither is clocked by
itself, and is no part of a step (``outside``, as shares of the whole time):

    evaluation        from the first to the last pass of a model that trains, in evaluation mode,
                      the loader's waits included
    evaluation pass   making the iterator that feeds it, and with workers its first batch
    pass              the same for training; and the end of a pass, where workers end
    save              `torch.save`

A step that held one of these is odd. What the rest of it took longer than ordinary steps do is in
``outside``, too: ``python`` where no clock ran, ``waits`` for the device and ``copies`` to it. So
that is Python once an epoch, and copies of all weights. The shares of parts are those of ordinary
steps. Where fewer than a quarter of the steps are ordinary, all count, without what is outside.
Of forked processes that train, the last to end is told.

On a GPU the clocks stay on the host and nothing waits for the device: the parts are where the
program stands, as they are for the doctor. Copies to the device and waits for it are parts of their
own there. What the device does comes from a torch profile of twelve steps, which count for nothing
else: how long it was busy, with what, how many kernels, how long the host waited in calls of CUDA.
"""

import ast
import importlib
import itertools
import json
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import dataloader

WARM_UP = 10
_KERNELS = {
    "copies": re.compile(r"Memcpy HtoD"),
    "update": re.compile(r"multi_tensor|FusedAdam|fused_adam"),
    "products": re.compile(
        r"(?i)gemm|conv|xmma|cutlass|wgrad|dgrad|fprop|fmha|flash|gemv|winograd"
    ),
}
_TENSOR_CORES = re.compile(r"(?i)tf32|s1688|s16816|bf16|f16|half|hmma|tensorop|flash|fmha")
_ANNOTATION = re.compile(r"^(Optimizer\.|ProfilerStep|nccl:|## )")
_WAIT_FOR_DEVICE = torch.cuda.synchronize  # noqa: TID251 - around profiled steps, in a run of its own
PROFILED = range(WARM_UP + 2, WARM_UP + 14)
"""Steps under a profiler: twelve hold whole cycles of up to four, and of six, optimizer steps."""


class Device:
    """What a GPU does in the profiled steps."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        """A step's microseconds by what was done, and the number of kernels."""
        self._profile: Any = None

    def at_border(self, seen: int) -> None:
        """Begin or end the profile where it is time."""
        if seen == PROFILED.start:
            _WAIT_FOR_DEVICE()
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            self._profile.__enter__()
        elif seen == PROFILED.stop:
            _WAIT_FOR_DEVICE()
            self._profile.__exit__(None, None, None)
            self.found = device_times(self._profile.profiler.kineto_results.events())
            self._profile = None


def device_times(events: Iterable[Any]) -> dict[str, float]:
    """Sum up the events of a profile, by step."""
    found: dict[str, float] = dict.fromkeys(
        ("busy", "products", "fp32", "update", "copies", "other", "waits"), 0.0
    )
    kernels = 0
    spans: list[tuple[int, int]] = []
    for event in events:
        name, took_us = event.name(), event.duration_ns() / 1000
        if event.device_type() != DeviceType.CUDA:
            found["waits"] += took_us if "Synchronize" in name else 0.0
        elif not _ANNOTATION.search(name):
            kernels += 1
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
            kind = kernel_kind(name)
            found[kind] += took_us
            if kind == "products" and not _TENSOR_CORES.search(name):
                found["fp32"] += took_us
    found |= {"busy": union_ns(spans) / 1000, "kernels": kernels}
    return {key: us / len(PROFILED) for key, us in found.items()}


def kernel_kind(name: str) -> str:
    """What a kernel does, by its name."""
    return next((kind for kind, pattern in _KERNELS.items() if pattern.search(name)), "other")


def union_ns(spans: list[tuple[int, int]]) -> int:
    """Time in which at least one span runs."""
    covered, reached = 0, 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


class Batch(NamedTuple):
    """What is known of a loader's ``__next__``, or of the making of its iterator."""

    iterator: int
    workers: bool
    first: bool = False
    last: bool = False
    """No batch was left."""


class Event(NamedTuple):
    """One time that a clock ran."""

    part: str
    start: float
    end: float
    own: float
    """Without what ran inside it."""
    batch: Batch | None = None


class Step(NamedTuple):
    """A step: all times in seconds."""

    wall: float
    """Without what lay outside."""
    parts: dict[str, float]
    outside: dict[str, float]


Span = tuple[str, float, float]
"""What lay outside a step: name, start, end."""

_MAKING = "making"
_OF_TRAINING = frozenset(("forward", "backward", "optimizer", "closure"))
_LEFT_OVER = {"wait": "waits", "copy": "copies"}
"""Parts of which an odd step has more than an ordinary one: nothing else explains these."""


def spans_outside(events: Sequence[Event], purposes: dict[int, str]) -> list[Span]:
    """Find what lay outside a step, in order and without overlap.

    A batch is for whatever pass comes next, and its iterator keeps that purpose.

    Args:
        events: In the order in which they ended; of one thread, and none inside another.
        purposes: Of iterators, by number; those that this step shows are added.
    """
    _learn_purposes(events, purposes)
    found: list[Span] = [("save", e.start, e.end) for e in events if e.part == "save"]
    evaluating: list[float] = []
    for place, event in enumerate(events):
        purpose = event.part
        if event.batch is not None:
            purpose = purposes.get(event.batch.iterator, "training")
            start_s = _of_pass_since(events, place, event.batch)
            if start_s is not None:
                name = "evaluation pass" if purpose == "evaluation" else "pass"
                found.append((name, start_s, event.end))
                continue
        if purpose == "evaluation":
            evaluating = [*evaluating[:1], event.start, event.end]
        elif purpose == "training" or purpose in _OF_TRAINING:
            found += _from_first_to_last(evaluating)
            evaluating = []
    return _apart([*found, *_from_first_to_last(evaluating)])


def _learn_purposes(events: Sequence[Event], purposes: dict[int, str]) -> None:
    following = ""
    for event in reversed(events):
        if event.part == "evaluation" or event.part in _OF_TRAINING:
            following = "evaluation" if event.part == "evaluation" else "training"
        elif event.batch is not None and following and not event.batch.last:
            purposes.setdefault(event.batch.iterator, following)


def _of_pass_since(events: Sequence[Event], place: int, batch: Batch) -> float | None:
    """Give the beginning of what starts or ends a pass; None of any other batch.

    Without workers the first batch is as every other, and there is nothing to end.
    """
    event = events[place]
    if event.part == _MAKING or (batch.workers and batch.last):
        return event.start
    if not (batch.workers and batch.first):
        return None
    made = [
        other.start
        for other in events[:place]
        if other.part == _MAKING and other.batch and other.batch.iterator == batch.iterator
    ]
    return made[-1] if made else None


def _from_first_to_last(times: Sequence[float]) -> list[Span]:
    return [("evaluation", times[0], times[-1])] if times else []


def _apart(spans: Iterable[Span]) -> list[Span]:
    """Cut each span by what is inside it or reaches into it, so that nothing counts twice."""
    apart: list[Span] = []
    for name, start, end in sorted(spans, key=lambda span: span[2] - span[1]):
        # The shortest first: a save inside an evaluation is a save.
        left = [(start, end)]
        for _, low, high in apart:
            left = [
                piece
                for begin, stop in left
                for piece in ((begin, min(stop, low)), (max(begin, high), stop))
                if piece[1] > piece[0]
            ]
        apart += [(name, begin, stop) for begin, stop in left]
    return sorted(apart, key=lambda span: span[1])


class Stopwatch:
    """Times of the parts of the present step, and of all finished ones."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.running: list[list[Any]] = []
        """Clocks that run, the outermost first: part, time inside others, called object."""
        self.events: list[Event] = []
        """Of the present step."""
        self.purposes: dict[int, str] = {}
        self.fresh: set[int] = set()
        """Iterators that gave no batch yet in this pass."""
        self.loops: weakref.WeakSet[Any] = weakref.WeakSet()
        """Modules in whose call an optimizer steps."""
        self.start_s = time.perf_counter()
        self.steps: list[Step] = []
        self.seen = 0
        self.by_backward = True
        """Whether backward passes end steps: no optimizer has stepped yet."""
        self.device = Device() if torch.cuda.is_available() else None

    @property
    def is_free(self) -> bool:
        """Whether a clock may be started: none runs, or one that others may run inside."""
        inside = self.running[-1][0] if self.running else None
        mine = threading.get_ident() == self.thread
        return mine and inside in (None, "optimizer", "closure")

    def timed(self, part: str, call: Callable[..., Any]) -> Any:
        """Wrap a callable."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.is_free:
                return call(*args, **kwargs)
            clock = [part, 0.0, args[0] if args else None]
            self.running.append(clock)
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                end_s = time.perf_counter()
                if self.running and self.running[-1] is clock:
                    self.running.pop()
                    self.events.append(Event(part, start_s, end_s, end_s - start_s - clock[1]))
                    if self.running:
                        self.running[-1][1] += end_s - start_s

        return wrapper

    def look_into_loops(self) -> None:
        """Give up the clocks of modules that an optimizer steps in: they hold steps."""
        if self.running and all(clock[0] in ("forward", "evaluation") for clock in self.running):
            self.loops.update(clock[2] for clock in self.running)
            self.running.clear()

    def end_step(self, *, by_backward: bool = False) -> None:
        """An optimizer has stepped, or gradients are there where none ever does."""
        if by_backward and not self.by_backward:
            return
        now_s = time.perf_counter()
        if self.by_backward and not by_backward:
            self.by_backward = False
            self.steps.clear()
            self.seen = 0
        is_profiled = self.device is not None and self.seen in PROFILED
        self.seen += 1
        step = self._ended(now_s)
        if self.seen > WARM_UP and not is_profiled:
            self.steps.append(step)
        self.events.clear()
        if self.device is not None:
            self.device.at_border(self.seen)
        self.start_s = time.perf_counter()

    def _ended(self, now_s: float) -> Step:
        spans = spans_outside(self.events, self.purposes)
        outside: dict[str, float] = {}
        for name, start, end in spans:
            outside[name] = outside.get(name, 0.0) + end - start
        parts: dict[str, float] = {}
        for part, start, end, own, _ in self.events:
            if not any(low <= start and end <= high for _, low, high in spans):
                parts[part] = parts.get(part, 0.0) + own
        return Step(now_s - self.start_s - sum(outside.values()), parts, outside)

    def result(self) -> dict[str, Any]:
        """Shares of the parts of ordinary steps, and of what lay outside."""
        clean = [step for step in self.steps if not step.outside]
        counted = clean if len(clean) * 4 >= len(self.steps) else self.steps
        wall_s = sum(step.wall for step in counted)
        names = {name for step in counted for name in step.parts}
        shares = {
            name: sum(step.parts.get(name, 0.0) for step in counted) / wall_s for name in names
        }
        return {
            "steps": self.seen,
            "clean": len(clean),
            "counted": len(counted),
            "wall_s": wall_s,
            "shares": shares,
            "outside": self._outside(counted if counted is clean else ()),
            "step_us": wall_s / len(counted) * 1e6 if counted else 0.0,
            "device": None if self.device is None else self.device.found,
        }

    def _outside(self, ordinary: Sequence[Step]) -> dict[str, float]:
        """What lay outside, and what odd steps took longer than ordinary ones."""
        took: dict[str, float] = {}
        for step in self.steps:
            for name, seconds in step.outside.items():
                took[name] = took.get(name, 0.0) + seconds
        odd = [step for step in self.steps if step.outside]
        if ordinary and odd:
            for name, left_s in _left_over(odd, ordinary).items():
                took[name] = max(0.0, left_s)
        whole_s = sum(step.wall + sum(step.outside.values()) for step in self.steps)
        return {name: seconds / whole_s for name, seconds in took.items()}


def _left_over(odd: Sequence[Step], ordinary: Sequence[Step]) -> dict[str, float]:
    """Seconds that odd steps took longer than as many ordinary ones, by what they went into."""

    def beyond(seconds: Callable[[Step], float]) -> float:
        usual_s = sum(map(seconds, ordinary)) / len(ordinary)
        return sum(map(seconds, odd)) - usual_s * len(odd)

    return {
        "python": beyond(lambda step: step.wall - sum(step.parts.values())),
        **{
            name: beyond(lambda step, part=part: step.parts.get(part, 0.0))
            for part, name in _LEFT_OVER.items()
        },
    }


def install(watch: Stopwatch) -> None:
    """Put clocks around what every training uses."""
    _loaders(watch)
    torch.nn.Module.__call__ = _forward(watch, torch.nn.Module.__call__)
    torch.autograd.backward = _backward(watch, torch.autograd.backward)
    torch.autograd.grad = watch.timed("backward", torch.autograd.grad)
    torch.save = watch.timed("save", torch.save)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(torch.nn.utils, name, watch.timed("clip", getattr(torch.nn.utils, name)))
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = watch.timed("zero_grad", owner.zero_grad)
    _optimizers(watch)
    if watch.device is not None:
        _transfers(watch)


def _loaders(watch: Stopwatch) -> None:
    """Put clocks around iterators of loaders: making them, resetting them, each batch."""
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        kind: Any = getattr(dataloader, name)
        workers = name.startswith("_Multi")
        kind.__next__ = _fetch(watch, kind.__next__, workers=workers)
        # Persistent workers begin a new pass by a reset; the first one lies in the making.
        for beginning in ("__init__", "_reset") if workers else ("__init__",):
            setattr(kind, beginning, _make(watch, getattr(kind, beginning), workers=workers))


def _make(watch: Stopwatch, call: Callable[..., Any], *, workers: bool) -> Callable[..., Any]:
    timed, numbers = watch.timed(_MAKING, call), _NUMBERS

    def make(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.is_free:
            return call(iterator, *args, **kwargs)
        result = timed(iterator, *args, **kwargs)
        if "zoo_number" not in vars(iterator):
            iterator.zoo_number = next(numbers)
        watch.fresh.add(iterator.zoo_number)
        watch.events[-1] = watch.events[-1]._replace(batch=Batch(iterator.zoo_number, workers))
        return result

    return make


_NUMBERS = itertools.count()


def _fetch(watch: Stopwatch, call: Callable[..., Any], *, workers: bool) -> Callable[..., Any]:
    timed = watch.timed("data", call)

    def fetch(iterator: Any) -> Any:
        number = vars(iterator).get("zoo_number")
        if number is None or not watch.is_free:
            return timed(iterator)
        batch, is_last = Batch(number, workers, first=number in watch.fresh), True
        watch.fresh.discard(number)
        try:
            result = timed(iterator)
            is_last = False
            return result
        finally:
            watch.events[-1] = watch.events[-1]._replace(batch=batch._replace(last=is_last))

    return fetch


def _transfers(watch: Stopwatch) -> None:
    """Put clocks around copies to the device and waits for it."""
    for name in ("to", "cuda"):
        _only_if(watch, "copy", name, on_device=False)
    for name in ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__"):
        _only_if(watch, "wait", name, on_device=True)
    torch.cuda.synchronize = watch.timed("wait", _WAIT_FOR_DEVICE)  # noqa: TID251 - the script's


def _only_if(watch: Stopwatch, part: str, name: str, *, on_device: bool) -> None:
    """Time a tensor's method where the tensor is on the device, or is not."""
    call = getattr(torch.Tensor, name)
    timed = watch.timed(part, call)

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (timed if self.is_cuda is on_device else call)(self, *args, **kwargs)

    setattr(torch.Tensor, name, method)


def _backward(watch: Stopwatch, call: Callable[..., Any]) -> Callable[..., Any]:
    timed = watch.timed("backward", call)

    def backward(*args: Any, **kwargs: Any) -> Any:
        result = timed(*args, **kwargs)
        if not watch.running:
            watch.end_step(by_backward=True)
        return result

    return backward


def _forward(watch: Stopwatch, call: Callable[..., Any]) -> Callable[..., Any]:
    trains, evaluates = (watch.timed(part, call) for part in ("forward", "evaluation"))
    trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not watch.is_free or self in watch.loops:
            return call(self, *args, **kwargs)
        if self.training and self not in trained:
            trained.update(self.modules())
        is_evaluation = not self.training and self in trained
        return (evaluates if is_evaluation else trains)(self, *args, **kwargs)

    return module_call


def _optimizers(watch: Stopwatch) -> None:
    original = torch.optim.Optimizer.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        hooked = original(step)
        timed = watch.timed("optimizer", hooked)

        def whole(*args: Any, **kwargs: Any) -> Any:
            watch.look_into_loops()
            outermost = not watch.running
            if len(args) > 1 and callable(args[1]):
                args = (args[0], watch.timed("closure", args[1]), *args[2:])
            elif callable(kwargs.get("closure")):
                kwargs["closure"] = watch.timed("closure", kwargs["closure"])
            result = timed(*args, **kwargs)
            if outermost:
                watch.end_step()
            return result

        whole.hooked = True  # pyright: ignore[reportFunctionMemberAccess]
        return whole

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # pyright: ignore[reportAttributeAccessIssue]


def wrap_named(watch: Stopwatch, names: Mapping[str, list[str]]) -> dict[str, str]:
    """Wrap ``module:Class.method`` now; return the script's own functions with their parts."""
    own: dict[str, str] = {}
    for part, functions in names.items():
        for name in functions:
            module, _, path = name.rpartition(":")
            if not module:
                own[path] = part
                continue
            *owners, last = path.split(".")
            holder: Any = importlib.import_module(module)
            for owner in owners:
                holder = getattr(holder, owner)
            setattr(holder, last, watch.timed(part, getattr(holder, last)))
    return own


def compiled(path: Path, own: Mapping[str, str]) -> CodeType:
    """The script, its named functions decorated by the stopwatch."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in own:
            call = ast.Call(
                ast.Name("__zoo_timed__", ast.Load()), [ast.Constant(own[node.name])], []
            )
            node.decorator_list.insert(0, ast.copy_location(ast.fix_missing_locations(call), node))
    return compile(ast.fix_missing_locations(tree), str(path), "exec")


def main() -> None:
    out, names, script, *args = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.argv = [script, *args]
    watch = Stopwatch()
    install(watch)
    own = wrap_named(watch, json.loads(names))
    main_module = type(sys)("__main__")
    main_module.__dict__.update(
        __file__=script,
        __zoo_timed__=lambda part: lambda function: watch.timed(part, function),
    )
    code = compiled(Path(script), own)

    def write() -> None:
        if watch.seen or not Path(out).exists():
            Path(out).write_text(json.dumps(watch.result()), encoding="utf-8")

    sys.modules["__main__"] = main_module
    util.register_after_fork(watch, lambda _: util.Finalize(None, write, exitpriority=0))
    try:
        exec(code, main_module.__dict__)
    finally:
        write()


if __name__ == "__main__":
    main()
