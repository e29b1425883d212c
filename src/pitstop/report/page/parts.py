"""Parts of the model in a table that sorts, ranks side by side, and the pictures of a run."""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final, TypeVar

from pitstop.errors import RecordError
from pitstop.records.pictures import PictureCell, PictureRow, Pictures, picture_bytes, read_pictures
from pitstop.records.script import Kept, ModuleMemory, Modules, ModuleTime, Work
from pitstop.records.summary import SpanSummary
from pitstop.records.units import bytes_text, count_text, share_text, us_text
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Gallery,
    LegendEntry,
    Message,
    Section,
    ShownPicture,
    ShownRow,
    Table,
    named_columns,
    number_cell,
    text_cell,
)
from pitstop.report.page.palette import HATCHED
from pitstop.report.page.run import RunView
from pitstop.report.page.spans import Level, Pass, icicle
from pitstop.report.page.svg import Described, Svg, shown
from pitstop.report.terminal_tables import coverage

_MOST_MODULES: Final = 40
_MOST_LEVELS: Final = 8
_KINDS: Final = ("c2", "c0", "c4", "c7", "c1", "c3", "c5", "c11")
_OTHER_KINDS: Final = "c10"
_MOST_RANKS: Final = 16
_NUMBERED: Final = re.compile(r"[0-9]{1,9}\Z")
_TAGS_BYTES: Final = 200


def modules_section(view: RunView) -> Section | None:
    """Time of each part of the model, forward and backward, and what it keeps for backward."""
    readings = view.readings("modules", Modules)
    kept = _kept(view)
    table = _sampled(readings[-1], kept) if readings else _named_parts(view)
    if table is None:
        return None
    modules = view.verdict.modules
    said = None if modules is None or modules.covers_forward is None else coverage(modules)
    lead = None if said is None else f"The outermost parts: {said}."
    drawn = sampled_icicle(readings[-1], kept) if readings else _named_icicle(view)
    blocks = (*drawn, table, *(_by_kind(readings[-1]) if readings else ()))
    return Section(key="modules", title="Parts of the model", lead=lead, blocks=blocks)


def _kept(view: RunView) -> Kept | None:
    works = [work.kept for work in view.readings("work", Work) if work.kept is not None]
    return works[-1] if works else None


def sampled_icicle(modules: Modules, kept: Kept | None = None) -> Iterable[Chart]:
    """Modules inside modules, each kind in its colour."""
    kinds = kind_colours(modules.modules)

    def colour(kind: str) -> str:
        return kinds.get(kind, _OTHER_KINDS)

    legend = [LegendEntry(name=kind, colour=colour) for kind, colour in kinds.items()]
    if len(kinds) < len({one.kind for one in modules.modules}):
        legend.append(LegendEntry(name="other kinds", colour=_OTHER_KINDS))
    passes = [
        Pass(name="forward", outermost=_levels(modules.modules, _forward_us, us_text, colour)),
        Pass(name="backward", outermost=_levels(modules.modules, _backward_us, us_text, colour)),
    ]
    if kept is not None and kept.num_bytes > 0:
        passes.append(
            Pass(
                name=f"held for backward, {bytes_text(kept.num_bytes)}",
                outermost=_levels(kept.modules, _num_bytes, bytes_text, colour),
                whole=kept.num_bytes,
            )
        )
    yield from _icicle_chart(passes, legend)


ModuleT = TypeVar("ModuleT", ModuleTime, ModuleMemory)


def _forward_us(one: ModuleTime) -> int:
    return one.forward_us


def _backward_us(one: ModuleTime) -> int:
    return one.backward_us or 0


def _num_bytes(one: ModuleMemory) -> int:
    return one.num_bytes


def _levels(
    modules: Sequence[ModuleT],
    size: Callable[[ModuleT], int],
    size_text: Callable[[float], str],
    colour: Callable[[str], str],
) -> tuple[Level, ...]:
    """Lay modules inside those around them, but for those without a size."""
    inside: dict[int | None, list[int]] = {}
    for place, one in enumerate(modules):
        inside.setdefault(one.parent, []).append(place)

    def below(parent: int | None) -> tuple[Level, ...]:
        return tuple(
            Level(
                name=one.name.rpartition(".")[2] if one.parent is not None else one.name,
                size=size(one),
                colour=colour(one.kind),
                text=f"{one.name} ({one.kind}): {size_text(size(one))}",
                inside=below(place),
            )
            for place in _by_number(modules, inside.get(parent, ()))
            if size(one := modules[place]) > 0
        )

    return below(None)


def _by_number(modules: Sequence[ModuleT], places: Sequence[int]) -> list[int]:
    """Put what is numbered in order: the record has the longest first, which means less.

    Names that differ by the number at their end alone (3 and 12, stage3 and stage12) stand where
    the longest of them does.
    """
    named = [_NUMBERED.sub("", modules[place].name) for place in places]
    numbers = [
        int(modules[place].name[len(n) :] or 0) for n, place in zip(named, places, strict=True)
    ]
    order = sorted(range(len(places)), key=lambda at: (named.index(named[at]), numbers[at]))
    return [places[at] for at in order]


def kind_colours(modules: Sequence[ModuleTime]) -> dict[str, str]:
    """Colours of the kinds that take longest by themselves, without the modules inside them."""
    own_us: Counter[str] = Counter()
    for one in modules:
        own_us[one.kind] += one.both_us
        if one.parent is not None:
            own_us[modules[one.parent].kind] -= one.both_us
    longest = [kind for kind, _ in own_us.most_common(len(_KINDS))]
    return dict(zip(longest, _KINDS, strict=False))


def _named_icicle(view: RunView) -> Iterable[Chart]:
    """Parts that were named inside the passes."""
    facts = view.facts
    if facts is None:
        return
    spans = facts.summary.spans
    names = ("forward", "loss", "backward")
    passes = [Pass(name=name, outermost=_named_levels(view, spans, (name,))) for name in names]
    yield from _icicle_chart(passes, ())


def _named_levels(
    view: RunView, spans: Sequence[SpanSummary], above: tuple[str, ...]
) -> tuple[Level, ...]:
    depth = len(above)
    return tuple(
        Level(
            name=span.path[-1],
            size=span.host.total_us,
            colour=view.colours.get(span.path[0], HATCHED),
            text=f"{' / '.join(span.path)}: {share_text(span.share)}",
            inside=_named_levels(view, spans, span.path),
        )
        for span in spans
        if len(span.path) == depth + 1 and span.path[:depth] == above
    )


def _icicle_chart(passes: Iterable[Pass], legend: Sequence[LegendEntry]) -> Iterable[Chart]:
    drawn = [one for one in passes if one.outermost]
    if not drawn:
        return
    largest = [max(one.outermost, key=lambda level: level.size) for one in drawn]
    described = Described(
        key="modules-icicle",
        title="Parts of the model inside one another",
        description="; ".join(
            f"longest of {one.name}: {level.text}"
            for one, level in zip(drawn, largest, strict=True)
        )
        + ".",
    )
    note = "Both passes are on one scale."
    if any(one.whole is not None for one in drawn):
        note += (
            " Held is what a module made in one counted step and the backward pass found still "
            "there, on a scale of its own; the rest of the width was made by the model's own lines."
        )
    yield Chart(
        caption="Parts inside parts, as wide as their time",
        svg=icicle(described, drawn, most_levels=_MOST_LEVELS),
        legend=tuple(legend),
        note=note,
    )


def _by_kind(modules: Modules) -> Iterable[Block]:
    whole = (modules.forward_us or 0) + (modules.backward_us or 0)
    kinds = [one for one in modules.kinds if one.places > 1]
    if not kinds or not whole:
        return
    yield Table(
        caption="The same by class, wherever its modules are",
        columns=named_columns("kind", "places", "forward", "backward", "of all"),
        rows=tuple(
            (
                text_cell(one.kind),
                number_cell(f"{one.places:,}", one.places),
                number_cell(us_text(one.forward_us), one.forward_us),
                number_cell(us_text(one.backward_us), one.backward_us),
                number_cell(share_text(one.both_us / whole), one.both_us),
            )
            for one in kinds
        ),
        note="One that holds others has their time as well, so shares overlap.",
        sortable=True,
    )


def _sampled(modules: Modules, kept: Kept | None) -> Table:
    outermost = [one for one in modules.modules if one.parent is None]
    whole = (modules.forward_us or 0) + (modules.backward_us or 0)
    whole = whole or sum(one.both_us for one in outermost) or 1
    shown = sorted(modules.modules, key=lambda one: -one.both_us)[:_MOST_MODULES]
    recomputes = any(one.recompute_us for one in shown)
    held = None if kept is None else {one.name: one.num_bytes for one in kept.modules}
    rows = tuple(_module_row(one, whole, held, recomputes=recomputes) for one in shown)
    again = ("recomputed",) if recomputes else ()
    memory = () if held is None else ("held for backward",)
    columns = named_columns("module", "kind", "forward", "backward", *again, "of all", *memory)
    note = "Measured once, on the host's clock, in a step that is left out of all other numbers."
    if modules.forward_us is not None:
        note = (
            f"Medians of sampled steps, {modules.clock}'s clock; these steps are left out of "
            "all other numbers. A module includes those inside it."
        )
    return Table(
        caption=f"Modules in step {modules.step:,}",
        columns=(columns[0], Column(name="kind", is_number=False), *columns[2:]),
        rows=rows,
        note=note,
        sortable=True,
        left_out=len(modules.modules) - len(rows) + modules.left_out,
    )


def _module_row(
    one: ModuleTime, whole_us: int, held: Mapping[str, int] | None, *, recomputes: bool
) -> tuple[Cell, ...]:
    back = "not split" if one.backward_us is None else us_text(one.backward_us)
    num_bytes = 0 if held is None else held.get(one.name, 0)
    memory = () if held is None else (number_cell(bytes_text(num_bytes), num_bytes),)
    again = number_cell(us_text(one.recompute_us), one.recompute_us)
    return (
        text_cell(one.name),
        text_cell(one.kind),
        number_cell(us_text(one.forward_us), one.forward_us),
        number_cell(back, one.backward_us),
        *((again,) if recomputes else ()),
        number_cell(share_text(one.both_us / whole_us), one.both_us),
        *memory,
    )


def _named_parts(view: RunView) -> Table | None:
    """Parts that were named inside the passes: an engine names the stages of its model."""
    facts = view.facts
    if facts is None:
        return None
    passes: dict[tuple[str, ...], dict[str, SpanSummary]] = {}
    for span in facts.summary.spans:
        if len(span.path) > 1 and span.path[0] in ("forward", "backward", "loss"):
            passes.setdefault(span.path[1:], {})[span.path[0]] = span
    if not passes:
        return None
    wall_us = facts.summary.sampled_wall_us or 1
    rows = [_named_row(name, found, wall_us) for name, found in passes.items()]
    rows.sort(key=lambda row: -(row[-1].value or 0.0))
    return Table(
        caption="Named parts, median a step",
        columns=named_columns("part", "forward", "backward", "loss", "of the wall clock"),
        rows=tuple(rows[:_MOST_MODULES]),
        note="Measured over the whole run; medians within 2%. A part holds those inside it.",
        sortable=True,
        left_out=max(0, len(rows) - _MOST_MODULES),
    )


def _named_row(
    name: tuple[str, ...], found: dict[str, SpanSummary], wall_us: int
) -> tuple[Cell, ...]:
    def middle(which: str) -> Cell:
        span = found.get(which)
        us = None if span is None else span.host.quantile_us(0.5)
        return number_cell("" if us is None else us_text(us), us)

    share = sum(span.host.total_us for span in found.values()) / wall_us
    return (
        text_cell(" / ".join(name)),
        middle("forward"),
        middle("backward"),
        middle("loss"),
        number_cell(share_text(share), share),
    )


def pictures_section(view: RunView, free_bytes: int) -> Section | None:
    """The run's pictures as they are, as many as fit."""
    if view.folder is None:
        return None
    try:
        pictures = read_pictures(view.folder)
    except RecordError as error:
        damage = Message(text=f"The run's pictures cannot be shown: {error}.", tone="note")
        return Section(key="pictures", title="Pictures", blocks=(damage,))
    if pictures is None or not pictures.rows:
        return None
    rows, left_out = _fitting(view, pictures, free_bytes)
    blocks: list[Block] = [Gallery(rows=rows)]
    if left_out:
        count = count_text(left_out, "picture")
        text = f"{count} left out, so that the page stays small; they are in the run's folder."
        blocks.append(Message(text=text, tone="note"))
    return Section(key="pictures", title="Pictures", blocks=tuple(blocks))


def _fitting(
    view: RunView, pictures: Pictures, free_bytes: int
) -> tuple[tuple[ShownRow, ...], int]:
    rows: list[ShownRow] = []
    left_out = 0
    for row in pictures.rows:
        text = _text_bytes(row)
        # Files are not even opened for a row whose text alone are too many.
        cells = [_picture(view, cell) for cell in row.cells] if text <= free_bytes else []
        size = text + sum(map(_letters, cells))
        if size > free_bytes:
            left_out += len(row.cells)
            continue
        free_bytes -= size
        rows.append(ShownRow(title=row.title, note=row.note, cells=tuple(cells)))
    return tuple(rows), left_out


def _text_bytes(row: PictureRow) -> int:
    """What a row takes without its pictures, and a little more: tags and text as a page has them.

    A picture's alternative text repeats the row's title and its own caption.
    """
    title = _page_bytes(row.title)
    captions = sum(title + 2 * _page_bytes(cell.caption) + _TAGS_BYTES for cell in row.cells)
    return captions + title + _page_bytes(row.note or "") + _TAGS_BYTES


def _page_bytes(text: str) -> int:
    return len(escape(shown(text)).encode())


def _letters(cell: ShownPicture) -> int:
    return _page_bytes(cell.why_not or "") if cell.data is None else len(cell.data.text)


def _picture(view: RunView, cell: PictureCell) -> ShownPicture:
    assert view.folder is not None
    try:
        data = picture_bytes(view.folder, cell)
    except RecordError as error:
        return ShownPicture(caption=cell.caption, data=None, why_not=str(error))
    coded = base64.b64encode(data).decode("ascii")
    return ShownPicture(caption=cell.caption, data=Svg(f"data:{cell.media_type};base64,{coded}"))
