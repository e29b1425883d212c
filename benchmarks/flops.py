"""Counts the arithmetic of one call, forward and backward, by module and by operation.

Counts once, eagerly, on the real tensors. What torch does not dispatch is not seen: a kernel
launched without a registered operation, and whatever runs inside a compiled region.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.module_tracker import ModuleTracker

Formula = Callable[..., int]
"""FLOPs of one call from the shapes of its arguments; gets ``out_shape`` by keyword as well."""

OUTSIDE: Final = "(outside modules)"

# They answer questions about a tensor or rename it; listing them would bury the rest.
_NOT_WORK: Final = frozenset({"prim.device", "prim.layout", "aten._unsafe_view"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """Arithmetic of one part of a model."""

    name: str
    """Class of the root module and the child's name, or ``"(outside modules)"``."""
    forward: int
    """FLOPs outside the backward pass."""
    backward: int
    """FLOPs inside the backward pass, recomputation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCalls:
    """How often an operation ran, and what it was counted as."""

    name: str
    """For instance ``"aten.addmm"``."""
    calls: int
    """How often it ran."""
    flops: int | None
    """FLOPs of all calls together; None when no formula is known, so they were not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Arithmetic of one call, a multiply-add counted as two."""

    forward: int
    """FLOPs outside the backward pass."""
    backward: int
    """FLOPs inside the backward pass, recomputation included."""
    by_module: tuple[ModuleFlops, ...]
    """The same by top-level part; the parts add up to the totals."""
    counted: tuple[OpCalls, ...]
    """Operations with a formula, most FLOPs first."""
    not_counted: tuple[OpCalls, ...]
    """Operations that ran without a formula, most calls first: mostly element-wise work, whose
    cost is memory traffic, but also any kernel nobody gave a formula for."""

    @property
    def total(self) -> int:
        """FLOPs of the whole call."""
        return self.forward + self.backward


def count_flops(
    call: Callable[[], object], *, formulas: Mapping[Any, Formula] | None = None
) -> FlopCount:
    """Run a call once and count its arithmetic, a multiply-add as two.

    Args:
        call: Does the work, for instance ``lambda: loss(model(x)).backward()``. It really runs:
            gradients accumulate and statistics move as they would in training.
        formulas: Formulas of operations torch has none for, by operation packet
            (``torch.ops.namespace.name``); they also replace torch's own.
    """
    from torch.utils.flop_counter import flop_registry
    from torch.utils.module_tracker import ModuleTracker

    known = {**flop_registry, **{op: _on_shapes(f) for op, f in (formulas or {}).items()}}
    with ModuleTracker() as tracker:
        counter = _Counter(formulas=known, tracker=tracker)
        with _counting_mode(counter):
            call()
    return counter.result()


@dataclass(slots=True)
class _Counter:
    """FLOPs so far by phase and module, and calls by operation."""

    formulas: Mapping[Any, Formula]
    tracker: "ModuleTracker"
    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)

    def add(self, operation: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one call of an operation, which may have a formula or not."""
        name = str(operation)
        self.calls[name] += 1
        formula = self.formulas.get(operation)
        if formula is None:
            return
        flops = int(formula(*args, **kwargs, out_val=out))
        self.flops[name] += flops
        phase = self.backward if self.tracker.is_bw else self.forward
        phase[top_level(self.tracker.parents)] += flops

    def result(self) -> FlopCount:
        """Put the counts into a record, largest first."""
        every = self.forward + self.backward
        return FlopCount(
            forward=self.forward.total(),
            backward=self.backward.total(),
            by_module=tuple(
                ModuleFlops(name=name, forward=self.forward[name], backward=self.backward[name])
                for name, _ in every.most_common()
            ),
            counted=tuple(
                OpCalls(name=name, calls=self.calls[name], flops=flops)
                for name, flops in self.flops.most_common()
            ),
            not_counted=tuple(
                OpCalls(name=name, calls=calls, flops=None)
                for name, calls in self.calls.most_common()
                if name not in self.flops and name not in _NOT_WORK
            ),
        )


def top_level(running: set[str]) -> str:
    """Name the direct child of the root module that is running.

    Args:
        running: Dotted names of all modules now running, as torch's tracker gives them. In the
            backward pass a module whose inputs need no gradient is never seen to end; where that
            leaves two candidates, neither is named.
    """
    names = [name.split(".") for name in running if name != "Global"]
    children = {".".join(parts[:2]) for parts in names if len(parts) > 1}
    if len(children) == 1:
        return children.pop()
    roots = {parts[0] for parts in names}
    return roots.pop() if len(roots) == 1 else OUTSIDE


def _on_shapes(formula: Formula) -> Formula:
    """Let a formula see shapes where the operation got tensors."""
    import torch
    from torch.utils._pytree import tree_map

    def shape(value: Any) -> Any:
        return value.shape if isinstance(value, torch.Tensor) else value

    def from_tensors(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        shapes, named, out_shape = tree_map(shape, (args, kwargs, out_val))
        return formula(*shapes, out_shape=out_shape, **named)

    return from_tensors


def _counting_mode(counter: _Counter) -> "TorchDispatchMode":
    """Build the dispatch mode here, because its base class exists only once torch is imported."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class CountingMode(TorchDispatchMode):
        """Sees every operation below autograd and passes it on."""

        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            operation = getattr(func, "overloadpacket", func)
            if hasattr(func, "decompose") and operation not in counter.formulas:
                # Composite operations reach this point whole in inference mode.
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            out = func(*args, **kwargs)
            if not getattr(func, "is_view", False):
                counter.add(operation, args, kwargs, out)
            return out

    return CountingMode()
