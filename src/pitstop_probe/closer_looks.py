"""Steps that are slowed down to look more closely: modules, arithmetic and traffic, kernels.

Each looks at whole steps, from one border to the next, and those count for nothing else. They may
wait for the device; ordinary steps never do. A look is put `on` and taken `off`, whole or in the
middle; its `values` can be asked for afterwards.
"""

import re
import time
import warnings
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.inventory import Float32Products
from pitstop_probe.patches import Patch, replace_call
from pitstop_probe.torch_hooks import part_of
from pitstop_probe.watch import Watch

_MATMUL = re.compile(
    r"gemm|gemv|cutlass|xmma|nvjet|conv|wgrad|dgrad|winograd|implicit|attention|flash|fmha|mma_",
    re.IGNORECASE,
)
_TENSOR_CORE = re.compile(
    r"s\d+816|s1688|s884|h1688|hmma|xmma|tensorop|wgmma|nvjet|bf16|tf32|f16f16|flash|fmha|16816|"
    r"sm90|sm80_xmma",
    re.IGNORECASE,
)
_SYNC_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_TOP_KERNELS = 12


class ModuleLook:
    """Times the children of a model in one step, forward and backward."""

    kind = "modules"

    def __init__(self, watch: Watch, torch: Any, model: Any) -> None:
        self._watch = watch
        on_cuda = torch.cuda.is_initialized()
        self._synchronize = unwrapped(torch.cuda.synchronize) if on_cuda else None
        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._forward: Dict[str, int] = {}
        self._kinds: Dict[str, str] = {}
        self._names: Dict[int, str] = {}
        self._backward: Dict[str, List[int]] = {}
        self._classes: Dict[Any, None] = {}
        self._patches: List[Patch] = []
        for name, child in children_of(model):
            self._kinds[name] = type(child).__name__
            self._names[id(child)] = name
            self._classes[type(child)] = None

    def on(self) -> None:
        """Wrap the children's classes, not them: hooks on a module are copied and saved with it."""
        for kind in self._classes:
            self._patches.append(replace_call(kind, self._around))

    def off(self) -> None:
        """Take the wrappers off."""
        for patch in self._patches:
            patch.off()

    def values(self, step: int) -> Dict[str, Any]:
        """Give the times as a reading."""
        modules = [
            {
                "name": name,
                "kind": kind,
                "forward_us": self._forward.get(name, 0) // 1000,
                "backward_us": self._backward_us(name),
            }
            for name, kind in self._kinds.items()
        ]
        return {"step": step, "modules": modules}

    def _now(self) -> int:
        # Waiting would break a graph that the script captures in this step.
        if self._synchronize is not None and not self._is_capturing():
            self._synchronize()
        return self._watch.now()

    def _around(self, module: Any, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        name = self._names.get(id(module))
        if name is None:
            return call(*args, **kwargs)
        self._follow(args, name, 1)
        began = self._now()
        output = call(*args, **kwargs)
        self._forward[name] = self._forward.get(name, 0) + self._now() - began
        self._follow(output, name, 0)
        return output

    def _follow(self, values: Any, name: str, end: int) -> None:
        """Have a gradient's arrival noted; not at the script's own parameters, which outlive us."""
        for value in _tensors(values):
            if value.requires_grad and not value.is_leaf:
                value.register_hook(lambda _: self._mark(name, end))

    def _mark(self, name: str, end: int) -> None:
        """A gradient reached the output (0) or left the input (1) of a child."""
        times = self._backward.setdefault(name, [0, 0])
        if end or not times[0]:
            times[end] = self._now()

    def _backward_us(self, name: str) -> Optional[int]:
        times = self._backward.get(name)
        if times is None or not times[0] or not times[1]:
            return None  # the first child has no gradient of its input, so its end is not seen
        return max(0, times[1] - times[0]) // 1000


def children_of(model: Any) -> List[Tuple[str, Any]]:
    """The first level of a model at which there is more than one part."""
    children = [(name, child) for name, child in model.named_children()]
    while len(children) == 1 and any(True for _ in children[0][1].children()):
        prefix, only = children[0]
        children = [(prefix + "." + name, child) for name, child in only.named_children()]
    return children[:64]


def _tensors(value: Any) -> List[Any]:
    if hasattr(value, "register_hook"):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []


class WorkLook:
    """Counts one step's arithmetic and traffic, on the thread that it is put on by."""

    kind = "work"

    def __init__(self, torch: Any) -> None:
        self._modes = part_of(torch, "utils._python_dispatch")
        self._tally = WorkTally(part_of(torch, "utils.flop_counter").flop_registry)
        self._mode = _counting_mode(self._modes.TorchDispatchMode, self._tally)
        self._thread: Optional[int] = None

    def on(self) -> None:
        """Begin to count, unless a mode of the script's is on: its end would end ours instead."""
        if self._modes._get_current_dispatch_mode() is not None:
            raise RuntimeError("the script has a dispatch mode on")
        self._mode.__enter__()
        self._thread = get_ident()

    def off(self) -> None:
        """Stop counting; another thread, or its child, has no such mode to end."""
        if self._thread == get_ident():
            self._thread = None
            self._mode.__exit__(None, None, None)

    def values(self, step: int) -> Dict[str, Any]:
        """Give the totals as a reading."""
        return self._tally.values(step)


def _counting_mode(mode: Any, tally: "WorkTally") -> Any:
    """Make a mode of torch's that shows every operation to a tally; its class needs torch."""

    class Counting(mode):
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Let regions that are compiled in this step be so; else fullgraph=True fails."""
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            try:
                tally.add(func, args, kwargs or {}, result)
            except Exception:  # noqa: BLE001 - counting must not fail where the operation did not
                tally.left_out += 1
            return result

    return Counting()


_FREE = {
    "_unsafe_view",
    "alias",
    "as_strided",
    "detach",
    "expand",
    "permute",
    "select",
    "slice",
    "split",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
}


# An operation that writes this much less than it reads is a reduction.
_REDUCES = 4


class WorkTally:
    """Adds up operations. Bytes are those of their tensors; views move none."""

    def __init__(self, formulas: Any) -> None:
        self._formulas = formulas
        self.operations = 0
        self.left_out = 0
        self.flops = 0
        self.flops_by_dtype: Dict[str, int] = {}
        self.unaligned = 0
        self.small = 0
        self.bytes = 0
        self.pointwise_bytes = 0
        self._fusion = _Fusion()

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take in one operation that has run."""
        packet = getattr(func, "overloadpacket", func)
        if str(packet).rsplit(".", 1)[-1] in _FREE:
            return
        inputs, outputs = _sizes((args, kwargs)), _sizes(result)
        read, written = sum(size for _, size in inputs), sum(size for _, size in outputs)
        moved = read + written
        self.operations += 1
        self.bytes += moved
        formula = self._formulas.get(packet)
        if formula is None:
            self.pointwise_bytes += moved
            self._fusion.add(inputs, outputs)
            if written < read / _REDUCES:
                self._fusion.end_run()
            return
        self._fusion.end_run()
        self._fusion.made_elsewhere(outputs)
        self._count(formula, args, kwargs, result)

    def _count(self, formula: Any, args: Any, kwargs: Any, result: Any) -> None:
        try:
            flops = int(formula(*args, **kwargs, out_val=result))
        except Exception:  # noqa: BLE001 - a private formula of torch's may not fit this call
            self.left_out += 1
            return
        tensors = [tensor for tensor in _tensors(args) if tensor.dim() >= 2]
        dtype = str(tensors[0].dtype).replace("torch.", "") if tensors else "unknown"
        self.flops += flops
        self.flops_by_dtype[dtype] = self.flops_by_dtype.get(dtype, 0) + flops
        # Of a product the two innermost dimensions count, of a convolution the channels.
        sides = [side for tensor in tensors[:2] for side in _sides(tensor)]
        if any(side % 8 for side in sides):
            self.unaligned += flops
        if sides and min(sides) < 64:
            self.small += flops

    def values(self, step: int) -> Dict[str, Any]:
        """Give the totals as a reading."""
        self._fusion.end_run()
        return {
            "step": step,
            "flops": self.flops,
            "flops_by_dtype": self.flops_by_dtype,
            "unaligned_flops": self.unaligned,
            "small_flops": self.small,
            "bytes_moved": self.bytes,
            "pointwise_bytes": self.pointwise_bytes,
            "pointwise_bytes_fused": min(self._fusion.bytes, self.pointwise_bytes),
            "operations": self.operations,
            "left_out": self.left_out,
        }


class _Fusion:
    """Counts the bytes of element-wise work as if every run of it were one operation.

    A run reads what it did not make and writes what something outside it reads; products and
    reductions end it. Memory is used again, so a tensor is an address and how often it was made.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._times_made: Dict[int, int] = {}
        self._read: Dict[Tuple[int, int], int] = {}
        self._made: Dict[Tuple[int, int], int] = {}
        self._inner: Dict[Tuple[int, int], int] = {}

    def add(self, inputs: List[Tuple[int, int]], outputs: List[Tuple[int, int]]) -> None:
        """Add an operation to the present run."""
        for address, size in inputs:
            key = self._key(address)
            if key not in self._made:
                self._read[key] = size
        self.made_elsewhere(outputs)
        for address, size in outputs:
            self._made[self._key(address)] = size

    def made_elsewhere(self, outputs: List[Tuple[int, int]]) -> None:
        """Take note that tensors were made, so that their addresses stand for new ones."""
        for address, _ in outputs:
            self._times_made[address] = self._times_made.get(address, 0) + 1

    def end_run(self) -> None:
        """End the present run; whatever it made is written once somebody outside reads it."""
        for key, size in self._read.items():
            # Read here and made in an earlier run: that one had to write it.
            self.bytes += size + self._inner.pop(key, 0)
        self._inner.update(self._made)
        self._read, self._made = {}, {}

    def _key(self, address: int) -> Tuple[int, int]:
        return address, self._times_made.get(address, 0)


def _sides(tensor: Any) -> Any:
    return tensor.shape[-2:] if tensor.dim() < 4 else tensor.shape[:2]


def _sizes(value: Any) -> List[Tuple[int, int]]:
    """Address and bytes of every tensor in there."""
    found = []
    for tensor in _tensors(value):
        try:
            found.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        except (RuntimeError, TypeError):
            continue  # a tensor without storage
    return found


class KernelLook:
    """Profiles some steps on a GPU: every kernel, copy and wait.

    One profile for all of them. It begins and ends inside an optimizer's step, which torch records
    as a range of its own: a second profile begun before that range ends would be handed the end of
    a range of the first, which is gone by then, and crash the process.
    """

    kind = "kernels"

    def __init__(self, watch: Watch, torch: Any, steps: int) -> None:
        self._watch = watch
        self._steps = steps
        self._torch = torch
        self._synchronize = unwrapped(torch.cuda.synchronize)
        self._profile: Any = None
        self._began = self._ended = 0

    def on(self) -> None:
        """Begin to profile, unless the script does: a second profile would end the first."""
        if self._torch.autograd._profiler_enabled():
            raise RuntimeError("the script is being profiled already")
        activities = self._torch.profiler.ProfilerActivity
        self._synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profile = self._torch.profiler.profile(activities=[activities.CPU, activities.CUDA])
            profile.start()
        self._profile = profile
        self._began = self._watch.now()

    def off(self) -> None:
        """Stop profiling, where it began."""
        if self._profile is None:
            return
        self._synchronize()
        self._ended = self._watch.now()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profile.stop()

    def values(self, step: int) -> Dict[str, Any]:
        """Give the means of a step as a reading."""
        events = [
            (event.name(), _is_device(event), *_times_ns(event))
            for event in self._profile.profiler.kineto_results.events()
        ]
        wall_us = (self._ended - self._began) / 1000 / self._steps
        return {"step": step, "wall_us": wall_us, **kernel_totals(events, self._steps)}


def _times_ns(event: Any) -> Tuple[int, int]:
    """Start and duration of a profiled event; before torch 2.4 they were in microseconds."""
    if hasattr(event, "start_ns"):
        return event.start_ns(), event.duration_ns()
    return event.start_us() * 1000, event.duration_us() * 1000


def unwrapped(function: Any) -> Any:
    """Give a function of torch's as it was before the hooks: what the probe does is not counted."""
    return getattr(function, "__wrapped__", function)


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
            rates[name] = _matrix_rate(torch, device, dtype)
    finally:
        products.precision = before
    return {"device": device, "flops_per_s": rates}


def _matrix_rate(torch: Any, device: str, dtype: Any) -> float:
    side, repeats = 4096, 5
    one = torch.zeros(side, side, device=device, dtype=dtype)
    synchronize = unwrapped(torch.cuda.synchronize)
    torch.mm(one, one)
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        torch.mm(one, one)
    synchronize()
    return 2 * side**3 * repeats / (time.perf_counter() - start)


def _is_device(event: Any) -> bool:
    return "CUDA" in str(event.device_type())


def kernel_totals(events: List[Tuple[str, bool, int, int]], steps: int) -> Dict[str, Any]:
    """Sum up profiled events and give the means of a step.

    Args:
        events: Name, whether on the device, start and duration in nanoseconds.
        steps: Over how many steps.
    """
    per_step = 1000 * steps
    device = [event for event in events if event[1]]
    waits = [took for name, on_device, _, took in events if not on_device and name in _SYNC_CALLS]
    kernels = [
        (name, start, took)
        for name, _, start, took in device
        if not name.startswith(("Memcpy", "Memset")) and name != "gpu_user_annotation"
    ]
    matmul = [(name, took) for name, _, took in kernels if _MATMUL.search(name)]
    matmul_ns = sum(took for _, took in matmul)
    total_ns = sum(took for _, _, took in kernels)
    tensor_ns = sum(took for name, took in matmul if _TENSOR_CORE.search(name))
    return {
        "launches": round(len(kernels) / steps),
        "busy_us": _covered([(start, start + took) for _, start, took in kernels]) / per_step,
        "matmul_us": matmul_ns / per_step,
        "tensor_core_us": tensor_ns / per_step,
        "other_us": (total_ns - matmul_ns) / per_step,
        "copy_to_device_us": _copied_ns(device, "HtoD") / per_step,
        "copy_to_host_us": _copied_ns(device, "DtoH") / per_step,
        # The look itself waits once, at its end.
        "sync_calls": round(max(0, len(waits) - 1) / steps),
        "sync_us": sum(waits) / per_step,
        "top": _top(kernels),
    }


def _copied_ns(events: List[Tuple[str, bool, int, int]], direction: str) -> int:
    return sum(
        took for name, _, _, took in events if name.startswith("Memcpy") and direction in name
    )


def _top(kernels: List[Tuple[str, int, int]]) -> List[Dict[str, Any]]:
    totals: Dict[str, List[int]] = {}
    for name, _, took in kernels:
        entry = totals.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += took
    longest = sorted(totals.items(), key=lambda item: -item[1][1])[:_TOP_KERNELS]
    return [
        {"name": name[:200], "count": count, "total_us": took / 1000}
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
