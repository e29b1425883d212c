"""Finds the steps of a script whose weights no optimizer of torch's updates, or a compiled one."""

import functools
import gc
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.patches import replace, tracing_test
from pitstop_probe.watch import Watch

_PATIENCE = 10
"""Backward passes without any step of an optimizer, before the script's own updates are sought."""

_FEW = 3
"""Weights that tell for all: the first one found may be of a model that is no longer trained."""

# How often a weight and its gradient were written to; None where there is none.
_Written = Tuple[Optional[int], Optional[int]]


class OwnUpdates:
    """Ends steps in the place of the optimizer that a script does without.

    An update writes to the weights, and what comes with one (clearing, clipping) to the gradients;
    between the backward passes of an accumulation nobody does either. So a few weights tell whether
    a backward pass is the first of a step, and the step before is over where that pass ends.

    Attributes:
        passes: Backward passes so far.
        ends_steps: Whether the script's own updates were found.
    """

    def __init__(self, watch: Watch, torch: Any) -> None:
        self.passes = 0
        self.ends_steps = False
        self._is_stopped = False
        self._watch = watch
        self._torch = torch
        self._weights: List[Any] = []
        self.state: Dict[Any, Any] = {}
        """Nothing: what the script keeps beside its weights is its own."""
        self._few: List[Any] = []
        self._written: List[_Written] = []
        self._is_inside = False
        self.patch = replace(torch.autograd, "backward", self._observed)

    @property
    def param_groups(self) -> List[Dict[str, List[Any]]]:
        """The weights that live, as an optimizer gives its own."""
        weights = [weight() for weight in self._weights]
        return [{"params": [weight for weight in weights if weight is not None]}]

    def stop(self) -> None:
        """Leave the steps to optimizers from now on."""
        self.ends_steps = False
        self._is_stopped = True
        self.patch.off()

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_traced = tracing_test(self._torch)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            # One inside another is part of it.
            if is_traced() or self._is_inside or self._is_stopped:
                return original(*args, **kwargs)
            begins_step = self._was_written()
            self._is_inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._is_inside = False
            self._passed(begins_step)
            return result

        return backward

    def _was_written(self) -> bool:
        """Whether somebody wrote to a weight or its gradient since the last backward pass."""
        return [_written(weight()) for weight in self._few] != self._written

    def _passed(self, begins_step: bool) -> None:  # noqa: FBT001 - the hot path
        """End a backward pass, and the step before it where it was the first of another."""
        self.passes += 1
        if begins_step:
            self.ends_steps = True
            self._watch.stepped(id(self))
        if self.passes == _PATIENCE:
            self._weights = [weakref.ref(weight) for weight in _weights(self._torch)]
            self._few = self._weights[:: -(-len(self._weights) // _FEW) or 1]
        self._written = [_written(weight()) for weight in self._few]


def _written(weight: Any) -> _Written:
    if weight is None:
        return None, None
    gradient = weight.grad
    return weight._version, None if gradient is None else gradient._version


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
