"""Finds the steps of a script whose weights no optimizer of torch's updates, or a compiled one."""

import contextlib
import functools
import gc
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.hooks.patches import Patch, replace, tracing_test
from pitstop_probe.steps.step_tracker import StepTracker

_PATIENCE = 10
"""Backward passes without any step of an optimizer, before the script's own updates are sought."""

_FEW = 3
"""Weights that tell for all: one alone may be of a model that is no longer trained."""

# A graph of more operations than this is not searched for its weights: it would take milliseconds.
_MOST_NODES = 10_000

# How often a weight and its gradient were written to; None where there is none.
_Written = Tuple[Optional[int], Optional[int]]

# Some of the weights that gradients were asked for, and how often each was written to.
_Given = List[Tuple[Any, int]]


class OwnUpdates:
    """Ends steps in the place of the optimizer that a script does without.

    An update writes to the weights, and what comes with one (clearing, clipping) to the gradients;
    between the backward passes of an accumulation nobody does either. So a few weights tell whether
    a backward pass is the first of a step, and the step before is over where that pass ends. Where
    gradients are asked for by `autograd.grad` or `torch.func`, an update may also put new weights
    in the place of the old ones.

    Args:
        tracker: Receives what is observed.
        torch: The script's torch.
        in_optimizer: Whether an optimizer's step is under way: what its closure does is its own.

    Attributes:
        passes: Backward passes so far.
        ends_steps: Whether the script's own updates were found.
    """

    def __init__(
        self, tracker: StepTracker, torch: Any, in_optimizer: Callable[[], bool] = lambda: False
    ) -> None:
        self.passes = 0
        self.ends_steps = False
        self._is_stopped = False
        self._tracker = tracker
        self._torch = torch
        self._in_optimizer = in_optimizer
        self._is_traced = tracing_test(torch)
        self._weights: List[Any] = []
        self.state: Dict[Any, Any] = {}
        """Nothing: what the script keeps beside its weights is its own."""
        self._few: List[Any] = []
        self._written: List[_Written] = []
        # By the shapes of the weights: two networks that are trained in turns are told apart.
        self._given: Dict[Any, _Given] = {}
        # Steps that began before the script's own updates were recognised, by what updates.
        self._steps_before: Dict[int, int] = {}
        self._is_inside = False
        self.patches: List[Patch] = [
            replace(torch.autograd, "backward", self._observed),
            replace(torch.autograd, "grad", self._observed_grad),
        ]

    @property
    def param_groups(self) -> List[Dict[str, List[Any]]]:
        """The weights that live, as an optimizer gives its own."""
        weights = [weight() for weight in self._weights]
        return [{"params": [weight for weight in weights if weight is not None]}]

    @property
    def steps_before(self) -> int:
        """Steps before the first that was found; they lie in start-up."""
        return max(self._steps_before.values(), default=0)

    def forked(self) -> None:
        """Forget the parent's weights, in a process just forked."""
        self.passes, self.ends_steps = 0, False
        self._steps_before = {}
        self._weights, self._few, self._written = [], [], []

    def stop(self) -> None:
        """Leave the steps to optimizers from now on."""
        self.ends_steps = False
        self._is_stopped = True
        for patch in reversed(self.patches):
            patch.off()

    @property
    def _is_other_work(self) -> bool:
        """Whether a pass counts for nothing: it is part of another, or of an optimizer's step."""
        return self._is_traced() or self._is_inside or self._is_stopped or self._in_optimizer()

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_other_work:
                return original(*args, **kwargs)
            if not self.passes:
                self._few = _weights_below(args)
            begins_step = not self.passes or self._was_written()
            result = self._inside(original, args, kwargs)
            self._passed(id(self), begins_step)
            if self.passes == _PATIENCE:
                self._weights = [weakref.ref(weight) for weight in _weights(self._torch)]
                self._few = self._weights[:: -(-len(self._weights) // _FEW) or 1]
                # Those few may all be of models that are no longer trained.
                self._few += _weights_below(args)
            self._written = [_written(weight()) for weight in self._few]
            return result

        return backward

    def _observed_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            weights = [] if self._is_other_work else self._asked_for(args, kwargs)
            if not weights:
                return original(*args, **kwargs)
            few = weights[:: -(-len(weights) // _FEW)]
            shapes = tuple(tuple(weight.shape) for weight in few)
            before = self._given.get(shapes)
            is_first = before is None and self.passes < _PATIENCE
            begins_step = is_first or (before is not None and _were_updated(before, few))
            result = self._inside(original, args, kwargs)
            self._passed(hash(shapes), begins_step)
            self._given[shapes] = [(weakref.ref(weight), weight._version) for weight in few]
            self._weights = [weakref.ref(weight) for weight in weights]
            return result

        return grad

    def _inside(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._is_inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self._is_inside = False

    def _asked_for(self, args: Any, kwargs: Any) -> List[Any]:
        """The weights that gradients are asked for; none where they are asked for inside a graph.

        What is differentiated again is a penalty on gradients, or the inner loop of meta-learning:
        the update that follows is not the training's.
        """
        try:
            inputs = args[1] if len(args) > 1 else kwargs["inputs"]
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            functions = self._torch._C._functorch
            is_wrapped = functions.is_functorch_wrapped_tensor
            if is_wrapped(given[0]):
                # torch.func works on wrappers, one inside the other for each derivative.
                weights = [functions.get_unwrapped(weight) for weight in given]
                return [] if any(map(is_wrapped, weights)) else weights
            is_inner = kwargs.get("create_graph", len(args) > _GRAPH and args[_GRAPH])
            return [] if is_inner or not all(weight.is_leaf for weight in given) else given
        except Exception:  # noqa: BLE001 - odd arguments are for torch to refuse
            return []

    def _was_written(self) -> bool:
        """Whether somebody wrote to a weight or its gradient since the last backward pass."""
        return [_written(weight()) for weight in self._few] != self._written

    def _passed(self, updates: int, begins_step: bool) -> None:  # noqa: FBT001 - the hot path
        """End a backward pass, and the step before it where it was the first of another."""
        self.passes += 1
        if not begins_step:
            return
        if self.passes <= _PATIENCE:
            self._steps_before[updates] = self._steps_before.get(updates, 0) + 1
        else:
            self.ends_steps = True
            self._tracker.stepped(updates)


# Place of `create_graph` among the arguments of `autograd.grad`.
_GRAPH = 4


def _were_updated(before: _Given, now: List[Any]) -> bool:
    """Whether weights were written to, or others are in their place."""
    return any(
        reference() is not weight or version != weight._version
        for (reference, version), weight in zip(before, now)
    )


def _written(weight: Any) -> _Written:
    if weight is None:
        return None, None
    gradient = weight.grad
    return weight._version, None if gradient is None else gradient._version


def _weights_below(args: Any) -> List[Any]:
    """Find some weights that a backward pass goes to, by the graph of its loss."""
    found: List[Any] = []
    with contextlib.suppress(Exception):  # odd arguments are for torch to refuse
        loss = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        left, seen = [loss.grad_fn], set()
        while left and len(found) < _FEW and len(seen) < _MOST_NODES:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            # The script's own functions may keep something of that name, too.
            if type(node).__name__ == "AccumulateGrad":
                found.append(weakref.ref(node.variable))
            else:
                left += [following for following, _ in node.next_functions]
    return found


def _weights(torch: Any) -> List[Any]:
    """Tensors that have got gradients."""
    kind = torch.Tensor
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    return [tensor for tensor in found if _has_gradient(tensor)]


def _has_gradient(tensor: Any) -> bool:
    if type(tensor).__name__ == "FakeTensor":
        return False  # what a compiler traced with is written to by nobody
    try:
        return tensor.is_leaf and tensor.requires_grad and tensor.grad is not None
    except Exception:  # noqa: BLE001 - an odd tensor is the script's right
        return False
