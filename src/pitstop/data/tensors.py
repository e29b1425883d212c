"""Tensors inside batches of any shape: dictionaries, tuples, data classes, and what they hold."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def pinned(value: Any) -> Any:
    """Copy a batch with everything that can be in page-locked memory put there."""
    if isinstance(value, Tensor) or hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {key: pinned(item) for key, item in value.items()}
    return with_parts(value, pinned)


def with_parts(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Make a list, tuple or data class anew of its converted parts; others stay as they are."""
    if isinstance(value, list | tuple):
        items = [convert(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{n: convert(getattr(value, n)) for n in names})
    return value


def bytes_in(value: Any) -> int:
    """Count the bytes of a batch's tensors; what is no tensor is too small to count."""
    return sum(tensor.nbytes for tensor in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Find the tensors of a batch, in its order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in _parts(value):
            yield from tensors_in(part)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):  # one without a value yet holds no memory
                yield getattr(value, field.name)
