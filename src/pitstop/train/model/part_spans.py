"""Spans for the named parts of a model and its loss, by hooks at their borders.

Forward, a part is open from its call to its return. Backward, it is open from the moment its
output's gradient is at hand to the moment its input's is. That is seen by hooks on these tensors:
autograd runs a tensor's hooks just before the operation that made the tensor, and goes through
operations in the reverse order of forward, so parts follow each other as they did there.

What runs forward again in backward has a span of its own there, whatever part it belongs to: see
`RecomputeSpan`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pitstop.train.task import BatchT, NamesLossParts, Task
from pitstop_probe import Clock, Span

RECOMPUTE: Final = "recompute"


def named_parts(task: Task[BatchT], model: nn.Module) -> dict[str, nn.Module]:
    """Join the parts of a model and those of its task's loss."""
    own = task.loss_parts() if isinstance(task, NamesLossParts) else {}
    return {**task.parts(model), **own}


@contextmanager
def part_spans(parts: Mapping[str, nn.Module], clock: Clock) -> Iterator[None]:
    """Time the forward and the backward pass of each part inside this context.

    A part that is recomputed runs again in backward: there it is named `recompute NAME`. All that
    is recomputed, named or not, lies in spans named `recompute`.
    """
    backward = _Backward(parts, clock)
    handles = []
    for name, module in parts.items():
        border = _Border(name, clock, backward)
        handles.append(module.register_forward_pre_hook(border.enter))
        handles.append(module.register_forward_hook(border.leave, always_call=True))
    before, _TIMED.clock = _TIMED.clock, clock
    try:
        yield
    finally:
        _TIMED.clock = before
        for handle in handles:
            handle.remove()


class RecomputeSpan:
    """Times what runs between entering and leaving it as part of the backward pass around it.

    Only inside `part_spans` and inside a part of a step, so neither in an evaluation nor between
    steps. It may be entered again once it was left: a graph that is kept can go backward twice.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: Span | None = None

    def __enter__(self) -> None:
        clock = _TIMED.clock
        # Only the step itself, and what lies outside or apart from it, have no parent.
        if clock is not None and clock.current.parent is not None:
            self._open = _span_here(clock, RECOMPUTE).__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._open is not None:
            self._open.__exit__(*exc)
            self._open = None


class _Timed:
    """The clock by which recomputing is timed.

    One for the process and not one for each thread: with a GPU, what is recomputed runs on a
    thread of autograd's own.
    """

    __slots__ = ("clock",)

    def __init__(self) -> None:
        self.clock: Clock | None = None


_TIMED: Final = _Timed()


class _Border:
    """Opens a part's span when it is called and closes it when it returns."""

    def __init__(self, name: str, clock: Clock, backward: "_Backward") -> None:
        self._name = name
        self._clock = clock
        self._backward = backward
        self._open: list[Any] = []

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - torch's hook
        if self._backward.is_running:
            span = _span_here(self._clock, f"{RECOMPUTE} {self._name}")
        else:
            span = self._clock.span(self._name)
        span.__enter__()
        self._open.append(span)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if self._open:
            self._open.pop().__exit__(None, None, None)
        if torch.is_grad_enabled() and not self._backward.is_running:
            self._backward.watch(self._name, args, output)


class _Backward:
    """The parts that are open in a backward pass.

    With a GPU, backward runs on a thread of autograd's own, while the one that began the step
    waits: spans are opened there directly, since two threads never are at work at once.
    """

    def __init__(self, parts: Mapping[str, nn.Module], clock: Clock) -> None:
        inside = {name: set(module.modules()) for name, module in parts.items()}
        self._holds = {
            name: {other for other, inner in parts.items() if inner in inside[name]}
            for name in parts
        }
        self._clock = clock
        self._open: list[tuple[str, Span]] = []
        self._step: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether a backward pass of the step under way has come to a part."""
        return self._step is not None and self._step == self._clock.step_index

    def watch(self, name: str, args: Any, output: Any) -> None:
        """Put hooks on what went into a part and on what came out of it."""
        for tensor in _made(output):
            tensor.register_hook(_call(self._begin, name))
        for tensor in _made(args):
            tensor.register_hook(_call(self._end, name))

    def _begin(self, name: str) -> None:
        if self._clock.pending is None:
            return
        self._start()
        while self._open and name not in self._holds[self._open[-1][0]]:
            self._close()
        if name not in (each for each, _ in self._open):
            self._open.append((name, _span_here(self._clock, name).__enter__()))

    def _end(self, name: str) -> None:
        while name in (each for each, _ in self._open):
            self._close()

    def _close(self) -> None:
        _, span = self._open.pop()
        span.__exit__(None, None, None)

    def _start(self) -> None:
        """At the first part of a pass, ask for a call at its end: not every part sees its own."""
        if self.is_running:
            return
        self._open.clear()
        self._step = self._clock.step_index
        engine = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]
        engine.queue_callback(self._finish)

    def _finish(self) -> None:
        while self._open:
            self._close()
        self._step = None


def _span_here(clock: Clock, name: str) -> Span:
    """Give the span of a name at the present place of the tree, on whatever thread this is."""
    current = clock.current
    if name not in current.children:
        current.children[name] = Span(clock, name, current)
    return current.children[name]


def _call(action: Callable[[str], None], name: str) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:  # noqa: ARG001 - torch's hook
        action(name)

    return hook


def _made(tree: Any) -> list[Tensor]:
    """The tensors that an operation made and that a gradient will come to."""
    leaves = pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
