"""A step of any batch, from real steps of two small ones: a straight line through both."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from pitstop.records.plans.plan import OperationRow, StepTrace


def extended(fewer: StepTrace, more: StepTrace, batch_size: int) -> StepTrace:
    """Follow the straight line through two steps to a batch."""
    steps = (batch_size - fewer.batch_size) / (more.batch_size - fewer.batch_size)

    def follow(first: int, second: int) -> int:
        return max(0, round(first + steps * (second - first)))

    return replace(
        fewer,
        batch_size=batch_size,
        owners={name: follow(fewer.owners.get(name, 0), more.owners[name]) for name in more.owners},
        peak_bytes=follow(fewer.peak_bytes, more.peak_bytes),
        saved_bytes=follow(fewer.saved_bytes, more.saved_bytes),
        reserved_bytes=follow(fewer.reserved_bytes, more.reserved_bytes),
        operations=tuple(_rows(_extended_operations(fewer, more, steps))),
    )


def _extended_operations(fewer: StepTrace, more: StepTrace, steps: float) -> Iterator[OperationRow]:
    """Pair the operations of both steps by size.

    Where one has more of a kind, as after a choice that was drawn, those of the larger step grow
    with its samples.
    """
    before, after = _by_kind(fewer), _by_kind(more)
    times = (fewer.batch_size + steps * (more.batch_size - fewer.batch_size)) / more.batch_size
    for kind, rows in after.items():
        pairs = before.get(kind, [])
        for number, second in enumerate(rows):
            first = pairs[number] if len(pairs) == len(rows) else None
            yield replace(
                second,
                flops=_follow(first and first.flops, second.flops, steps, times),
                num_bytes=_follow(first and first.num_bytes, second.num_bytes, steps, times),
            )


def _follow(first: int | None, second: int, steps: float, times: float) -> int:
    return round(second * times if first is None else max(0, first + steps * (second - first)))


def _by_kind(trace: StepTrace) -> dict[tuple[str, str, str], list[OperationRow]]:
    """Give each operation a row of its own, those of a kind in the order of their size."""
    found: dict[tuple[str, str, str], list[OperationRow]] = defaultdict(list)
    for row in sorted(trace.operations, key=lambda row: (row.num_bytes, row.flops)):
        found[row.part, row.name, row.dtype] += [replace(row, count=1)] * row.count
    return found


def _rows(operations: Iterator[OperationRow]) -> Iterator[OperationRow]:
    """Count equal ones together."""
    for row, equal in groupby(operations):
        yield replace(row, count=len(list(equal)))
