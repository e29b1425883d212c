"""Parts of a model as a table of chosen length: the largest is opened first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.module_table import KindRow, ModuleRow, ModuleTable
from pitstop.records.script import Modules
from pitstop.records.summary import SpanSummary

MOST_ROWS: Final = 12
"""Rows of a table for a terminal."""

# What is smaller than this share of both passes is not opened.
_WORTH_OPENING: Final = 0.05
_WORTH_NAMING: Final = 0.02
_MOST_KINDS: Final = 6
# Two rows of many tell nothing of them.
_FEWEST_SHOWN: Final = 3


@dataclass(slots=True, kw_only=True, eq=False)
class ModulePart:
    """A part of the model with those inside it."""

    name: str
    kind: str
    forward_us: float
    backward_us: float | None
    recompute_us: float = 0.0
    inside: list["ModulePart"] = field(default_factory=list)

    @property
    def both_us(self) -> float:
        """Forward and backward together."""
        return self.forward_us + (self.backward_us or 0.0)


def module_table(facts: Facts, *, most: int | None = MOST_ROWS) -> ModuleTable | None:
    """Lay out the parts of the model that were timed; None where none were.

    Args:
        facts: The run: somebody's script, whose modules were sampled, or one of the engine, which
            names the parts of its model.
        most: Rows of the table; None for all there are.
    """
    found = facts.readings.last(Modules)
    if found is not None and found.modules:
        return _of_modules(found, most)
    return _of_spans(facts, most)


def parts_of(found: Modules) -> list[ModulePart]:
    """Give the outermost modules of a sampled step, with those inside them."""
    parts = [
        ModulePart(
            name=each.name,
            kind=each.kind,
            forward_us=each.forward_us,
            backward_us=each.backward_us,
            recompute_us=each.recompute_us,
        )
        for each in found.modules
    ]
    outermost: list[ModulePart] = []
    for number, (part, each) in enumerate(zip(parts, found.modules, strict=True)):
        # Written outer ones first; a record that says otherwise is not followed in circles.
        inside = each.parent is not None and 0 <= each.parent < number
        (parts[each.parent or 0].inside if inside else outermost).append(part)
    return outermost


def _of_modules(found: Modules, most: int | None) -> ModuleTable:
    parts = parts_of(found)
    named_us = sum(part.both_us for part in parts)
    whole_us = (found.forward_us or 0) + (found.backward_us or 0) or named_us or 1
    back = [part.backward_us for part in parts if part.backward_us is not None]
    kinds = [
        KindRow(
            kind=each.kind,
            places=each.places,
            share=(each.forward_us + each.backward_us) / whole_us,
        )
        for each in found.kinds
        if each.places > 1
    ]
    return ModuleTable(
        rows=_rows(parts, whole_us, most),
        basis=f"sampled up to step {found.step:,}, {found.clock}'s clock",
        covers_forward=_covered([part.forward_us for part in parts], found.forward_us),
        covers_backward=_covered(back, found.backward_us) if back else None,
        kinds=tuple(kind for kind in kinds if kind.share >= _WORTH_NAMING)[:_MOST_KINDS],
    )


def _covered(inside_us: Iterable[float], whole_us: float | None) -> float | None:
    return min(1.0, sum(inside_us) / whole_us) if whole_us else None


def _rows(parts: Sequence[ModulePart], whole_us: float, most: int | None) -> tuple[ModuleRow, ...]:
    outermost = _without_wrappers(parts)
    rows = len(outermost) if most is None else min(most, len(outermost))
    opened = _opened(outermost, whole_us, None if most is None else most - rows)
    return tuple(_laid_out(outermost, 0, rows=rows, whole_us=whole_us, opened=opened))


def _opened(parts: Sequence[ModulePart], whole_us: float, left: int | None) -> dict[int, int]:
    """Choose which parts to open, the largest first, and how many rows each may have inside."""
    opened: dict[int, int] = {}
    pending = [part for part in parts if part.inside]
    while pending and (left is None or left > 0):
        part = max(pending, key=lambda each: each.both_us)
        pending.remove(part)
        inside = _without_wrappers(part.inside)
        rows = len(inside) if left is None else min(left, len(inside))
        if left is not None:
            is_shown = rows == len(inside) or rows >= _FEWEST_SHOWN
            if part.both_us < _WORTH_OPENING * whole_us or not is_shown:
                continue
            left -= rows
        opened[id(part)] = rows
        pending += [each for each in inside if each.inside]
    return opened


def _without_wrappers(parts: Sequence[ModulePart]) -> Sequence[ModulePart]:
    """Go inside where there is but one part."""
    while len(parts) == 1 and parts[0].inside:
        parts = parts[0].inside
    return parts


def _laid_out(
    parts: Sequence[ModulePart], depth: int, *, rows: int, whole_us: float, opened: dict[int, int]
) -> Iterable[ModuleRow]:
    ordered = sorted(parts, key=lambda part: -part.both_us)
    shown = ordered if len(ordered) <= rows else ordered[: rows - 1]
    for part in shown:
        yield _row(part, depth, whole_us)
        if id(part) in opened:
            inside = _without_wrappers(part.inside)
            yield from _laid_out(
                inside, depth + 1, rows=opened[id(part)], whole_us=whole_us, opened=opened
            )
    others = ordered[len(shown) :]
    if others:
        yield _row(_together(others), depth, whole_us)


def _together(parts: Sequence[ModulePart]) -> ModulePart:
    known = [part.backward_us for part in parts if part.backward_us is not None]
    kinds = {part.kind for part in parts}
    return ModulePart(
        name=f"{len(parts)} others",
        kind=kinds.pop() if len(kinds) == 1 else "",
        forward_us=sum(part.forward_us for part in parts),
        backward_us=sum(known) if known else None,
        recompute_us=sum(part.recompute_us for part in parts),
    )


def _row(part: ModulePart, depth: int, whole_us: float) -> ModuleRow:
    return ModuleRow(
        name=part.name,
        kind=part.kind,
        depth=depth,
        forward_us=part.forward_us,
        backward_us=part.backward_us,
        recompute_us=part.recompute_us,
        share=min(1.0, part.both_us / whole_us),
    )


def _of_spans(facts: Facts, most: int | None) -> ModuleTable | None:
    """Lay out the parts that were named inside the passes: the engine names those of its model."""
    passes: dict[str, dict[tuple[str, ...], float]] = {"forward": {}, "backward": {}}
    on_device = facts.summary.device_wall is not None
    for span in facts.summary.spans:
        us = _mean_us(span, on_device=on_device)
        if span.path[0] in passes and us is not None:
            passes[span.path[0]][span.path[1:]] = us
    forward, backward = passes["forward"], passes["backward"]
    parts = {path: _part(path, forward, backward) for path in forward if path}
    if not parts or () not in forward:
        return None
    for path, part in parts.items():
        if path[:-1] in parts:
            parts[path[:-1]].inside.append(part)
    outermost = [part for path, part in parts.items() if len(path) == 1]
    back = [part.backward_us for part in outermost if part.backward_us is not None]
    whole_us = forward[()] + backward.get((), 0.0)
    return ModuleTable(
        rows=_rows(outermost, whole_us or 1.0, most),
        basis=f"mean of the steps, {'device' if on_device else 'host'}'s clock",
        covers_forward=_covered([part.forward_us for part in outermost], forward[()]),
        covers_backward=_covered(back, backward.get(())) if back else None,
    )


def _mean_us(span: SpanSummary, *, on_device: bool) -> float | None:
    times = span.device if on_device else span.host
    return times.total_us / times.count if times is not None and times.count else None


def _part(
    path: tuple[str, ...],
    forward: dict[tuple[str, ...], float],
    backward: dict[tuple[str, ...], float],
) -> ModulePart:
    again = [name for name in backward if name[:-1] == path and name[-1].startswith("recompute")]
    return ModulePart(
        name=path[-1],
        kind="",
        forward_us=forward[path],
        backward_us=backward.get(path),
        recompute_us=sum(backward[name] for name in again),
    )
