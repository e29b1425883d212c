"""Parts of a model, the device's time and sums as tables, and titled lines, on the terminal."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.headroom import Headroom
from pitstop.records.module_table import ModuleRow, ModuleTable
from pitstop.records.units import seconds_text, share_text, us_text
from pitstop.report.headroom import headroom_text, kernel_name, kernel_source
from pitstop.report.printable import literal

_MOST_CLASSES: Final = 6
_MOST_KERNELS: Final = 3


def titled_lines(title: str, lines: Iterable[str]) -> list[RenderableType]:
    """Lay lines out under a title, with an empty line before it; nothing where there are none."""
    shown = [Text(f"  {line}") for line in lines]
    return [Text(), Text(title, style="bold"), *shown] if shown else []


def headed(head: str, *lines: str) -> Text:
    """Lay lines out below one that is bold."""
    return Text(head, "bold").append("".join(f"\n{line}" for line in lines), "not bold")


def plain_table(
    rows: Iterable[Iterable[str]], first: Sequence[str], numbers: Sequence[str], *last: str
) -> Table:
    """Lay rows out without lines, below headings: those of numbers stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (*first, *numbers, *last):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for row in rows:
        table.add_row(*row)
    return table


def sum_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Lay out what things amount to: the name, the figure, and how it came about."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for name, value, how in rows:
        table.add_row(Text(f"  {name}"), Text(value), Text(how, style="dim"))
    return table


def module_lines(modules: ModuleTable | None) -> Iterable[RenderableType]:
    """Show the parts of a model, and how much of the passes they are."""
    if modules is None:
        return
    recomputes = any(row.recompute_us for row in modules.rows)
    headings = ("forward", "backward", *(("recomputed",) if recomputes else ()), "of both")
    rows = (_cells(row, recomputes=recomputes) for row in modules.rows)
    yield plain_table(rows, ["part of the model"], headings)
    yield Text(f"{modules.basis}; {coverage(modules)}")
    if modules.kinds:
        kinds = [f"{literal(k.kind)} {share_text(k.share)} in {k.places}" for k in modules.kinds]
        yield Text(f"by class, wherever they are: {', '.join(kinds)} places")


def coverage(modules: ModuleTable) -> str:
    """Say how much of the passes a table explains."""
    if modules.covers_forward is None:
        return "how much of forward they cover is not known"
    ahead = f"covers {share_text(modules.covers_forward)} of forward"
    if modules.covers_backward is None:
        return f"{ahead}; backward is not split"
    return f"{ahead} and {share_text(modules.covers_backward)} of backward"


def _cells(row: ModuleRow, *, recomputes: bool) -> list[str]:
    kind = f" ({literal(row.kind)})" if row.kind else ""
    back = None if row.backward_us is None else row.backward_us / 1e6
    return [
        "  " * row.depth + literal(row.name) + kind,
        us_text(row.forward_us),
        "not split" if back is None else seconds_text(back),
        *([us_text(row.recompute_us)] if recomputes else []),
        share_text(row.share),
    ]


def headroom_lines(headroom: Headroom | None) -> Iterable[RenderableType]:
    """Show the headroom of a step on a terminal: a line, classes of kernels, the longest."""
    if headroom is None:
        return
    yield Text.assemble(("headroom: ", "bold"), literal(headroom_text(headroom)))
    if headroom.classes:
        rows = (
            (f"  {literal(each.name)}", us_text(each.us), share_text(each.share))
            for each in headroom.classes[:_MOST_CLASSES]
        )
        yield plain_table(rows, ["  the device's time, a step"], ("time", "of all"))
    for kernel in headroom.kernels[:_MOST_KERNELS]:
        said = f"{kernel_name(kernel.name)}{kernel_source(kernel)}"
        yield Text(f"  {us_text(kernel.us)} {literal(said)}")
