"""What a forward pass holds for its backward pass, for tests of recompute."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def saved_bytes(fn: Callable[[], Any], *, ignoring: Iterable[Tensor] = ()) -> int:
    """Measure what a forward pass holds for its backward pass, each piece of memory once.

    Two witnesses are joined: what autograd saves, and every tensor made on the way that is still
    alive at the end, for the outcomes that selective recompute keeps are not autograd's.

    Args:
        fn: Runs the forward pass; what it returns is held until the count is made.
        ignoring: Tensors that are there anyway: parameters and inputs.
    """
    seen = _SeenStorages()
    saved: dict[int, StorageWeakRef] = {}

    def pack(tensor: Tensor) -> Tensor:
        reference = seen.note(tensor)
        saved[reference.cdata] = reference
        return tensor

    with seen, saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn()
    # Graphs of recomputed regions point at themselves and go only when the collector looks.
    gc.collect()
    ignored = {_reference(tensor).cdata for tensor in ignoring}
    outputs = {_reference(leaf).cdata for leaf in _tensors(result)} - saved.keys()
    return sum(
        size
        for cdata, (reference, size) in seen.storages.items()
        if cdata not in ignored | outputs and not reference.expired()
    )


class _SeenStorages(TorchDispatchMode):
    """Notes the memory behind every outcome of every operation, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def note(self, tensor: Tensor) -> StorageWeakRef:
        reference = _reference(tensor)
        self.storages[reference.cdata] = (reference, tensor.untyped_storage().nbytes())
        return reference

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome = func(*args, **(kwargs or {}))
        for tensor in _tensors(outcome):
            self.note(tensor)
        return outcome


def _reference(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
