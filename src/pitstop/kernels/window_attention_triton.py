"""Attention inside windows of a video volume for Triton: windows are found by arithmetic.

A program takes one head and goes through many windows, or through one tile of queries of each.
Where a window's tokens lie in the volume, shifted and rolled round, and which of them must not see
each other, follows from the window's number; nothing is rolled, cut or put back in memory. The bias
of a tile is gathered from its table once a program and stays in registers.

Forward keeps, besides the result, one number for each query and head: the logarithm of its sum of
powers, from which backward makes the weights anew. Where one tile holds all keys of a window,
backward is one kernel. Otherwise it is two, one for queries, keys and values and one for the bias,
since a window's share of the bias' gradient does not fit on the chip. There the bias comes to the
scores by a product with the unit matrix, which takes no registers. The gradient of the bias is
summed over a program's windows in registers, written once a program, and summed over programs and
places in a fixed order: the same call gives the same bits.

What bounds it, for a volume of 6x256x256 with 6 heads of 16 channels in 2 bytes on an H200 (4.3
TB/s, 132 multiprocessors at 1.75 GHz, 16 powers of two a cycle each): forward moves 302 MB, 70 us.
With 128 tokens a window there are 302 million scores, whose powers take 82 us and whose five or six
other operations take 60; with 384 tokens it is 906 million, 245 and 180 us. Counters show that
neither is what holds it: registers leave room for two warps a scheduler, which wait.

This file is imported where Triton is. Under ``TRITON_INTERPRET=1`` it runs on a CPU.
"""
# Triton is an optional dependency without types: a kernel's arguments are what it makes of them.
# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel has no objects to put its arguments into, and compile-time ones are spelt in capitals.
# Branches are taken while it is compiled, which knows tuples by their sum alone.
# ruff: noqa: B007, C901, N803, N806, PLR0912, PLR0913, PLR0915, PLR0917, RUF005

from typing import Any, Final, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from pitstop.kernels import product_block
from pitstop.kernels.fallback import product_precision

LOG2_E: Final = tl.constexpr(1.4426950408889634)
MASKED_SCORE: Final = tl.constexpr(-100.0)
"""What two tokens get that must not see each other, before scores become powers of two."""

RUNTIME: Final = (
    "turns",
    "groups",
    "depth",
    "height",
    "width",
    "shift_d",
    "shift_h",
    "shift_w",
    "masked",
)
"""What no kernel is compiled anew for: a network has many volumes, shifted and not."""

INTERPRETED: Final = tl.constexpr(triton.knobs.runtime.interpret)

FOLD_KEYS: Final = 128
FOLD_AT_ONCE: Final = 8
"""Programs whose sums are asked for before the first has come: those that fold wait for memory,
and are too few to hide it otherwise."""
FOLD_WARPS: Final = 8

SHORTEN_BLOCK: Final = 4096
SHORTEN_PROGRAMS: Final = 2112
SHORTEN_WARPS: Final = 8


class Cut(NamedTuple):
    """A volume, how it is cut into windows, and where results lie."""

    size: tuple[int, int, int]
    """Sides of a window."""
    shift: tuple[int, int, int]
    """How far the grid of windows is moved."""
    masked: bool
    """Whether tokens that meet only because the volume was rolled are kept apart."""
    num_heads: int
    table_window: tuple[int, int, int]
    """The window that the table of biases was made for; at least ``size``."""
    mutual: bool = False
    """Whether the two frames of a window ask each other; there is no bias then."""
    out_first: int = 0
    """First channel of the result that is written."""

    @property
    def tokens(self) -> int:
        """Tokens that attend to one another."""
        depth, height, width = self.size
        return (1 if self.mutual else depth) * height * width


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    queries: int
    """Of a tile; a power of two from 16."""
    keys: int
    programs: int
    """Programs that fill a device: each takes as many windows as are left for it."""
    num_warps: int
    num_stages: int
    max_registers: int | None = None
    """Of a thread; None leaves it to the compiler."""


class Stretch(NamedTuple):
    """Largest numbers of operands that lie in 16 bits, stretched by powers of two to fit there."""

    tops: Tensor
    """(2,) float32, of the projections for self and for mutual attention; 0 where there is none."""
    grad_top: Tensor | None = None
    """(1,) float32, of the gradient."""


class Plan(NamedTuple):
    """The launches of one operation."""

    forward: Launch
    backward: Launch
    """All gradients where a tile holds all keys; else those of queries, keys and values."""
    bias: Launch
    """The gradient of the bias, where a tile does not hold all keys."""


def plan_for(tokens: int, channels: int, *, mutual: bool, precision: str) -> Plan:
    """Choose how the kernels are cut.

    A warp has sixteen rows of a tile; with more warps than that the compiler has them do the same
    work twice, or moves tiles between warps.
    """
    block = product_block(tokens)
    if precision != "ieee":
        return _float_plan(block, channels, mutual=mutual, exact=precision == "tf32x3")
    if mutual or block <= 64:
        warps = max(block // 16, 1)
        launch = Launch(block, block, 1584, warps, 2)
        return Plan(launch._replace(num_stages=3 if mutual else 2), launch, launch)
    if block == 128:
        whole = Launch(128, 128, 264, 8, 2 if channels <= 16 else 1)
        return Plan(Launch(64, 128, 1056, 4, 2), whole, whole)
    # Wider heads would take more shared memory than smaller GPUs have, and more registers.
    if channels <= 16:
        backward, bias = Launch(64, 64, 792, 4, 2, 168), Launch(64, 64, 1056, 4, 3, 128)
        return Plan(Launch(64, 64, 528, 4, 2), backward, bias)
    return Plan(
        Launch(64, 64, 528, 4, 1), Launch(64, 64, 528, 4, 2), Launch(64, 64, 1056, 4, 1, 128)
    )


def _float_plan(block: int, channels: int, *, mutual: bool, exact: bool) -> Plan:
    """For numbers of four bytes: more channels, or operands split in two, take smaller tiles."""
    narrow = channels <= 16 and not exact
    side = min(block, 64 if channels <= 32 else 32)
    launch = Launch(side, side, 1584, max(side // 16, 1), 1)
    if mutual and narrow:
        backward = launch._replace(programs=1056, max_registers=128)
        return Plan(launch._replace(num_stages=3), backward, backward)
    if mutual or block <= 64:
        return Plan(launch, launch, launch)
    if block == 128 and narrow:
        whole = Launch(128, 128, 264, 8, 1)
        return Plan(Launch(64, 128, 1056, 4, 2, 168), whole, whole)
    launch = launch._replace(programs=528)
    forward = launch._replace(keys=128) if narrow else launch
    return Plan(forward, launch, launch._replace(programs=1056))


def _plan(qkv: Tensor, cut: Cut, stretch: Stretch | None) -> Plan:
    channels = qkv.shape[-1] // (3 * cut.num_heads)
    precision = product_precision(qkv.dtype)
    plan = plan_for(cut.tokens, channels, mutual=cut.mutual, precision=precision)
    return plan if stretch is None else halves_plan(plan, cut, channels)


def halves_plan(plan: Plan, cut: Cut, channels: int) -> Plan:
    """Change the cuts of half precision where float16 stands for TF32 and others are faster."""
    narrow = channels <= 16
    if cut.mutual and narrow:
        return plan._replace(backward=plan.backward._replace(max_registers=128))
    if product_block(cut.tokens) == 128 and narrow:
        return plan._replace(forward=plan.forward._replace(max_registers=128))
    if cut.tokens > 128 and 16 < channels <= 32:
        return plan._replace(forward=plan.forward._replace(keys=128))
    return plan


def attend(
    qkv: Tensor,
    table: Tensor | None,
    out: Tensor,
    rows: Tensor,
    cut: Cut,
    *,
    stretch: Stretch | None = None,
    launch: Launch | None = None,
) -> None:
    """Let the tokens of each window attend to one another; write into ``out`` and ``rows``.

    Args:
        qkv: (B, D, H, W, 3C), contiguous, of sides that are multiples of the window's.
        table: (places, heads) of biases, contiguous; None for mutual attention.
        out: (B, D, H, W, at least C), contiguous; C channels from ``cut.out_first`` on are written.
        rows: (heads * B * D * H * W) float32: the logarithm, to base two, of what each token's
            powers sum to.
        cut: How.
        stretch: Of ``qkv``, where `shorten` made it.
        launch: How the kernel is cut; as `plan_for` has it where nothing is said.
    """
    launch = launch or _plan(qkv, cut, stretch).forward
    turns = rows.numel() // (cut.num_heads * cut.tokens)
    tiles = triton.cdiv(cut.tokens, launch.queries)
    groups = _groups(turns, tiles * cut.num_heads, launch)
    _attend[(groups * tiles * cut.num_heads,)](
        qkv,
        qkv if table is None else table,
        out,
        rows,
        rows if stretch is None else stretch.tops,
        *_volume(qkv, cut, turns, groups),
        **constants_of(qkv, table, out, cut, launch),
        STRETCHED=stretch is not None,
        **_options(launch),
    )


def attend_backward(
    grad: Tensor,
    qkv: Tensor,
    table: Tensor | None,
    out: Tensor,
    rows: Tensor,
    cut: Cut,
    grads: tuple[Tensor, Tensor | None],
    *,
    stretch: Stretch | None = None,
    plan: Plan | None = None,
) -> None:
    """Write the gradients of ``qkv`` and ``table`` into ``grads``.

    Args:
        grad: The gradient of ``out``, of its shape and contiguous.
        qkv: What `attend` was given, and so ``table`` and ``cut``.
        table: Of the biases, or None.
        out: What `attend` wrote.
        rows: What `attend` wrote.
        cut: How.
        grads: Of the shapes of ``qkv`` and ``table``, contiguous.
        stretch: Of ``qkv`` and ``grad``, where `shorten` and `shorten_grad` made them.
        plan: How the kernels are cut; as `plan_for` has it where nothing is said.
    """
    plan = plan or _plan(qkv, cut, stretch)
    given = (qkv, table, grad, out, rows, stretch)
    if plan.backward.keys >= cut.tokens:
        parts = _backward_whole(given, cut, grads[0], plan.backward)
    else:
        parts = _backward_tiles(given, cut, grads[0], plan)
    if grads[1] is not None:
        fold_parts(parts, grads[1], cut)


Given: TypeAlias = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Stretch | None]
"""Projection, table of biases, gradient of the result, result, its rows, and how both stretch."""


def _backward_whole(given: Given, cut: Cut, grad_qkv: Tensor, launch: Launch) -> Tensor:
    """One kernel for all gradients; gives what each program summed of the bias' gradient."""
    qkv, table, grad, out, rows, stretch = given
    turns = rows.numel() // (cut.num_heads * cut.tokens)
    groups = _groups(turns, cut.num_heads, launch)
    parts = rows if table is None else _no_parts(rows, cut, groups)
    _grad_whole[(groups * cut.num_heads,)](
        qkv,
        qkv if table is None else table,
        grad,
        out,
        rows,
        grad_qkv,
        parts,
        *_tops(rows, stretch),
        *_volume(qkv, cut, turns, groups),
        **constants_of(qkv, table, out, cut, launch),
        STRETCHED=stretch is not None,
        **_options(launch),
    )
    return parts


def _backward_tiles(given: Given, cut: Cut, grad_qkv: Tensor, plan: Plan) -> Tensor:
    """One kernel for queries, keys and values, and one for the bias, by programs as above."""
    qkv, table, grad, out, rows, stretch = given
    turns = rows.numel() // (cut.num_heads * cut.tokens)
    groups = _groups(turns, cut.num_heads, plan.backward)
    constants = constants_of(qkv, table, out, cut, plan.backward)
    del constants["TABLE"]
    delta = torch.empty_like(rows)
    sums = rows.new_empty(groups * cut.num_heads * cut.tokens * constants["BLOCK_C"])
    bias = qkv if table is None else _spread(qkv, table, cut)
    _grad_tiles[(groups * cut.num_heads,)](
        qkv,
        bias,
        grad,
        out,
        rows,
        delta,
        sums,
        grad_qkv,
        *_tops(rows, stretch),
        *_volume(qkv, cut, turns, groups),
        **constants,
        STRETCHED=stretch is not None,
        **_options(plan.backward),
    )
    if table is None:
        return rows
    launch = plan.bias
    tiles = triton.cdiv(cut.tokens, launch.queries) * triton.cdiv(cut.tokens, launch.keys)
    groups = _groups(turns, tiles * cut.num_heads, launch)
    parts = _no_parts(rows, cut, groups)
    constants = constants_of(qkv, table, out, cut, launch)
    del constants["TABLE"]
    _grad_bias[(groups * tiles * cut.num_heads,)](
        qkv,
        bias,
        grad,
        rows,
        delta,
        parts,
        *_tops(rows, stretch),
        *_volume(qkv, cut, turns, groups),
        **constants,
        STRETCHED=stretch is not None,
        **_options(launch),
    )
    return parts


def _tops(rows: Tensor, stretch: Stretch | None) -> tuple[Tensor, Tensor]:
    if stretch is None:
        return rows, rows
    assert stretch.grad_top is not None, "backward is stretched by the gradient too"
    return stretch.tops, stretch.grad_top


def shorten(x: Tensor, short: Tensor, top: Tensor) -> None:
    """Write float32 numbers in 16 bits, stretched by a power of two where they would not fit.

    Float16 has the mantissa of TF32. Nearly always the numbers fit as they are; they are written
    so, and again only where the largest of them says that they do not.

    Args:
        x: Contiguous float32.
        short: Of its shape in float16, is written.
        top: (1,) float32, is written: the largest absolute value.
    """
    programs, turns = _shares(x)
    parts = top.new_empty(programs)
    how = {"BLOCK": SHORTEN_BLOCK, "num_warps": SHORTEN_WARPS}
    _shorten[(programs,)](x, short, parts, x.numel(), turns, WRITES=True, **how)
    torch.amax(parts, 0, keepdim=True, out=top)
    _shorten_again[(programs,)](x, short, top, x.numel(), turns, **how)


def shorten_grad(grad: Tensor, tops: Tensor) -> tuple[Tensor, Tensor]:
    """Bring a gradient to 16 bits, so stretched that no product with values leaves their range.

    Args:
        grad: Contiguous float32.
        tops: As `Stretch` has them.

    Returns:
        The float16 gradient, and its largest absolute value before.
    """
    programs, turns = _shares(grad)
    short, top = torch.empty_like(grad, dtype=torch.float16), top_of(grad)
    how = {"BLOCK": SHORTEN_BLOCK, "num_warps": SHORTEN_WARPS}
    _shorten_grad[(programs,)](grad, short, tops, top, grad.numel(), turns, **how)
    return short, top


def top_of(x: Tensor) -> Tensor:
    """(1,) the largest absolute value of a contiguous float32 tensor."""
    programs, turns = _shares(x)
    parts = x.new_empty(programs)
    how = {"BLOCK": SHORTEN_BLOCK, "num_warps": SHORTEN_WARPS}
    _shorten[(programs,)](x, x, parts, x.numel(), turns, WRITES=False, **how)
    return torch.amax(parts, 0, keepdim=True)


def _shares(x: Tensor) -> tuple[int, int]:
    """Programs that share the numbers of a tensor, and how often each takes a block."""
    blocks = -(-x.numel() // SHORTEN_BLOCK)
    turns = -(-blocks // SHORTEN_PROGRAMS)
    return -(-blocks // turns), turns


def _spread(qkv: Tensor, table: Tensor, cut: Cut) -> Tensor:
    """The bias of all pairs, (heads, keys, queries), over the scale; as products take it."""
    exact = product_precision(qkv.dtype) == "tf32x3"
    dtype = torch.float32 if exact else torch.float16
    shape = (cut.num_heads, cut.tokens, cut.tokens)
    bias = torch.empty(shape, dtype=dtype, device=qkv.device)
    _spread_bias[cut.tokens, cut.num_heads](
        table,
        bias,
        (qkv.shape[-1] // (3 * cut.num_heads)) ** -0.5,
        HEADS=cut.num_heads,
        TOKENS=cut.tokens,
        SIDES=cut.size,
        TABLE=cut.table_window,
        BLOCK_QUERIES=product_block(cut.tokens),
    )
    return bias


def _no_parts(rows: Tensor, cut: Cut, groups: int) -> Tensor:
    """Buffer for what each program sums of the bias' gradient: (programs, heads, keys, queries)."""
    return rows.new_empty(groups, cut.num_heads, cut.tokens, cut.tokens)


def fold_parts(parts: Tensor, grad: Tensor, cut: Cut) -> None:
    """Sum (programs, heads, keys, queries) over programs and over the pairs of each place."""
    depth, height, width = (2 * side - 1 for side in cut.table_window)
    _fold_bias[(depth * height, cut.num_heads)](
        parts,
        grad,
        parts.shape[0],
        HEADS=cut.num_heads,
        TOKENS=cut.tokens,
        SIDES=cut.size,
        TABLE=cut.table_window,
        BLOCK_PLACES=triton.next_power_of_2(width),
        BLOCK_KEYS=FOLD_KEYS,
        AT_ONCE=FOLD_AT_ONCE,
        num_warps=FOLD_WARPS,
    )


def _groups(turns: int, programs_a_window: int, launch: Launch) -> int:
    """Programs that share the windows of a head and tile; from shapes alone."""
    return max(min(launch.programs // programs_a_window, turns), 1)


def _volume(qkv: Tensor, cut: Cut, turns: int, groups: int) -> tuple[float | int, ...]:
    """What changes from stage to stage and block to block without another compilation."""
    channels = qkv.shape[-1] // (3 * cut.num_heads)
    return (turns, groups, *qkv.shape[1:4], *cut.shift, int(cut.masked), channels**-0.5)


def constants_of(
    qkv: Tensor, table: Tensor | None, out: Tensor, cut: Cut, launch: Launch
) -> dict[str, Any]:
    """What the kernels are compiled for."""
    channels = qkv.shape[-1] // (3 * cut.num_heads)
    precision = product_precision(qkv.dtype)
    return {
        "SIDES": cut.size,
        "TABLE": cut.table_window,
        "HEADS": cut.num_heads,
        "CHANNELS": channels,
        "OUT_WIDTH": out.shape[-1],
        "OUT_FIRST": cut.out_first,
        "TOKENS": cut.tokens,
        "BLOCK_Q": launch.queries,
        "BLOCK_K": launch.keys,
        "BLOCK_C": product_block(channels),
        "MUTUAL": cut.mutual,
        "HAS_BIAS": table is not None,
        "SHORT_BIAS": precision != "tf32x3",
        "PRECISION": precision,
    }


def _options(launch: Launch) -> dict[str, Any]:
    return {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "maxnreg": launch.max_registers,
    }


@triton.jit
def _corner(window, volume, shift, masked, MUTUAL: tl.constexpr, SIDES: tl.constexpr):
    """First frame of the volume, first place of the window, and at which ends the window lies.

    Ends are bits, of depth (4), height (2) and width (1), set where the window holds both ends of a
    rolled axis. Frames that ask each other may meet by rolling.
    """
    deep = volume[0] // SIDES[0]
    down = volume[1] // SIDES[1]
    across = volume[2] // SIDES[2]
    column = window % across
    row = window // across % down
    layer = window // (across * down) % deep
    first = window // (across * down * deep) * volume[0]
    ends = ((column == across - 1) & (shift[2] > 0)).to(tl.int32)
    ends += ((row == down - 1) & (shift[1] > 0)).to(tl.int32) * 2
    if not MUTUAL:
        ends += ((layer == deep - 1) & (shift[0] > 0)).to(tl.int32) * 4
    ends *= masked
    z = layer * SIDES[0] + shift[0]
    y = row * SIDES[1] + shift[1]
    x = column * SIDES[2] + shift[2]
    return first, z, y, x, ends


@triton.jit
def _rows(token, corner, volume, SIDES: tl.constexpr):
    """Where tokens of a window lie among all tokens of the batch."""
    z = corner[1] + token // (SIDES[1] * SIDES[2])
    y = corner[2] + token // SIDES[2] % SIDES[1]
    x = corner[3] + token % SIDES[2]
    z = tl.where(z >= volume[0], z - volume[0], z)
    y = tl.where(y >= volume[1], y - volume[1], y)
    x = tl.where(x >= volume[2], x - volume[2], x)
    return (((corner[0] + z) * volume[1] + y) * volume[2] + x).to(tl.int64)


@triton.jit
def _wrapped(token, depth, height, width, SIDES: tl.constexpr):
    """Bits of a token by the axes along which a roll by so much brought it round."""
    bits = (token % SIDES[2] >= SIDES[2] - width).to(tl.int32)
    bits += (token // SIDES[2] % SIDES[1] >= SIDES[1] - height).to(tl.int32) * 2
    return bits + (token // (SIDES[1] * SIDES[2]) >= SIDES[0] - depth).to(tl.int32) * 4


@triton.jit
def _relative(token, SIDES: tl.constexpr, TABLE: tl.constexpr):
    """A number for each token; the difference of two is a place of the table but for its middle."""
    z = token // (SIDES[1] * SIDES[2])
    y = token // SIDES[2] % SIDES[1]
    return (z * (2 * TABLE[1] - 1) + y) * (2 * TABLE[2] - 1) + token % SIDES[2]


@triton.jit
def _bias(
    table_ptr,
    head,
    query,
    key,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    SIDES: tl.constexpr,
    TABLE: tl.constexpr,
):
    """What the scores of queries and keys get, in float32; one of the two is a column."""
    MIDDLE: tl.constexpr = ((TABLE[0] - 1) * (2 * TABLE[1] - 1) + TABLE[1] - 1) * (2 * TABLE[2] - 1)
    asking = _relative(query, SIDES, TABLE)
    seen = _relative(key, SIDES, TABLE)
    place = asking - seen + (MIDDLE + TABLE[2] - 1)
    here = (query < TOKENS) & (key < TOKENS)
    return tl.load(table_ptr + place * HEADS + head, mask=here, other=0.0).to(tl.float32)


@triton.jit
def _hold(bias):
    """Bring the bias of a tile to 16 bits in registers, where it stays while windows pass."""
    # A product with nothing, once a program: what it gives is laid out over threads as scores are,
    # and so is what stays in registers.
    rows = tl.zeros((bias.shape[0], 16), tl.float16)
    columns = tl.zeros((16, bias.shape[1]), tl.float16)
    return tl.dot(rows, columns, acc=bias).to(tl.float16)


@triton.jit
def _widen(bias, turn):
    """Bring a held bias to float32 where it is used.

    The compiler would widen it once, before the loop over windows, and keep twice the registers; so
    this is assembly that claims to depend on the turn. It must not claim effects: then tiles would
    change their layout, through shared memory, in every turn.
    """
    if INTERPRETED:
        wide = bias.to(tl.float32)
    else:
        wide = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=f,=f,r,r,r",
            [bias, turn],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    return wide


@triton.jit
def _unit(SIZE: tl.constexpr):
    """The matrix that changes nothing: a product with it adds a tile to scores.

    So the bias of a tile lies in shared memory and costs no registers and no instruction for each
    score; the matrix units have time for it. It pays where registers are what is short.
    """
    line = tl.arange(0, SIZE)
    return (line[:, None] == line[None, :]).to(tl.float16)


@triton.jit
def _scores(
    left,
    right,
    bias,
    one,
    HAS_BIAS: tl.constexpr,
    SHORT_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Products of rows and rows, with the bias of their tile, neither of them scaled yet."""
    if HAS_BIAS and SHORT_BIAS:
        scores = tl.dot(one, bias)
        scores = tl.dot(left, tl.trans(right), acc=scores, input_precision=PRECISION)
    else:
        scores = tl.dot(left, tl.trans(right), input_precision=PRECISION)
        if HAS_BIAS:
            scores += bias
    return scores


@triton.jit
def _mask(
    scores,
    query,
    key,
    ends,
    shift,
    lost,
    TOKENS: tl.constexpr,
    EVEN: tl.constexpr,
    SIDES: tl.constexpr,
):
    """Keep tokens apart that met by rolling, by ``lost``, and leave out keys that do not exist."""
    if ends != 0:
        # Made here and from the window's ends, or the compiler keeps these bits in registers that
        # are needed: most windows lie at no end.
        depth = shift[0] * (ends // 4)
        height = shift[1] * (ends // 2 % 2)
        width = shift[2] * (ends % 2)
        apart = _wrapped(query, depth, height, width, SIDES) != _wrapped(
            key, depth, height, width, SIDES
        )
        scores = tl.where(apart, scores + lost, scores)
    if not EVEN:
        scores = tl.where(key < TOKENS, scores, float("-inf"))
    return scores


@triton.jit
def exponent_of(top):
    """Of the power of two at or below a positive number; large where it is not finite."""
    return (top.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def round_to_tf32(x):
    """The nearest number of TF32: matrix units would leave the last bits of float32 out instead.

    Ties go away from zero. Numbers that are not finite stay so.
    """
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def two_to(exponent):
    """A power of two, from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _stretch_bits(top):
    """What is added to the exponents of numbers of which the largest is ``top``.

    Nothing where they fit into 16 bits as they are, with room at both ends. Small ones are
    stretched so little that the bias, which stretches twice as much, still fits.
    """
    exponent = exponent_of(top)
    fits = (exponent >= -6) & (exponent <= 8)
    return tl.where(fits, 0, tl.minimum(tl.maximum(8 - exponent, -60), 7))


@triton.jit
def _grad_bits(tops_ptr, grad_top_ptr):
    """The same for a gradient: its products with values, summed over 64 channels, stay in 16 bits.

    Values lie below 2 ** (their exponent + 1), so that the gradient may have what is left to 2 **
    8: products of 64 channels are below 2 ** 14 then, and differences of two below 2 ** 15.
    """
    own, mutual = tl.load(tops_ptr), tl.load(tops_ptr + 1)
    own = exponent_of(own) + _stretch_bits(own)
    mutual = exponent_of(mutual) + _stretch_bits(mutual)
    bits = 6 - tl.maximum(tl.maximum(own, mutual), -7) - exponent_of(tl.load(grad_top_ptr))
    return tl.minimum(tl.maximum(bits, -126), 126)


@triton.jit
def _block_of(turn, turns, count, BLOCK: tl.constexpr):
    place = (tl.program_id(0).to(tl.int64) * turns + turn) * BLOCK + tl.arange(0, BLOCK)
    return place, place < count


@triton.jit(do_not_specialize=("turns",))
def _shorten(x_ptr, short_ptr, parts_ptr, count, turns, WRITES: tl.constexpr, BLOCK: tl.constexpr):
    """The largest absolute value of each program's numbers; writes them in 16 bits as they are."""
    top = tl.zeros((BLOCK,), tl.float32)
    for turn in range(turns):
        place, here = _block_of(turn, turns, count, BLOCK)
        x = tl.load(x_ptr + place, mask=here, other=0.0)
        top = tl.maximum(top, tl.abs(x))
        if WRITES:
            tl.store(short_ptr + place, x.to(tl.float16), mask=here)
    tl.store(parts_ptr + tl.program_id(0), tl.max(top, 0))


@triton.jit(do_not_specialize=("turns",))
def _shorten_again(x_ptr, short_ptr, top_ptr, count, turns, BLOCK: tl.constexpr):
    """Write what did not fit into 16 bits as it is once more, stretched."""
    bits = _stretch_bits(tl.load(top_ptr))
    if bits != 0:
        for turn in range(turns):
            place, here = _block_of(turn, turns, count, BLOCK)
            x = tl.load(x_ptr + place, mask=here, other=0.0)
            tl.store(short_ptr + place, (x * two_to(bits)).to(tl.float16), mask=here)


@triton.jit(do_not_specialize=("turns",))
def _shorten_grad(x_ptr, short_ptr, tops_ptr, top_ptr, count, turns, BLOCK: tl.constexpr):
    """Write a gradient in 16 bits, stretched."""
    factor = two_to(_grad_bits(tops_ptr, top_ptr))
    for turn in range(turns):
        place, here = _block_of(turn, turns, count, BLOCK)
        x = tl.load(x_ptr + place, mask=here, other=0.0)
        tl.store(short_ptr + place, (x * factor).to(tl.float16), mask=here)


@triton.jit(do_not_specialize=RUNTIME)
def _attend(
    qkv_ptr,
    table_ptr,
    out_ptr,
    lse_ptr,
    tops_ptr,
    turns,
    groups,
    depth,
    height,
    width,
    shift_d,
    shift_h,
    shift_w,
    masked,
    scale,
    SIDES: tl.constexpr,
    TABLE: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUT_FIRST: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHORT_BIAS: tl.constexpr,
    STRETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    WIDTH: tl.constexpr = HEADS * CHANNELS
    TILES_Q: tl.constexpr = (TOKENS + BLOCK_Q - 1) // BLOCK_Q
    TILES_K: tl.constexpr = (TOKENS + BLOCK_K - 1) // BLOCK_K
    EVEN: tl.constexpr = TOKENS % BLOCK_K == 0
    program = tl.program_id(0)
    head = program % HEADS
    query = program // HEADS % TILES_Q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    group = program // (HEADS * TILES_Q)
    some_key = tl.arange(0, BLOCK_K)
    channel = tl.arange(0, BLOCK_C)
    held = channel < CHANNELS
    column = head * CHANNELS + channel[None, :]
    asks = (query < TOKENS)[:, None] & held[None, :]
    volume = (depth, height, width)
    shift = (shift_d, shift_h, shift_w)
    powers_of_two = scale * LOG2_E
    shrink = 1.0
    if STRETCHED:
        bits = _stretch_bits(tl.load(tops_ptr + (1 if MUTUAL else 0)))
        powers_of_two *= two_to(-2 * bits)
        shrink = two_to(-bits)
    biases = ()
    if HAS_BIAS and SHORT_BIAS:
        for tile in tl.static_range(TILES_K):
            tokens = tile * BLOCK_K + some_key[None, :]
            held_bias = _bias(table_ptr, head, query[:, None], tokens, HEADS, TOKENS, SIDES, TABLE)
            biases = biases + (_hold(held_bias * LOG2_E),)
    for turn in range(group, turns, groups):
        window = turn // 2 if MUTUAL else turn
        # The frame that is asked, and at whose places the answers are written.
        frame = turn % 2 * TOKENS if MUTUAL else 0
        corner = _corner(window, volume, shift, masked, MUTUAL, SIDES)
        asking = query + TOKENS - frame if MUTUAL else query
        q_rows = _rows(asking, corner, volume, SIDES)[:, None] * (3 * WIDTH)
        q = tl.load(qkv_ptr + q_rows + column, mask=asks, other=0.0)
        top = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_Q,), tl.float32)
        out = tl.zeros((BLOCK_Q, BLOCK_C), tl.float32)
        for tile in tl.static_range(TILES_K):
            key = tile * BLOCK_K + some_key
            here = (key < TOKENS)[:, None] & held[None, :]
            k_ptrs = _rows(frame + key, corner, volume, SIDES)[:, None] * (3 * WIDTH) + column
            k_ptrs = qkv_ptr + k_ptrs + WIDTH
            k = tl.load(k_ptrs, mask=here, other=0.0)
            v = tl.load(k_ptrs + WIDTH, mask=here, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * powers_of_two
            if HAS_BIAS and SHORT_BIAS:
                scores += _widen(biases[tile], turn)
            elif HAS_BIAS:
                bias = _bias(
                    table_ptr, head, query[:, None], key[None, :], HEADS, TOKENS, SIDES, TABLE
                )
                scores += bias * LOG2_E
            scores = _mask(
                scores,
                query[:, None],
                key[None, :],
                corner[4],
                shift,
                MASKED_SCORE * LOG2_E,
                TOKENS,
                EVEN,
                SIDES,
            )
            if TILES_K == 1:
                top = tl.max(scores, axis=1)
                powers = tl.exp2(scores - top[:, None])
                total = tl.sum(powers, axis=1)
            else:
                higher = tl.maximum(top, tl.max(scores, axis=1))
                less = tl.exp2(top - higher)
                powers = tl.exp2(scores - higher[:, None])
                total = total * less + tl.sum(powers, axis=1)
                out = out * less[:, None]
                top = higher
            out = tl.dot(powers.to(v.dtype), v, acc=out, input_precision=PRECISION)
        out = out / total[:, None]
        if STRETCHED:
            out *= shrink
        out = out.to(out_ptr.dtype.element_ty)
        out_rows = _rows(frame + query, corner, volume, SIDES)[:, None] * OUT_WIDTH
        tl.store(out_ptr + out_rows + (OUT_FIRST + column), out, mask=asks)
        line = (head * turns + turn).to(tl.int64) * TOKENS
        tl.store(lse_ptr + line + query, top + tl.log2(total), mask=query < TOKENS)


@triton.jit(do_not_specialize=RUNTIME)
def _grad_whole(
    qkv_ptr,
    table_ptr,
    grad_ptr,
    out_ptr,
    lse_ptr,
    grad_qkv_ptr,
    parts_ptr,
    tops_ptr,
    grad_top_ptr,
    turns,
    groups,
    depth,
    height,
    width,
    shift_d,
    shift_h,
    shift_w,
    masked,
    scale,
    SIDES: tl.constexpr,
    TABLE: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUT_FIRST: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHORT_BIAS: tl.constexpr,
    STRETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All gradients, where one tile holds all keys of a window.

    Scores stand on their side, a row for each key: so the weights and their gradients are left
    factors of the products that follow, and need not be turned.
    """
    WIDTH: tl.constexpr = HEADS * CHANNELS
    TILES_Q: tl.constexpr = (TOKENS + BLOCK_Q - 1) // BLOCK_Q
    EVEN: tl.constexpr = TOKENS % BLOCK_K == 0
    program = tl.program_id(0)
    head = program % HEADS
    key = tl.arange(0, BLOCK_K)
    group = program // HEADS
    some_query = tl.arange(0, BLOCK_Q)
    channel = tl.arange(0, BLOCK_C)
    held = channel < CHANNELS
    column = head * CHANNELS + channel[None, :]
    here = (key < TOKENS)[:, None] & held[None, :]
    volume = (depth, height, width)
    shift = (shift_d, shift_h, shift_w)
    powers_of_two = scale * LOG2_E
    lost = MASKED_SCORE / scale
    grad_scale, shrink, grad_shrink = scale, 1.0, 1.0
    if STRETCHED:
        bits = _stretch_bits(tl.load(tops_ptr + (1 if MUTUAL else 0)))
        shrink, grad_shrink = two_to(-bits), two_to(-_grad_bits(tops_ptr, grad_top_ptr))
        grad_scale = scale * two_to(-2 * bits) * grad_shrink
        if not HAS_BIAS:
            powers_of_two *= two_to(-2 * bits)
            lost *= two_to(2 * bits)
    biases = ()
    if HAS_BIAS and SHORT_BIAS:
        for tile in tl.static_range(TILES_Q):
            tokens = tile * BLOCK_Q + some_query[None, :]
            held_bias = _bias(table_ptr, head, tokens, key[:, None], HEADS, TOKENS, SIDES, TABLE)
            biases = biases + (_hold(held_bias / scale),)
    grad_biases = ()
    if HAS_BIAS:
        for tile in tl.static_range(TILES_Q):
            grad_biases = grad_biases + (tl.zeros((BLOCK_K, BLOCK_Q), tl.float32),)
    for turn in range(group, turns, groups):
        window = turn // 2 if MUTUAL else turn
        # The frame that is asked, and at whose places the answers are written.
        frame = turn % 2 * TOKENS if MUTUAL else 0
        corner = _corner(window, volume, shift, masked, MUTUAL, SIDES)
        k_rows = _rows(frame + key, corner, volume, SIDES)[:, None] * (3 * WIDTH)
        k_rows += WIDTH + column
        k = tl.load(qkv_ptr + k_rows, mask=here, other=0.0)
        v = tl.load(qkv_ptr + k_rows + WIDTH, mask=here, other=0.0)
        grad_k = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
        grad_v = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
        line = (head * turns + turn).to(tl.int64) * TOKENS
        summed = ()
        for tile in tl.static_range(TILES_Q):
            query = tile * BLOCK_Q + some_query
            asks = (query < TOKENS)[:, None] & held[None, :]
            asking = query + TOKENS - frame if MUTUAL else query
            q_rows = _rows(asking, corner, volume, SIDES)[:, None] * (3 * WIDTH) + column
            q = tl.load(qkv_ptr + q_rows, mask=asks, other=0.0)
            out_rows = _rows(frame + query, corner, volume, SIDES)[:, None] * OUT_WIDTH
            out_rows += OUT_FIRST + column
            grad = tl.load(grad_ptr + out_rows, mask=asks, other=0.0)
            # Queries that do not exist get no weights.
            lse = tl.load(lse_ptr + line + query, mask=query < TOKENS, other=float("inf"))
            out = tl.load(out_ptr + out_rows, mask=asks, other=0.0)
            delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), axis=1)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
            if STRETCHED:
                delta *= two_to(bits)
                if HAS_BIAS:
                    scores *= shrink * shrink
            if HAS_BIAS and SHORT_BIAS:
                scores += _widen(biases[tile], turn)
            elif HAS_BIAS:
                bias = _bias(
                    table_ptr, head, query[None, :], key[:, None], HEADS, TOKENS, SIDES, TABLE
                )
                scores += bias / scale
            scores = _mask(
                scores,
                query[None, :],
                key[:, None],
                corner[4],
                shift,
                lost,
                TOKENS,
                EVEN,
                SIDES,
            )
            weights = tl.exp2(scores * powers_of_two - lse[None, :])
            grad_v = tl.dot(weights.to(grad.dtype), grad, acc=grad_v, input_precision=PRECISION)
            grad_weights = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
            grad_scores = weights * (grad_weights - delta[None, :])
            if HAS_BIAS:
                summed = summed + (grad_biases[tile] + grad_scores,)
            narrow = grad_scores.to(q.dtype)
            grad_k = tl.dot(narrow, q, acc=grad_k, input_precision=PRECISION)
            grad_q = tl.dot(tl.trans(narrow), k, input_precision=PRECISION) * grad_scale
            grad_q = grad_q.to(grad_qkv_ptr.dtype.element_ty)
            tl.store(grad_qkv_ptr + q_rows, grad_q, mask=asks)
        if HAS_BIAS:
            grad_biases = summed
        grad_k = (grad_k * grad_scale).to(grad_qkv_ptr.dtype.element_ty)
        tl.store(grad_qkv_ptr + k_rows, grad_k, mask=here)
        if STRETCHED:
            grad_v *= grad_shrink
        grad_v = grad_v.to(grad_qkv_ptr.dtype.element_ty)
        tl.store(grad_qkv_ptr + k_rows + WIDTH, grad_v, mask=here)
    if HAS_BIAS:
        line = (group * HEADS + head).to(tl.int64) * (TOKENS * TOKENS)
        for tile in tl.static_range(TILES_Q):
            query = tile * BLOCK_Q + some_query
            pair = key[:, None] * TOKENS + query[None, :]
            inside = (key < TOKENS)[:, None] & (query < TOKENS)[None, :]
            total = grad_biases[tile]
            if STRETCHED:
                total = total * shrink * grad_shrink
            tl.store(parts_ptr + line + pair, total, mask=inside)


@triton.jit(do_not_specialize=RUNTIME)
def _grad_tiles(
    qkv_ptr,
    bias_ptr,
    grad_ptr,
    out_ptr,
    lse_ptr,
    delta_ptr,
    sums_ptr,
    grad_qkv_ptr,
    tops_ptr,
    grad_top_ptr,
    turns,
    groups,
    depth,
    height,
    width,
    shift_d,
    shift_h,
    shift_w,
    masked,
    scale,
    SIDES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUT_FIRST: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHORT_BIAS: tl.constexpr,
    STRETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of queries, keys and values, where a window's keys fill several tiles.

    A tile of keys stays while all tiles of queries pass. What queries get is summed over tiles of
    keys in memory that only this program touches, so in one order. Also writes each row's sum of
    its result's gradient times the result. Scores stand on their side, as in `_grad_whole`.
    """
    WIDTH: tl.constexpr = HEADS * CHANNELS
    EVEN: tl.constexpr = TOKENS % BLOCK_K == 0
    program = tl.program_id(0)
    head = program % HEADS
    group = program // HEADS
    some_query = tl.arange(0, BLOCK_Q)
    some_key = tl.arange(0, BLOCK_K)
    channel = tl.arange(0, BLOCK_C)
    held = channel < CHANNELS
    column = head * CHANNELS + channel[None, :]
    volume = (depth, height, width)
    shift = (shift_d, shift_h, shift_w)
    powers_of_two = scale * LOG2_E
    lost = MASKED_SCORE / scale
    one = _unit(BLOCK_K)
    grad_scale, grad_shrink = scale, 1.0
    if STRETCHED:
        bits = _stretch_bits(tl.load(tops_ptr + (1 if MUTUAL else 0)))
        grad_shrink = two_to(-_grad_bits(tops_ptr, grad_top_ptr))
        powers_of_two *= two_to(-2 * bits)
        lost *= two_to(2 * bits)
        one = (one.to(tl.float32) * two_to(2 * bits)).to(tl.float16)
        grad_scale = scale * two_to(-2 * bits) * grad_shrink
    sums_ptr += program.to(tl.int64) * (TOKENS * BLOCK_C)
    for turn in range(group, turns, groups):
        window = turn // 2 if MUTUAL else turn
        # The frame that is asked, and at whose places the answers are written.
        frame = turn % 2 * TOKENS if MUTUAL else 0
        corner = _corner(window, volume, shift, masked, MUTUAL, SIDES)
        line = (head * turns + turn).to(tl.int64) * TOKENS
        for first in range(0, TOKENS, BLOCK_Q):
            query = first + some_query
            asks = (query < TOKENS)[:, None] & held[None, :]
            out_rows = _rows(frame + query, corner, volume, SIDES)[:, None] * OUT_WIDTH
            out_rows += OUT_FIRST + column
            grad = tl.load(grad_ptr + out_rows, mask=asks, other=0.0).to(tl.float32)
            out = tl.load(out_ptr + out_rows, mask=asks, other=0.0).to(tl.float32)
            delta = tl.sum(grad * out, axis=1)
            if STRETCHED:
                delta *= two_to(bits)
            tl.store(delta_ptr + line + query, delta, mask=query < TOKENS)
        # What one thread wrote another reads.
        tl.debug_barrier()
        for first_key in range(0, TOKENS, BLOCK_K):
            key = first_key + some_key
            here = (key < TOKENS)[:, None] & held[None, :]
            k_rows = _rows(frame + key, corner, volume, SIDES)[:, None] * (3 * WIDTH)
            k_rows += WIDTH + column
            k = tl.load(qkv_ptr + k_rows, mask=here, other=0.0)
            v = tl.load(qkv_ptr + k_rows + WIDTH, mask=here, other=0.0)
            grad_k = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
            grad_v = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
            is_last = first_key + BLOCK_K >= TOKENS
            for first in range(0, TOKENS, BLOCK_Q):
                query = first + some_query
                exists = query < TOKENS
                asks = exists[:, None] & held[None, :]
                asking = query + TOKENS - frame if MUTUAL else query
                q_rows = _rows(asking, corner, volume, SIDES)[:, None] * (3 * WIDTH) + column
                q = tl.load(qkv_ptr + q_rows, mask=asks, other=0.0)
                out_rows = _rows(frame + query, corner, volume, SIDES)[:, None] * OUT_WIDTH
                out_rows += OUT_FIRST + column
                grad = tl.load(grad_ptr + out_rows, mask=asks, other=0.0)
                # Queries that do not exist get no weights.
                lse = tl.load(lse_ptr + line + query, mask=exists, other=float("inf"))
                delta = tl.load(delta_ptr + line + query, mask=exists, other=0.0)
                bias = one
                if HAS_BIAS:
                    pair = (head * TOKENS + key)[:, None] * TOKENS + query[None, :]
                    inside = (key < TOKENS)[:, None] & exists[None, :]
                    bias = tl.load(bias_ptr + pair, mask=inside, other=0.0)
                scores = _scores(k, q, bias, one, HAS_BIAS, SHORT_BIAS, PRECISION)
                scores = _mask(
                    scores,
                    query[None, :],
                    key[:, None],
                    corner[4],
                    shift,
                    lost,
                    TOKENS,
                    EVEN,
                    SIDES,
                )
                weights = tl.exp2(scores * powers_of_two - lse[None, :])
                grad_v = tl.dot(weights.to(grad.dtype), grad, acc=grad_v, input_precision=PRECISION)
                grad_weights = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
                narrow = (weights * (grad_weights - delta[None, :])).to(q.dtype)
                grad_k = tl.dot(narrow, q, acc=grad_k, input_precision=PRECISION)
                grad_q = tl.dot(tl.trans(narrow), k, input_precision=PRECISION)
                sums = sums_ptr + query[:, None] * BLOCK_C + channel[None, :]
                # Not read ahead under a mask: Triton 3.6 fails to compile that.
                if first_key > 0:
                    grad_q += tl.load(sums, mask=asks, other=0.0)
                if is_last:
                    result = (grad_q * grad_scale).to(grad_qkv_ptr.dtype.element_ty)
                    tl.store(grad_qkv_ptr + q_rows, result, mask=asks)
                else:
                    tl.store(sums, grad_q, mask=asks)
            tl.debug_barrier()
            grad_k = (grad_k * grad_scale).to(grad_qkv_ptr.dtype.element_ty)
            tl.store(grad_qkv_ptr + k_rows, grad_k, mask=here)
            if STRETCHED:
                grad_v *= grad_shrink
            grad_v = grad_v.to(grad_qkv_ptr.dtype.element_ty)
            tl.store(grad_qkv_ptr + k_rows + WIDTH, grad_v, mask=here)


@triton.jit(do_not_specialize=RUNTIME)
def _grad_bias(
    qkv_ptr,
    bias_ptr,
    grad_ptr,
    lse_ptr,
    delta_ptr,
    parts_ptr,
    tops_ptr,
    grad_top_ptr,
    turns,
    groups,
    depth,
    height,
    width,
    shift_d,
    shift_h,
    shift_w,
    masked,
    scale,
    SIDES: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUT_FIRST: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHORT_BIAS: tl.constexpr,
    STRETCHED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of the bias of one tile of keys and one of queries, over many windows."""
    WIDTH: tl.constexpr = HEADS * CHANNELS
    TILES_Q: tl.constexpr = (TOKENS + BLOCK_Q - 1) // BLOCK_Q
    TILES_K: tl.constexpr = (TOKENS + BLOCK_K - 1) // BLOCK_K
    EVEN: tl.constexpr = TOKENS % BLOCK_K == 0
    program = tl.program_id(0)
    head = program % HEADS
    query = program // HEADS % TILES_Q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    key = program // (HEADS * TILES_Q) % TILES_K * BLOCK_K + tl.arange(0, BLOCK_K)
    group = program // (HEADS * TILES_Q * TILES_K)
    channel = tl.arange(0, BLOCK_C)
    held = channel < CHANNELS
    column = head * CHANNELS + channel[None, :]
    exists = query < TOKENS
    asks = exists[:, None] & held[None, :]
    here = (key < TOKENS)[:, None] & held[None, :]
    volume = (depth, height, width)
    shift = (shift_d, shift_h, shift_w)
    powers_of_two = scale * LOG2_E
    lost = MASKED_SCORE / scale
    one = _unit(BLOCK_K)
    shrink, grad_shrink = 1.0, 1.0
    if STRETCHED:
        bits = _stretch_bits(tl.load(tops_ptr + (1 if MUTUAL else 0)))
        shrink, grad_shrink = two_to(-bits), two_to(-_grad_bits(tops_ptr, grad_top_ptr))
        powers_of_two *= two_to(-2 * bits)
        lost *= two_to(2 * bits)
        one = (one.to(tl.float32) * two_to(2 * bits)).to(tl.float16)
    inside = (key < TOKENS)[:, None] & exists[None, :]
    pair = key[:, None] * TOKENS + query[None, :]
    bias = tl.load(bias_ptr + head * (TOKENS * TOKENS) + pair, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_K, BLOCK_Q), tl.float32)
    for turn in range(group, turns, groups):
        corner = _corner(turn, volume, shift, masked, MUTUAL, SIDES)
        line = (head * turns + turn).to(tl.int64) * TOKENS
        rows = _rows(query, corner, volume, SIDES)[:, None]
        q = tl.load(qkv_ptr + rows * (3 * WIDTH) + column, mask=asks, other=0.0)
        grad = tl.load(grad_ptr + rows * OUT_WIDTH + (OUT_FIRST + column), mask=asks, other=0.0)
        k_rows = _rows(key, corner, volume, SIDES)[:, None] * (3 * WIDTH) + (WIDTH + column)
        k = tl.load(qkv_ptr + k_rows, mask=here, other=0.0)
        v = tl.load(qkv_ptr + k_rows + WIDTH, mask=here, other=0.0)
        # Queries that do not exist get no weights.
        lse = tl.load(lse_ptr + line + query, mask=exists, other=float("inf"))
        delta = tl.load(delta_ptr + line + query, mask=exists, other=0.0)
        scores = _scores(k, q, bias, one, HAS_BIAS, SHORT_BIAS, PRECISION)
        scores = _mask(
            scores,
            query[None, :],
            key[:, None],
            corner[4],
            shift,
            lost,
            TOKENS,
            EVEN,
            SIDES,
        )
        weights = tl.exp2(scores * powers_of_two - lse[None, :])
        grad_weights = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
        total += weights * (grad_weights - delta[None, :])
    line = (group * HEADS + head).to(tl.int64) * (TOKENS * TOKENS)
    if STRETCHED:
        total = total * shrink * grad_shrink
    tl.store(parts_ptr + line + pair, total, mask=inside)


@triton.jit
def _spread_bias(
    table_ptr,
    bias_ptr,
    scale,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    SIDES: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
):
    """Write the bias of all pairs, (heads, keys, queries), before scores are scaled."""
    key = tl.program_id(0)
    head = tl.program_id(1)
    query = tl.arange(0, BLOCK_QUERIES)
    bias = _bias(table_ptr, head, query, key, HEADS, TOKENS, SIDES, TABLE) / scale
    row = (head * TOKENS + key) * TOKENS
    tl.store(bias_ptr + row + query, bias, mask=query < TOKENS)


@triton.jit(do_not_specialize=RUNTIME)
def _fold_bias(
    parts_ptr,
    grad_ptr,
    groups,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    SIDES: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Sum (programs, heads, keys, queries) over programs, then over the pairs of each place.

    A program has a row of the table: of a key its places ask for a row of the window's queries,
    which lie together, so that each number is read once and with its neighbours.
    """
    head = tl.program_id(1)
    wide: tl.constexpr = 2 * TABLE[2] - 1
    high: tl.constexpr = 2 * TABLE[1] - 1
    apart_d = tl.program_id(0) // high - (TABLE[0] - 1)
    apart_h = tl.program_id(0) % high - (TABLE[1] - 1)
    column = tl.arange(0, BLOCK_PLACES)
    apart_w = (column - (TABLE[2] - 1))[None, :]
    total = tl.zeros((BLOCK_PLACES,), tl.float32)
    for start in range(0, TOKENS, BLOCK_KEYS):
        key = (start + tl.arange(0, BLOCK_KEYS))[:, None]
        z = apart_d + key // (SIDES[1] * SIDES[2])
        y = apart_h + key // SIDES[2] % SIDES[1]
        x = apart_w + key % SIDES[2]
        inside = (z >= 0) & (z < SIDES[0]) & (y >= 0) & (y < SIDES[1])
        inside = inside & (x >= 0) & (x < SIDES[2]) & (key < TOKENS) & (column < wide)[None, :]
        query = (z * SIDES[1] + y) * SIDES[2] + x
        pair = (head * TOKENS + key) * TOKENS + query
        summed = tl.zeros((BLOCK_KEYS, BLOCK_PLACES), tl.float32)
        for first in range(0, groups, AT_ONCE):
            for step in tl.static_range(AT_ONCE):
                group = first + step
                there = group * (HEADS * TOKENS * TOKENS) + pair
                summed += tl.load(parts_ptr + there, mask=inside & (group < groups), other=0.0)
        total += tl.sum(summed, axis=0)
    place = tl.program_id(0) * wide + column
    tl.store(grad_ptr + place * HEADS + head, total, mask=column < wide)
