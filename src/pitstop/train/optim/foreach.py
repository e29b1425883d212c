"""Operations over many tensors in one call: what torch's own optimizers and scaler are built of.

They carry an underscore in every torch from 2.1 to 2.13 and have kept their signatures; gathering
them here keeps that fact in one place.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections.abc import Sequence

import torch
from torch import Tensor


def multiply_and_check(tensors: Sequence[Tensor], factor: Tensor, found_inf: Tensor) -> None:
    """Multiply tensors of one dtype in place; set `found_inf` to 1 if one is not finite."""
    torch._amp_foreach_non_finite_check_and_unscale_(list(tensors), found_inf, factor)


def multiply(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply tensors in place."""
    torch._foreach_mul_(list(tensors), factor)


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Give the Euclidean norm of each tensor."""
    return list(torch._foreach_norm(list(tensors)))


def move_towards(tensors: Sequence[Tensor], goals: Sequence[Tensor], weight: float) -> None:
    """Move tensors in place by a share of the way to their goals."""
    torch._foreach_lerp_(list(tensors), list(goals), weight)


def copy(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors in place."""
    torch._foreach_copy_(list(tensors), list(values))


def update_loss_scale(
    scale: Tensor,
    streak: Tensor,
    found_inf: Tensor,
    *,
    growth: float,
    backoff: float,
    growth_every: int,
) -> None:
    """Grow or shrink a loss scale in place, by whether the step overflowed."""
    torch._amp_update_scale_(scale, streak, found_inf, growth, backoff, growth_every)
