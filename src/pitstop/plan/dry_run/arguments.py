"""Tensors among what operations take and give; asked several times for each of many thousands."""

from typing import Any

from torch import Tensor


def tensors_in(tree: Any) -> list[Tensor]:
    """List the tensors of nested tuples, lists and mappings, which is all that operations have."""
    found: list[Tensor] = []
    left = [tree]
    while left:
        item = left.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            left.extend(reversed(item))
        elif isinstance(item, dict):
            left.extend(reversed(item.values()))
    return found
