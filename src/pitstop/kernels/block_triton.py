"""The token-wise half of an attention block for Triton: norms, projections, feed-forward layer.

A program takes a tile of tokens with all their channels, so that norms, gates and residual sums
happen where the operands of a product lie anyway: a tensor of tokens is read once and written once
by each kernel. Weights come in the type that products take, half precision or float32, and stay in
the second-level cache. Statistics and sums are float32. Nothing is kept for backward but the
inputs: norms and hidden channels are made again.

Gradients of weights are products over all tokens, which the vendor's library makes at the rate of
memory once its operands lie there; the kernels of the backward pass write them, with a column of
ones, so that gradients of biases come with the product. Gradients of norms are summed by each
program over its tokens and then over programs, in a fixed order.

This file is imported where Triton is. Under ``TRITON_INTERPRET=1`` it runs on a CPU.
"""
# Triton is an optional dependency without types: a kernel's arguments are what it makes of them.
# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel has no objects to put its arguments into, and compile-time ones are spelt in capitals.
# Branches are taken while it is compiled.
# ruff: noqa: C901, N803, PLR0912, PLR0913, PLR0915, PLR0917

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pitstop.kernels import product_block
from pitstop.kernels.fallback import product_precision
from pitstop.kernels.window_attention_triton import round_to_tf32

INTERPRETED: Final = tl.constexpr(triton.knobs.runtime.interpret)
HALF_LOG2_E: Final = tl.constexpr(-0.7213475204444817)
"""Turns a square into the power of two that the bell curve has there."""
SLOPE: Final = tl.constexpr(0.3989422804014327)
"""Of the normal distribution in its middle: 1 / sqrt(2 pi)."""

SPLIT_BLOCK: Final = 1024
SUM_ROWS: Final = 128
SUM_COLUMNS: Final = 16
NO_GRID: Final = (1, 1, 1, 1, 0, 0)

PAD: Final = 8
"""Columns beside the operands of weights' gradients: a one, which makes the gradient of the bias a
column of the same product, and zeros up to a multiple of 16 bytes."""


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    tokens: int
    """Of a tile; a power of two from 16."""
    columns: int
    """Of a weight that are taken at a time; likewise."""
    num_warps: int
    num_stages: int
    programs: int = 1056
    """That share the tokens where each sums over many; elsewhere one takes a tile."""


class Plan(NamedTuple):
    """The launches of a block's kernels."""

    project: Launch
    project_add: Launch
    """Where the result is added to something."""
    feed_forward: Launch
    feed_forward_hidden: Launch


NORM_BACKWARD: Final = Launch(8, 0, 2, 2, 2112)
PLANS: Final = {
    "ieee": Plan(
        project=Launch(64, 64, 4, 2),
        project_add=Launch(64, 64, 4, 2),
        feed_forward=Launch(64, 64, 4, 2),
        feed_forward_hidden=Launch(64, 32, 4, 1),
    ),
    "tf32": Plan(
        project=Launch(64, 32, 4, 2),
        project_add=Launch(64, 64, 4, 1),
        feed_forward=Launch(64, 32, 4, 1),
        feed_forward_hidden=Launch(64, 32, 4, 1),
    ),
    "tf32x3": Plan(
        project=Launch(64, 32, 4, 1),
        project_add=Launch(64, 32, 4, 1),
        feed_forward=Launch(32, 32, 4, 1),
        feed_forward_hidden=Launch(32, 16, 4, 1),
    ),
}
"""By what `product_precision` says: numbers of two bytes, of four, and of four split in two. What a
program holds of them must fit into shared memory."""

ROOMY: Final = PLANS["tf32x3"]._replace(feed_forward=Launch(64, 16, 4, 1))
ROOMY_BYTES: Final = 160 * 1024
"""The same for numbers split in two where a program may have so much shared memory, which tiles of
64 tokens take."""

FLOAT_INPUTS: Final = 64
"""Of numbers of four bytes that a projection takes at a time, where nothing needs them all."""


class Place(NamedTuple):
    """Where a token lies in its window, for what is added by place."""

    height: int
    width: int
    window_height: int
    window_width: int
    shift_height: int
    shift_width: int


class Norm(NamedTuple):
    """A layer norm's parameters."""

    weight: Tensor
    bias: Tensor
    eps: float


class Projection(NamedTuple):
    """A linear layer, and what is added to its input by place."""

    weight: Tensor
    """(N, K), in the type that products take."""
    bias: Tensor | None
    encoding: Tensor | None = None
    """(places of a window, K)."""


def project(
    x: Tensor,
    out: Tensor,
    projection: Projection,
    *,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
    place: Place | None = None,
    transposed: bool = False,
    copy: Tensor | None = None,
    summed: bool = False,
    launch: Launch | None = None,
) -> Tensor | None:
    """Write ``norm(x) @ weight.T + bias`` into ``out``, or ``residual + scale * (...)``.

    Args:
        x: (tokens, K), contiguous.
        out: (tokens, N), contiguous.
        projection: The layer.
        norm: None leaves ``x`` as it is.
        residual: (tokens, N) that the result is added to.
        scale: (samples,) factor of the result; without ``residual``, of ``x``.
        place: Where tokens lie, where the projection has an encoding.
        transposed: Whether ``weight`` is (K, N) instead.
        copy: (tokens, K), is written: what is multiplied, in the type that products take.
        summed: Whether what is multiplied is summed over tokens.
        launch: How the kernel is cut.

    Returns:
        (K,) float32, that sum, where it is asked for.
    """
    tokens, width = x.shape
    precision = product_precision(projection.weight.dtype)
    plan = PLANS[precision]
    launch = launch or (plan.project if residual is None else plan.project_add)
    programs = triton.cdiv(tokens, launch.tokens)
    inputs = product_block(width)
    # Without a norm nothing needs all inputs at once.
    if residual is not None and norm is None and projection.weight.dtype == torch.float32:
        inputs = min(inputs, FLOAT_INPUTS)
    parts = x.new_empty(programs, width, dtype=torch.float32) if summed else x
    _project[(programs,)](
        x,
        projection.weight,
        _or(projection.bias, x),
        _or(norm and norm.weight, x),
        _or(norm and norm.bias, x),
        _or(projection.encoding, x),
        _or(scale, x),
        _or(residual, x),
        out,
        _or(copy, x),
        parts,
        tokens,
        tokens // len(scale) if scale is not None else tokens,
        norm.eps if norm else 0.0,
        *(place or NO_GRID),
        WIDTH=width,
        COLUMNS=out.shape[1],
        BLOCK_T=launch.tokens,
        BLOCK_K=inputs,
        BLOCK_N=launch.columns,
        NORMED=norm is not None,
        ENCODED=projection.encoding is not None,
        HAS_BIAS=projection.bias is not None,
        SCALED=scale is not None,
        RESIDUAL=residual is not None,
        TRANSPOSED=transposed,
        COPIED=copy is not None,
        SUMMED=summed,
        PRECISION=precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return parts.sum(0) if summed else None


def norm_backward(
    grads: Sequence[Tensor],
    x: Tensor,
    norm: Norm,
    grad_residual: Tensor | None,
    grad_x: Tensor,
    operands: Sequence[Tensor] = (),
    *,
    encoding: Tensor | None = None,
    place: Place | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """Write the gradient of a norm's input, and the norm's result once more.

    Args:
        grads: One or two (tokens, C) of the result; their sum counts.
        x: (tokens, C).
        norm: Of ``x``.
        grad_residual: (tokens, C) to add, what came past the norm.
        grad_x: (tokens, C), is written.
        operands: None, one or two (tokens, C + PAD), are written: the result and, in the second,
            the result with the encoding added; then a one and zeros.
        encoding: (places, C).
        place: Where tokens lie.
        launch: How the kernel is cut.

    Returns:
        (programs, 2 C) float32: the gradients of the norm's weight and bias, for `finish` to sum.
    """
    launch = launch or NORM_BACKWARD
    tokens, width = x.shape
    tiles = triton.cdiv(tokens, launch.tokens)
    tiles_a_program = triton.cdiv(tiles, launch.programs)
    programs = triton.cdiv(tiles, tiles_a_program)
    parts = torch.empty(programs, 2 * width, dtype=torch.float32, device=x.device)
    _norm_backward[(programs,)](
        grads[0],
        grads[-1],
        x,
        norm.weight,
        norm.bias,
        _or(encoding, x),
        _or(grad_residual, x),
        grad_x,
        operands[0] if operands else x,
        operands[-1] if operands else x,
        parts,
        tokens,
        tiles_a_program,
        norm.eps,
        *(place or NO_GRID),
        WIDTH=width,
        PAD=PAD,
        BLOCK_T=launch.tokens,
        BLOCK_K=product_block(width),
        TWO=len(grads) == 2,
        RESIDUAL=grad_residual is not None,
        OPERANDS=len(operands),
        ENCODED=encoding is not None,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return parts


def finish(parts: Tensor, joints: Sequence[Tensor]) -> list[Tensor]:
    """Bring gradients of parameters into their places, all in one launch.

    Args:
        parts: (programs, 2 C), to be summed over programs.
        joints: One or two (N, K + PAD): a weight's gradient, then in its first further column the
            bias'.

    Returns:
        (2 C,) of the norm's weight and bias; then (N, K) and (N,) for each of ``joints``.
    """
    found = [parts.new_empty(parts.shape[1])]
    for joint in joints:
        num_rows, width = joint.shape
        found += [joint.new_empty(num_rows, width - PAD), joint.new_empty(num_rows)]
    first, second = joints[0], joints[-1]
    sums = triton.cdiv(parts.shape[1], SUM_COLUMNS)
    splits = [triton.cdiv(joint.numel(), SPLIT_BLOCK) for joint in joints]
    _finish[(sums + sum(splits),)](
        parts,
        found[0],
        parts.shape[0],
        first,
        found[1],
        found[2],
        first.numel(),
        second,
        found[-2],
        found[-1],
        second.numel(),
        SUMS=sums,
        SPLITS=splits[0],
        COLUMNS=parts.shape[1],
        WIDTH=first.shape[1] - PAD,
        OTHER_WIDTH=second.shape[1] - PAD,
        PAD=PAD,
        BLOCK=SPLIT_BLOCK,
        SUM_ROWS=SUM_ROWS,
        SUM_COLUMNS=SUM_COLUMNS,
    )
    return found


def sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """``left.T @ right`` in float32; (tokens, N) and (tokens, K)."""
    if not left.is_cuda or left.dtype == torch.float32:
        return left.T.float() @ right.float()
    return torch.mm(left.T, right, out_dtype=torch.float32)


def feed_forward(
    x: Tensor,
    out: Tensor,
    norm: Norm,
    layers: Sequence[Projection],
    scale: Tensor | None,
    *,
    launch: Launch | None = None,
) -> None:
    """Write ``x + scale * fc2(gelu(fc11(norm(x))) * fc12(norm(x)))`` into ``out``.

    Args:
        x: (tokens, C).
        out: Likewise.
        norm: Of ``x``.
        layers: fc11 and fc12, (hidden, C), and fc2, (C, hidden).
        scale: (samples,) or None.
        launch: How the kernel is cut.
    """
    tokens, width = x.shape
    first, second, last = layers
    precision = product_precision(first.weight.dtype)
    launch = launch or _plan_on(x, precision).feed_forward
    _feed_forward[(triton.cdiv(tokens, launch.tokens),)](
        x,
        norm.weight,
        norm.bias,
        first.weight,
        second.weight,
        last.weight,
        first.bias,
        second.bias,
        last.bias,
        _or(scale, x),
        out,
        tokens,
        tokens // len(scale) if scale is not None else tokens,
        norm.eps,
        WIDTH=width,
        HIDDEN=first.weight.shape[0],
        BLOCK_T=launch.tokens,
        BLOCK_K=product_block(width),
        BLOCK_H=launch.columns,
        SCALED=scale is not None,
        PRECISION=precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def feed_forward_hidden(
    grad: Tensor,
    x: Tensor,
    norm: Norm,
    layers: Sequence[Projection],
    scale: Tensor | None,
    outs: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    launch: Launch | None = None,
) -> None:
    """Write what the gradients of a feed-forward layer are products of.

    Args:
        grad: (tokens, C), of the result.
        x: (tokens, C).
        norm: Of ``x``.
        layers: As `feed_forward` takes them.
        scale: (samples,) or None.
        outs: Written, in the type that products take: (tokens, C) gradient of what fc2 gave, or
            ``grad`` itself where it is that already; (tokens, 2 hidden) gradients of what fc11 and
            fc12 gave; (tokens, C + PAD) what they were given; (tokens, hidden + PAD) what fc2 was
            given, both with a one and zeros.
        launch: How the kernel is cut.
    """
    tokens, width = x.shape
    first, second, last = layers
    precision = product_precision(first.weight.dtype)
    launch = launch or _plan_on(x, precision).feed_forward_hidden
    # Matrix units take float32 by rows alone: a small weight is turned once instead of each tile.
    turned = last.weight.dtype == torch.float32
    _feed_forward_hidden[(triton.cdiv(tokens, launch.tokens),)](
        grad,
        x,
        norm.weight,
        norm.bias,
        first.weight,
        second.weight,
        last.weight.T.contiguous() if turned else last.weight,
        first.bias,
        second.bias,
        _or(scale, x),
        *outs,
        tokens,
        tokens // len(scale) if scale is not None else tokens,
        norm.eps,
        WIDTH=width,
        HIDDEN=first.weight.shape[0],
        PAD=PAD,
        BLOCK_T=launch.tokens,
        BLOCK_K=product_block(width),
        BLOCK_H=launch.columns,
        SCALED=scale is not None,
        BRANCH=outs[0] is not grad,
        TURNED=turned,
        PRECISION=precision,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def _plan_on(x: Tensor, precision: str) -> Plan:
    """Of the device that a tensor is on."""
    if precision != "tf32x3" or not x.is_cuda:
        return PLANS[precision]
    room = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return ROOMY if room >= ROOMY_BYTES else PLANS[precision]


def _or(given: Any, other: Tensor) -> Tensor:
    return other if given is None else given


@triton.jit
def _rows_of(ptr, start, rows, columns, tokens, WIDTH: tl.constexpr):
    """A tile of a (tokens, WIDTH) tensor from row ``start`` on, zero outside."""
    inside = (rows < tokens - start)[:, None] & (columns < WIDTH)[None, :]
    here = ptr + start.to(tl.int64) * WIDTH
    return tl.load(here + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _put_rows(ptr, value, start, rows, columns, tokens, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Write a tile of a tensor whose rows have WIDTH columns and lie STRIDE apart."""
    inside = (rows < tokens - start)[:, None] & (columns < WIDTH)[None, :]
    here = ptr + start.to(tl.int64) * STRIDE
    value = value.to(ptr.dtype.element_ty)
    tl.store(here + rows[:, None] * STRIDE + columns[None, :], value, mask=inside)


@triton.jit
def _put_one(ptr, start, rows, tokens, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Write a one and zeros behind WIDTH columns."""
    columns = tl.arange(0, PAD)
    value = tl.where(columns == 0, 1.0, 0.0)[None, :]
    _put_rows(ptr + WIDTH, value, start, rows, columns, tokens, PAD, WIDTH + PAD)


@triton.jit
def _vector(ptr, columns, WIDTH: tl.constexpr):
    return tl.load(ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _matrix(ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of a (ROWS, COLUMNS) weight."""
    inside = (rows < ROWS)[:, None] & (columns < COLUMNS)[None, :]
    return tl.load(ptr + rows[:, None] * COLUMNS + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _operand(x, kind, PRECISION: tl.constexpr):
    """In the type that products take, rounded to what they read of it."""
    if PRECISION == "tf32":
        return round_to_tf32(x.to(tl.float32))
    return x.to(kind)


@triton.jit
def _standardize(x, columns, eps, WIDTH: tl.constexpr):
    """Give rows with mean 0 and variance 1, and what they were multiplied by."""
    x = x.to(tl.float32)
    mean = tl.sum(x, 1) / WIDTH
    centred = tl.where((columns < WIDTH)[None, :], x - mean[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    return centred * factor[:, None], factor


@triton.jit
def _normed_rows(
    x_ptr, weight_ptr, bias_ptr, start, rows, columns, tokens, eps, WIDTH: tl.constexpr
):
    """A tile of tokens, normed."""
    x = _rows_of(x_ptr, start, rows, columns, tokens, WIDTH)
    x = _standardize(x, columns, eps, WIDTH)[0]
    x = x * _vector(weight_ptr, columns, WIDTH)[None, :]
    return x + _vector(bias_ptr, columns, WIDTH)[None, :]


@triton.jit
def _encoding(
    ptr,
    rows,
    columns,
    height,
    width,
    window_height,
    window_width,
    shift_height,
    shift_width,
    WIDTH: tl.constexpr,
):
    """What is added to each token by its place in its window."""
    row = (rows // width) % height
    column = rows % width
    down = (row + window_height - shift_height) % window_height
    across = (column + window_width - shift_width) % window_width
    offset = (down * window_width + across)[:, None] * WIDTH + columns[None, :]
    return tl.load(ptr + offset, mask=(columns < WIDTH)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _scale_of(ptr, rows, tokens, tokens_a_sample):
    return tl.load(ptr + rows // tokens_a_sample, mask=rows < tokens, other=0.0).to(tl.float32)


@triton.jit
def _power_of_two(x):
    """2 ** x, zero below the least normal number: one instruction instead of four."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _gelu(x):
    """GELU by the error function, and its slope.

    The share of the normal distribution beyond |x| is a polynomial times the bell curve, which the
    slope needs anyway (Abramowitz and Stegun 7.1.26, at most 1.5e-7 off).
    """
    bell = _power_of_two(x * x * HALF_LOG2_E)
    t = 1.0 + 0.23164189 * tl.abs(x)
    t = tl.rsqrt(t * t)  # its inverse: a division takes ten instructions
    beyond = (
        0.5
        * t
        * (
            0.254829592
            + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
        )
    )
    beyond *= bell
    share = tl.where(x >= 0, 1.0 - beyond, beyond)
    return x * share, share + x * SLOPE * bell


@triton.jit
def _project(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    encoding_ptr,
    scale_ptr,
    residual_ptr,
    out_ptr,
    copy_ptr,
    parts_ptr,
    tokens,
    tokens_a_sample,
    eps,
    height,
    width,
    window_height,
    window_width,
    shift_height,
    shift_width,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORMED: tl.constexpr,
    ENCODED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    COPIED: tl.constexpr,
    SUMMED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_T
    rows = tl.arange(0, BLOCK_T)
    inner = tl.arange(0, BLOCK_K)
    if NORMED:
        x = _normed_rows(
            x_ptr, norm_weight_ptr, norm_bias_ptr, start, rows, inner, tokens, eps, WIDTH
        )
    else:
        x = _rows_of(x_ptr, start, rows, inner, tokens, WIDTH)
    if ENCODED:
        x += _encoding(
            encoding_ptr,
            start + rows,
            inner,
            height,
            width,
            window_height,
            window_width,
            shift_height,
            shift_width,
            WIDTH,
        )
    if SCALED:
        scale = _scale_of(scale_ptr, start + rows, tokens, tokens_a_sample)
        if not RESIDUAL:
            x = x.to(tl.float32) * scale[:, None]
    if SUMMED:
        part = parts_ptr + tl.program_id(0) * WIDTH + inner
        tl.store(part, tl.sum(x.to(tl.float32), 0), mask=inner < WIDTH)
    if COPIED:
        _put_rows(copy_ptr, x, start, rows, inner, tokens, WIDTH, WIDTH)
    kind: tl.constexpr = weight_ptr.dtype.element_ty
    operand = _operand(x, kind, PRECISION)
    for first in range(0, COLUMNS, BLOCK_N):
        outer = first + tl.arange(0, BLOCK_N)
        if TRANSPOSED:
            weight = _matrix(weight_ptr, inner, outer, WIDTH, COLUMNS)
        else:
            weight = _matrix(weight_ptr, outer, inner, COLUMNS, WIDTH).T
        out = tl.dot(operand, weight, input_precision=PRECISION)
        for more in tl.static_range(BLOCK_K, WIDTH, BLOCK_K):
            x = _rows_of(x_ptr, start, rows, more + inner, tokens, WIDTH)
            weight = _matrix(weight_ptr, outer, more + inner, COLUMNS, WIDTH).T
            more_operand = _operand(x, kind, PRECISION)
            out = tl.dot(more_operand, weight, out, input_precision=PRECISION)
        if HAS_BIAS:
            out += _vector(bias_ptr, outer, COLUMNS)[None, :]
        if RESIDUAL:
            if SCALED:
                out *= scale[:, None]
            out += _rows_of(residual_ptr, start, rows, outer, tokens, COLUMNS)
        _put_rows(out_ptr, out, start, rows, outer, tokens, COLUMNS, COLUMNS)


@triton.jit
def _norm_backward(
    grad_ptr,
    other_grad_ptr,
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    encoding_ptr,
    residual_ptr,
    grad_x_ptr,
    operand_ptr,
    encoded_ptr,
    parts_ptr,
    tokens,
    tiles_a_program,
    eps,
    height,
    width,
    window_height,
    window_width,
    shift_height,
    shift_width,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TWO: tl.constexpr,
    RESIDUAL: tl.constexpr,
    OPERANDS: tl.constexpr,
    ENCODED: tl.constexpr,
):
    program = tl.program_id(0)
    rows = tl.arange(0, BLOCK_T)
    inner = tl.arange(0, BLOCK_K)
    weight = _vector(norm_weight_ptr, inner, WIDTH)
    bias = _vector(norm_bias_ptr, inner, WIDTH)
    weight_grad = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
    bias_grad = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
    for tile in range(tiles_a_program):
        start = (program * tiles_a_program + tile) * BLOCK_T
        grad = _rows_of(grad_ptr, start, rows, inner, tokens, WIDTH).to(tl.float32)
        if TWO:
            grad += _rows_of(other_grad_ptr, start, rows, inner, tokens, WIDTH).to(tl.float32)
        x = _rows_of(x_ptr, start, rows, inner, tokens, WIDTH)
        x, factor = _standardize(x, inner, eps, WIDTH)
        weight_grad += grad * x
        bias_grad += grad
        scaled = grad * weight[None, :]
        along = tl.sum(scaled * x, 1) / WIDTH
        mean = tl.sum(scaled, 1) / WIDTH
        grad_x = (scaled - mean[:, None] - x * along[:, None]) * factor[:, None]
        if RESIDUAL:
            grad_x += _rows_of(residual_ptr, start, rows, inner, tokens, WIDTH).to(tl.float32)
        _put_rows(grad_x_ptr, grad_x, start, rows, inner, tokens, WIDTH, WIDTH)
        if OPERANDS > 0:
            operand = x * weight[None, :] + bias[None, :]
            _put_rows(operand_ptr, operand, start, rows, inner, tokens, WIDTH, WIDTH + PAD)
            _put_one(operand_ptr, start, rows, tokens, WIDTH, PAD)
        if OPERANDS > 1:
            if ENCODED:
                operand += _encoding(
                    encoding_ptr,
                    start + rows,
                    inner,
                    height,
                    width,
                    window_height,
                    window_width,
                    shift_height,
                    shift_width,
                    WIDTH,
                )
            _put_rows(encoded_ptr, operand, start, rows, inner, tokens, WIDTH, WIDTH + PAD)
            _put_one(encoded_ptr, start, rows, tokens, WIDTH, PAD)
    part = parts_ptr + program * (2 * WIDTH) + inner
    tl.store(part, tl.sum(weight_grad, 0), mask=inner < WIDTH)
    tl.store(part + WIDTH, tl.sum(bias_grad, 0), mask=inner < WIDTH)


@triton.jit
def _feed_forward(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    first_ptr,
    second_ptr,
    last_ptr,
    first_bias_ptr,
    second_bias_ptr,
    last_bias_ptr,
    scale_ptr,
    out_ptr,
    tokens,
    tokens_a_sample,
    eps,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_T
    rows = tl.arange(0, BLOCK_T)
    inner = tl.arange(0, BLOCK_K)
    kind: tl.constexpr = first_ptr.dtype.element_ty
    operand = _normed_rows(
        x_ptr, norm_weight_ptr, norm_bias_ptr, start, rows, inner, tokens, eps, WIDTH
    )
    operand = _operand(operand, kind, PRECISION)
    out = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
    for first in range(0, HIDDEN, BLOCK_H):
        hidden = first + tl.arange(0, BLOCK_H)
        weight = _matrix(first_ptr, hidden, inner, HIDDEN, WIDTH)
        gate = tl.dot(operand, weight.T, input_precision=PRECISION)
        weight = _matrix(second_ptr, hidden, inner, HIDDEN, WIDTH)
        value = tl.dot(operand, weight.T, input_precision=PRECISION)
        gate = _gelu(gate + _vector(first_bias_ptr, hidden, HIDDEN)[None, :])[0]
        value += _vector(second_bias_ptr, hidden, HIDDEN)[None, :]
        weight = _matrix(last_ptr, inner, hidden, WIDTH, HIDDEN)
        out = tl.dot(
            _operand(gate * value, kind, PRECISION), weight.T, out, input_precision=PRECISION
        )
    out += _vector(last_bias_ptr, inner, WIDTH)[None, :]
    if SCALED:
        scale = _scale_of(scale_ptr, start + rows, tokens, tokens_a_sample)
        out *= scale[:, None]
    out += _rows_of(x_ptr, start, rows, inner, tokens, WIDTH)
    _put_rows(out_ptr, out, start, rows, inner, tokens, WIDTH, WIDTH)


@triton.jit
def _feed_forward_hidden(
    grad_ptr,
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    first_ptr,
    second_ptr,
    last_ptr,
    first_bias_ptr,
    second_bias_ptr,
    scale_ptr,
    branch_ptr,
    grad_hidden_ptr,
    operand_ptr,
    gated_ptr,
    tokens,
    tokens_a_sample,
    eps,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    SCALED: tl.constexpr,
    BRANCH: tl.constexpr,
    TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_T
    rows = tl.arange(0, BLOCK_T)
    inner = tl.arange(0, BLOCK_K)
    kind: tl.constexpr = first_ptr.dtype.element_ty
    operand = _normed_rows(
        x_ptr, norm_weight_ptr, norm_bias_ptr, start, rows, inner, tokens, eps, WIDTH
    )
    operand = _operand(operand, kind, PRECISION)
    _put_rows(operand_ptr, operand, start, rows, inner, tokens, WIDTH, WIDTH + PAD)
    _put_one(operand_ptr, start, rows, tokens, WIDTH, PAD)
    _put_one(gated_ptr, start, rows, tokens, HIDDEN, PAD)
    branch = _rows_of(grad_ptr, start, rows, inner, tokens, WIDTH)
    if SCALED:
        scale = _scale_of(scale_ptr, start + rows, tokens, tokens_a_sample)
        branch = branch.to(tl.float32) * scale[:, None]
    branch = _operand(branch, kind, PRECISION)
    if BRANCH:
        _put_rows(branch_ptr, branch, start, rows, inner, tokens, WIDTH, WIDTH)
    for first in range(0, HIDDEN, BLOCK_H):
        hidden = first + tl.arange(0, BLOCK_H)
        weight = _matrix(first_ptr, hidden, inner, HIDDEN, WIDTH)
        gate = tl.dot(operand, weight.T, input_precision=PRECISION)
        weight = _matrix(second_ptr, hidden, inner, HIDDEN, WIDTH)
        value = tl.dot(operand, weight.T, input_precision=PRECISION)
        if TURNED:
            weight = _matrix(last_ptr, hidden, inner, HIDDEN, WIDTH).T
        else:
            weight = _matrix(last_ptr, inner, hidden, WIDTH, HIDDEN)
        grad = tl.dot(branch, weight, input_precision=PRECISION)
        gate, slope = _gelu(gate + _vector(first_bias_ptr, hidden, HIDDEN)[None, :])
        value += _vector(second_bias_ptr, hidden, HIDDEN)[None, :]
        _put_rows(gated_ptr, gate * value, start, rows, hidden, tokens, HIDDEN, HIDDEN + PAD)
        slope *= grad * value
        _put_rows(grad_hidden_ptr, slope, start, rows, hidden, tokens, HIDDEN, 2 * HIDDEN)
        second = grad_hidden_ptr + HIDDEN
        _put_rows(second, grad * gate, start, rows, hidden, tokens, HIDDEN, 2 * HIDDEN)


@triton.jit
def _split(
    block,
    joint_ptr,
    weight_ptr,
    bias_ptr,
    count,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """From rows of a weight, a bias and padding to a weight and a bias."""
    place = block * BLOCK + tl.arange(0, BLOCK)
    row, column = place // (WIDTH + PAD), place % (WIDTH + PAD)
    here = place < count
    value = tl.load(joint_ptr + place, mask=here, other=0.0)
    tl.store(weight_ptr + row * WIDTH + column, value, mask=here & (column < WIDTH))
    tl.store(bias_ptr + row, value, mask=here & (column == WIDTH))


@triton.jit
def _finish(
    parts_ptr,
    sum_ptr,
    num_parts,
    joint_ptr,
    weight_ptr,
    bias_ptr,
    count,
    other_joint_ptr,
    other_weight_ptr,
    other_bias_ptr,
    other_count,
    SUMS: tl.constexpr,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    OTHER_WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    SUM_COLUMNS: tl.constexpr,
):
    block = tl.program_id(0)
    if block < SUMS:
        columns = block * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
        rows = tl.arange(0, SUM_ROWS)
        summed = tl.zeros((SUM_ROWS, SUM_COLUMNS), dtype=tl.float32)
        for first in range(0, num_parts, SUM_ROWS):
            inside = (first + rows < num_parts)[:, None] & (columns < COLUMNS)[None, :]
            place = (first + rows)[:, None] * COLUMNS + columns[None, :]
            summed += tl.load(parts_ptr + place, mask=inside, other=0.0)
        tl.store(sum_ptr + columns, tl.sum(summed, 0), mask=columns < COLUMNS)
    elif block < SUMS + SPLITS:
        _split(block - SUMS, joint_ptr, weight_ptr, bias_ptr, count, WIDTH, PAD, BLOCK)
    else:
        _split(
            block - SUMS - SPLITS,
            other_joint_ptr,
            other_weight_ptr,
            other_bias_ptr,
            other_count,
            OTHER_WIDTH,
            PAD,
            BLOCK,
        )
