"""A page that was written, as text for a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.units import bytes_text, count_text
from pitstop.report.page.html import PageWritten
from pitstop.report.terminal import literal


def written_report(written: PageWritten) -> RenderableType:
    """Say what the page says, where it is, and what the record has nothing for."""
    size = f"{bytes_text(written.size_bytes)}, {count_text(len(written.sections), 'section')}"
    lines = [Text(literal(written.message), "bold"), Text(f"{literal(written.path)}: {size}")]
    if written.absent:
        lines.append(Text(f"not in the record: {', '.join(written.absent)}", "dim"))
    return Group(*lines)
