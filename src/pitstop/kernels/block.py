"""What an attention block does to each token: norms, projections and the gated feed-forward layer.

Three operations make a block, with window attention between the first and the second. The tensor
that runs past all branches (the stream) goes through each of them, so that its sums, forward and
backward, are made where its values are read anyway:

* `norm_project`: norm, then one or two projections; the stream comes out as it went in;
* `project_add`: a projection, scaled for each sample, added to the stream;
* `feed_forward_add`: norm, gated feed-forward layer, scaled, added to the stream.

Made one operation after the other, a block of C channels with hidden width 2 C moves some 170 C
bytes a token forward and backward in half precision with a float32 stream; fused it moves 140 C
and keeps its inputs alone for backward.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.kernels import Formula, Kernels, check_word
from pitstop.kernels.fallback import (
    obstacle_on,
    product_precision,
    round_to_tf32_,
    runs_fused,
)

MAX_CHANNELS: Final = 256
"""Of a token that the fused versions take: a tile holds all of them."""
MAX_FLOAT_CHANNELS: Final = 128
"""Of a token of the stream where products are in float32, which takes twice the room."""


class Norm(NamedTuple):
    """The parameters of a layer norm."""

    weight: Tensor
    bias: Tensor
    eps: float


class Layer(NamedTuple):
    """The parameters of a linear layer."""

    weight: Tensor
    bias: Tensor | None
    operand: Tensor | None = None
    """The weight in the type that products take; None casts it at the call. See `prepare`."""


class Encoding(NamedTuple):
    """What is added to a token by its place in its window."""

    table: Tensor
    """(height * width of a window, C)."""
    window: tuple[int, int]
    shift: tuple[int, int]
    """How far the grid of windows is moved."""


Layers: TypeAlias = Sequence[Layer]


class BlockOps(NamedTuple):
    """The operations of this file in the version that was asked for."""

    norm_project: "NormProject"
    project_add: "ProjectAdd"
    feed_forward_add: "FeedForwardAdd"


class NormProject(Protocol):
    """See `norm_project_reference`."""

    def __call__(
        self, x: Tensor, norm: Norm, layers: Layers, encoding: Encoding | None = None, /
    ) -> tuple[Tensor, ...]:
        """The stream, and each projection."""
        ...


class ProjectAdd(Protocol):
    """See `project_add_reference`."""

    def __call__(self, x: Tensor, branch: Tensor, layer: Layer, scale: Tensor | None, /) -> Tensor:
        """The new stream."""
        ...


class FeedForwardAdd(Protocol):
    """See `feed_forward_add_reference`."""

    def __call__(self, x: Tensor, norm: Norm, layers: Layers, scale: Tensor | None, /) -> Tensor:
        """The new stream."""
        ...


def dispatch(kernels: Kernels = "auto") -> BlockOps:
    """Give the versions that ``kernels`` asks for.

    Fused versions run on a CUDA device where there is Triton and tokens have at most
    `MAX_CHANNELS` channels, `MAX_FLOAT_CHANNELS` where products are in float32.

    Raises:
        ConfigError: When the word names none.
    """
    check_word(kernels)
    if kernels == "reference":
        return REFERENCE
    return BlockOps(
        partial(_norm_project, kernels),
        partial(_project_add, kernels),
        partial(_feed_forward_add, kernels),
    )


def norm_project_reference(
    x: Tensor, norm: Norm, layers: Layers, encoding: Encoding | None = None, /
) -> tuple[Tensor, ...]:
    """Norm the channels of each token and project them, once or twice.

    Args:
        x: (B, D, H, W, C), the stream.
        norm: Over the channels.
        layers: One or two, of C inputs; both with a bias, or none.
        encoding: Added to what the second layer projects, by the token's place in its window; H and
            W are multiples of the window's sides then.

    Returns:
        ``x`` and, for each layer, (B, D, H, W, its outputs).
    """
    normed = functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    results = [x, _linear(normed, layers[0])]
    if len(layers) == 2:
        placed = normed if encoding is None else add_by_place(normed, encoding)
        results.append(_linear(placed, layers[1]))
    return tuple(results)


def _linear(x: Tensor, layer: Layer) -> Tensor:
    return functional.linear(x, layer.weight, layer.bias)


def add_by_place(x: Tensor, encoding: Encoding) -> Tensor:
    """Add to each token of (B, D, H, W, C) what belongs to its place in its window."""
    height, width = encoding.window
    table = encoding.table.view(height, width, -1).roll(encoding.shift, dims=(0, 1))
    tiles = x.unflatten(3, (-1, width)).unflatten(2, (-1, height))
    return (tiles + table[:, None]).view(x.shape)


def project_add_reference(
    x: Tensor, branch: Tensor, layer: Layer, scale: Tensor | None, /
) -> Tensor:
    """Project a branch and add it to the stream.

    Args:
        x: (B, ..., C), the stream.
        branch: (B, ..., inputs of ``layer``).
        layer: With C outputs.
        scale: (B, 1, ...) factor of the projection for each sample, or None.
    """
    out = _linear(branch, layer)
    return x + out if scale is None else x + out * scale


def feed_forward_add_reference(
    x: Tensor, norm: Norm, layers: Layers, scale: Tensor | None, /
) -> Tensor:
    """Norm, project twice, gate one by GELU of the other, project back, and add to the stream.

    Args:
        x: (B, ..., C), the stream.
        norm: Over the channels.
        layers: The one that gates, the one that is gated, and the one back to C; with biases.
        scale: (B, 1, ...) factor of the branch for each sample, or None.
    """
    gating, gated, back = layers
    normed = functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    hidden = functional.gelu(_linear(normed, gating)) * _linear(normed, gated)
    return project_add_reference(x, hidden, back, scale)


REFERENCE: Final = BlockOps(
    norm_project_reference, project_add_reference, feed_forward_add_reference
)


def obstacle_of(x: Tensor, layer: Layer) -> str | None:
    """Why the fused versions cannot run on a stream, or None."""
    channels = max(layer.weight.shape[1], x.shape[-1])
    if channels > MAX_CHANNELS:
        return f"its tokens have {channels} channels, more than {MAX_CHANNELS}"
    if operand_type(x, layer.weight) == torch.float32 and x.shape[-1] > MAX_FLOAT_CHANNELS:
        return f"its tokens have {x.shape[-1]} channels in float32, more than {MAX_FLOAT_CHANNELS}"
    return obstacle_on(x)


def operand_type(x: Tensor, weight: Tensor) -> torch.dtype:
    """The type that products take here: autocast's, or the weights' own."""
    device = x.device.type
    # Of the meta device, on which shapes are tried, autocast knows nothing and raises.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def fits(kernels: Kernels, x: Tensor, layer: Layer) -> bool:
    """Whether ``kernels`` asks for fused versions and they can run; `fused` in vain warns once."""
    return runs_fused(
        kernels,
        operation="the token-wise half of attention blocks",
        obstacle=obstacle_of(x, layer),
    )


def prepare(kernels: Kernels, x: Tensor, layers: Layers) -> list[Layer]:
    """Cast the weights of many layers together, where fused versions will run on ``x``.

    Two launches for all, instead of one each. Operands lie in memory in the order of the layers,
    one right behind the other, so that `stacked` has those of neighbours as one matrix.
    """
    if not fits(kernels, x, layers[0]):
        return list(layers)
    kind = operand_type(x, layers[0].weight)
    weights = [layer.weight for layer in layers]
    aligned = all(weight.numel() * kind.itemsize % ALIGNED_BYTES == 0 for weight in weights)
    rounds = product_precision(kind) == "tf32"
    if not aligned or (weights[0].dtype == kind and not rounds):
        return list(layers)
    with torch.no_grad():
        joint = torch.cat([weight.reshape(-1) for weight in weights]).to(kind)
        joint = round_to_tf32_(joint) if rounds else joint
    parts = joint.split([weight.numel() for weight in weights])
    return [
        layer._replace(operand=part.view(layer.weight.shape))
        for layer, part in zip(layers, parts, strict=True)
    ]


def stacked(upper: Tensor, lower: Tensor) -> Tensor:
    """The rows of two matrices as one; nothing is copied where the second follows the first."""
    end = upper.storage_offset() + upper.numel()
    follows = upper.untyped_storage() is lower.untyped_storage() and lower.storage_offset() == end
    if not follows or not (upper.is_contiguous() and lower.is_contiguous()):
        return torch.cat((upper, lower))
    rows = upper.shape[0] + lower.shape[0]
    return upper.as_strided((rows, upper.shape[1]), upper.stride())


ALIGNED_BYTES: Final = 16
"""At multiples of which kernels want their operands to begin."""


def _norm_project(  # noqa: PLR0917 - a version's arguments, behind the word
    kernels: Kernels, x: Tensor, norm: Norm, layers: Layers, encoding: Encoding | None = None, /
) -> tuple[Tensor, ...]:
    ops = FUSED if fits(kernels, x, layers[0]) else REFERENCE
    return ops.norm_project(x, norm, layers, encoding)


def _project_add(  # noqa: PLR0917 - a version's arguments, behind the word
    kernels: Kernels, x: Tensor, branch: Tensor, layer: Layer, scale: Tensor | None, /
) -> Tensor:
    ops = FUSED if fits(kernels, x, layer) else REFERENCE
    return ops.project_add(x, branch, layer, scale)


def _feed_forward_add(  # noqa: PLR0917 - a version's arguments, behind the word
    kernels: Kernels, x: Tensor, norm: Norm, layers: Layers, scale: Tensor | None, /
) -> Tensor:
    ops = FUSED if fits(kernels, x, layers[0]) else REFERENCE
    return ops.feed_forward_add(x, norm, layers, scale)


def norm_project_fused(
    x: Tensor, norm: Norm, layers: Layers, encoding: Encoding | None = None, /
) -> tuple[Tensor, ...]:
    """Do what `norm_project_reference` does with Triton; the same call gives the same bits."""
    kind = operand_type(x, layers[0].weight)
    table, place = None, [0] * 6
    if encoding is not None:
        table = encoding.table.contiguous()
        place = [*x.shape[2:4], *encoding.window, *encoding.shift]
    flat = [part for layer in layers for part in layer]
    return _NormProject.apply(x.contiguous(), *norm, kind, table, place, *flat)


def project_add_fused(x: Tensor, branch: Tensor, layer: Layer, scale: Tensor | None, /) -> Tensor:
    """Do what `project_add_reference` does with Triton; the same call gives the same bits."""
    kind = operand_type(x, layer.weight)
    flat = None if scale is None else scale.reshape(-1)
    return _ProjectAdd.apply(x.contiguous(), branch.contiguous(), *layer, flat, kind)


def feed_forward_add_fused(
    x: Tensor, norm: Norm, layers: Layers, scale: Tensor | None, /
) -> Tensor:
    """Do what `feed_forward_add_reference` does with Triton; the same call gives the same bits."""
    kind = operand_type(x, layers[0].weight)
    flat = None if scale is None else scale.reshape(-1)
    parts = [part for layer in layers for part in layer]
    return _FeedForwardAdd.apply(x.contiguous(), *norm, kind, flat, *parts)


FUSED: Final = BlockOps(norm_project_fused, project_add_fused, feed_forward_add_fused)


class _NormProject(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - torch takes all by place
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        kind: torch.dtype,
        encoding: Tensor | None,
        place: list[int],
        *layers: Tensor | None,
    ) -> tuple[Tensor, ...]:
        weights = _operands(layers, kind)
        biases = [bias for bias in layers[1::3] if bias is not None]
        ctx.save_for_backward(x, norm_weight, norm_bias, encoding, *weights)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.place, ctx.has_bias = eps, place, len(biases) > 0
        given = (norm_weight, norm_bias, eps, weights, biases, encoding, place)
        return x.view_as(x), *_norm_project_op(x, *given)

    @staticmethod
    def backward(ctx: Any, *all_grads: Tensor | None) -> tuple[Any, ...]:
        grad_x, *grads = all_grads
        x, norm_weight, norm_bias, encoding, *weights = ctx.saved_tensors
        whole = [_or_zeros(grad, x, weight) for grad, weight in zip(grads, weights, strict=True)]
        through = None if grad_x is None else grad_x.contiguous()
        given = (norm_weight, norm_bias, ctx.eps, weights, encoding, ctx.place)
        grad_x, norm_grads, *layers = _norm_project_backward_op(whole, through, x, *given)
        pairs = zip(layers[::2], layers[1::2], strict=True)
        return grad_x, *norm_grads.chunk(2), *[None] * 4, *_as_given(pairs, has_bias=ctx.has_bias)


class _ProjectAdd(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - torch takes all by place
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        operand: Tensor | None,
        scale: Tensor | None,
        kind: torch.dtype,
    ) -> Tensor:
        (operand,) = _operands((weight, bias, operand), kind)
        ctx.save_for_backward(branch, operand, scale)
        ctx.has_bias = bias is not None
        return _project_add_op(x, branch, operand, bias, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad = grads[0].contiguous()
        branch, weight, bias = _project_add_backward_op(grad, *ctx.saved_tensors)
        return grad, branch, weight, bias if ctx.has_bias else None, None, None, None


class _FeedForwardAdd(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - torch takes all by place
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        kind: torch.dtype,
        scale: Tensor | None,
        *layers: Tensor | None,
    ) -> Tensor:
        weights = _operands(layers, kind)
        biases = [bias for bias in layers[1::3] if bias is not None]
        ctx.save_for_backward(x, norm_weight, norm_bias, scale, *weights, *biases)
        ctx.eps = eps
        return _feed_forward_add_op(x, norm_weight, norm_bias, eps, weights, biases, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, norm_weight, norm_bias, scale, *layers = ctx.saved_tensors
        grad = grads[0].contiguous()
        given = (norm_weight, norm_bias, ctx.eps, layers[:3], layers[3:], scale)
        grad_x, norm_grads, weight, bias, *back = _feed_forward_add_backward_op(grad, x, *given)
        pairs = [*zip(weight.chunk(2), bias.chunk(2), strict=True), back]
        return grad_x, *norm_grads.chunk(2), *[None] * 3, *_as_given(pairs, has_bias=True)


def _operands(layers: Sequence[Tensor | None], kind: torch.dtype) -> list[Tensor]:
    """Weights in the type that products take, from weight, bias and operand of each layer."""
    pairs = zip(layers[::3], layers[2::3], strict=True)
    return [
        _as_operand(weight, kind) if operand is None else operand
        for weight, operand in pairs
        if weight is not None
    ]


def _as_operand(weight: Tensor, kind: torch.dtype) -> Tensor:
    if product_precision(kind) == "tf32":
        return round_to_tf32_(weight.to(kind, copy=True))
    return weight.to(kind)


def _as_given(pairs: Iterable[Sequence[Tensor]], *, has_bias: bool) -> list[Tensor | None]:
    """Gradients of weight, bias and operand of each layer."""
    return [part for weight, bias in pairs for part in (weight, bias if has_bias else None, None)]


def _or_zeros(grad: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    if grad is None:
        return x.new_zeros(*x.shape[:-1], weight.shape[0], dtype=weight.dtype)
    return grad.contiguous()


@torch.library.custom_op("pitstop::norm_project", mutates_args=())
def _norm_project_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    encoding: Tensor | None,
    place: Sequence[int],
) -> list[Tensor]:
    from pitstop.kernels import block_triton as triton_block

    norm = triton_block.Norm(norm_weight, norm_bias, eps)
    outs = _like_projections(x, weights)
    for index, (weight, out) in enumerate(zip(weights, outs, strict=True)):
        layer = triton_block.Projection(
            weight, biases[index] if biases else None, encoding if index else None
        )
        triton_block.project(
            _rows(x), _rows(out), layer, norm=norm, place=triton_block.Place(*place)
        )
    return outs


@_norm_project_op.register_fake
def _(x: Tensor, *given: Any) -> list[Tensor]:
    return _like_projections(x, given[3])


@torch.library.custom_op("pitstop::norm_project_backward", mutates_args=())
def _norm_project_backward_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    grads: Sequence[Tensor],
    grad_through: Tensor | None,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weights: Sequence[Tensor],
    encoding: Tensor | None,
    place: Sequence[int],
) -> list[Tensor]:
    """Gradients of the stream, of the norm (2 C,), and of each layer's weight and bias."""
    from pitstop.kernels import block_triton as triton_block

    norm = triton_block.Norm(norm_weight, norm_bias, eps)
    grad_x, rows = torch.empty_like(x), [_rows(grad) for grad in grads]
    inner = [grad @ weight for grad, weight in zip(rows, weights, strict=True)]
    operands = [_padded(x, x.shape[-1], weight.dtype) for weight in weights]
    parts = triton_block.norm_backward(
        inner,
        _rows(x),
        norm,
        None if grad_through is None else _rows(grad_through),
        _rows(grad_x),
        operands,
        encoding=encoding,
        place=triton_block.Place(*place),
    )
    pairs = zip(rows, operands, strict=True)
    return [
        grad_x,
        *triton_block.finish(parts, [triton_block.sum_of_products(*pair) for pair in pairs]),
    ]


@_norm_project_backward_op.register_fake
def _(grads: Sequence[Tensor], grad_through: Tensor | None, x: Tensor, *given: Any) -> list[Tensor]:  # noqa: ARG001 - named by the operation
    return [torch.empty_like(x), *_like_grads(x, given[3])]


@torch.library.custom_op("pitstop::project_add", mutates_args=())
def _project_add_op(  # noqa: PLR0917 - operations take all by place
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None
) -> Tensor:
    from pitstop.kernels import block_triton as triton_block

    out = torch.empty_like(x)
    layer = triton_block.Projection(weight, bias)
    triton_block.project(_rows(branch), _rows(out), layer, residual=_rows(x), scale=scale)
    return out


@_project_add_op.register_fake
def _(x: Tensor, *given: Any) -> Tensor:  # noqa: ARG001 - named by the operation
    return torch.empty_like(x)


@torch.library.custom_op("pitstop::project_add_backward", mutates_args=())
def _project_add_backward_op(
    grad: Tensor, branch: Tensor, weight: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from pitstop.kernels import block_triton as triton_block

    grad_branch, rows = torch.empty_like(branch), _rows(grad)
    is_operand = scale is None and grad.dtype == weight.dtype
    copy = None if is_operand else rows.new_empty(rows.shape, dtype=weight.dtype)
    # Matrix units take float32 by rows alone: a small weight is turned once instead of each tile.
    turned = weight.dtype == torch.float32
    layer = triton_block.Projection(weight.T.contiguous() if turned else weight, None)
    how: dict[str, Any] = {"scale": scale, "transposed": not turned, "copy": copy, "summed": True}
    bias = triton_block.project(rows, _rows(grad_branch), layer, **how)
    assert bias is not None, "a sum was asked for"
    operand = rows if copy is None else copy
    product = triton_block.sum_of_products(operand, _rows(branch).to(weight.dtype))
    return grad_branch, product, bias


@_project_add_backward_op.register_fake
def _(
    grad: Tensor,
    branch: Tensor,
    weight: Tensor,
    scale: Tensor | None,  # noqa: ARG001 - named by the operation
) -> tuple[Tensor, Tensor, Tensor]:
    weight_grad, bias_grad = _like_grads(grad, [weight])[1:]
    return torch.empty_like(branch), weight_grad, bias_grad


@torch.library.custom_op("pitstop::feed_forward_add", mutates_args=())
def _feed_forward_add_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scale: Tensor | None,
) -> Tensor:
    from pitstop.kernels import block_triton as triton_block

    out = torch.empty_like(x)
    norm = triton_block.Norm(norm_weight, norm_bias, eps)
    layers = [triton_block.Projection(*layer) for layer in zip(weights, biases, strict=True)]
    triton_block.feed_forward(_rows(x), _rows(out), norm, layers, scale)
    return out


@_feed_forward_add_op.register_fake
def _(x: Tensor, *given: Any) -> Tensor:  # noqa: ARG001 - named by the operation
    return torch.empty_like(x)


@torch.library.custom_op("pitstop::feed_forward_add_backward", mutates_args=())
def _feed_forward_add_backward_op(  # noqa: PLR0913, PLR0917 - operations take all by place
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scale: Tensor | None,
) -> list[Tensor]:
    """Gradients of the stream, of the norm, of the first layers together, of the last."""
    from pitstop.kernels import block_triton as triton_block

    norm = triton_block.Norm(norm_weight, norm_bias, eps)
    layers = [triton_block.Projection(*layer) for layer in zip(weights, biases, strict=True)]
    kind, rows = layers[0].weight.dtype, _rows(x)
    (tokens, width), hidden = rows.shape, weights[0].shape[0]
    grad_rows, is_operand = _rows(grad), scale is None and grad.dtype == kind
    branch = grad_rows if is_operand else x.new_empty(tokens, width, dtype=kind)
    grad_hidden = x.new_empty(tokens, 2 * hidden, dtype=kind)
    operand, gated = _padded(x, width, kind), _padded(x, hidden, kind)
    outs = (branch, grad_hidden, operand, gated)
    triton_block.feed_forward_hidden(grad_rows, rows, norm, layers, scale, outs)
    grad_x, joint = torch.empty_like(x), stacked(layers[0].weight, layers[1].weight)
    inner = grad_hidden @ joint
    parts = triton_block.norm_backward([inner], rows, norm, grad_rows, _rows(grad_x))
    joints = [
        triton_block.sum_of_products(grad_hidden, operand),
        triton_block.sum_of_products(branch, gated),
    ]
    return [grad_x, *triton_block.finish(parts, joints)]


@_feed_forward_add_backward_op.register_fake
def _(grad: Tensor, x: Tensor, *given: Any) -> list[Tensor]:  # noqa: ARG001 - named by the operation
    gating, _, back = given[3]
    joint = gating.new_empty(2 * gating.shape[0], gating.shape[1])
    return [torch.empty_like(x), *_like_grads(x, [joint, back])]


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])


def _padded(x: Tensor, width: int, kind: torch.dtype) -> Tensor:
    """An operand of a weight's gradient, with columns beside it for the bias."""
    from pitstop.kernels.block_triton import PAD

    return x.new_empty(x.numel() // x.shape[-1], width + PAD, dtype=kind)


def _like_projections(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty(*x.shape[:-1], weight.shape[0], dtype=weight.dtype) for weight in weights]


def _like_grads(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Of a norm, and of layers, all float32."""
    sizes = [(2 * x.shape[-1],)]
    sizes += [size for weight in weights for size in (tuple(weight.shape), weight.shape[:1])]
    return [x.new_empty(size, dtype=torch.float32) for size in sizes]


_STREAM_BYTES: Final = 4
"""Of a number of the stream under autocast."""


def _formula(products: int, *, wide: int, half: int) -> Formula:
    """Count products of C x C and numbers of the stream and in half precision, as multiples of C.

    Weights are left out: they are read once and are small beside the tokens.
    """

    def flops(*, tokens: int, channels: int) -> int:
        return 2 * products * tokens * channels * channels

    def num_bytes(*, tokens: int, channels: int, itemsize: int, stream: int = _STREAM_BYTES) -> int:
        return tokens * channels * (wide * stream + half * itemsize)

    return Formula(flops=flops, num_bytes=num_bytes)


FORMULAS: Final[dict[str, Formula]] = {
    "norm_project": _formula(3, wide=1, half=3),
    "norm_project_backward": _formula(6, wide=3, half=3),
    "project_add": _formula(1, wide=2, half=1),
    "project_add_backward": _formula(2, wide=1, half=2),
    "feed_forward_add": _formula(6, wide=2, half=0),
    "feed_forward_add_backward": _formula(16, wide=3, half=0),
    "project_add_branch": _formula(1, wide=1, half=2),
    "norm_backward": _formula(0, wide=3, half=2),
    "norm_backward_alone": _formula(0, wide=3, half=1),
    "feed_forward_hidden": _formula(6, wide=2, half=8),
}
"""Of a block with projections to query, key and value and hidden width 2 C: the three operations
and their backward passes as wholes, where hidden channels are made twice, then kernels that are
parts of backward passes."""
