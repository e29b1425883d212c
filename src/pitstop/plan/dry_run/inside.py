"""What a fused kernel of pitstop holds while it runs: its own code, on shapes alone.

To torch a fused operation is one step with a result. The code behind it takes buffers for sums and
operands that are gone when it returns; with kernels that launch nothing, it takes them here too.
"""
# pyright: reportPrivateUsage=false

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils import _pytree as pytree


def run_inside(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run the code behind a fused operation; what it does is seen by the modes that are active."""
    return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)


def is_fused(func: Any) -> bool:
    """Whether an operation is one of pitstop's."""
    return func.namespace == "pitstop"


def signature(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides how much an operation holds: shapes, strides, types, and all plain values."""
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    return (str(func), str(tree), *(_described(leaf) for leaf in leaves))


def launch_nothing() -> None:
    """Let Triton's kernels do nothing, in this process and for good; none where there is none."""
    with suppress(ImportError):
        from triton.runtime.jit import JITFunction

        JITFunction.run = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype)
    return str(leaf)
