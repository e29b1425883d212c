"""What a terminal shows, in another language: the same texts and tables with other words."""

from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.report.language.translate import Translator


def in_language(shown: RenderableType, say: Translator) -> RenderableType:
    """Translate texts and tables, also those in groups; leave everything else as it is."""
    if isinstance(shown, str):
        return say(shown)
    if isinstance(shown, Text):
        return _text(shown, say)
    if isinstance(shown, Table):
        return _table(shown, say)
    if isinstance(shown, Group):
        return Group(*(in_language(one, say) for one in shown.renderables))
    return shown


def _text(text: Text, say: Translator) -> Text:
    """Translate runs of one style by themselves: a coloured head keeps its colour."""
    borders = sorted(
        {0, len(text), *(end for span in text.spans for end in (span.start, span.end))}
    )
    said = Text(style=text.style, no_wrap=text.no_wrap, overflow=text.overflow, end=text.end)
    for start, end in pairwise(borders):
        styles = [span.style for span in text.spans if span.start <= start and end <= span.end]
        said.append(say(text.plain[start:end]), style=styles[-1] if styles else None)
    return said


def _table(table: Table, say: Translator) -> Table:
    said = Table(
        box=table.box,
        padding=table.padding,
        collapse_padding=table.collapse_padding,
        pad_edge=table.pad_edge,
        show_header=table.show_header,
        header_style=table.header_style,
    )
    for column in table.columns:
        said.add_column(
            in_language(column.header, say), justify=column.justify, no_wrap=column.no_wrap
        )
    for row in zip(*(column.cells for column in table.columns), strict=True):
        said.add_row(*(in_language(cell, say) for cell in row))
    return said
