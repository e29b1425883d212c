"""The part of a divided tensor that this rank holds, for arithmetic that needs nobody else."""

from collections.abc import Iterable

import torch
from torch import Tensor


def local_part(tensor: Tensor) -> Tensor:
    """Give this rank's part of a divided tensor, in the same memory; any other one as it is.

    Where gradients are recorded, those of the part reach the whole: call it without.
    """
    # By its method: importing the class takes half a second, of which most runs have no use.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def is_divided(tensor: Tensor) -> bool:
    """Whether this rank holds no more than a part of a tensor."""
    return hasattr(tensor, "to_local")


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Give this rank's parts; a part without elements is left out."""
    # Nothing is recorded here, and only then torch hands the part over without making a function
    # of it, or a second divided tensor: a quarter of the Python calls of a step of small weights.
    with torch.no_grad():
        parts = [local_part(tensor).detach() for tensor in tensors]
    return [part for part in parts if part.numel()]
