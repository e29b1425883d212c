"""A step that is slowed down to count arithmetic, traffic and what modules keep, by operation.

Such a profile takes whole steps, from one border to the next, and those count for nothing else. It
is put `on` and taken `off`, whole or in the middle; its `values` can be asked for afterwards.
Others are `module_profile` and `kernel_profile`.
"""

from threading import get_ident
from typing import Any, Dict, List, Optional, Sequence, Tuple

from pitstop_probe.deep.kept_memory import KeptMemory
from pitstop_probe.deep.module_profile import module_names, tensors_in
from pitstop_probe.deep.origins import Origins
from pitstop_probe.hooks.torch_hooks import part_of


class WorkProfile:
    """Counts one step's arithmetic and traffic, on the thread that it is put on by."""

    kind = "work"

    def __init__(self, torch: Any, models: Sequence[Any] = ()) -> None:
        self._modes = part_of(torch, "utils._python_dispatch")
        names = module_names(models)
        self._kept = KeptMemory(torch, names)
        formulas = part_of(torch, "utils.flop_counter").flop_registry
        self._counter = WorkCounter(formulas, Origins(torch, names), self._kept)
        self._mode = _counting_mode(self._modes.TorchDispatchMode, self._counter)
        self._thread: Optional[int] = None

    def on(self) -> None:
        """Begin to count, unless a mode of the script's is on: its end would end ours instead."""
        if self._modes._get_current_dispatch_mode() is not None:
            raise RuntimeError("the script has a dispatch mode on")
        self._mode.__enter__()
        self._thread = get_ident()
        self._kept.on()

    def off(self) -> None:
        """Stop counting; another thread, or its child, has no such mode to end."""
        self._kept.off()
        if self._thread == get_ident():
            self._thread = None
            self._mode.__exit__(None, None, None)

    def values(self, step: int) -> Dict[str, Any]:
        """Give the totals as a reading."""
        return {**self._counter.values(step), "kept": self._kept.values()}


def _counting_mode(mode: Any, counter: "WorkCounter") -> Any:
    """Make a mode of torch's that shows every operation to a counter; its class needs torch."""

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
                counter.add(func, args, kwargs or {}, result)
            except Exception:  # noqa: BLE001 - counting must not fail where the operation did not
                counter.left_out += 1
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


class WorkCounter:
    """Adds up operations. Bytes are those of their tensors; views move none."""

    def __init__(
        self,
        formulas: Any,
        origins: Optional[Origins] = None,
        kept: Optional[KeptMemory] = None,
    ) -> None:
        self._formulas = formulas
        self._origins = origins
        self._kept = kept
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
        name = str(packet).replace(".", "::", 1)
        place = None if self._origins is None else self._origins.note_line()
        if name.rsplit("::", 1)[-1] in _FREE:
            return
        if self._kept is not None:
            module = None if place is None else place.module
            self._kept.add(module, tensors_in((args, kwargs)), tensors_in(result))
        inputs, outputs = _sizes((args, kwargs)), _sizes(result)
        read, written = sum(size for _, size in inputs), sum(size for _, size in outputs)
        moved = read + written
        self.operations += 1
        self.bytes += moved
        if self._origins is not None:
            self._origins.add(name, place, moved)
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
        tensors = [tensor for tensor in tensors_in(args) if tensor.dim() >= 2]
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
            "sources": [] if self._origins is None else self._origins.values(),
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
    for tensor in tensors_in(value):
        try:
            found.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        except (RuntimeError, TypeError):
            continue  # a tensor without storage
    return found
