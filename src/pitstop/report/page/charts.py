"""Bars of parts, lines over time and meters of shares."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.report.page.blocks import LegendEntry
from pitstop.report.page.palette import HATCHED
from pitstop.report.page.series import Series
from pitstop.report.page.svg import Described, Svg, drawing, element, number, percent, thin

Format = Callable[[float], str]

_PLOT_TOP: Final = 14
_AXIS_HEIGHT: Final = 22
_LETTER: Final = 8
_WIDE: Final = 1000
_NARROW: Final = 340
# Of a chart's plot beside another one, and on a phone; letters of its labels are smaller.
_PLOT_WIDE: Final = 330
_PLOT_NARROW: Final = 230
_LABEL_LETTER: Final = 6.5
_X_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROUND: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_MOST_MARKS: Final = 80
# Below it numbers lose their digits, and powers of ten become zero.
_LEAST_SCALE: Final = 1e-300
# Where a line lies in the upper part of its scale, the scale begins near it and not at zero.
_FAR_FROM_ZERO: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One piece of a bar."""

    name: str
    share: float
    """Of the whole bar."""
    colour: str
    text: str
    """Its size with its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    series: Series
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at one place of the x axis."""

    x: float
    name: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """How a chart's numbers are written, and where its scales end."""

    y_text: Format
    x_text: Format
    x_name: str
    """What x counts, such as ``step``; empty where its text say it."""
    binary: bool = False
    """Whether round numbers are those of binary units."""
    from_zero: bool = True
    top: float | None = None
    """Upper end, where it is known beforehand, such as 1 for a share."""


def legend_of(segments: Iterable[Segment], *, sizes: bool = False) -> tuple[LegendEntry, ...]:
    """What the colours of a bar stand for, and how large each is."""
    return tuple(
        LegendEntry(name=f"{one.name}, {one.text}" if sizes else one.name, colour=one.colour)
        for one in segments
    )


def bar(key: str, title: str, segments: Sequence[Segment], *, height: float = 44) -> Svg:
    """Lay pieces of a whole side by side."""
    pieces: list[Svg] = [_hatch(key)]
    begin = 0.0
    for segment in segments:
        pieces += _segment(key, segment, begin, height)
        begin += segment.share
    described = Described(
        key=key,
        title=title,
        description="; ".join(f"{one.name} {one.text}" for one in segments) + ".",
    )
    return drawing(described, height, pieces)


def _hatch(key: str) -> Svg:
    line = element("path", {"d": "M0 7L7 0", "class_": "hatch-line"})
    size = {"width": 7, "height": 7, "patternUnits": "userSpaceOnUse"}
    return element("defs", {}, element("pattern", {"id": f"{key}-hatch", **size}, line))


def _segment(key: str, segment: Segment, begin: float, height: float) -> Iterable[Svg]:
    place = {"x": percent(begin), "width": percent(segment.share), "y": 0, "height": height}
    title = element("title", {}, f"{segment.name}: {segment.text}")
    if segment.colour == HATCHED:
        hatched = {"class_": "hatched", "fill": f"url(#{key}-hatch)"}
        yield element("rect", {**place, **hatched}, title)
    else:
        look = f"piece {segment.colour}{thin(segment.share)}"
        yield element("rect", {**place, "class_": look}, title)
    needed = len(segment.name) * _LETTER + 2 * _LETTER
    if segment.share * _WIDE >= needed:
        tone = "on-hatch" if segment.colour == HATCHED else "on-piece"
        if segment.share * _NARROW < needed:
            tone += " between"
        # Cut off at the piece's end: a window of the piece's own width.
        text = element("text", {"x": 8, "y": height / 2 + 4, "class_": tone}, segment.name)
        yield element("svg", place, text)


def lines(key: str, title: str, drawn: Sequence[Line], axes: Axes, *, marks: Sequence[Mark] = (),
          height: float = 170) -> Svg:  # fmt: skip
    """Draw values over steps or seconds: the middle as a line, the extremes as a band."""
    filled = [line for line in drawn if len(line.series)]
    marked = [mark.x for mark in marks]
    bottom, top = _scale(filled, axes)
    plot = height - _PLOT_TOP - _AXIS_HEIGHT
    frame = _Frame(
        low_x=min([*(line.series.first_x for line in filled), *marked]),
        high_x=max([*(line.series.last_x for line in filled), *marked]),
        bottom=bottom,
        top=top,
        plot=plot,
    )
    inside = [_band(line, frame) for line in filled] + [_line(line, frame) for line in filled]
    window = {
        "x": 0,
        "y": _PLOT_TOP,
        "width": "100%",
        "height": plot,
        "viewBox": f"0 0 1000 {number(plot)}",
        "preserveAspectRatio": "none",
    }
    pieces = [
        *_grid(frame),
        *_marks(marks, frame),
        element("svg", window, *inside),
        *_y_labels(frame, axes),
        *_x_labels(frame, axes, height),
    ]
    described = Described(key=key, title=title, description=_text_of(filled, axes, marks))
    return drawing(described, height, pieces, look=f"drawing {_gutter(frame, axes)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where a chart's values lie on its plot, which is 1000 wide and `plot` high."""

    low_x: float
    high_x: float
    bottom: float
    top: float
    plot: float

    def across(self, x: float) -> float:
        """Share of the width."""
        width = self.high_x - self.low_x
        return 0.5 if width <= 0 else (x - self.low_x) / width

    def down(self, y: float) -> float:
        """Pixels below the plot's upper end."""
        return self.plot * (1 - (y - self.bottom) / (self.top - self.bottom))

    def point(self, x: float, y: float) -> str:
        """A point of a path."""
        return f"{number(self.across(x) * 1000)} {number(self.down(y))}"


def _scale(filled: Sequence[Line], axes: Axes) -> tuple[float, float]:
    low = min(float(line.series.low.min()) for line in filled)
    high = max(float(line.series.high.max()) for line in filled)
    if axes.top is not None:
        return 0.0, max(axes.top, high)
    if axes.from_zero and low >= 0:
        return 0.0, _round_up(high, binary=axes.binary)
    if 0 <= low < high * _FAR_FROM_ZERO:
        return 0.0, _round_up(high, binary=False)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _round_up(value: float, *, binary: bool) -> float:
    """The next round number that is at least as large."""
    if value < _LEAST_SCALE:
        return 1.0 if value <= 0 else _LEAST_SCALE
    unit = 1024.0 ** max(0, math.floor(math.log(value, 1024))) if binary else 1.0
    scaled = value / unit
    power = 10.0 ** math.floor(math.log10(scaled))
    step = next(step for step in _ROUND if scaled <= step * power * (1 + 1e-9))
    return step * power * unit


def _grid(frame: _Frame) -> Iterable[Svg]:
    for share in (0.0, 0.5, 1.0):
        y = _PLOT_TOP + frame.plot * (1 - share)
        edge = "axis" if share == 0 else "grid"
        yield element("line", {"x1": 0, "x2": "100%", "y1": y, "y2": y, "class_": edge})


def _y_texts(frame: _Frame, axes: Axes) -> Mapping[str, float]:
    """Labels with their shares of the height; of two that read alike, the one at an end stays."""
    height = frame.top - frame.bottom
    return _first_of_each(
        (axes.y_text(frame.bottom + share * height), share) for share in (0.0, 1.0, 0.5)
    )


def _first_of_each(labels: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    kept: dict[str, float] = {}
    for text, share in labels:
        kept.setdefault(text, share)
    return kept


def _y_labels(frame: _Frame, axes: Axes) -> Iterable[Svg]:
    """In the gutter left of the plot, where no line runs through them."""
    for text, share in _y_texts(frame, axes).items():
        y = _PLOT_TOP + frame.plot * (1 - share)
        yield element("text", {"x": -8, "y": y + 4, "class_": "label end"}, text)


def _gutter(frame: _Frame, axes: Axes) -> str:
    """The style that leaves room for the longest label."""
    letters = max(map(len, _y_texts(frame, axes)))
    return "gutter-s" if letters <= 5 else "gutter-m" if letters <= 8 else "gutter-l"


def _x_labels(frame: _Frame, axes: Axes, height: float) -> Iterable[Svg]:
    if frame.high_x <= frame.low_x:
        text = f"{axes.x_name} {axes.x_text(frame.low_x)}".strip()
        yield element("text", {"x": "50%", "y": height - 5, "class_": "label middle"}, text)
        return
    first = f"{axes.x_name} {axes.x_text(frame.low_x)}".strip()
    last = axes.x_text(frame.high_x)
    inner = [
        (axes.x_text(x), frame.across(x))
        for x in _round_places(frame.low_x, frame.high_x, whole=bool(axes.x_name))
    ]
    ends = (first, last)
    inner = [(text, share) for text, share in inner if _has_room(text, share, ends, _PLOT_WIDE)]
    # On a phone every second one, where the ends leave it room.
    kept = {
        text for text, share in inner[1::2] or inner if _has_room(text, share, ends, _PLOT_NARROW)
    }
    yield element("text", {"x": "0%", "y": height - 5, "class_": "label start"}, first)
    yield element("text", {"x": "100%", "y": height - 5, "class_": "label end"}, last)
    for text, share in inner:
        look = "label middle" if text in kept else "label middle between"
        yield element("text", {"x": percent(share), "y": height - 5, "class_": look}, text)


def _round_places(low: float, high: float, *, whole: bool) -> Iterable[float]:
    """Round numbers between the ends, four apart at most; whole ones where x counts something."""
    apart = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(apart))
    step = next(step for step in _X_STEPS if apart <= step * power * (1 + 1e-9)) * power
    if whole:
        step = max(1.0, math.ceil(step))
    place = math.floor(low / step) * step + step
    while place < high:
        yield place
        place += step


def _has_room(text: str, share: float, ends: tuple[str, str], width: float) -> bool:
    """Whether a label between those at the ends touches neither."""
    half = len(text) / 2 + 1
    before, after = ((half + len(end)) * _LABEL_LETTER / width for end in ends)
    return before <= share <= 1 - after


def _marks(marks: Sequence[Mark], frame: _Frame) -> Iterable[Svg]:
    for mark in _some(marks):
        x = percent(frame.across(mark.x))
        ends = {"x1": x, "x2": x, "y1": _PLOT_TOP, "y2": _PLOT_TOP + frame.plot}
        line = {**ends, "class_": f"mark {mark.colour}"}
        yield element("line", line, element("title", {}, mark.name))


def _some(marks: Sequence[Mark]) -> Sequence[Mark]:
    """As many marks as can be distinguished, spread evenly."""
    if len(marks) <= _MOST_MARKS:
        return marks
    chosen = np.linspace(0, len(marks) - 1, _MOST_MARKS).astype(int)
    return [marks[place] for place in chosen.tolist()]


def _band(line: Line, frame: _Frame) -> Svg:
    series = line.series
    if not series.is_shortened or not (series.high > series.low).any():
        return Svg("")
    upper = [frame.point(x, y) for x, y in zip(series.x, series.high, strict=True)]
    lower = [frame.point(x, y) for x, y in zip(series.x, series.low, strict=True)]
    path = "M" + "L".join([*upper, *reversed(lower)]) + "Z"
    return element("path", {"d": path, "class_": f"band {line.colour}"})


def _line(line: Line, frame: _Frame) -> Svg:
    series = line.series
    points = [frame.point(x, y) for x, y in zip(series.x, series.middle, strict=True)]
    # A single value is a dot: a line of no length with round ends.
    path = f"M{points[0]}h0" if len(points) == 1 else "M" + "L".join(points)
    dot = " dot" if len(points) == 1 else ""
    return element("path", {"d": path, "class_": f"line {line.colour}{dot}"})


def _text_of(filled: Sequence[Line], axes: Axes, marks: Sequence[Mark]) -> str:
    messages = [_line_text(line, axes) for line in filled]
    for name in dict.fromkeys(mark.name for mark in marks):
        count = sum(mark.name == name for mark in marks)
        messages.append(f"{name} is marked {count} {'time' if count == 1 else 'times'}")
    return ". ".join(messages) + "."


def _line_text(line: Line, axes: Axes) -> str:
    series = line.series
    middle = float(np.median(series.middle))
    low, high = float(series.low.min()), float(series.high.max())
    return (
        f"{line.name}: {f'{axes.x_name} {axes.x_text(series.first_x)}'.strip()} to "
        f"{axes.x_text(series.last_x)}, median {axes.y_text(middle)}, lowest "
        f"{axes.y_text(low)}, highest {axes.y_text(high)}, begins at "
        f"{axes.y_text(float(series.middle[0]))}, ends at {axes.y_text(float(series.middle[-1]))}"
    )


def meter(share: float, colour: str) -> Svg:
    """A share as a thin bar beside its number, which says the same to those who do not see it."""
    part = {"width": percent(min(1.0, max(0.0, share))), "height": 8, "class_": f"piece {colour}"}
    frame = {"class_": "meter", "width": "100%", "height": 8, "aria_hidden": "true"}
    ground = element("rect", {"width": "100%", "height": 8, "class_": "ground"})
    return element("svg", frame, ground, element("rect", part))
