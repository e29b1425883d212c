"""A copy of a training state in host memory, made of nothing but tensors and plain values.

What passes here can be read back with ``torch.load(weights_only=True)``, which builds tensors and
never runs code.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def snapshot(value: Any) -> Any:
    """Copy a nested state to host memory; training may go on changing the original.

    Every tensor gets memory of its own: saved as a view, it would take the whole of what it is a
    view of to disk.

    Raises:
        TypeError: Where something could not be read back without running code.
    """
    return _copy(value, "state")


def _copy(value: Any, where: str) -> Any:
    if isinstance(value, Tensor):
        return _to_host(value)
    if isinstance(value, Mapping):
        _check_keys(value, where)
        return {key: _copy(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(item, f"{where}[{i}]") for i, item in enumerate(value))
    # By exact type, since an enum or a numpy number is an instance of int or float as well, and
    # is saved as an instruction to call its class.
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}; save tensors and plain values only")


def _check_keys(value: Mapping[Any, Any], where: str) -> None:
    for key in value:
        if type(key) not in (str, int):
            raise TypeError(f"{where} has the key {key!r}; use text or whole numbers")


def _to_host(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        detached = tensor.detach()
        return detached.clone() if detached.device.type == "cpu" else detached.to("cpu")
