"""A stopwatch that knows nothing of pitstop: where the steps of a script spend their time.

    python stopwatch.py OUT.json '{"data": ["get_batch"]}' train.py --its --arguments

It runs the script with clocks around the loader's ``__next__``, the outermost call of a module,
``backward``, ``autograd.grad`` and every optimizer's step, and around functions that it is given
by name. Only the outermost clock runs, but for what the closure of an optimizer calls, which is
taken out of the optimizer's time: nothing counts twice. A step lasts from the end of one
optimizer step to the end of the next; of a script that never calls an optimizer, from the end of
one backward pass to the end of the next.

Left out are the first ten steps, and those that held something else: a new pass over a loader, an
evaluation (a forward pass without gradients of a module that does not train), a checkpoint. What
those took longer than the clean ones is ``outside``, as a share of the whole time, by what they
held. Where fewer than a quarter of the steps are clean, all count, and what they held is a part.
A module that trained before, and is called with gradients in evaluation mode, is ``evaluation``,
too. Of forked processes that train, the last to end is told.

On a GPU the clocks stay on the host and nothing waits for the device: the parts are where the
program stands, as they are for the doctor. Copies to the device and waits for it are parts of their
own there. What the device does comes from a torch profile of twelve steps, which count for nothing
else: how long it was busy, with what, how many kernels, how long the host waited in calls of CUDA.
"""

import ast
import importlib
import json
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import util
from pathlib import Path
from statistics import median
from types import CodeType
from typing import Any

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


class Stopwatch:
    """Times of the parts of the present step, and of all finished ones."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.around: list[str] = []
        self.parts: dict[str, float] = {}
        self.held: set[str] = set()
        """What the present step held beside a step."""
        self.start_s = time.perf_counter()
        self.steps: list[tuple[float, dict[str, float], str]] = []
        """Wall clock, parts, and what was held beside a step."""
        self.seen = 0
        self.by_backward = True
        """Whether backward passes end steps: no optimizer has stepped yet."""
        self.device = Device() if torch.cuda.is_available() else None

    def timed(self, part: str, call: Callable[..., Any], *, spoils: bool = False) -> Any:
        """Wrap a callable."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # Inside an optimizer lies what its closure calls; elsewhere the outermost counts.
            outer = self.around[-1] if self.around else None
            if outer not in (None, "optimizer", "closure") or threading.get_ident() != self.thread:
                return call(*args, **kwargs)
            self.around.append(part)
            if spoils:
                self.held.add(part)
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.around.pop()
                took_s = time.perf_counter() - start_s
                self.parts[part] = self.parts.get(part, 0.0) + took_s
                if outer is not None:
                    self.parts[outer] = self.parts.get(outer, 0.0) - took_s

        return wrapper

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
        if self.seen > WARM_UP and not is_profiled:
            held = " and ".join(sorted(self.held))
            self.steps.append((now_s - self.start_s, dict(self.parts), held))
        self.parts.clear()
        self.held.clear()
        if self.device is not None:
            self.device.at_border(self.seen)
        self.start_s = time.perf_counter()

    def result(self) -> dict[str, Any]:
        """Shares of the steps that were clean, or of all where hardly one was."""
        clean = [step for step in self.steps if not step[2]]
        counted = clean if len(clean) * 4 >= len(self.steps) else self.steps
        wall_s = sum(wall for wall, _, _ in counted)
        names = {name for _, parts, _ in counted for name in parts}
        shares = {
            name: sum(parts.get(name, 0.0) for _, parts, _ in counted) / wall_s for name in names
        }
        return {
            "steps": self.seen,
            "clean": len(clean),
            "counted": len(counted),
            "wall_s": wall_s,
            "shares": shares,
            "outside": self._outside(clean) if counted is clean else {},
            "step_us": wall_s / len(counted) * 1e6 if counted else 0.0,
            "device": None if self.device is None else self.device.found,
        }

    def _outside(self, clean: list[tuple[float, dict[str, float], str]]) -> dict[str, float]:
        """What the other steps took longer than clean ones, as a share of all time."""
        whole_s = sum(wall for wall, _, _ in self.steps)
        usual_s = median(wall for wall, _, _ in clean) if clean else 0.0
        outside: dict[str, float] = {}
        for wall, _, held in self.steps:
            if held:
                outside[held] = outside.get(held, 0.0) + (wall - usual_s) / whole_s
        return outside


def install(watch: Stopwatch) -> None:
    """Put clocks around what every training uses."""
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        kind: Any = getattr(dataloader, name)
        # Workers are started here, so an epoch's first batch is no part of a step.
        kind.__init__ = watch.timed("epoch", kind.__init__, spoils=True)
        kind.__next__ = watch.timed("data", kind.__next__)
    torch.nn.Module.__call__ = _forward(watch, torch.nn.Module.__call__)
    torch.autograd.backward = _backward(watch, torch.autograd.backward)
    torch.autograd.grad = watch.timed("backward", torch.autograd.grad)
    torch.save = watch.timed("save", torch.save, spoils=True)
    _optimizers(watch)
    if watch.device is not None:
        _transfers(watch)


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
        if not watch.around:
            watch.end_step(by_backward=True)
        return result

    return backward


def _forward(watch: Stopwatch, call: Callable[..., Any]) -> Callable[..., Any]:
    trains, evaluates = (watch.timed(part, call) for part in ("forward", "evaluation"))
    trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if watch.around and watch.around[-1] not in ("optimizer", "closure"):
            return call(self, *args, **kwargs)
        if self.training:
            trained.add(self)
        elif not torch.is_grad_enabled():
            watch.held.add("evaluation")
        elif self not in trained:
            return trains(self, *args, **kwargs)
        return (trains if self.training else evaluates)(self, *args, **kwargs)

    return module_call


def _optimizers(watch: Stopwatch) -> None:
    original = torch.optim.Optimizer.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        hooked = original(step)
        timed = watch.timed("optimizer", hooked)

        def whole(*args: Any, **kwargs: Any) -> Any:
            outermost = not watch.around
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
