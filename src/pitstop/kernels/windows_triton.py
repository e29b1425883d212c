"""Attention inside the windows of pictures for Triton: a window of one head is one tile.

A program takes one head and one place of the mask, and goes through the windows at that place: the
same one of each picture, or a run of neighbours where there is no mask. What is added to the
scores, bias and mask, is then one tile for all of them, read once. Windows are filled up to a power
of two: keys that do not exist are never read, rows that do not exist are never written.

Backward, the weights are made anew from queries and keys, which costs less than reading them back.
The gradient of the bias is summed over a program's windows and written once a program; the sum over
the programs is one call of torch's, so the order of all sums is fixed.

What must move for 20,416 windows of 49 tokens, 3 heads of 32 channels in 2 bytes (pictures of
600x800 pixels in the first stage of the smaller networks, 32 of them): 576 MB in and 192 MB out
forward, 769 MB in and 576 MB out backward. Each head reads and writes 64 bytes of a token's row, so
programs of one window's heads stand next to each other: they share lines of the cache. The bias
and the mask of a program are 10 kB each, from the second-level cache.

This file is imported where Triton is. Under ``TRITON_INTERPRET=1`` it runs on a CPU.
"""
# Triton is an optional dependency without types: a kernel's arguments are what it makes of them.
# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
# A kernel has no objects to put its arguments into, and compile-time ones are spelt in capitals.
# ruff: noqa: N803, PLR0913, PLR0915, PLR0917

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pitstop.kernels import product_block


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    run: int
    """Windows that a program takes at most."""
    programs: int
    """Programs that keep a device busy: with fewer, runs are made shorter."""
    num_warps: int
    num_stages: int
    max_registers: int | None = None
    """Of a thread: fewer let more programs share a processor; None leaves it to the compiler."""


class Cut(NamedTuple):
    """How windows are shared out among programs."""

    places: int
    """Windows of the mask; a program stays at one of them."""
    groups: int
    """Programs that share the windows of one place and head."""
    run: int
    """Windows of a program."""


FORWARD = Launch(16, 2048, 4, 3)
BACKWARD = Launch(16, 2048, 4, 3)


def attend(
    qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float, *, launch: Launch | None = None
) -> Tensor:
    """Let the tokens of each window attend to one another.

    Args:
        qkv: (N, T, 3, H, D), contiguous.
        bias: (H, T, T), contiguous.
        mask: (W, T, T), contiguous, or None.
        scale: Factor of the products of queries and keys.
        launch: How the kernel is cut; `FORWARD` where nothing is said.

    Returns:
        (N, T, H, D) in the type of ``qkv``.
    """
    launch = launch or FORWARD
    cut = _cut(qkv, mask, launch)
    num_windows, tokens, _, heads, channels = qkv.shape
    out = qkv.new_empty(num_windows, tokens, heads, channels)
    _attend[(cut.groups * cut.places * heads,)](
        qkv,
        bias,
        bias if mask is None else mask,
        out,
        num_windows,
        cut.places,
        cut.run,
        scale,
        **_constants(qkv, mask),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    return out


def attend_backward(
    grad: Tensor,
    qkv: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor]:
    """Give the gradients of ``qkv`` and ``bias``, of their types.

    Args:
        grad: (N, T, H, D), contiguous, the gradient of what `attend` gave.
        qkv: (N, T, 3, H, D), contiguous.
        bias: (H, T, T), contiguous.
        mask: (W, T, T), contiguous, or None.
        scale: Factor of the products of queries and keys.
        launch: How the kernel is cut; `BACKWARD` where nothing is said.
    """
    launch = launch or BACKWARD
    cut = _cut(qkv, mask, launch)
    num_windows, tokens, _, heads, _ = qkv.shape
    grad_qkv = torch.empty_like(qkv)
    shape = (cut.groups * cut.places, heads, tokens, tokens)
    parts = torch.empty(shape, dtype=torch.float32, device=qkv.device)
    _attend_backward[(cut.groups * cut.places * heads,)](
        qkv,
        bias,
        bias if mask is None else mask,
        grad,
        grad_qkv,
        parts,
        num_windows,
        cut.places,
        cut.run,
        scale,
        **_constants(qkv, mask),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    return grad_qkv, parts.sum(0).to(bias.dtype)


def _cut(qkv: Tensor, mask: Tensor | None, launch: Launch) -> Cut:
    """Share windows out, evenly; from shapes alone, so that sums have one order."""
    places = 1 if mask is None else mask.shape[0]
    turns = -(-qkv.shape[0] // places)
    wanted = -(-launch.programs // (places * qkv.shape[3]))
    groups = min(max(-(-turns // launch.run), wanted), turns)
    run = -(-turns // groups)
    return Cut(places, -(-turns // run), run)


def _constants(qkv: Tensor, mask: Tensor | None) -> dict[str, Any]:
    _, tokens, _, heads, channels = qkv.shape
    return {
        "TOKENS": tokens,
        "HEADS": heads,
        "CHANNELS": channels,
        "BLOCK_TOKENS": product_block(tokens),
        "BLOCK_CHANNELS": product_block(channels),
        "HAS_MASK": mask is not None,
    }


@triton.jit
def _added(
    bias_ptr,
    mask_ptr,
    head,
    place,
    TOKENS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """What the scores of a head get at a place of the mask; -inf for keys that do not exist."""
    token = tl.arange(0, BLOCK_TOKENS)
    inside = (token < TOKENS)[:, None] & (token < TOKENS)[None, :]
    pair = token[:, None] * TOKENS + token[None, :]
    first = head * (TOKENS * TOKENS)
    added = tl.load(bias_ptr + first + pair, mask=inside, other=0.0).to(tl.float32)
    if HAS_MASK:
        first = place.to(tl.int64) * (TOKENS * TOKENS)
        added += tl.load(mask_ptr + first + pair, mask=inside, other=0.0).to(tl.float32)
    return tl.where((token < TOKENS)[None, :], added, float("-inf"))


@triton.jit
def _weights(query, key, added, scale):
    """Softmax of the scores, in float32."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale + added
    powers = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _attend(
    qkv_ptr,
    bias_ptr,
    mask_ptr,
    out_ptr,
    num_windows,
    places,
    run,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    WIDTH: tl.constexpr = HEADS * CHANNELS  # noqa: N806 - known when it is compiled
    program = tl.program_id(0)
    head = program % HEADS
    place = (program // HEADS) % places
    first = program // (HEADS * places) * run
    turns = (num_windows - place + places - 1) // places
    token = tl.arange(0, BLOCK_TOKENS)
    channel = tl.arange(0, BLOCK_CHANNELS)
    here = (token < TOKENS)[:, None] & (channel < CHANNELS)[None, :]
    source = head * CHANNELS + token[:, None] * (3 * WIDTH) + channel[None, :]
    target = head * CHANNELS + token[:, None] * WIDTH + channel[None, :]
    added = _added(bias_ptr, mask_ptr, head, place, TOKENS, BLOCK_TOKENS, HAS_MASK)
    for turn in range(first, tl.minimum(first + run, turns)):
        window = (turn * places + place).to(tl.int64)
        rows_ptr = qkv_ptr + window * (TOKENS * 3 * WIDTH) + source
        query = tl.load(rows_ptr, mask=here, other=0.0)
        key = tl.load(rows_ptr + WIDTH, mask=here, other=0.0)
        value = tl.load(rows_ptr + 2 * WIDTH, mask=here, other=0.0)
        weights = _weights(query, key, added, scale).to(value.dtype)
        out = tl.dot(weights, value, input_precision="ieee")
        tl.store(out_ptr + window * (TOKENS * WIDTH) + target, out, mask=here)


@triton.jit
def _attend_backward(
    qkv_ptr,
    bias_ptr,
    mask_ptr,
    grad_ptr,
    grad_qkv_ptr,
    parts_ptr,
    num_windows,
    places,
    run,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    WIDTH: tl.constexpr = HEADS * CHANNELS  # noqa: N806 - known when it is compiled
    program = tl.program_id(0)
    head = program % HEADS
    place = (program // HEADS) % places
    first = program // (HEADS * places) * run
    turns = (num_windows - place + places - 1) // places
    token = tl.arange(0, BLOCK_TOKENS)
    channel = tl.arange(0, BLOCK_CHANNELS)
    here = (token < TOKENS)[:, None] & (channel < CHANNELS)[None, :]
    source = head * CHANNELS + token[:, None] * (3 * WIDTH) + channel[None, :]
    target = head * CHANNELS + token[:, None] * WIDTH + channel[None, :]
    added = _added(bias_ptr, mask_ptr, head, place, TOKENS, BLOCK_TOKENS, HAS_MASK)
    grad_bias = tl.zeros((BLOCK_TOKENS, BLOCK_TOKENS), dtype=tl.float32)
    for turn in range(first, tl.minimum(first + run, turns)):
        window = (turn * places + place).to(tl.int64)
        rows = window * (TOKENS * 3 * WIDTH) + source
        query = tl.load(qkv_ptr + rows, mask=here, other=0.0)
        key = tl.load(qkv_ptr + rows + WIDTH, mask=here, other=0.0)
        value = tl.load(qkv_ptr + rows + 2 * WIDTH, mask=here, other=0.0)
        # Rows that do not exist have no gradient, so their weights count for nothing below.
        grad = tl.load(grad_ptr + window * (TOKENS * WIDTH) + target, mask=here, other=0.0)
        weights = _weights(query, key, added, scale)
        held = tl.trans(weights.to(grad.dtype))
        grad_value = tl.dot(held, grad, input_precision="ieee")
        tl.store(grad_qkv_ptr + rows + 2 * WIDTH, grad_value, mask=here)
        grad_weights = tl.dot(grad, tl.trans(value), input_precision="ieee")
        share = tl.sum(weights * grad_weights, axis=1)
        grad_scores = weights * (grad_weights - share[:, None])
        grad_bias += grad_scores
        narrow = grad_scores.to(query.dtype)
        grad_query = tl.dot(narrow, key, input_precision="ieee") * scale
        tl.store(grad_qkv_ptr + rows, grad_query, mask=here)
        grad_key = tl.dot(tl.trans(narrow), query, input_precision="ieee") * scale
        tl.store(grad_qkv_ptr + rows + WIDTH, grad_key, mask=here)
    inside = (token < TOKENS)[:, None] & (token < TOKENS)[None, :]
    pair = program.to(tl.int64) * (TOKENS * TOKENS) + token[:, None] * TOKENS + token[None, :]
    tl.store(parts_ptr + pair, grad_bias, mask=inside)
