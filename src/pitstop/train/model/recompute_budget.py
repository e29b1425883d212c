"""Recompute just so much that what forward keeps for backward fits a number of bytes.

Passes without a backward pass measure each place: the bytes that are saved inside it, and the bytes
that its operations write, which is about what recomputing it costs where memory is the limit. There
are two, and the larger number counts: in training mode branches may be left out at random, in
evaluation mode dropout saves nothing. Places whose saved bytes are cheapest to make again are
recomputed first. The choice follows from shapes alone, so that every rank, every start and a plan
on tensors without numbers make the same.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.config.quantities import format_bytes
from pitstop.errors import ConfigError
from pitstop.records.units import bytes_text
from pitstop.train.model.recompute import (
    Place,
    RecomputeFacts,
    count_places,
    places_of,
    recompute_all,
)


@dataclass(slots=True, kw_only=True)
class PlaceCost:
    """What a place keeps for backward beside its inputs, and what making it again takes."""

    place: Place
    saved_bytes: int = 0
    written_bytes: int = 0

    @property
    def cost(self) -> float:
        """Bytes written for each byte that is not kept."""
        return self.written_bytes / max(self.saved_bytes, 1)


@dataclass(slots=True)
class _Kept:
    """What is kept outside places, and the inputs of places.

    Held here, so that none is met under the number of another one that is gone.
    """

    weights: frozenset[int]
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor, once."""
        number = _number(tensor)
        if number not in self.weights:
            self.storages[number] = tensor.untyped_storage()
        return tensor.detach()  # itself, it would hold what made it, and be held by it

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(storage.nbytes() for storage in self.storages.values())


def fit_recompute(
    model: nn.Module, budget_bytes: int, forward: Callable[[], Any], *, units: Sequence[nn.Module]
) -> RecomputeFacts:
    """Have a model recompute until what forward keeps fits; do this before wrapping it.

    Args:
        model: On its device, with places of its own, or without.
        budget_bytes: For what is kept between forward and backward, weights not counted.
        forward: Runs the model and its loss once, as a step does.
        units: The repeated blocks, for models without places of their own.

    Raises:
        ConfigError: Where even recomputing every place keeps more, or there is no place.
    """
    costs = [PlaceCost(place=place) for place in places_of(model, units)]
    kept_bytes = _measure(model, costs, forward)
    inside = sum(cost.saved_bytes for cost in costs)
    chosen = choose(costs, kept_bytes + inside - budget_bytes)
    freed = sum(cost.saved_bytes for cost in chosen)
    left = kept_bytes + inside - freed
    if left > budget_bytes:
        raise ConfigError(
            f"train.recompute is {format_bytes(budget_bytes)}, but {type(model).__name__} keeps "
            f"{bytes_text(left)} for backward with everything recomputed and "
            f"{bytes_text(left + freed)} with nothing; allow more, or lower train.batch_size"
        )
    for cost in chosen:
        cost.place.fill(recompute_all)
    return RecomputeFacts(
        policy=format_bytes(budget_bytes),
        places=count_places(cost.place for cost in chosen),
        kept_bytes=left,
    )


def choose(costs: Sequence[PlaceCost], excess_bytes: int) -> list[PlaceCost]:
    """Choose places that together save at least so many bytes, cheap ones first; all if need be."""
    chosen: list[PlaceCost] = []
    freed = 0
    for cost in sorted(costs, key=lambda cost: cost.cost):
        if freed >= excess_bytes:
            break
        chosen.append(cost)
        freed += cost.saved_bytes
    # The last ones may have made earlier, smaller ones needless.
    for cost in reversed(list(chosen)):
        if freed - cost.saved_bytes >= excess_bytes:
            chosen.remove(cost)
            freed -= cost.saved_bytes
    return chosen


def _measure(model: nn.Module, costs: Sequence[PlaceCost], forward: Callable[[], Any]) -> int:
    """Enter what each place costs; gives what is kept besides."""
    kept_bytes = 0
    for training in (True, False):
        passed = [PlaceCost(place=cost.place) for cost in costs]
        with _unchanged(model):
            model.train(training)
            kept_bytes = max(kept_bytes, _pass(model, passed, forward))
        for cost, found in zip(costs, passed, strict=True):
            cost.saved_bytes = max(cost.saved_bytes, found.saved_bytes)
            cost.written_bytes = max(cost.written_bytes, found.written_bytes)
    return kept_bytes


def _pass(model: nn.Module, costs: Sequence[PlaceCost], forward: Callable[[], Any]) -> int:
    weights = [*model.parameters(), *model.buffers()]
    kept = _Kept(frozenset(_number(weight) for weight in weights))
    for cost in costs:
        cost.place.fill(partial(_measured, cost, kept))
    try:
        with saved_tensors_hooks(kept.add, _itself):
            forward()
    finally:
        for cost in costs:
            cost.place.reset()
    return kept.num_bytes


def _measured(
    cost: PlaceCost, kept: _Kept, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a place and let go of what it saved, so that no two are held at once."""
    for given in pytree.tree_leaves((args, kwargs)):
        if isinstance(given, Tensor) and given.requires_grad:
            kept.add(given)
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        number = _number(tensor)
        if number not in kept.weights and number not in kept.storages:
            saved[number] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with saved_tensors_hooks(count, _itself), _Written() as written:
        out = fn(*args, **kwargs)
    cost.saved_bytes += sum(saved.values())
    cost.written_bytes += written.num_bytes
    return pytree.tree_map_only(Tensor, _cut_off, out)


class _Written(TorchDispatchMode):
    """Counts the bytes that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = (leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor))
            self.num_bytes += sum(tensor.nbytes for tensor in tensors)
        return out


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Undo what a pass does to a model: modes, and buffers such as running means."""
    modes = [(module, module.training) for module in model.modules()]
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)


def _cut_off(tensor: Tensor) -> Tensor:
    """The same values, without what they were computed from."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _number(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _itself(tensor: Tensor) -> Tensor:
    return tensor
