"""Memory that an operation takes while it runs and gives back before anybody sees it.

Read off torch's CUDA sources and checked against measured peaks; what is not listed takes nothing
worth counting. Workspaces of cuBLAS are counted once for the process, not here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

_MOST_FOURIER: Final = 256
_COMPLEX_BYTES: Final = 8
_NARROW: Final = frozenset({torch.float16, torch.bfloat16})


def hidden_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Give the bytes that an operation takes beside its inputs and results."""
    rule = _RULES.get(func.overloadpacket.__name__)
    return 0 if rule is None else rule(args)


def fourier_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Give the workspace of a convolution in float32 if cuDNN takes Fourier transforms for it.

    Whether it does is its own choice, made by shape and GPU, so this is no part of a peak. Images,
    weights and result are transformed whole, one complex number for each pair of channels and each
    frequency; cuDNN offers that up to a side of 256 with padding.
    """
    if func.overloadpacket.__name__ != "convolution":
        return 0
    images, weight, _, stride, padding, dilation, transposed, _, groups = args
    if images.dtype != torch.float32 or images.ndim != 4 or transposed or groups != 1:
        return 0
    padded = max(side + 2 * pad for side, pad in zip(images.shape[2:], padding, strict=True))
    is_plain = all(step == 1 for step in (*stride, *dilation))
    if not is_plain or max(weight.shape[2:]) == 1 or padded > _MOST_FOURIER:
        return 0
    side = 1 << (padded - 1).bit_length()
    count, channels, made = images.shape[0], images.shape[1], weight.shape[0]
    pairs = count * channels + channels * made + count * made
    return pairs * side * (side // 2 + 1) * _COMPLEX_BYTES


def _softmax_backward(args: tuple[Any, ...]) -> int:
    """The product of gradient and output is written down before it is summed."""
    return args[0].nbytes


def _convolution(args: tuple[Any, ...]) -> int:
    """Tensor cores want channels last: cuDNN brings images there in its workspace."""
    images = args[0]
    return 0 if _has_channels_last(images) else images.nbytes


def _convolution_backward(args: tuple[Any, ...]) -> int:
    gradient, images = args[0], args[1]
    return 0 if _has_channels_last(images) else gradient.nbytes + images.nbytes


def _has_channels_last(images: Tensor) -> bool:
    """Whether nothing has to be turned round: as it lies, or since no tensor core is used."""
    if images.dtype not in _NARROW or images.ndim not in {4, 5}:
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return images.is_contiguous(memory_format=formats[images.ndim])


_RULES: Final[Mapping[str, Callable[[tuple[Any, ...]], int]]] = {
    "_softmax_backward_data": _softmax_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
