"""The section of a page on how far a step is from its device."""

from collections.abc import Iterable, Sequence

from pitstop.records.headroom import Headroom, KernelSource
from pitstop.records.units import rate_text, share_text, us_text
from pitstop.report.headroom import headroom_text, kernel_line, kernel_name
from pitstop.report.page.blocks import (
    Block,
    Column,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.run import RunView


def headroom_section(view: RunView) -> Section | None:
    """How far a step is from its device, and what the device's time goes into."""
    headroom = view.verdict.headroom
    if headroom is None:
        return None
    said = headroom_text(headroom)
    blocks: list[Block] = [Message(text=f"{said[0].upper()}{said[1:]}.", tone="strong")]
    blocks += _rates(headroom)
    if headroom.classes:
        blocks.append(_classes(headroom))
    if headroom.kernels:
        blocks.append(_kernels(headroom.kernels))
    return Section(key="headroom", title="Headroom on the device", blocks=tuple(blocks))


def _rates(headroom: Headroom) -> Iterable[Block]:
    rows = [
        (what, rate_text(reached, unit), rate_text(peak, unit), share_text(share))
        for what, reached, peak, share, unit in (
            (
                f"arithmetic, against {headroom.number_format}",
                headroom.flops_per_s,
                headroom.peak_flops_per_s,
                headroom.flops_share,
                "FLOP/s",
            ),
            (
                "bytes that operations read and write",
                headroom.bytes_per_s,
                headroom.peak_bytes_per_s,
                headroom.bytes_share,
                "B/s",
            ),
        )
        if reached is not None
    ]
    if rows:
        yield Table(
            caption="What the step reaches",
            columns=named_columns("what", "reached", "measured on this device", "share"),
            rows=tuple(tuple(map(text_cell, row)) for row in rows),
            note="Counted work over the mean step. Caches serve some of the bytes, so their share "
            "may exceed 100%.",
        )


def _classes(headroom: Headroom) -> Table:
    return Table(
        caption="The device's time by class of kernel",
        columns=named_columns("class", "a step", "of all"),
        rows=tuple(
            (
                text_cell(each.name),
                number_cell(us_text(each.us), each.us),
                number_cell(share_text(each.share), each.share),
            )
            for each in headroom.classes
        ),
        note="Profiled in three steps that are left out of other numbers; by the kernels' names.",
        sortable=len(headroom.classes) > 1,
    )


def _kernels(kernels: Sequence[KernelSource]) -> Table:
    texts = ("launched by", "module", "line")
    return Table(
        caption="Kernels that take longest",
        columns=(
            *named_columns("kernel", "a step", "times"),
            *(Column(name=name, is_number=False) for name in texts),
        ),
        rows=tuple(
            (
                text_cell(kernel_name(each.name)),
                number_cell(us_text(each.us), each.us),
                number_cell(f"{each.count:,}", each.count),
                text_cell(each.operation or "not known"),
                text_cell(each.module or ""),
                text_cell(kernel_line(each)),
            )
            for each in kernels
        ),
        note="The line with most of an operation's bytes; what backward runs is led back to its "
        "forward pass.",
        sortable=len(kernels) > 1,
    )
