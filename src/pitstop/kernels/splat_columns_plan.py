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

_MAY_BE_NOWHERE: Final = ("targets", "codes", "tiles")
"""Fields of `Pairs` with a -1 that stays one in every sample of a batch."""


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
    """(W,) first pair of a piece; no pair where there is no work."""
    ends: Tensor
    """(W,) behind its last pair; not behind the start where there is no work."""
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
    kept = (ranks_cell >= 0) & (ranks_cell < num_cells)
    targets = torch.where(kept, ranks_cell, -1)
    tiles, places = tiles_of(ranks_cell, cells)
    codes = torch.where(kept, places.add(tiles, alpha=owners), -1)
    tiles = torch.where(kept, tiles, cells.num_tiles)
    slots, borders = _find_pairs(tiles, frustum, num_tiles=cells.num_tiles)
    pieces = _share_out(borders, chunk=cells.chunk, num_pieces=_most_pieces(frustum, cells))
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
    numbers = torch.arange(count, device=first.pairs.tiles.device, dtype=torch.int32)[:, None]
    columns = {}
    for name, step in zip(Pairs._fields, steps, strict=True):
        stack = torch.stack([getattr(plan.pairs, name) for plan in plans])
        joined = stack.add(numbers, alpha=step)
        if name in _MAY_BE_NOWHERE:
            joined = torch.where(stack < 0, -1, joined)
        columns[name] = joined.flatten()
    return ColumnPlan(
        Pairs(**columns),
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
    if below := frustum.groups * COLUMN - height:
        grid = torch.nn.functional.pad(grid, (0, 0, 0, 0, 0, below), value=num_tiles)
    grid = grid.view(pictures, frustum.groups, COLUMN, width, bins).permute(0, 1, 3, 4, 2)
    # Points now lie column by column, depth by depth: sorted by tile they stay so in each tile.
    sorted_tiles, order = grid.flatten().sort(stable=True)
    slots = order // COLUMN
    # 64 bits: a tile times a column. What is sorted is searched for its own first place, since
    # running maxima of one long line are slow on a device.
    groups = (slots // bins).add(sorted_tiles, alpha=frustum.num_columns)
    first = slots[torch.searchsorted(groups, groups)]
    # Depths are counted from the first one of a column in a tile, or two pairs would often share
    # what fits into one.
    slots -= (slots - first) % PAIR_BINS
    pairs = slots.add(sorted_tiles, alpha=frustum.num_columns * bins)
    numbers = torch.arange(slots.numel(), device=slots.device)
    until = (torch.searchsorted(pairs, pairs) == numbers).cumsum(0)
    # First point of each pair; places that no pair takes point behind the last one.
    starts = torch.searchsorted(until, numbers, right=True)
    tile_numbers = torch.arange(num_tiles + 1, device=slots.device, dtype=torch.int32)
    borders = torch.searchsorted(starts, torch.searchsorted(sorted_tiles, tile_numbers))
    return slots[starts.clamp_(max=slots.numel() - 1)].to(torch.int32), borders.to(torch.int32)


def _places(slots: Tensor, frustum: Frustum) -> tuple[Tensor, Tensor]:
    """What a kernel would have to divide for, again and again: fields of `Pairs`."""
    _, height, width, bins = frustum
    column = slots // bins
    above = column // width
    # Columns lie a row apart, and the pixels of a column take as many rows as it has.
    skipped = (COLUMN - 1) * width
    top, point = column.add(above, alpha=skipped), slots.add(above, alpha=skipped * bins)
    below = frustum.groups * COLUMN - height
    if not below:
        return top * COLUMN + (COLUMN - 1), point
    missing = below * width
    picture = above // frustum.groups
    top, point = top.sub(picture, alpha=missing), point.sub(picture, alpha=missing * bins)
    is_last = (above + 1) % frustum.groups == 0
    return (top * COLUMN + (COLUMN - 1)).add(is_last, alpha=-below), point


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
    # A tile without pairs is a piece of work, too: somebody must write its zeros.
    others = (ends - starts).clamp_(min=1) - 1
    # Stays on the device: how many pairs there are is not known here. Where chunks do not fit,
    # there are more pairs than places for chunks, and what all places share is more than one.
    fits = (others // chunk).sum() <= places
    size = torch.where(fits, chunk, (ends[-1] + (places - 1)) // places)
    counts = others // size + 1
    last_pieces = counts.cumsum(0, dtype=torch.int32)
    first_pieces = last_pieces - counts
    numbers = torch.arange(num_pieces, device=borders.device, dtype=torch.int32)
    tiles = torch.searchsorted(last_pieces, numbers, right=True, out_int32=True)
    # Pieces behind the last one are given its tile here, and begin where that ends or later.
    inside = tiles.clamp(max=num_tiles - 1)
    origins = torch.addcmul(starts, first_pieces, size, value=-1)
    first = torch.addcmul(origins[inside], numbers, size)
    return (
        torch.where(tiles < num_tiles, tiles, -1),
        first,
        torch.minimum(first + size, ends[inside]),
        first_pieces,
        last_pieces,
    )
