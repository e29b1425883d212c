"""Drawings as text: elements of SVG whose every word and number is escaped.

Sizes across are shares of the drawing's width in percent, so that a drawing fits a phone and a
page alike and its letters keep their size; sizes downwards are pixels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from pitstop.report.terminal import literal

# Beyond the longest message of ours, with the name of a run before it.
_MOST_LETTERS = 500
# Of a drawing that is a thousand pixels wide.
_THIN = 0.003

Attributes = Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class Svg:
    """A finished piece of a drawing; templates take it as it is."""

    text: str

    def __html__(self) -> str:
        """Tell a template that everything in it is escaped already."""
        return self.text


def shown(text: str) -> str:
    """Make any text fit for a page: control characters as escapes, and never endless."""
    printable = literal(text[:_MOST_LETTERS])
    return printable if len(text) <= _MOST_LETTERS else f"{printable} ..."


def element(name: str, attributes: Attributes, *children: "Svg | str") -> Svg:
    """Write one element; attributes are spelt with ``_`` for ``-``, ``class_`` for ``class``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    inside = "".join(
        child.text if isinstance(child, Svg) else escape(shown(child)) for child in children
    )
    return Svg(f"<{name}{given}/>" if not inside else f"<{name}{given}>{inside}</{name}>")


def number(value: float) -> str:
    """A coordinate in few letters: two places are finer than any pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def percent(share: float) -> str:
    """A share of the width."""
    return f"{number(share * 100)}%"


def thin(share: float) -> str:
    """The style of a piece of a few pixels: the border that sets pieces apart would hide it."""
    return " thin" if share < _THIN else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What somebody hears who does not see a drawing."""

    key: str
    """Unlike that of any other drawing on the page."""
    title: str
    description: str


def drawing(
    described: Described, height: float, pieces: Iterable[Svg], *, look: str = "drawing"
) -> Svg:
    """Frame pieces as one picture with a title and a description; `look` names its styles."""
    names = {"title": f"{described.key}-title", "desc": f"{described.key}-desc"}
    return element(
        "svg",
        {
            "class_": look,
            "role": "img",
            "aria_labelledby": f"{names['title']} {names['desc']}",
            "width": "100%",
            "height": height,
        },
        element("title", {"id": names["title"]}, described.title),
        element("desc", {"id": names["desc"]}, Svg(escape(literal(described.description)))),
        *pieces,
    )


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)
