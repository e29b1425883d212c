"""What the operations of a step do: arithmetic, bytes, kernels; equal ones counted together."""
# pyright: reportPrivateUsage=false

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from pitstop.kernels import deform_conv, gate, window_attention, windows
from pitstop.plan.dry_run.arguments import tensors_in
from pitstop.records.plans.plan import RECOMPUTE

_FREE: Final = frozenset(
    {"alias", "detach", "lift_fresh", "empty", "empty_like", "new_empty", "empty_strided"}
    | {"_unsafe_view", "_reshape_alias", "new_empty_strided"}
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation at one size."""

    part: str
    """Of the step: forward, loss, backward, recompute (inside backward), clip, optimizer."""
    name: str
    flops: int
    num_bytes: int
    """Read and written, each tensor once."""
    dtype: str


class OperationCounter:
    """Counts operations that do something; views do nothing."""

    def __init__(self) -> None:
        self.counts: Counter[Operation] = Counter()
        self.fused: set[str] = set()
        """Fused kernels of pitstop among them."""

    def count(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        made: Any,
        *,
        place: tuple[str, ...],
    ) -> None:
        """Take in one operation."""
        package, _, name = func._schema.name.partition("::")
        if package == "pitstop":
            self.fused.add(name)
        if name in _FREE or func.is_view:
            return
        given, results = _tensors((args, kwargs)), _tensors(made)
        self.counts[
            Operation(
                part=_part(place),
                name=name,
                flops=_flops(func, name, args, kwargs=kwargs, made=made),
                num_bytes=_bytes(given) + _bytes(results),
                dtype=_dtype(given + results),
            )
        ] += 1


def _part(place: tuple[str, ...]) -> str:
    part = place[0] if place else "other"
    return RECOMPUTE if part == "backward" and _runs_again() else part


def _runs_again() -> bool:
    """Whether what runs in backward is a piece of forward, computed again.

    Backward itself is recorded by nobody. What `torch.utils.checkpoint` runs again is: by autograd,
    and inside of fused operations, where autograd looks away, still by hooks on what is saved.
    """
    if torch._C._current_graph_task_id() < 0:  # the gradient of the loss, made before backward
        return False
    of_saved = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue] - not in its stubs
    hooks = of_saved._top_saved_tensors_default_hooks(True)  # noqa: FBT003 - torch's
    return hooks is not None or torch.is_grad_enabled()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tensors_in(tree) if leaf.layout == torch.strided]


def _bytes(tensors: list[Tensor]) -> int:
    sizes = {tensor.untyped_storage()._cdata: _reach(tensor) for tensor in tensors}
    return sum(sizes.values())


def _reach(tensor: Tensor) -> int:
    """Bytes that lie under a tensor: numbers that are read again and again count once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _dtype(tensors: list[Tensor]) -> str:
    kinds = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point and tensor.ndim]
    # The narrowest decides which unit of the chip does the products.
    narrowest = min(kinds, key=lambda kind: kind.itemsize, default=torch.float32)
    return str(narrowest).removeprefix("torch.")


def _flops(
    func: Any, name: str, args: tuple[Any, ...], *, kwargs: Mapping[str, Any], made: Any
) -> int:
    if name in _KERNELS:
        return _KERNELS[name](args)
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return 0
    return int(formula(*args, **dict(kwargs), out_val=made))


def _attend_volume(args: tuple[Any, ...], *, grad: bool = False) -> int:
    """Window attention of a volume; arguments as the operation takes them."""
    qkv, mutual = (args[1], args[3]) if grad else (args[0], args[2])
    cut = args[-3]
    total = 0
    for projection, share in ((qkv, 1.0), (mutual, 0.5)):
        if projection is None:
            continue
        tokens = math.prod(cut[:3])
        sizes = {
            "num_windows": math.prod(projection.shape[:4]) // tokens,
            "num_tokens": tokens,
            "channels": projection.shape[-1] // 3,
        }
        formula = window_attention.FORMULAS["self_attention_backward" if grad else "self_attention"]
        total += int(share * formula.flops(**sizes))
    return total


def _attend_windows(args: tuple[Any, ...], *, grad: bool = False) -> int:
    count, tokens, _, heads, channels = args[1 if grad else 0].shape
    formula = windows.FORMULAS["attend_windows_backward" if grad else "attend_windows"]
    return formula.flops(num_windows=count, num_tokens=tokens, heads=heads, channels=channels)


def _gate(args: tuple[Any, ...], *, grad: bool = False) -> int:
    joint = args[1 if grad else 0]
    channels = joint.shape[-1] // 2
    formula = gate.FORMULAS["gate_backward" if grad else "gate"]
    return formula.flops(tokens=joint.numel() // (2 * channels), channels=channels)


def _deform_conv(args: tuple[Any, ...], *, grad: bool = False) -> int:
    images, places = (args[1], args[2]) if grad else (args[0], args[1])
    weight = args[6 if grad else 5]
    pairs, _, height, width = places.shape
    formula = deform_conv.FORMULAS["deform_conv_backward" if grad else "deform_conv"]
    return formula.flops(
        pixels=pairs * height * width,
        in_channels=images.shape[1],
        out_channels=weight.shape[0],
        taps=math.prod(weight.shape[2:]),
        groups=images.shape[1] // weight.shape[1],
    )


def _by_token(args: tuple[Any, ...], *, grad: bool = False) -> int:
    """Every token through the layers of a block: their weights once, and twice more backward."""
    tensors = _tensors(args)
    tokens = max(tensor.numel() // tensor.shape[-1] for tensor in tensors if tensor.ndim > 2)
    matrices = [tensor for tensor in tensors if tensor.ndim == 2]
    # A weight may come twice, the second time in the type that products take.
    narrowest = min((matrix.element_size() for matrix in matrices), default=0)
    weights = sum(each.numel() for each in matrices if each.element_size() == narrowest)
    return (3 if grad else 1) * 2 * tokens * weights


_KERNELS: Final[Mapping[str, Callable[[tuple[Any, ...]], int]]] = {
    "attend_volume": _attend_volume,
    "attend_volume_backward": lambda args: _attend_volume(args, grad=True),
    "attend_windows": _attend_windows,
    "attend_windows_backward": lambda args: _attend_windows(args, grad=True),
    "gate": _gate,
    "gate_backward": lambda args: _gate(args, grad=True),
    "deform_conv": _deform_conv,
    "deform_conv_backward": lambda args: _deform_conv(args, grad=True),
    **dict.fromkeys(("norm_project", "project_add", "feed_forward_add"), _by_token),
    **dict.fromkeys(
        ("norm_project_backward", "project_add_backward", "feed_forward_add_backward"),
        lambda args: _by_token(args, grad=True),
    ),
}
"""Arithmetic of fused kernels; those that mostly move bytes are held against bytes alone."""
