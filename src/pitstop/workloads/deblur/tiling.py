"""Frames restored in tiles that overlap, and clips in segments that do.

Along each axis every place gets weights from the tiles it lies in, and they add up to 1; a tile
counts by the product of its weights along all axes. So where restoring is a local matter, tiles
make no difference but at their borders, and there the weights are small or none.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.records.units import bytes_text
from pitstop.workloads.deblur.spike import Window

Border: TypeAlias = Literal["cosine", "discard"]

SIDE_MULTIPLE: Final = 8
"""VRT halves three times; a side of this multiple is not padded."""

_PROBED: Final = (64, 128)
_SLACK: Final = 0.9
"""Share of the budget to aim at: an allocator keeps more than is asked of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How frames are cut."""

    side: int
    """Rows and columns of a tile."""
    overlap: int
    border: Border
    step: int = 1
    """Tiles begin at multiples of it: where a spike frame has a pixel for so many of a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileChoice:
    """Which tiles are cut, as set or chosen by measuring."""

    side: int
    at_once: int = 1
    """Tiles of one pass."""
    peak_bytes: int | None = None
    """What so many tiles of this side took together; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an axis: where it begins, and the weight of each of its places."""

    start: int
    weights: Tensor
    """(length,), double precision."""


def cut_axis(
    length: int, side: int, overlap: int, *, border: Border, step: int = 1
) -> list[Segment]:
    """Cut an axis into parts of equal length whose weights add up to 1 at every place.

    The last part ends with the axis, so it may overlap more. An axis that is no longer than a part
    is one part.
    """
    if length <= side:
        return [Segment(0, torch.ones(length, dtype=torch.float64))]
    stride = max((side - overlap) // step, 1) * step
    starts = [*range(0, length - side, stride), length - side]
    raw = torch.zeros(len(starts), length, dtype=torch.float64)
    for place, start in enumerate(starts):
        before = None if place == 0 else starts[place - 1] + side - start
        after = None if place == len(starts) - 1 else start + side - starts[place + 1]
        if border == "discard":
            before, after = (
                None if shared is None else min(overlap, shared) for shared in (before, after)
            )
        fade = _FADES[border]
        raw[place, start : start + side] = fade(side, before) * fade(side, after).flip(0)
    shares = raw / raw.sum(dim=0)
    return [
        Segment(start, shares[place, start : start + side]) for place, start in enumerate(starts)
    ]


def restore_tiles(
    restore: Callable[[Sequence[Window]], Tensor],
    out: Tensor,
    tiling: Tiling,
    *,
    at_once: int = 1,
    scale: int = 1,
) -> Tensor:
    """Restore frames tile by tile, or several tiles at once.

    Args:
        restore: Gives what windows of the frames become, (windows * B, ..., h, w), one window
            behind the other. All calls have the same number of windows, of the same size: where
            tiles do not suffice for the last call, it gets the last tile again.
        out: (B, ..., H, W) zeros that the tiles are added to, each enlarged.
        tiling: How frames are cut.
        at_once: Most windows of a call.
        scale: How many times larger restored frames are, along each side.

    Returns:
        ``out``.
    """
    height, width = (length // scale for length in out.shape[-2:])
    rows, columns = (
        cut_axis(length, tiling.side, tiling.overlap, border=tiling.border, step=tiling.step)
        for length in (height, width)
    )
    # Moved once: a copy for each tile would make the host wait for the tile before.
    down, across = (
        [replace(part, weights=part.weights.to(out.device)) for part in axis]
        for axis in (rows, columns)
    )
    tiles = list(itertools.product(down, across))
    share = even_share(len(tiles), at_once)
    for first in range(0, len(tiles), share):
        some = tiles[first : first + share]
        filled = some + some[-1:] * (share - len(some))
        restored = restore([_window(*tile) for tile in filled]).to(out.dtype)
        for (row, column), part in zip(some, restored.split(len(out)), strict=False):
            down_weights, weights = (
                each.weights.repeat_interleave(scale) for each in (row, column)
            )
            weights = (down_weights[:, None] * weights).to(out.dtype)
            window = Window(*(length * scale for length in _window(row, column)))
            _part(out, window).add_(part * weights)
    return out


def even_share(tiles: int, most: int) -> int:
    """How many tiles go into each of as few calls as there must be, of at most ``most`` tiles."""
    calls = -(-tiles // most)
    return -(-tiles // calls)


def choose_count(
    measure: Callable[[int, int], int | None], *, side: int, budget_bytes: int, most: int
) -> TileChoice:
    """Find how many tiles at once a budget of memory allows, by measuring ever more of them.

    Args:
        measure: Restores tiles of a side, so many at once, and gives their peak in bytes; None
            where memory ran out.
        side: Of the tiles.
        budget_bytes: What may be taken.
        most: No larger number is of use.

    Raises:
        ConfigError: Where not even one tile keeps the budget.
    """
    choice = None
    for count in range(1, most + 1):
        peak = measure(side, count)
        if peak is not None and peak <= budget_bytes:
            choice = TileChoice(side=side, at_once=count, peak_bytes=peak)
            continue
        if choice is None:
            raise ConfigError(
                f"restoring a tile of {side}x{side} takes {_took(peak)}, and data.tiles.memory is "
                f"{bytes_text(budget_bytes)}; raise it, or lower eval.tile"
            )
        break
    assert choice is not None, "at least one is allowed"
    return choice


def _took(peak_bytes: int | None) -> str:
    return "more than there is" if peak_bytes is None else bytes_text(peak_bytes)


def choose_side(
    measure: Callable[[int], int | None], *, budget_bytes: int, largest: int, multiple: int
) -> TileChoice:
    """Find the largest tile that a budget of memory allows, by measuring.

    What restoring takes grows with the area, so two small tiles tell what a large one will take;
    the tile is then measured too, and made smaller until it keeps the budget.

    Args:
        measure: Restores a tile of a side and gives its peak in bytes; None where memory ran out.
        budget_bytes: What may be taken.
        largest: Longest side of the frames; no larger tile is of use.
        multiple: Sides are multiples of it.

    Raises:
        ConfigError: Where not even a small tile keeps the budget.
    """
    largest = -(-largest // multiple) * multiple
    sides = sorted({min(-(-side // multiple) * multiple, largest) for side in _PROBED})
    probes = [(side, measure(side)) for side in sides]
    known = [(side, peak) for side, peak in probes if peak is not None and peak <= budget_bytes]
    if not known:
        raise ConfigError(
            f"restoring a tile of {sides[0]}x{sides[0]} takes {_took(probes[0][1])}, and "
            f"data.tiles.memory is {bytes_text(budget_bytes)}; raise it, or lower data.clip_len"
        )
    side, peak = known[-1]
    if len(known) == len(probes) and len(known) > 1:
        wanted = _extrapolated(known, budget_bytes, largest=largest, multiple=multiple)
        for candidate in _ever_smaller(wanted, above=side, multiple=multiple):
            measured = measure(candidate)
            if measured is not None and measured <= budget_bytes:
                side, peak = candidate, measured
                break
    return TileChoice(side=side, peak_bytes=peak)


def _extrapolated(
    known: Sequence[tuple[int, int]], budget_bytes: int, *, largest: int, multiple: int
) -> int:
    (first, low), (second, high) = known[0], known[-1]
    per_pixel = max(high - low, 1) / (second**2 - first**2)
    pixels = max(budget_bytes * _SLACK - low, 0) / per_pixel + first**2
    return min(math.isqrt(int(pixels)) // multiple * multiple, largest)


def _ever_smaller(side: int, *, above: int, multiple: int) -> Iterator[int]:
    while side > above:
        yield side
        side = min(int(side * _SLACK) // multiple * multiple, side - multiple)


def _cosine(side: int, shared: int | None) -> Tensor:
    """Rise from 0 to 1 over the places shared with the neighbour, as a squared sine."""
    weights = torch.ones(side, dtype=torch.float64)
    if shared:
        at = (torch.arange(shared, dtype=torch.float64) + 0.5) / shared
        weights[:shared] = torch.sin(at * math.pi / 2).square()
    return weights


def _discard(side: int, shared: int | None) -> Tensor:
    """Nothing in the half of the overlap that is next to the border."""
    weights = torch.ones(side, dtype=torch.float64)
    if shared:
        weights[: shared // 2] = 0
    return weights


_FADES: Final[dict[Border, Callable[[int, int | None], Tensor]]] = {
    "cosine": _cosine,
    "discard": _discard,
}


def _window(rows: Segment, columns: Segment) -> Window:
    return Window(rows.start, columns.start, len(rows.weights), len(columns.weights))


def _part(frames: Tensor, window: Window) -> Tensor:
    top, left, height, width = window
    return frames[..., top : top + height, left : left + width]
