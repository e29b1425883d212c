"""What each module made in the forward pass that is still held where the backward pass begins.

Storages are watched by weak references: nothing lives longer for it, and autograd and the script's
own hooks on what it saves are left alone. Whoever holds a tensor does not matter; whatever was
there before a module ran (weights, batches, what another one made) is not its own.
"""

import functools
from threading import get_ident
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import part_of

_MOST_WRITTEN = 256


class _Made(NamedTuple):
    """A storage, by a weak reference, and the name of the module that made it."""

    storage: Any
    module: Optional[str]
    """None where it was made in no module, or before."""


class KeptMemory:
    """Follows storages from the operations that made them to the next backward pass.

    Of several backward passes the one counts that begins with most.

    Args:
        torch: The script's torch.
        modules: Name and class of the modules that are known, by identity.
    """

    def __init__(self, torch: Any, modules: Dict[int, Tuple[str, str]]) -> None:
        self._autograd = torch.autograd
        self._refer = part_of(torch, "multiprocessing.reductions").StorageWeakRef
        self._revive = getattr(torch.UntypedStorage, "_new_with_weak_ptr", None)
        self._kinds = dict(modules.values())
        # By the storage's address, which nobody else gets while it is referred to.
        self._made: Dict[int, _Made] = {}
        self._by_module: Optional[Dict[str, int]] = None
        self._passes = 0
        self._thread: Optional[int] = None
        self._patches: List[Patch] = []

    def on(self) -> None:
        """Begin to follow, on this thread."""
        self._thread = get_ident()
        for name in ("backward", "grad"):
            self._patches.append(replace(self._autograd, name, self._backward))

    def off(self) -> None:
        """Follow no more."""
        # References stay: in a forked process they are the parent's, and not to be let go of.
        self._thread = None
        for patch in reversed(self._patches):
            patch.off()

    def add(self, module: Optional[str], taken: Sequence[Any], made: Sequence[Any]) -> None:
        """Take in an operation that has run: the tensors that it took and those that it gave."""
        if self._passes or get_ident() != self._thread:
            return
        for tensors, maker in ((taken, None), (made, module)):
            for tensor in tensors:
                try:
                    storage = self._refer(tensor.untyped_storage())
                except Exception:  # noqa: BLE001, S112 - sparse, or somebody's own kind of tensor
                    continue
                self._made.setdefault(storage.cdata, _Made(storage, maker))

    def values(self) -> Optional[Dict[str, Any]]:
        """Give bytes by module, each with those inside it; None where nothing went backward."""
        if self._by_module is None:
            return None
        whole: Dict[str, int] = {}
        for name, num_bytes in self._by_module.items():
            for outer in _and_outer(name):
                whole[outer] = whole.get(outer, 0) + num_bytes
        # An outer one is never smaller, so those that are kept have their parents with them.
        names = sorted(whole, key=lambda name: (-whole[name], name.count(".")))
        places = {name: place for place, name in enumerate(names[:_MOST_WRITTEN])}
        return {
            "num_bytes": sum(self._by_module.values()),
            "modules": [
                {
                    "name": name,
                    "kind": self._kinds.get(name, ""),
                    "parent": places.get(name.rpartition(".")[0]),
                    "num_bytes": whole[name],
                }
                for name in places
            ],
            "left_out": max(0, len(names) - _MOST_WRITTEN),
        }

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self._thread:
                return original(*args, **kwargs)
            if not self._passes:
                self._look()
            self._passes += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._passes -= 1

        return backward

    def _look(self) -> None:
        """Add up what is still held."""
        by_module: Dict[str, int] = {}
        if self._revive is None:
            return
        try:
            for storage, module in self._made.values():
                if module is None:
                    continue
                # Asked now, not when it was made: some are emptied without being let go of.
                held = self._revive(storage.cdata)
                if held is not None and held.nbytes():
                    by_module[module] = by_module.get(module, 0) + held.nbytes()
        except Exception:  # noqa: BLE001 - another torch: then it is not known
            return
        if by_module and sum(by_module.values()) > sum((self._by_module or {}).values()):
            self._by_module = by_module


def _and_outer(name: str) -> List[str]:
    """Give a module's name and those of all around it; the model itself, which has none, is not."""
    parts = name.split(".") if name else []
    return [".".join(parts[: place + 1]) for place in range(len(parts))]
