"""The gate of a feed-forward layer: one half of a projection, through GELU, times the other.

Made one operation after the other, forward keeps three tensors of the hidden width and backward
moves eight. The fused version keeps the projection alone and reads and writes each number once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, check_word
from pitstop.kernels.fallback import obstacle_on, runs_fused

_ERF_FLOPS: Final = 20
"""What the error function and the products around it are counted as."""


def dispatch(kernels: Kernels = "auto") -> Callable[[Tensor], Tensor]:
    """Give the version that ``kernels`` asks for; see `gate_reference`.

    Raises:
        ConfigError: When the word names none.
    """
    check_word(kernels)
    return gate_reference if kernels == "reference" else partial(_gate, kernels)


def _gate(kernels: Kernels, joint: Tensor) -> Tensor:
    fused = runs_fused(
        kernels, operation="the gate of feed-forward layers", obstacle=obstacle_on(joint)
    )
    return (gate_fused if fused else gate_reference)(joint)


def gate_reference(joint: Tensor) -> Tensor:
    """GELU (by the error function) of the first half of the last axis, times the second half.

    Args:
        joint: (..., 2C).

    Returns:
        (..., C) in the type of ``joint``.
    """
    first, second = joint.chunk(2, dim=-1)
    return functional.gelu(first) * second


def gate_fused(joint: Tensor) -> Tensor:
    """Do the same with Triton, in float32 inside; nothing but ``joint`` is kept for backward."""
    return _gate_op(joint.contiguous())


@torch.library.custom_op("pitstop::gate", mutates_args=())
def _gate_op(joint: Tensor) -> Tensor:
    from pitstop.kernels.gate_triton import gate

    return gate(joint)


@_gate_op.register_fake
def _(joint: Tensor) -> Tensor:
    return joint.new_empty(*joint.shape[:-1], joint.shape[-1] // 2)


@torch.library.custom_op("pitstop::gate_backward", mutates_args=())
def _gate_backward_op(grad: Tensor, joint: Tensor) -> Tensor:
    from pitstop.kernels.gate_triton import gate_backward

    return gate_backward(grad, joint)


@_gate_backward_op.register_fake
def _(grad: Tensor, joint: Tensor) -> Tensor:  # noqa: ARG001 - named by the operation
    return torch.empty_like(joint)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    return _gate_backward_op(grad.contiguous(), *ctx.saved_tensors)


_gate_op.register_autograd(_backward, setup_context=_keep_for_backward)


def gate_flops(*, tokens: int, channels: int) -> int:
    """One error function and product for each of ``channels`` results of a token."""
    return _ERF_FLOPS * tokens * channels


def gate_bytes(*, tokens: int, channels: int, itemsize: int) -> int:
    """Both halves in, result out."""
    return 3 * tokens * channels * itemsize


def backward_flops(*, tokens: int, channels: int) -> int:
    """The error function once more, its slope, and products."""
    return 2 * _ERF_FLOPS * tokens * channels


def backward_bytes(*, tokens: int, channels: int, itemsize: int) -> int:
    """Both halves and the result's gradient in, both gradients out."""
    return 5 * tokens * channels * itemsize


FORMULAS: Final[dict[str, Formula]] = {
    "gate": Formula(flops=gate_flops, num_bytes=gate_bytes),
    "gate_backward": Formula(flops=backward_flops, num_bytes=backward_bytes),
}
