"""In which order the points of a splat are summed, worked out before the sums.

A splat sums weighted feature rows into cells, and its backward pass weighted cell rows into
features: the same operation with the roles changed. In each direction the rows that are summed
into, the owners, are cut into tiles of 16 neighbours of a picture, and the points are sorted by
tile. One program then sums the points of one tile, and no two programs write the same row.

All shapes follow from the sizes of the inputs, and nothing is read back from the device: a plan
can be made inside a training step.
"""

from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

TILE: Final = 16
"""Owners of a tile: the rows of the smallest matrix product of a tensor core."""

CELL_TILE: Final = (4, 4)
"""Rows and columns of a tile of cells: a compact patch of ground sees few image columns."""

FEATURE_TILE: Final = (16, 1)
"""Rows and columns of a tile of pixels: a level camera sees one cell along an image column."""

CELL_CHUNK: Final = 512
"""Most points of a tile of cells that one program sums; a crowded tile is shared out."""

FEATURE_CHUNK: Final = 2048
"""The same for a tile of pixels, which all have about as many points."""

MAX_CHANNELS: Final = 256
"""Channels that a program of the fused backward pass can hold."""

MAX_ROWS: Final = 2**31 // TILE
"""Rows that can be distinguished when a row and a place in a tile share 32 bits."""

Picture: TypeAlias = tuple[int, int]
"""Height and width of one picture of rows; rows of further pictures follow."""


class Tiling(NamedTuple):
    """How pictures of owners are cut into tiles; no tile reaches into two pictures."""

    pictures: int
    height: int
    width: int
    rows: int
    columns: int
    chunk: int

    @property
    def across(self) -> int:
        """Tiles side by side in a picture."""
        return -(-self.width // self.columns)

    @property
    def per_picture(self) -> int:
        """Tiles of a picture."""
        return self.across * -(-self.height // self.rows)

    @property
    def num_tiles(self) -> int:
        """Tiles of all pictures."""
        return self.pictures * self.per_picture

    @property
    def num_owners(self) -> int:
        """Rows that are summed into."""
        return self.pictures * self.height * self.width


class Order(NamedTuple):
    """The points of one direction, sorted by the tile that owns them; all int32.

    P points, T tiles, and as many pieces of work as tiles can be shared out to at most.
    """

    rows: Tensor
    """(P,) the row to gather times 16, plus the owner's place in its tile."""
    weights: Tensor
    """(P,) where the point's weight is."""
    starts: Tensor
    """(T,) first point of a tile."""
    ends: Tensor
    """(T,) behind its last point."""
    first_pieces: Tensor
    """(T,) first piece of work of a tile."""
    pieces: Tensor
    """(W,) the tile of a piece of work, or -1 where there is none."""


class SplatPlan(NamedTuple):
    """Both orders of a splat."""

    by_cell: Order
    by_feature: Order
    cells: Tiling
    features: Tiling
    weights_differ: bool
    """Whether every point has a weight of its own, so that its gradient has one writer."""


def make_plan(
    ranks: tuple[Tensor, Tensor, Tensor],
    *,
    num_cells: int,
    num_features: int,
    cell_picture: Picture | None = None,
    feature_picture: Picture | None = None,
    weights_differ: bool = False,
) -> SplatPlan:
    """Sort the points both ways, on the device they are on.

    Args:
        ranks: Weight, feature row and cell of every point, (P,) integers each, as for
            `pitstop.kernels.splat.splat`. Points whose cell is outside [0, num_cells) are left out.
        num_cells: Cells of all samples.
        num_features: Feature rows of all samples.
        cell_picture: Height and width of the plane that cells are numbered in, row by row. It only
            decides which cells are neighbours. None for a line.
        feature_picture: The same for feature rows.
        weights_differ: Claim that no two points share a weight. It is not checked: the gradient of
            a shared weight would be wrong.
    """
    assert max(num_cells, num_features) < MAX_ROWS, "too many rows for 32-bit codes"
    ranks_weight, ranks_feature, ranks_cell = (rank.to(torch.int32) for rank in ranks)
    cells = tiling_of(num_cells, cell_picture, tile=CELL_TILE, chunk=CELL_CHUNK)
    features = tiling_of(num_features, feature_picture, tile=FEATURE_TILE, chunk=FEATURE_CHUNK)
    kept = (ranks_cell >= 0) & (ranks_cell < num_cells)
    cell_tiles, cell_places = tiles_of(ranks_cell, cells)
    feature_tiles, feature_places = tiles_of(ranks_feature, features)
    sorted_tiles, by_cell = torch.where(kept, cell_tiles, cells.num_tiles).sort(stable=True)
    # Sorting what is already in the order of the cells keeps cells together in a tile of pixels.
    keys = torch.where(kept, feature_tiles, features.num_tiles)[by_cell]
    sorted_keys, again = keys.sort(stable=True)
    by_feature = by_cell[again]
    return SplatPlan(
        _order(
            by_cell,
            sorted_tiles,
            rows=ranks_feature * TILE + cell_places,
            weights=ranks_weight,
            tiling=cells,
        ),
        _order(
            by_feature,
            sorted_keys,
            rows=ranks_cell * TILE + feature_places,
            weights=ranks_weight,
            tiling=features,
        ),
        cells,
        features,
        weights_differ,
    )


def tiling_of(num_rows: int, picture: Picture | None, *, tile: Picture, chunk: int) -> Tiling:
    """Cut rows into tiles: those of pictures, or a line of rows where there are none."""
    if picture is None:
        return Tiling(1, 1, num_rows, 1, TILE, chunk)
    height, width = picture
    assert num_rows % (height * width) == 0, f"{num_rows} rows are no pictures of {picture}"
    return Tiling(num_rows // (height * width), height, width, *tile, chunk)


def tiles_of(owners: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Tile of each owner, and its place in it."""
    # Few operations: a plan may be made in every step, and the host pays for each of them.
    line = owners // tiling.width
    x = owners.sub(line, alpha=tiling.width)
    picture, y = None, line
    if tiling.height % tiling.rows:
        picture = line // tiling.height
        y = line.sub(picture, alpha=tiling.height)
    tile_y, tile_x = y // tiling.rows, x // tiling.columns
    tile = tile_x.add(tile_y, alpha=tiling.across)
    if picture is not None:
        tile = tile.add(picture, alpha=tiling.per_picture)
    left = x.sub(tile_x, alpha=tiling.columns)
    return tile, left.add(y.sub(tile_y, alpha=tiling.rows), alpha=tiling.columns)


def _order(
    order: Tensor, sorted_tiles: Tensor, *, rows: Tensor, weights: Tensor, tiling: Tiling
) -> Order:
    device, num_tiles = order.device, tiling.num_tiles
    tiles = torch.arange(num_tiles + 1, device=device, dtype=torch.int32)
    borders = torch.searchsorted(sorted_tiles, tiles, out_int32=True)
    starts, ends = borders[:-1], borders[1:]
    # A tile without points is a piece of work, too: somebody must write its zeros.
    counts = ((ends - starts + (tiling.chunk - 1)) // tiling.chunk).clamp_(min=1)
    last_pieces = counts.cumsum(0, dtype=torch.int32)
    num_pieces = num_tiles + order.numel() // tiling.chunk
    numbers = torch.arange(num_pieces, device=device, dtype=torch.int32)
    pieces = torch.searchsorted(last_pieces, numbers, right=True, out_int32=True)
    return Order(
        rows[order],
        weights[order],
        starts.contiguous(),
        ends.contiguous(),
        last_pieces - counts,
        torch.where(pieces < num_tiles, pieces, -1),
    )
