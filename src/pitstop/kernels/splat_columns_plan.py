"""Which columns of pixels each tile of cells sees, worked out before a splat of whole frustums.

A column is 16 pixels, one below the other, of one column of a feature map. A level camera sends
all of them, at one depth, to the same cell. So a column is taken as one: a pair is a tile of cells
with a few neighbouring depths of a column that have a point in it. There are some forty times
fewer pairs than points, and a pair gathers 16 feature rows where its points would each gather one.

Only the forward pass needs pairs. The backward pass takes the columns as they lie.

All shapes follow from the sizes of the inputs, and nothing is read back from the device: a plan
can be made inside a training step. Where the geometry is fixed, plans of single samples are made
once and put together with `join_column_plans`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pitstop.kernels.splat_plan import Picture, Tiling, tiles_of, tiling_of

COLUMN: Final = 16
"""Pixels of a column: the shortest sum of a matrix product on a tensor core."""

CELL_TILE: Final = (4, 4)
"""Rows and columns of a tile of cells; 16, 32 or 64 in all."""

PAIR_BINS: Final = 4
"""Depths of a pair, a power of two: about as many as a tile is deep."""

CHUNK: Final = 16
"""Most pairs of a tile that one program sums, as long as places for pieces last."""

PAIR_POINTS: Final = 64
"""There is a place to share out to for every chunk of pairs, were pairs of so many points. A ring
of level cameras takes less than half of them; where there are too few, chunks grow."""

_LIMIT: Final = 2**31


class Frustum(NamedTuple):
    """The points of all pictures, counting pictures, rows, columns and depths, the last fastest."""

    pictures: int
    height: int
    width: int
    bins: int

    @property
    def groups(self) -> int:
        """Columns one below the other in a picture; the last may be short."""
        return -(-self.height // COLUMN)

    @property
    def num_columns(self) -> int:
        """Columns of all pictures."""
        return self.pictures * self.groups * self.width

    @property
    def num_pixels(self) -> int:
        """Feature rows."""
        return self.pictures * self.height * self.width

    @property
    def num_points(self) -> int:
        """Depth weights, and points."""
        return self.num_pixels * self.bins


class Pairs(NamedTuple):
    """What goes where; all int32.

    P points, T tiles, at most Q pairs, and at most W pieces of work.
    """

    targets: Tensor
    """(P,) the point's cell; -1 if none. All that the backward pass needs."""
    codes: Tensor
    """(P,) the point's tile times the cells of a tile, plus the cell's place in it; -1 if none."""
    tops: Tensor
    """(Q,) the highest pixel of a pair's column times 16, plus its pixels less one; by tile."""
    points: Tensor
    """(Q,) the point of the highest pixel at the pair's first depth."""
    tiles: Tensor
    """(W,) the tile of a piece of work, or -1 where there is none."""
    starts: Tensor
    """(W,) first pair of a piece."""
    ends: Tensor
    """(W,) behind its last pair."""
    first_pieces: Tensor
    """(T,) first piece of a tile."""
    last_pieces: Tensor
    """(T,) behind its last piece."""


class ColumnPlan(NamedTuple):
    """A frustum, a grid, and the pairs between them."""

    pairs: Pairs
    cells: Tiling
    frustum: Frustum
    pair_bins: int


def make_column_plan(
    ranks_cell: Tensor,
    *,
    num_cells: int,
    cell_picture: Picture | None = None,
    feature_picture: Picture,
    num_bins: int,
) -> ColumnPlan:
    """Find the pairs, on the device the points are on.

    Args:
        ranks_cell: Cell of every point of all pictures, (P,) integers, counting pictures, rows,
            columns and depths. Points whose cell is outside [0, num_cells) are left out.
        num_cells: Cells of all samples.
        cell_picture: Height and width of the plane that cells are numbered in, row by row. It only
            decides which cells are neighbours. None for a line.
        feature_picture: Height and width of a feature map.
        num_bins: Depths of a pixel.
    """
    height, width = feature_picture
    pictures, rest = divmod(ranks_cell.numel(), height * width * num_bins)
    assert rest == 0, f"{ranks_cell.numel()} points are no pictures of {feature_picture}"
    frustum = Frustum(pictures, height, width, num_bins)
    cells = tiling_of(num_cells, cell_picture, tile=CELL_TILE, chunk=CHUNK)
    owners = cells.rows * cells.columns
    assert cells.num_tiles * owners < _LIMIT, "too many cells for 32-bit codes"
    assert frustum.num_columns * COLUMN * num_bins < _LIMIT, "too many points for 32-bit codes"
    assert frustum.num_pixels * COLUMN < _LIMIT, "too many pixels for 32-bit codes"
    ranks_cell = ranks_cell.to(torch.int32)
    tiles, places = tiles_of(ranks_cell, cells)
    kept = (ranks_cell >= 0) & (ranks_cell < num_cells)
    targets = torch.where(kept, ranks_cell, -1)
    codes = torch.where(kept, tiles * owners + places, -1)
    tiles = torch.where(kept, tiles, cells.num_tiles)
    slots, counts = _find_pairs(tiles, frustum, num_tiles=cells.num_tiles)
    pieces = _share_out(counts, chunk=cells.chunk, num_pieces=_most_pieces(frustum, cells))
    pairs = Pairs(targets, codes, *_places(slots, frustum), *pieces)
    return ColumnPlan(pairs, cells, frustum, PAIR_BINS)


def join_column_plans(plans: Sequence[ColumnPlan]) -> ColumnPlan:
    """Put plans of samples together to the plan of their batch.

    Args:
        plans: Of samples with the same sizes.
    """
    first, count = plans[0], len(plans)
    cells, frustum = first.cells, first.frustum
    owners = cells.rows * cells.columns
    num_pairs, num_pieces = first.pairs.tops.numel(), first.pairs.tiles.numel()
    steps = (
        cells.num_owners,
        cells.num_tiles * owners,
        frustum.num_pixels * COLUMN,
        frustum.num_points,
        cells.num_tiles,
        num_pairs,
        num_pairs,
        num_pieces,
        num_pieces,
    )
    # There are as many places for pairs as there are points.
    assert max(steps) * count < _LIMIT, "too many samples for 32-bit codes"
    columns = []
    for column, step in zip(zip(*(plan.pairs for plan in plans), strict=True), steps, strict=True):
        stack = torch.stack(column)
        offsets = torch.arange(count, device=stack.device, dtype=torch.int32) * step
        # What is nowhere stays nowhere in every sample.
        columns.append(torch.where(stack < 0, stack, stack + offsets[:, None]).flatten())
    return ColumnPlan(
        Pairs(*columns),
        cells._replace(pictures=cells.pictures * count),
        frustum._replace(pictures=frustum.pictures * count),
        first.pair_bins,
    )


def _find_pairs(tiles: Tensor, frustum: Frustum, *, num_tiles: int) -> tuple[Tensor, Tensor]:
    """Slots of the pairs, sorted by tile, and (T + 1,) how many pairs lie before each tile.

    A slot is a column times the number of depths, plus a depth.
    """
    pictures, height, width, bins = frustum
    grid = tiles.view(pictures, height, width, bins)
    below = frustum.groups * COLUMN - height
    grid = torch.nn.functional.pad(grid, (0, 0, 0, 0, 0, below), value=num_tiles)
    grid = grid.view(pictures, frustum.groups, COLUMN, width, bins).permute(0, 1, 3, 4, 2)
    # Points now lie column by column, depth by depth: sorted by tile they stay so in each tile.
    sorted_tiles, order = grid.flatten().sort(stable=True)
    slots = (order // COLUMN).to(torch.int32)
    columns = slots // bins
    groups = _changes(sorted_tiles) | _changes(columns)
    numbers = torch.arange(slots.numel(), device=slots.device)
    starts = torch.where(groups, numbers, 0).cummax(0).values
    # Depths are counted from the first one of a column in a tile, or two pairs would often share
    # what fits into one.
    first = slots[starts]
    steps = (slots - first) // PAIR_BINS
    is_first = (groups | _changes(steps)) & (sorted_tiles < num_tiles)
    until = torch.nn.functional.pad(is_first.cumsum(0, dtype=torch.int32), (1, 0))
    # Whatever begins no pair is written behind the last one.
    places = torch.where(is_first, until[1:] - 1, slots.numel()).long()
    values = torch.where(is_first, first + steps * PAIR_BINS, 0)
    pairs = slots.new_zeros(slots.numel() + 1).scatter_(0, places, values)
    numbers = torch.arange(num_tiles + 1, device=slots.device, dtype=torch.int32)
    borders = torch.searchsorted(sorted_tiles, numbers)
    return pairs[:-1].contiguous(), until[borders]


def _places(slots: Tensor, frustum: Frustum) -> tuple[Tensor, Tensor]:
    """What a kernel would have to divide for, again and again: fields of `Pairs`."""
    column = slots // frustum.bins
    above = column // frustum.width
    picture = above // frustum.groups
    y = (above - picture * frustum.groups) * COLUMN
    top = (picture * frustum.height + y) * frustum.width + column - above * frustum.width
    rows = (frustum.height - y).clamp(max=COLUMN)
    first = slots - column * frustum.bins
    return top * COLUMN + rows - 1, top * frustum.bins + first


def _changes(values: Tensor) -> Tensor:
    """Whether a value differs from the one before it; the first one does."""
    return torch.nn.functional.pad(values[1:] != values[:-1], (1, 0), value=True)


def _num_pieces(num_pairs: Tensor, size: Tensor | int) -> Tensor:
    # A tile without pairs is a piece of work, too: somebody must write its zeros.
    return ((num_pairs + (size - 1)) // size).clamp(min=1)


def _most_pieces(frustum: Frustum, cells: Tiling) -> int:
    places = frustum.num_columns * COLUMN * frustum.bins // (cells.chunk * PAIR_POINTS)
    return cells.num_tiles + max(places, 1)


def _share_out(
    borders: Tensor, *, chunk: int, num_pieces: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cut the pairs of each tile into pieces: their tiles, starts and ends, and those of a tile."""
    num_tiles = borders.numel() - 1
    starts, ends = borders[:-1], borders[1:]
    places = num_pieces - num_tiles
    # Stays on the device: how many pairs there are is not known here.
    grown = ((ends[-1:] + (places - 1)) // places).clamp(min=chunk)
    fits = _num_pieces(ends - starts, chunk).sum() <= num_pieces
    size = torch.where(fits, chunk, grown).to(torch.int32)
    counts = _num_pieces(ends - starts, size)
    last_pieces = counts.cumsum(0, dtype=torch.int32)
    first_pieces = last_pieces - counts
    numbers = torch.arange(num_pieces, device=borders.device, dtype=torch.int32)
    tiles = torch.searchsorted(last_pieces, numbers, right=True, out_int32=True)
    known = tiles < num_tiles
    inside = torch.where(known, tiles, 0)
    first = starts[inside] + (numbers - first_pieces[inside]) * size
    last = torch.minimum(first + size, ends[inside])
    return (
        torch.where(known, tiles, -1),
        torch.where(known, first, 0),
        torch.where(known, last, 0),
        first_pieces,
        last_pieces,
    )
