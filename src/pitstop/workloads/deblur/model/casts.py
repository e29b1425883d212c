"""Parameters of many layers brought into autocast's type at once.

Autocast casts each parameter by itself, and each gradient back: for a network of small layers that
is more launches than there are layers. Here all of them are cast as one tensor, and so is its
gradient; the numbers are the same to the bit.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from pitstop.kernels import Kernels
from pitstop.kernels.block import ALIGNED_BYTES

Stack: TypeAlias = Sequence[Tensor]
"""Tensors that are needed as one, joined along their first axis; mostly a single one."""


def autocast_together(kernels: Kernels, x: Tensor, stacks: Sequence[Stack]) -> list[Tensor]:
    """Give parameters in the type that layers will take on ``x``.

    Where ``kernels`` asks for the reference, off CUDA devices and without autocast they keep their
    own type, and so they do where it is not float32.
    """
    wide = all(part.dtype == torch.float32 for part in chain(*stacks))
    if kernels == "reference" or not x.is_cuda or not wide or not torch.is_autocast_enabled("cuda"):
        return [torch.cat(list(stack)) if len(stack) > 1 else stack[0] for stack in stacks]
    return cast_together(stacks, torch.get_autocast_dtype("cuda"))


def cast_together(stacks: Sequence[Stack], dtype: torch.dtype) -> list[Tensor]:
    """Stack and cast: two launches for all, and two for all gradients.

    Stacks that fill whole multiples of `ALIGNED_BYTES` lie before the others, so that each of them
    begins at one.
    """
    sizes = [sum(part.numel() for part in stack) for stack in stacks]
    order = sorted(
        range(len(stacks)), key=lambda place: sizes[place] * dtype.itemsize % ALIGNED_BYTES != 0
    )
    flat = [part.reshape(-1) for place in order for part in stacks[place]]
    parts = torch.cat(flat).to(dtype).split([sizes[place] for place in order])
    found = dict(zip(order, parts, strict=True))
    return [found[place].view(-1, *stack[0].shape[1:]) for place, stack in enumerate(stacks)]
