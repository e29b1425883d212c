"""The section of a page on how far a step is from its device."""

from collections.abc import Iterable, Mapping
from typing import Final

from pitstop.records.headroom import Headroom, KernelSource
from pitstop.records.units import rate_text, share_text, us_text
from pitstop.report.headroom import headroom_text, kernel_line, kernel_name
from pitstop.report.page.blocks import (
    Block,
    Chart,
    Column,
    LegendEntry,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.charts import Segment, bar
from pitstop.report.page.run import RunView

_COLOURS: Final[Mapping[str, str]] = {
    "matrix products": "c2",
    "element-wise": "c0",
    "attention": "c4",
    "convolutions": "c6",
    "normalisation": "c3",
    "softmax": "c11",
    "reductions": "c9",
    "optimizer": "c7",
    "copies and layout": "c1",
    "communication": "c5",
}
"""The same in every run, so that two pages can be held side by side."""
_OTHER: Final = "c10"


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
        blocks.append(_kernels(headroom))
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


def _classes(headroom: Headroom) -> Chart:
    segments = [
        Segment(
            name=each.name,
            share=each.share,
            colour=_COLOURS.get(each.name, _OTHER),
            text=f"{us_text(each.us)}, {share_text(each.share)}",
        )
        for each in headroom.classes
    ]
    title = "The device's time by class of kernel"
    whole = "" if headroom.device_us is None else f", {us_text(headroom.device_us)} a step"
    return Chart(
        caption=f"{title}{whole}",
        svg=bar("kernel-classes", title, segments),
        legend=tuple(
            LegendEntry(name=f"{one.name}, {one.text}", colour=one.colour) for one in segments
        ),
        note="Profiled in three steps that are left out of other numbers; by the kernels' names.",
    )


def _kernels(headroom: Headroom) -> Table:
    whole_us = headroom.device_us
    texts = ("launched by", "module", "line")
    return Table(
        caption="Kernels that take longest",
        columns=(
            *named_columns("kernel", "a step", "of all", "times"),
            *(Column(name=name, is_number=False) for name in texts),
        ),
        rows=tuple(
            (
                text_cell(kernel_name(each.name), colour=_COLOURS.get(each.class_name, _OTHER)),
                number_cell(us_text(each.us), each.us),
                number_cell("" if not whole_us else share_text(each.us / whole_us), each.us),
                number_cell(f"{each.count:,}", each.count),
                text_cell(_launched_by(each)),
                text_cell(each.module or ""),
                text_cell(kernel_line(each)),
            )
            for each in headroom.kernels
        ),
        note=_kernels_note(headroom),
        sortable=len(headroom.kernels) > 1,
    )


def _kernels_note(headroom: Headroom) -> str:
    colours = "Colours are those of the classes."
    if all(each.line is None for each in headroom.kernels):
        return colours
    return (
        "The line with most of an operation's bytes; what backward runs is led back to its "
        f"forward pass. {colours}"
    )


def _launched_by(kernel: KernelSource) -> str:
    """What launched it, unless that has the kernel's own name, as in compiled code."""
    if kernel.operation == kernel.name:
        return ""
    return kernel.operation or "not known"
