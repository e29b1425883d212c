"""Records that take two lines: a count of steps or epochs on one, its values on the next."""

from array import array

import numpy as np

from pitstop.logs.general.families import Family, Index
from pitstop.logs.general.roles import FEWEST_ROWS, Reading, decide

_NEARLY_ALL = 0.9


def with_next_lines(readings: list[Reading], *, step: str) -> list[Reading]:
    """Put one reading in place of two where each count is followed by a line of its values."""
    for head in readings:
        if not _is_count_alone(head):
            continue
        for values in readings:
            if not _are_values(values):
                continue
            rows, behind = _next_lines(head.family, values.family)
            if len(rows) >= _NEARLY_ALL * max(head.family.count, values.family.count):
                joined = decide(_joined(head.family, values.family, rows, behind), step=step)
                return [one for one in readings if one not in (head, values)] + [joined]
    return readings


def _is_count_alone(reading: Reading) -> bool:
    """Whether lines hold a named count and nothing else: ``iter = 20``, ``epoch: 3``."""
    place, slots = max(reading.place("step"), reading.place("epoch")), reading.family.slots
    numbers = [slot for slot in slots if not slot.is_total]
    is_whole = reading.family.stride == 1 and len(reading.family) >= FEWEST_ROWS
    return place >= 0 and bool(slots[place].name) and len(numbers) == 1 and is_whole


def _are_values(reading: Reading) -> bool:
    """Whether lines hold a loss of the training and count nothing."""
    return (
        reading.has("loss")
        and not reading.has("step", "epoch")
        and reading.family.phase in ("train", "")
        and reading.family.stride == 1
        and not reading.family.is_bar
    )


def _next_lines(head: Family, values: Family) -> tuple[Index, Index]:
    """Rows of the counts that values follow, and rows of those values."""
    after = np.array(head.line) + 1
    behind = np.minimum(np.searchsorted(np.array(values.line), after), len(values) - 1)
    rows = np.flatnonzero(np.array(values.line)[behind] == after)
    return rows, behind[rows]


def _joined(head: Family, values: Family, rows: Index, behind: Index) -> Family:
    timed, at = (head, rows) if head.shape >= 0 else (values, behind)
    columns = [(column, rows) for column in head.flat] + [(one, behind) for one in values.flat]
    return Family(
        head.slots + values.slots, head.phase or values.phase,
        f"{head.example} / {values.example}", number=head.number, shape=timed.shape,
        count=len(rows), line=array("q", np.array(head.line)[rows].tolist()),
        at=array("d", np.array(timed.at)[at].tolist()),
        flat=[array("d", np.array(column)[kept].tolist()) for column, kept in columns],
    )  # fmt: skip
