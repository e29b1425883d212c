"""Attention inside the windows of pictures that were cut already, as Swin has it.

Windows are small: 49 tokens of a few channels. Made one operation after the other, attention is
products of matrices too small for a device, and scores that go through memory many times. The fused
version keeps a window's scores on the chip, and reads queries, keys and values where one joined
projection wrote them. For volumes of video, which are cut and rolled here, see `window_attention`.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import Formula, Kernels, has_triton, refuse_without_triton

MAX_TOKENS: Final = 64
MAX_CHANNELS: Final = 64
"""Tokens of a window, and channels of a head, that a program of the fused version can hold."""

_HAS_TRITON: Final = has_triton()


def dispatch(kernels: Kernels = "auto") -> Callable[..., Tensor]:
    """Give the version that ``kernels`` asks for.

    Raises:
        ConfigError: When that version cannot run here, or the word names none.
    """
    refuse_without_triton(kernels, operation="fused attention in windows")
    if kernels == "reference":
        return attend_windows_reference
    return attend_windows_fused if kernels == "fused" else attend_windows


def attend_windows(
    qkv: Tensor, bias: Tensor, mask: Tensor | None = None, *, scale: float
) -> Tensor:
    """Run the fused version where it can, the other elsewhere; see `attend_windows_reference`."""
    fused = _HAS_TRITON and qkv.is_cuda and _fits(qkv)
    version = attend_windows_fused if fused else attend_windows_reference
    return version(qkv, bias, mask, scale=scale)


def attend_windows_reference(
    qkv: Tensor, bias: Tensor, mask: Tensor | None = None, *, scale: float
) -> Tensor:
    """Let every token attend to all tokens of its window, in each head apart.

    The scores of a window's tokens are the products of queries and keys times ``scale``, plus the
    head's bias, plus the window's mask; their softmax is taken in float32 or wider.

    Args:
        qkv: (N, T, 3, H, D): queries, keys and values of N windows of T tokens, H heads of D
            channels, as one projection gives them.
        bias: (H, T, T) added to the scores of each head, by query and key.
        mask: (W, T, T) added to the scores of window n from row n % W, or None; it is not learned.
        scale: Factor of the products of queries and keys.

    Returns:
        (N, T, H, D) in the type of ``qkv``.
    """
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    wide = torch.promote_types(qkv.dtype, torch.float32)
    scores = (query @ key.transpose(-2, -1) * scale).to(wide) + bias
    if mask is not None:
        windows = torch.arange(qkv.shape[0], device=qkv.device) % mask.shape[0]
        scores = scores + mask[windows][:, None]
    weights = scores.softmax(-1, dtype=wide).to(qkv.dtype)
    return (weights @ value).transpose(1, 2)


def attend_windows_fused(
    qkv: Tensor, bias: Tensor, mask: Tensor | None = None, *, scale: float
) -> Tensor:
    """Do the same with Triton, forward and backward, always with the same bits.

    Nothing is kept for the backward pass but the inputs: scores are made anew. Memory beyond the
    inputs' and results' sizes is a gradient of the bias for each program.

    Raises:
        ConfigError: For windows or heads larger than a program can hold, and for float64.
    """
    if not _fits(qkv):
        raise ConfigError(
            f"model.kernels is 'fused', but fused attention takes windows of at most {MAX_TOKENS} "
            f"tokens and heads of at most {MAX_CHANNELS} channels of at most float32, not "
            f"{qkv.shape[1]} tokens and {qkv.shape[-1]} channels of {qkv.dtype}; set it to 'auto'"
        )
    tokens = qkv.shape[1]
    assert qkv.shape[2] == 3, "queries, keys and values are not there"
    assert bias.shape == (qkv.shape[3], tokens, tokens), "the bias is of other heads or tokens"
    if mask is not None:
        assert mask.shape[1:] == (tokens, tokens), "the mask is of other windows"
        assert not mask.requires_grad, "a mask is not learned"
        mask = mask.contiguous()
    return _attend_op(qkv.contiguous(), bias.contiguous(), mask, scale)


def _fits(qkv: Tensor) -> bool:
    small = qkv.shape[1] <= MAX_TOKENS and qkv.shape[-1] <= MAX_CHANNELS
    return small and qkv.dtype != torch.float64


@torch.library.custom_op("pitstop::attend_windows", mutates_args=())
def _attend_op(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    from pitstop.kernels.windows_triton import attend

    return attend(qkv, bias, mask, scale)


@_attend_op.register_fake
def _(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:  # noqa: ARG001 - named by the operation
    num_windows, tokens, _, heads, channels = qkv.shape
    return qkv.new_empty(num_windows, tokens, heads, channels)


@torch.library.custom_op("pitstop::attend_windows_backward", mutates_args=())
def _attend_backward_op(  # noqa: PLR0917 - operations take all by place
    grad: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    from pitstop.kernels.windows_triton import attend_backward

    return attend_backward(grad, qkv, bias, mask, scale)


@_attend_backward_op.register_fake
def _(  # noqa: PLR0917 - operations take all by place
    grad: Tensor,  # noqa: ARG001 - named by the operation
    qkv: Tensor,
    bias: Tensor,
    mask: Tensor | None,  # noqa: ARG001 - named by the operation
    scale: float,  # noqa: ARG001 - named by the operation
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    *tensors, scale = inputs
    ctx.save_for_backward(*tensors)
    ctx.scale = scale


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    grad_qkv, grad_bias = _attend_backward_op(grad.contiguous(), *ctx.saved_tensors, ctx.scale)
    return grad_qkv, grad_bias, None, None


_attend_op.register_autograd(_backward, setup_context=_keep_for_backward)


def attend_flops(*, num_windows: int, num_tokens: int, heads: int, channels: int) -> int:
    """Both matrix products of all windows and heads; softmax, bias and mask are not counted."""
    return 4 * num_windows * heads * num_tokens * num_tokens * channels


def attend_bytes(
    *, num_windows: int, num_tokens: int, heads: int, channels: int, itemsize: int, added_bytes: int
) -> int:
    """Queries, keys and values in, result out, and bias and mask once (``added_bytes``)."""
    return 4 * num_windows * num_tokens * heads * channels * itemsize + added_bytes


def backward_flops(*, num_windows: int, num_tokens: int, heads: int, channels: int) -> int:
    """Four matrix products for the gradients, and the scores once more."""
    return 10 * num_windows * heads * num_tokens * num_tokens * channels


def backward_bytes(
    *, num_windows: int, num_tokens: int, heads: int, channels: int, itemsize: int, added_bytes: int
) -> int:
    """Queries, keys, values and the result's gradient in, three gradients out.

    ``added_bytes`` are bias and mask in, and the gradient of the bias out.
    """
    return 7 * num_windows * num_tokens * heads * channels * itemsize + added_bytes


FORMULAS: Final[dict[str, Formula]] = {
    "attend_windows": Formula(flops=attend_flops, num_bytes=attend_bytes),
    "attend_windows_backward": Formula(flops=backward_flops, num_bytes=backward_bytes),
}
