"""What a device and its settings leave to fused versions: whether they run, and how exactly.

Where a fused version was asked for and cannot run, the reference does, and that is said once.
"""

import warnings
from typing import Final, Literal

import torch
from torch import Tensor

from pitstop.kernels import Kernels, has_triton

_HAS_TRITON: Final = has_triton()
_said: set[str] = set()


def obstacle_on(tensor: Tensor) -> str | None:
    """Why no fused version can run on ``tensor``, or None."""
    if not _HAS_TRITON:
        return "Triton is not installed"
    if not tensor.is_cuda:
        return f"its inputs are on {tensor.device.type}, not on a CUDA device"
    return None if tensor.dtype != torch.float64 else "its inputs are float64"


def runs_fused(kernels: Kernels, *, operation: str, obstacle: str | None) -> bool:
    """Say whether to run the fused version.

    Args:
        kernels: What was asked for. ``fused`` where it cannot run gets one warning a process.
        operation: Names the operation in the warning.
        obstacle: Why it cannot run on these inputs, or None.
    """
    if kernels == "reference":
        return False
    if obstacle is not None and kernels == "fused" and operation not in _said:
        _said.add(operation)
        warnings.warn(
            f"model.kernels is 'fused', but {operation} runs in plain PyTorch: {obstacle}",
            RuntimeWarning,
            stacklevel=3,
        )
    return obstacle is None


# What torch is told is no tensor: a compiler takes the answer for a constant and looks no further.
@torch.compiler.assume_constant_result
def product_precision(dtype: torch.dtype) -> Literal["ieee", "tf32", "tf32x3"]:
    """How Triton's products take operands of ``dtype``: as torch's own products do here.

    Float32 is rounded to TF32 where torch is told to do so. Elsewhere it is split into two TF32
    numbers each, whose products leave out what is 2 ** -22 of the result: matrix units are used,
    and the error is that of the sums in float32. Other types are taken as they are.
    """
    if dtype != torch.float32:
        return "ieee"
    # Asking for `allow_tf32` instead raises where somebody has set this newer name of it.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def round_to_tf32_(x: Tensor) -> Tensor:
    """Round float32 to the nearest of TF32, in place; ties go away from zero.

    Triton's products leave the last bits out instead, which is up to twice as far off and always
    to the same side; those of the vendor's libraries round.
    """
    x.view(torch.int32).add_(0x1000).bitwise_and_(-0x2000)
    return x
