"""How far a step is from its device, and what the device did in a profiled one."""

from collections.abc import Iterable, Mapping
from typing import Final

from pitstop.records.headroom import Headroom, KernelSource
from pitstop.records.script import DeviceTrack, Kernels
from pitstop.records.units import count_text, rate_text, seconds_text, share_text, us_text
from pitstop.report.headroom import headroom_text, kernel_line, kernel_name
from pitstop.report.page.blocks import (
    Block,
    Chart,
    LegendEntry,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
    text_columns,
)
from pitstop.report.page.charts import Segment, bar, legend_of
from pitstop.report.page.palette import HATCHED
from pitstop.report.page.run import RunView
from pitstop.report.page.spans import Lane, Piece, lanes
from pitstop.report.page.svg import Described

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
    "transfers": "c8",
}
"""The same in every run, so that two pages can be held side by side."""
_OTHER: Final = "c10"
_BESIDE: Final = ("transfers", "communication")
"""What a device does beside its other work, each in a row of its own."""
_MOST_PIECES: Final = 600


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
        legend=legend_of(segments, sizes=True),
        note="Profiled in three steps that are left out of other numbers; by the kernels' names.",
    )


def _kernels(headroom: Headroom) -> Table:
    whole_us = headroom.device_us
    return Table(
        caption="Kernels that take longest",
        columns=(
            *named_columns("kernel", "a step", "of all", "times"),
            *text_columns("launched by", "module", "line"),
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


def device_track_chart(view: RunView) -> Chart | None:
    """Host and device in a profiled step, kernel by kernel; None where it was not kept."""
    tracks = [one.track for one in view.readings("kernels", Kernels) if one.track is not None]
    track = tracks[-1] if tracks else None
    if track is None or not track.pieces or track.wall_us <= 0:
        return None
    longest = sorted(track.pieces, key=lambda piece: piece[0] - piece[1])[:_MOST_PIECES]
    host = tuple(
        _track_piece(part, (start, end), view.colours.get(part, HATCHED), track.wall_us)
        for part, start, end in track.host[:_MOST_PIECES]
    )
    rows = [Lane(name="host", pieces=host), *_device_lanes(track, sorted(longest))]
    title = f"Step {track.step:,}, profiled, {us_text(track.wall_us)}"
    described = Described(
        key=f"track-{track.step}",
        title=title,
        description=f"On the device: {', '.join(track.classes)}.",
    )
    ticks = [seconds_text(share * track.wall_us / 1e6) for share in (0, 0.5, 1)]
    # Host and device have names of their own, and not colours enough for both.
    colours = {f"host: {part}": view.colours.get(part, HATCHED) for part, *_ in track.host}
    colours |= {f"device: {name}": _COLOURS.get(name, _OTHER) for name in track.classes}
    return Chart(
        caption=title,
        svg=lanes(described, rows, ticks=ticks, span_us=track.wall_us),
        legend=tuple(LegendEntry(name=name, colour=each) for name, each in colours.items()),
        note=_track_note(len(track.pieces) - len(longest) + track.left_out),
    )


def _device_lanes(
    track: DeviceTrack, pieces: Iterable[tuple[float, float, int, int]]
) -> Iterable[Lane]:
    rows: dict[str, list[Piece]] = {"device": []}
    for start, end, place, count in pieces:
        name = track.classes[place]
        said = name if count == 1 else f"{name}, {count_text(count, 'kernel')}"
        piece = _track_piece(said, (start, end), _COLOURS.get(name, _OTHER), track.wall_us)
        rows.setdefault(name if name in _BESIDE else "device", []).append(piece)
    for name in ("device", *_BESIDE):
        if name in rows:
            yield Lane(name=name, pieces=tuple(rows[name]))


def _track_piece(said: str, ends_us: tuple[float, float], colour: str, whole_us: int) -> Piece:
    start, end = (min(max(us, 0.0), whole_us) for us in ends_us)
    return Piece(
        name=said,
        start=start / whole_us,
        end=max(start, end) / whole_us,
        colour=colour,
        text=f"{said}: {us_text(end - start)}, from {us_text(start)}",
    )


def _track_note(left_out: int) -> str:
    note = "A profile slows the host down: gaps on the device are longer here than in other steps."
    return note if not left_out else f"{note} {count_text(left_out, 'shorter piece')} left out."
