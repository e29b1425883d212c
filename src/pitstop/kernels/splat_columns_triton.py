"""The splat of whole frustums for Triton: 16 pixels of an image column are taken as one.

Forward, a program takes the pairs of one tile of cells (`splat_columns_plan`). It sums the weights
of a pair's points by cell and pixel, and multiplies that small matrix by the column's 16 feature
rows. The sums of weights are wider than the features: in half precision they are multiplied as
what a half holds and what is left, so that only the result is rounded.

Backward, a program takes one column and walks along its depths. At each depth it gathers the
gradient of a cell once for all pixels that see the cell, then that of the next cell until no pixel
is left: once round for a level camera, two or three times for one that rolls. It needs no order,
and every gradient of a weight has one writer, zeros included.

What must move for six cameras of 32x88 pixels, 118 depths, 80 channels of 2 bytes and 256x256
cells, counted for level cameras. Forward: 43 thousand pairs, each with 2.5 kB of feature rows and
about 1.3 kB of weights and codes (in sectors of 32 bytes), together 170 MB from the second-level
cache instead of 290 MB for a row a point; from memory 8 MB of codes, 4 MB of weights, 3 MB of
features, and 10 MB of cells out. Backward: 110 thousand gathered rows, 18 MB, out of 10 MB of
gradient; 8 MB of targets, 4 MB of weights and 3 MB of features in; 4 MB and 3 MB of gradients out.

This file is imported where Triton is. Under ``TRITON_INTERPRET=1`` it runs on a CPU.
"""
# Triton is an optional dependency without types: a kernel's arguments are what it makes of them.
# pyright: reportMissingImports=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
# A kernel has no objects to put its arguments into, and compile-time ones are spelt in capitals.
# ruff: noqa: N803, PLR0913, PLR0915, PLR0917

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pitstop.kernels import product_block
from pitstop.kernels.splat_columns_plan import COLUMN, ColumnPlan, Frustum


class ForwardLaunch(NamedTuple):
    """How the forward kernel is cut; it changes speed, never results beyond rounding."""

    block_pairs: int
    """Pairs that are multiplied at once."""
    num_warps: int
    num_stages: int


class BackwardLaunch(NamedTuple):
    """How the backward kernel is cut; it changes speed, never results beyond rounding."""

    block_bins: int
    """Depths whose rows are gathered at once."""
    programs: int
    """Programs that keep a device busy: with fewer columns, the depths of one are shared out."""
    num_warps: int
    num_stages: int


FORWARD = ForwardLaunch(4, 4, 1)
BACKWARD = BackwardLaunch(32, 512, 4, 1)


def splat_pairs(
    weights: Tensor, rows: Tensor, plan: ColumnPlan, *, launch: ForwardLaunch | None = None
) -> Tensor:
    """Sum weighted feature rows into cells.

    Args:
        weights: (P,) of the type of ``rows``, contiguous.
        rows: (pixels, C), contiguous.
        plan: Which columns each tile sees.
        launch: How the kernel is cut; `FORWARD` where nothing is said.

    Returns:
        (cells, C) in the type of ``rows``.
    """
    launch = launch or FORWARD
    channels, pairs = rows.shape[1], plan.pairs
    num_pieces = pairs.tiles.numel()
    out = rows.new_empty(plan.cells.num_owners, channels)
    owners = plan.cells.rows * plan.cells.columns
    # Tiles that are shared out leave their parts here; it is never written elsewhere.
    parts = rows.new_empty((num_pieces, owners, channels), dtype=torch.float32)
    cells = _cells(plan)
    head, tail = _channel_blocks(channels)
    _sum_pairs[(num_pieces,)](
        weights,
        rows,
        out,
        parts,
        *pairs[1:],
        channels,
        **cells,
        map_width=plan.frustum.width,
        bins=plan.frustum.bins,
        COLUMN=COLUMN,
        PAIR_BINS=plan.pair_bins,
        BLOCK_PAIRS=launch.block_pairs,
        HEAD=head,
        TAIL=tail,
        HAS_TAIL=rows.shape[1] > head,
        PRECISION=_precision(rows),
        IS_HALF=rows.dtype != torch.float32,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    _add_parts[(plan.cells.num_tiles,)](
        parts,
        out,
        pairs.first_pieces,
        pairs.last_pieces,
        channels,
        **cells,
        BLOCK_CHANNELS=product_block(channels),
        num_warps=4,
    )
    return out


def gather_columns(
    grad: Tensor,
    weights: Tensor,
    rows: Tensor,
    targets: Tensor,
    frustum: Frustum,
    *,
    launch: BackwardLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum weighted gradients of cells into pixels, and multiply them by the pixels' features.

    Args:
        grad: (cells, C), contiguous, of the type of ``rows``.
        weights: (P,) of the type of ``rows``, contiguous.
        rows: (pixels, C), contiguous.
        targets: (P,) int32, the cell of every point or -1.
        frustum: How the points lie.
        launch: How the kernel is cut; `BACKWARD` where nothing is said.

    Returns:
        The gradients of the weights and of the rows, of their types.
    """
    launch = launch or BACKWARD
    shares, share = _shares(frustum, launch)
    head, tail = _channel_blocks(rows.shape[1])
    dtype = rows.dtype if shares == 1 else torch.float32
    sums = rows.new_empty((shares, *rows.shape), dtype=dtype)
    products = torch.empty_like(weights)
    _gather[(frustum.num_columns, shares)](
        weights,
        grad,
        rows,
        targets,
        products,
        sums,
        rows.shape[1],
        rows.shape[0],
        map_height=frustum.height,
        map_width=frustum.width,
        groups=frustum.groups,
        bins=frustum.bins,
        COLUMN=COLUMN,
        SHARE=share,
        BLOCK_BINS=launch.block_bins,
        HEAD=head,
        TAIL=tail,
        HAS_TAIL=rows.shape[1] > head,
        PRECISION=_precision(rows),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return products, sums[0] if shares == 1 else sums.sum(0).to(rows.dtype)


def _shares(frustum: Frustum, launch: BackwardLaunch) -> tuple[int, int]:
    """How many programs share a column, and the depths of each."""
    blocks = -(-frustum.bins // launch.block_bins)
    wanted = -(-launch.programs // frustum.num_columns)
    blocks_of_one = -(-blocks // min(wanted, blocks))
    return -(-blocks // blocks_of_one), blocks_of_one * launch.block_bins


def _channel_blocks(channels: int) -> tuple[int, int]:
    """Two powers of two for the channels: 64 and 16 for 80, where one alone would be 128.

    Where one alone is as good, the second is of no use.
    """
    whole = product_block(channels)
    head = max(whole // 2, 16)
    tail = product_block(max(channels - head, 1))
    return (whole, 16) if head + tail >= whole else (head, tail)


def _precision(rows: Tensor) -> str:
    return "tf32x3" if rows.dtype == torch.float32 else "ieee"


def _cells(plan: ColumnPlan) -> dict[str, int]:
    cells = plan.cells
    return {
        "height": cells.height,
        "width": cells.width,
        "across": cells.across,
        "per_picture": cells.per_picture,
        "TILE_COLUMNS": cells.columns,
        "TILE_ROWS": cells.rows,
    }


@triton.jit
def _cells_at(tile, place, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS):
    """Rows of the cells at places of tiles, and which of them exist."""
    picture = tile // per_picture
    inside = tile % per_picture
    y = (inside // across) * TILE_ROWS + place // TILE_COLUMNS
    x = (inside % across) * TILE_COLUMNS + place % TILE_COLUMNS
    cell = picture.to(tl.int64) * height * width + y * width + x
    return cell, (y < height) & (x < width)


@triton.jit
def _pixels_of(column, lane, map_height, map_width, groups, COLUMN: tl.constexpr):
    """Pixels of columns, counted over all pictures, and which of them exist."""
    x = column % map_width
    above = column // map_width
    y = (above % groups) * COLUMN + lane
    return ((above // groups) * map_height + y) * map_width + x, y < map_height


@triton.jit
def _load_rows(ptr, row, wanted, channel, channels):
    """Some channels of rows, zero for those that are not wanted."""
    place = row.to(tl.int64)[:, None] * channels + channel[None, :]
    mask = wanted[:, None] & (channel < channels)[None, :]
    return tl.load(ptr + place, mask=mask, other=0.0)


@triton.jit
def _store_rows(ptr, values, row, wanted, channel, channels):
    place = row.to(tl.int64)[:, None] * channels + channel[None, :]
    mask = wanted[:, None] & (channel < channels)[None, :]
    tl.store(ptr + place, values, mask=mask)


@triton.jit
def _store_both(ptr, values, tail_values, row, wanted, channels, HAS_TAIL: tl.constexpr):
    HEAD: tl.constexpr = values.shape[1]  # noqa: N806 - known when it is compiled
    _store_rows(ptr, values, row, wanted, tl.arange(0, HEAD), channels)
    if HAS_TAIL:
        tail = HEAD + tl.arange(0, tail_values.shape[1])
        _store_rows(ptr, tail_values, row, wanted, tail, channels)


@triton.jit
def _multiply(total, spread, rows, IS_HALF: tl.constexpr, PRECISION: tl.constexpr):
    """Add the products of wide sums of weights and rows."""
    held = spread.to(rows.dtype)
    total = tl.dot(held, rows, total, input_precision=PRECISION)
    if IS_HALF:
        left = (spread - held.to(tl.float32)).to(rows.dtype)
        total = tl.dot(left, rows, total, input_precision=PRECISION)
    return total


@triton.jit
def _sum_pairs(
    weights_ptr,
    rows_ptr,
    out_ptr,
    parts_ptr,
    codes_ptr,
    tops_ptr,
    points_ptr,
    tiles_ptr,
    starts_ptr,
    ends_ptr,
    first_pieces_ptr,
    last_pieces_ptr,
    channels,
    height,
    width,
    across,
    per_picture,
    map_width,
    bins,
    TILE_COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    COLUMN: tl.constexpr,
    PAIR_BINS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_HALF: tl.constexpr,
):
    OWNERS: tl.constexpr = TILE_ROWS * TILE_COLUMNS  # noqa: N806 - known when it is compiled
    piece = tl.program_id(0)
    tile = tl.load(tiles_ptr + piece)
    if tile >= 0:
        start = tl.load(starts_ptr + piece)
        end = tl.load(ends_ptr + piece)
        lane = tl.arange(0, OWNERS)
        member = tl.arange(0, BLOCK_PAIRS * COLUMN)
        below = member % COLUMN
        step = tl.arange(0, PAIR_BINS)
        head = tl.arange(0, HEAD)
        total = tl.zeros((OWNERS, HEAD), dtype=tl.float32)
        tail = HEAD + tl.arange(0, TAIL)
        tail_total = tl.zeros((OWNERS, TAIL), dtype=tl.float32)
        for block in range(start, end, BLOCK_PAIRS):
            pair = block + member // COLUMN
            top = tl.load(tops_ptr + pair, mask=pair < end, other=0)
            first_point = tl.load(points_ptr + pair, mask=pair < end, other=0)
            here = (pair < end) & (below <= top % COLUMN)
            pixel = top // COLUMN + below * map_width
            # A pair may begin so late that depths of the next pixel follow.
            levels = (top // COLUMN + 1) * bins - first_point
            inside = here[None, :] & (step[:, None] < levels[None, :])
            point = (first_point + below * (map_width * bins))[None, :] + step[:, None]
            code = tl.load(codes_ptr + point, mask=inside, other=-1)
            weight = tl.load(weights_ptr + point, mask=inside, other=0.0).to(tl.float32)
            rows = _load_rows(rows_ptr, pixel, here, head, channels)
            if HAS_TAIL:
                tail_rows = _load_rows(rows_ptr, pixel, here, tail, channels)
            # Depths first: their sum then stays within a thread.
            mine = (code - tile * OWNERS)[:, None, :] == lane[None, :, None]
            spread = tl.sum(tl.where(mine, weight[:, None, :], 0.0), axis=0)
            # The first product that stands here decides how warps share the later ones: a tail of
            # 16 channels in the last place would have all warps do the same.
            if HAS_TAIL:
                tail_total = _multiply(tail_total, spread, tail_rows, IS_HALF, PRECISION)
            total = _multiply(total, spread, rows, IS_HALF, PRECISION)
        first = tl.load(first_pieces_ptr + tile)
        last = tl.load(last_pieces_ptr + tile)
        if last - first == 1:
            cell, known = _cells_at(
                tile, lane, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS
            )
            _store_both(out_ptr, total, tail_total, cell, known, channels, HAS_TAIL)
        else:
            part = piece * OWNERS + lane
            _store_both(parts_ptr, total, tail_total, part, lane >= 0, channels, HAS_TAIL)


@triton.jit
def _add_parts(
    parts_ptr,
    out_ptr,
    first_pieces_ptr,
    last_pieces_ptr,
    channels,
    height,
    width,
    across,
    per_picture,
    TILE_COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    OWNERS: tl.constexpr = TILE_ROWS * TILE_COLUMNS  # noqa: N806 - known when it is compiled
    tile = tl.program_id(0)
    first = tl.load(first_pieces_ptr + tile)
    last = tl.load(last_pieces_ptr + tile)
    if last - first > 1:
        lane = tl.arange(0, OWNERS)
        channel = tl.arange(0, BLOCK_CHANNELS)
        total = tl.zeros((OWNERS, BLOCK_CHANNELS), dtype=tl.float32)
        for piece in range(first, last):
            total += _load_rows(parts_ptr, piece * OWNERS + lane, lane >= 0, channel, channels)
        cell, known = _cells_at(
            tile, lane, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS
        )
        _store_rows(out_ptr, total, cell, known, channel, channels)


@triton.jit
def _gather(
    weights_ptr,
    grad_ptr,
    rows_ptr,
    targets_ptr,
    products_ptr,
    sums_ptr,
    channels,
    num_rows,
    map_height,
    map_width,
    groups,
    bins,
    COLUMN: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_BINS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    share = tl.program_id(1)
    pixel, exists = _pixels_of(
        tl.program_id(0), tl.arange(0, COLUMN), map_height, map_width, groups, COLUMN
    )
    head = tl.arange(0, HEAD)
    partner = _load_rows(rows_ptr, pixel, exists, head, channels)
    total = tl.zeros((COLUMN, HEAD), dtype=tl.float32)
    tail = HEAD + tl.arange(0, TAIL)
    tail_total = tl.zeros((COLUMN, TAIL), dtype=tl.float32)
    if HAS_TAIL:
        tail_partner = _load_rows(rows_ptr, pixel, exists, tail, channels)
    for block in range(share * SHARE, tl.minimum((share + 1) * SHARE, bins), BLOCK_BINS):
        level = block + tl.arange(0, BLOCK_BINS)
        point = pixel[:, None] * bins + level[None, :]
        here = exists[:, None] & (level < bins)[None, :]
        remaining = tl.load(targets_ptr + point, mask=here, other=-1)
        weight = tl.load(weights_ptr + point, mask=here, other=0.0)
        products = tl.zeros((COLUMN, BLOCK_BINS), dtype=tl.float32)
        current = tl.max(remaining, axis=0)
        most = tl.max(current, axis=0)
        while most >= 0:
            seen = current >= 0
            rows = _load_rows(grad_ptr, current, seen, head, channels)
            if HAS_TAIL:
                tail_rows = _load_rows(grad_ptr, current, seen, tail, channels)
            mine = (remaining == current[None, :]) & seen[None, :]
            spread = tl.where(mine, weight, 0.0).to(rows.dtype)
            total = tl.dot(spread, rows, total, input_precision=PRECISION)
            all_products = tl.dot(partner, tl.trans(rows), input_precision=PRECISION)
            if HAS_TAIL:
                tail_total = tl.dot(spread, tail_rows, tail_total, input_precision=PRECISION)
                all_products = tl.dot(
                    tail_partner, tl.trans(tail_rows), all_products, input_precision=PRECISION
                )
            products = tl.where(mine, all_products, products)
            remaining = tl.where(mine, -1, remaining)
            current = tl.max(remaining, axis=0)
            most = tl.max(current, axis=0)
        tl.store(products_ptr + point, products, mask=here)
    own = pixel + share.to(tl.int64) * num_rows
    _store_both(sums_ptr, total, tail_total, own, exists, channels, HAS_TAIL)
