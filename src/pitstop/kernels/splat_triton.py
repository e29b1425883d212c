"""The splat for Triton: sums of weighted rows, tile by tile, without a row per point in memory.

A program takes the points of one tile (`splat_plan`), gathers their rows block by block and
multiplies them by the (16, points) matrix that has a point's weight in the line of its owner: a
segmented sum on tensor cores, as fast for owners with a few points as for those with hundreds.
Products are summed in float32. The backward pass does the same with the roles changed, and takes
the gradients of the weights from the rows it has gathered anyway.

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

from pitstop.kernels.splat_plan import TILE, Order, Tiling


class Launch(NamedTuple):
    """How a kernel is cut; it changes speed, never results beyond rounding."""

    block_points: int
    block_channels: int
    """Channels of a program; the backward pass takes all of them."""
    num_warps: int
    num_stages: int
    """Blocks in flight. More than one copies rows to shared memory past the nearest cache, which
    would have some of them: neighbours in a tile gather the same rows."""


FORWARD = Launch(64, 128, 4, 2)
BACKWARD = Launch(128, 128, 2, 2)


def sum_rows(
    weights: Tensor, rows: Tensor, order: Order, tiling: Tiling, *, launch: Launch | None = None
) -> Tensor:
    """Sum weighted rows into their owners.

    Args:
        weights: (any,) of the type of ``rows``.
        rows: (R, C), contiguous.
        order: Which rows go where.
        tiling: How owners are cut into tiles.
        launch: How the kernel is cut; `FORWARD` where nothing is said.

    Returns:
        (owners, C) in the type of ``rows``.
    """
    out = rows.new_empty(tiling.num_owners, rows.shape[1])
    _launch(weights, rows, out, (order, tiling, launch or FORWARD), gradient=None)
    return out


def sum_rows_and_products(
    weights: Tensor,
    rows: Tensor,
    partners: Tensor,
    order: Order,
    tiling: Tiling,
    *,
    scatter: bool,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum weighted rows into their owners, and multiply each row by its owner's partner.

    Args:
        weights: (any,) of the type of ``rows``.
        rows: (R, C), contiguous.
        partners: (owners, C), contiguous, of the type of ``rows``.
        order: Which rows go where.
        tiling: How owners are cut into tiles.
        scatter: Whether every point has a weight of its own.
        launch: How the kernel is cut; `BACKWARD` where nothing is said.

    Returns:
        The sums, (owners, C), and the products: with ``scatter`` where the point's weight is, in
        the type of ``rows``, else (P,) float32 in the order of the points. Zero for points that
        the order leaves out.
    """
    out = rows.new_empty(tiling.num_owners, rows.shape[1])
    if scatter:
        products = torch.zeros_like(weights)
    else:
        products = torch.zeros(order.rows.shape, dtype=torch.float32, device=rows.device)
    launch = launch or BACKWARD
    # A product needs all channels of a row at once.
    launch = launch._replace(block_channels=triton.next_power_of_2(rows.shape[1]))
    _launch(weights, rows, out, (order, tiling, launch), gradient=(partners, products, scatter))
    return out, products


def _launch(
    weights: Tensor,
    rows: Tensor,
    out: Tensor,
    cut: tuple[Order, Tiling, Launch],
    *,
    gradient: tuple[Tensor, Tensor, bool] | None,
) -> None:
    order, tiling, launch = cut
    channels = rows.shape[1]
    block_channels = max(min(launch.block_channels, triton.next_power_of_2(channels)), TILE)
    channel_blocks = triton.cdiv(channels, block_channels)
    num_pieces = order.pieces.numel()
    # Tiles that are shared out leave their parts here; it is never written elsewhere.
    parts = rows.new_empty((num_pieces, TILE, channels), dtype=torch.float32)
    partners, products, scatter = gradient or (rows, rows, False)
    place = {
        "channels": channels,
        "height": tiling.height,
        "width": tiling.width,
        "across": tiling.across,
        "per_picture": tiling.per_picture,
        "TILE_COLUMNS": tiling.columns,
        "TILE_ROWS": tiling.rows,
        "TILE": TILE,
        "CHUNK": tiling.chunk,
        "BLOCK_CHANNELS": block_channels,
    }
    _sum_pieces[(num_pieces, channel_blocks)](
        weights,
        rows,
        out,
        parts,
        partners,
        products,
        *order,
        **place,
        BLOCK_POINTS=launch.block_points,
        WITH_PRODUCTS=gradient is not None,
        SCATTER=scatter,
        PRECISION="tf32x3" if rows.dtype == torch.float32 else "ieee",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    _add_parts[(tiling.num_tiles, channel_blocks)](
        parts, out, order.starts, order.ends, order.first_pieces, **place, num_warps=4
    )


@triton.jit
def _owners(tile, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS, TILE: tl.constexpr):
    """Rows of a tile's owners, and which of them exist."""
    picture = tile // per_picture
    inside = tile % per_picture
    lane = tl.arange(0, TILE)
    y = (inside // across) * TILE_ROWS + lane // TILE_COLUMNS
    x = (inside % across) * TILE_COLUMNS + lane % TILE_COLUMNS
    owner = picture.to(tl.int64) * height * width + y * width + x
    return owner, (y < height) & (x < width)


@triton.jit
def _sum_pieces(
    weights_ptr,
    rows_ptr,
    out_ptr,
    parts_ptr,
    partners_ptr,
    products_ptr,
    codes_ptr,
    places_ptr,
    starts_ptr,
    ends_ptr,
    first_pieces_ptr,
    pieces_ptr,
    channels,
    height,
    width,
    across,
    per_picture,
    TILE_COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_POINTS: tl.constexpr,
    WITH_PRODUCTS: tl.constexpr,
    SCATTER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    piece = tl.program_id(0)
    tile = tl.load(pieces_ptr + piece)
    if tile >= 0:
        tile_start = tl.load(starts_ptr + tile)
        tile_end = tl.load(ends_ptr + tile)
        start = tile_start + (piece - tl.load(first_pieces_ptr + tile)) * CHUNK
        end = tl.minimum(start + CHUNK, tile_end)
        owner, exists = _owners(
            tile, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS, TILE
        )
        lane = tl.arange(0, TILE)
        channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
        real = channel < channels
        owned = owner[:, None] * channels + channel[None, :]
        if WITH_PRODUCTS:
            partner = tl.load(partners_ptr + owned, mask=exists[:, None] & real[None, :], other=0.0)
        total = tl.zeros((TILE, BLOCK_CHANNELS), dtype=tl.float32)
        for block in range(start, end, BLOCK_POINTS):
            point = block + tl.arange(0, BLOCK_POINTS)
            here = point < end
            code = tl.load(codes_ptr + point, mask=here, other=0)
            place = tl.load(places_ptr + point, mask=here, other=0)
            weight = tl.load(weights_ptr + place, mask=here, other=0.0)
            row = (code // TILE).to(tl.int64)
            rows = tl.load(
                rows_ptr + row[:, None] * channels + channel[None, :],
                mask=here[:, None] & real[None, :],
                other=0.0,
            )
            mine = (code % TILE)[None, :] == lane[:, None]
            spread = tl.where(mine, weight[None, :], 0.0).to(rows.dtype)
            total = tl.dot(spread, rows, total, input_precision=PRECISION)
            if WITH_PRODUCTS:
                all_products = tl.dot(partner, tl.trans(rows), input_precision=PRECISION)
                product = tl.sum(tl.where(mine, all_products, 0.0), axis=0)
                target = place if SCATTER else point
                tl.store(products_ptr + target, product, mask=here)
        if tile_end - tile_start <= CHUNK:
            tl.store(out_ptr + owned, total, mask=exists[:, None] & real[None, :])
        else:
            part = (piece.to(tl.int64) * TILE + lane)[:, None] * channels + channel[None, :]
            tl.store(parts_ptr + part, total, mask=real[None, :])


@triton.jit
def _add_parts(
    parts_ptr,
    out_ptr,
    starts_ptr,
    ends_ptr,
    first_pieces_ptr,
    channels,
    height,
    width,
    across,
    per_picture,
    TILE_COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    tile = tl.program_id(0)
    num_points = tl.load(ends_ptr + tile) - tl.load(starts_ptr + tile)
    if num_points > CHUNK:
        first = tl.load(first_pieces_ptr + tile)
        lane = tl.arange(0, TILE)
        channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
        real = channel < channels
        inside = lane[:, None] * channels + channel[None, :]
        total = tl.zeros((TILE, BLOCK_CHANNELS), dtype=tl.float32)
        for piece in range(first, first + tl.cdiv(num_points, CHUNK)):
            step = tl.cast(piece, tl.int64) * TILE * channels
            total += tl.load(parts_ptr + step + inside, mask=real[None, :], other=0.0)
        owner, exists = _owners(
            tile, height, width, across, per_picture, TILE_COLUMNS, TILE_ROWS, TILE
        )
        owned = owner[:, None] * channels + channel[None, :]
        tl.store(out_ptr + owned, total, mask=exists[:, None] & real[None, :])
