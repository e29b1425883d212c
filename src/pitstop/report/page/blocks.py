"""What a page is made of, before it is HTML: sections of blocks, each block of one kind.

Section
├── Message             a line of text
├── Figures             a few numbers with how they are known
├── Chart               a drawing with its caption and legend
├── Table               rows and columns; sorts where that helps
├── Tree                parts inside parts, which open
├── Findings            what holds a run back, with evidence
├── WhatIf              fixes to tick, and what they give together
└── Gallery             pictures side by side

A template of the kind's name shows each (templates/). Text is plain here and escaped there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pitstop.records.units import NOT_MEASURED
from pitstop.records.verdict import Bound, Finding
from pitstop.report.page.svg import Svg

_TELLS_NOTHING: Final = ("", NOT_MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One field of a table."""

    text: str
    value: float | None = None
    """What it sorts by, where that is not its text."""
    colour: str | None = None
    strong: bool = False


def text_cell(text: str, *, colour: str | None = None, strong: bool = False) -> Cell:
    """A field that sorts by its letters."""
    return Cell(text=text, colour=colour, strong=strong)


def number_cell(text: str, value: float | None, *, strong: bool = False) -> Cell:
    """A field that sorts by a number; without one it stands last."""
    return Cell(text=text, value=value, strong=strong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Heading of a column."""

    name: str
    is_number: bool = True


def named_columns(first: str, *numbers: str) -> tuple[Column, ...]:
    """Headings of what names a row, and of the numbers that follow."""
    return (*text_columns(first), *(Column(name=name) for name in numbers))


def text_columns(*names: str) -> tuple[Column, ...]:
    """Headings of columns without numbers."""
    return tuple(Column(name=name, is_number=False) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows and columns. The first column names its row."""

    kind: ClassVar = "table"
    """Name of its template."""
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str | None = None
    sortable: bool = False
    left_out: int = 0
    """Rows that were left out for length."""

    @property
    def shown(self) -> tuple[int, ...]:
        """Places of the columns that tell something of at least one row."""
        return tuple(
            place
            for place in range(len(self.columns))
            if place == 0 or any(row[place].text not in _TELLS_NOTHING for row in self.rows)
        )

    @property
    def is_narrow(self) -> bool:
        """Whether its few columns would lie too far from each other over the whole width."""
        return len(self.shown) <= 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """What a colour of a chart stands for."""

    name: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing, its caption, and how its numbers are known."""

    kind: ClassVar = "chart"
    """Name of its template."""
    caption: str
    svg: Svg
    note: str | None = None
    legend: tuple[LegendEntry, ...] = ()
    half: bool = False
    """Whether two of them stand side by side where the width allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of the step with the parts inside it."""

    name: str
    colour: str | None
    share: float
    numbers: tuple[str, ...]
    meter: Svg
    children: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Parts inside parts; a row with parts inside opens."""

    kind: ClassVar = "tree"
    """Name of its template."""
    caption: str
    headings: tuple[str, ...]
    nodes: tuple[Node, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its name and how it is known."""

    name: str
    value: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A few numbers that tell most."""

    kind: ClassVar = "figures"
    """Name of its template."""
    entries: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A line of text."""

    kind: ClassVar = "message"
    """Name of its template."""
    text: str
    tone: Literal["plain", "note", "strong"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFinding:
    """A finding and the text for its bound."""

    finding: Finding
    limit: str | None
    how: str
    """Where the bound comes from."""
    explanation: Svg | None = None
    """What to change and how it is measured; None where the package came without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What holds a run back, the primary thing first."""

    kind: ClassVar = "findings"
    """Name of its template."""
    entries: tuple[ReportedFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFix:
    """A fix that a reader ticks."""

    code: str
    summary: str
    bound: Bound
    alone: str
    """What it gives by itself, as text."""
    ticked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Fixes to tick.

    What ticked ones give together is worked out anew by the page's script, by the formula of
    `pitstop.doctor.estimate.combine`; without script the page shows what is given here.
    """

    kind: ClassVar = "what_if"
    """Name of its template."""
    caption: str
    svg: Svg
    """What remains and what is saved, as two pieces of a bar."""
    fixes: tuple[WhatIfFix, ...]
    together: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A picture that is in the page, or the reason why it is not."""

    caption: str
    data: Svg | None
    """As a ``data:`` address, which needs no escaping."""
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """Pictures side by side."""

    title: str
    note: str | None
    cells: tuple[ShownPicture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Rows of pictures."""

    kind: ClassVar = "gallery"
    """Name of its template."""
    rows: tuple[ShownRow, ...]


Block = Message | Figures | Chart | Table | Tree | Findings | WhatIf | Gallery


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A chapter of the page."""

    key: str
    """Its address within the page."""
    title: str
    blocks: tuple[Block, ...]
    lead: str | None = None
    legend: tuple[LegendEntry, ...] = ()
    """What colours mean in all of its charts."""


def section_of(
    key: str, title: str, blocks: Iterable[Block], *, lead: str | None = None
) -> Section | None:
    """Make a chapter of what there is to show; None where that is nothing."""
    shown = tuple(blocks)
    return Section(key=key, title=title, blocks=shown, lead=lead) if shown else None
