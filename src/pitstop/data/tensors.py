"""Tensors inside batches of any shape: dictionaries, tuples, data classes, and what they hold."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def pinned(value: Any) -> Any:
    """Copy a batch with everything that can be in page-locked memory put there."""
    if isinstance(value, Tensor) or hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {key: pinned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = map(pinned, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.init]
        return dataclasses.replace(value, **{n: pinned(getattr(value, n)) for n in names})
    return value


def bytes_in(value: Any) -> int:
    """Count the bytes of a batch's tensors; what is no tensor is too small to count."""
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(bytes_in, _parts(value)))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield getattr(value, item.name)
