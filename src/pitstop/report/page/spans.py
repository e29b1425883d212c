"""Rows of spans under one another: where parts lay in a step, and modules inside modules.

A drawing of spans can be zoomed by the page's script: its pieces lie in a window (`zoom`) whose
place and width are shares of the drawing, so that letters and edges keep their size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pitstop.report.page.svg import Described, Svg, drawing, element, percent, thin

_ROW_HEIGHT: Final = 18.0
_ROW_GAP: Final = 6.0
_LABEL_HEIGHT: Final = 15.0
_LEVEL_HEIGHT: Final = 22.0
_TICKS_HEIGHT: Final = 16.0
_LETTER: Final = 7
_WIDE: Final = 1000
_MOST_ZOOM: Final = 40
"""As far as the page's script zooms: names that need more are not written."""
# A pixel of a wide page. What is thinner tells little, and a page of many modules stays small.
_THINNEST: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One span in a row."""

    name: str
    start: float
    """Share of the drawing's width."""
    end: float
    colour: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of spans that do not overlap."""

    name: str
    pieces: tuple[Piece, ...]


def lanes(described: Described, rows: Sequence[Lane], *, ticks: Sequence[str],
          span_us: float) -> Svg:  # fmt: skip
    """Draw rows of spans on one clock.

    Args:
        described: What the drawing is.
        rows: From the top.
        ticks: Spread evenly below the rows.
        span_us: What the whole width stands for.
    """
    still: list[Svg] = []
    pieces: list[Svg] = []
    y = 0.0
    for row in rows:
        still.append(element("text", {"x": 0, "y": y + 11, "class_": "label"}, row.name))
        y += _LABEL_HEIGHT
        ground = {"x": 0, "width": "100%", "y": y, "height": _ROW_HEIGHT}
        still.append(element("rect", {**ground, "class_": "ground"}))
        pieces += [_rectangle(piece, y, _ROW_HEIGHT) for piece in row.pieces]
        y += _ROW_HEIGHT + _ROW_GAP
    window = _zoom_window(pieces, y, span_us)
    return drawing(described, y + _TICKS_HEIGHT, [*still, window, *_ticks(ticks, y + 10)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A module, or another part, with those inside it."""

    name: str
    size: float
    """Its time, or its memory."""
    colour: str
    text: str
    inside: tuple["Level", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Parts of one pass over a model, such as forward."""

    name: str
    outermost: tuple[Level, ...]
    whole: float | None = None
    """What the whole width stands for; None for a time, of which all passes have one scale."""

    @property
    def size(self) -> float:
        """All of them together."""
        return sum(level.size for level in self.outermost)


def icicle(described: Described, passes: Sequence[Pass], *, most_levels: int) -> Svg:
    """Draw what lies inside what, each part as wide as its size; all times on one scale."""
    span_us = max((one.size for one in passes if one.whole is None), default=1.0)
    still: list[Svg] = []
    pieces: list[Svg] = []
    y = 0.0
    for one in passes:
        still.append(element("text", {"x": 0, "y": y + 11, "class_": "label"}, one.name))
        y += _LABEL_HEIGHT
        deepest = 0
        whole = span_us if one.whole is None else one.whole
        for depth, piece in _placed(one.outermost, whole=whole, most_levels=most_levels):
            pieces += _named_rectangle(piece, y + depth * _LEVEL_HEIGHT)
            deepest = max(deepest, depth)
        y += (deepest + 1) * _LEVEL_HEIGHT + _ROW_GAP
    return drawing(described, y, [*still, _zoom_window(pieces, y, span_us)])


def _placed(
    levels: Sequence[Level], *, whole: float, most_levels: int, depth: int = 0, begin: float = 0.0
) -> Iterator[tuple[int, Piece]]:
    """Lay parts side by side from `begin` on, and those inside them below."""
    for level in levels:
        start, end = begin / whole, (begin + level.size) / whole
        if end - start >= _THINNEST:
            yield (
                depth,
                Piece(name=level.name, start=start, end=end, colour=level.colour, text=level.text),
            )
            if depth + 1 < most_levels:
                yield from _placed(
                    level.inside, whole=whole, most_levels=most_levels, depth=depth + 1, begin=begin
                )
        begin += level.size


def _zoom_window(pieces: Iterable[Svg], height: float, span_us: float) -> Svg:
    whole = {"x": 0, "width": "100%", "height": height}
    moving = element("svg", {**whole, "class_": "zoom", "data_us": span_us}, *pieces)
    return element("svg", whole, moving)


def _rectangle(piece: Piece, y: float, height: float) -> Svg:
    place = {
        "x": percent(piece.start),
        "width": percent(max(0.0008, piece.end - piece.start)),
        "y": y,
        "height": height,
        "class_": f"piece {piece.colour}{thin(piece.end - piece.start)}",
    }
    return element("rect", place, element("title", {}, piece.text))


def _named_rectangle(piece: Piece, y: float) -> Iterable[Svg]:
    yield _rectangle(piece, y, _LEVEL_HEIGHT - 2)
    share = piece.end - piece.start
    needed = (len(piece.name) + 2) * _LETTER
    if share * _WIDE * _MOST_ZOOM < needed:
        return
    # Cut off at the piece's end: a window of the piece's own width.
    place = {"x": percent(piece.start), "width": percent(share), "y": y, "height": _LEVEL_HEIGHT}
    tone = "on-piece name" if share * _WIDE >= needed else "on-piece name deep"
    text = element("text", {"x": 6, "y": 14, "class_": tone}, piece.name)
    yield element("svg", place, text)


def _ticks(ticks: Sequence[str], y: float) -> Iterable[Svg]:
    for place, tick in enumerate(ticks):
        share = place / max(1, len(ticks) - 1)
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        at = {"x": percent(share), "y": y, "class_": f"label tick {anchor}"}
        yield element("text", at, tick)
