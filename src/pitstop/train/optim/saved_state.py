"""Putting a saved state into an optimizer, so that what cannot be its own is refused at once.

torch takes any state with as many parameters, and fails with it in the first update: with words
about its kernels, when the run has begun. A file may be damaged in ways that its sums do not show.
"""

from typing import Any

from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from pitstop.train.optim.adamw_bf16 import AdamWBf16

# These keep, of each parameter, single numbers and tensors of its shape. Others have tables.
_PLAIN = (SGD, Adam, AdamW, AdamWBf16)


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put a state back; it must be that of an equal optimizer.

    Raises:
        ValueError: A setting or a value is of a kind that the optimizer cannot have.
    """
    before = [_kinds(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for own, group in zip(before, optimizer.param_groups, strict=True):
        found = _kinds(group)
        for name, kind in own.items():
            if found.get(name) != kind:
                raise ValueError(f"the optimizer's {name} is {found.get(name)}, not {kind}")
    _check_values(optimizer)


def _check_values(optimizer: Optimizer) -> None:
    first: dict[str, str] | None = None
    for parameter, values in optimizer.state.items():
        kinds = _kinds(values)
        first = kinds if first is None else first
        if kinds != first:
            raise ValueError(f"the optimizer keeps {_told(first)} and elsewhere {_told(kinds)}")
        for name, value in values.items():
            is_wide = isinstance(value, Tensor) and value.numel() != 1
            if is_wide and isinstance(optimizer, _PLAIN) and value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)}, not {tuple(parameter.shape)}"
                raise ValueError(f"the optimizer's {name} has the shape {shapes}")


def _kinds(values: dict[str, Any]) -> dict[str, str]:
    """Name the kind of each value."""
    return {str(name): _kind(value) for name, value in values.items() if name != "params"}


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a number" if value.dim() == 0 else "a tensor"
    if value is None or isinstance(value, bool):
        return "a switch"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_kind(each) for each in value)})"
    return f"of type {type(value).__name__}"


def _told(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "nothing"
