"""Step rows: from lines of numbers to columns, and to a block where the writer left none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pitstop.records.distribution import Distribution
from pitstop.records.run import Array, Block, SpanBlock, SpanPath, StepTable

LAYOUT, INDEX, GAP, OUTSIDE, WALL, SAMPLES, MICRO_STEPS = range(7)
FIXED_COLUMNS = 7

# A step of eleven days is damage, not data; it also keeps every number exact in float64.
_MOST_US = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Which spans the numbers of a row belong to, after the fixed columns."""

    host: tuple[SpanPath, ...]
    device: tuple[SpanPath, ...] | None
    """None when the row has no device clock at all."""

    @property
    def width(self) -> int:
        """How many numbers a row of this layout has."""
        device = 0 if self.device is None else 1 + len(self.device)
        return FIXED_COLUMNS + len(self.host) + device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one attempt and one layout, with their places among all rows of the file."""

    attempt: int
    layout: RowLayout
    places: npt.NDArray[np.int64]
    values: Array

    @property
    def host(self) -> Array:
        """Host times, rows x spans of the layout."""
        return self.values[:, FIXED_COLUMNS : FIXED_COLUMNS + len(self.layout.host)]

    @property
    def device_wall(self) -> Array | None:
        """Device time of each step; None without a device clock."""
        if self.layout.device is None:
            return None
        return self.values[:, FIXED_COLUMNS + len(self.layout.host)]

    @property
    def device(self) -> Array:
        """Device times, rows x device spans of the layout."""
        return self.values[:, FIXED_COLUMNS + len(self.layout.host) + 1 :]


def parse_rows(
    lines: list[bytes], layouts: Mapping[int, RowLayout], *, attempt: int, first_place: int
) -> tuple[list[Rows], int]:
    """Turn row lines into columns, one group a layout; also count lines that are no rows."""
    by_layout: dict[int, tuple[list[int], list[list[Any]]]] = {}
    good = 0
    for place, row in enumerate(_decode(lines), first_place):
        if not _fits(row, layouts):
            continue
        places, rows = by_layout.setdefault(row[0], ([], []))
        places.append(place)
        rows.append(row)
    groups = []
    for number, (places, rows) in by_layout.items():
        values = np.array(rows, dtype=np.float64)
        sane = _sane(values, layouts[number])
        good += int(sane.sum())
        groups.append(
            Rows(
                attempt=attempt,
                layout=layouts[number],
                places=np.array(places, dtype=np.int64)[sane],
                values=values[sane],
            )
        )
    return groups, len(lines) - good


def _decode(lines: list[bytes]) -> list[Any]:
    """Decode all lines in one go; one by one when some line is damaged."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return [_decode_one(line) for line in lines]
    # A damaged line may hold a comma outside its brackets and so count as several.
    return rows if len(rows) == len(lines) else [_decode_one(line) for line in lines]


def _decode_one(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _fits(row: Any, layouts: Mapping[int, RowLayout]) -> bool:
    if type(row) is not list or not row or type(row[0]) is not int:
        return False
    layout = layouts.get(row[0])
    if layout is None or len(row) != layout.width:
        return False
    # Whole numbers too long for float64 come from damage only.
    return all(v is None or (type(v) is int and -_MOST_US < v < _MOST_US) for v in row)


def _sane(values: Array, layout: RowLayout) -> npt.NDArray[np.bool_]:
    """Rows with all fixed times, nothing below zero, and parts that fit into their step."""
    there = np.isfinite(values[:, [INDEX, GAP, OUTSIDE, WALL]]).all(axis=1)
    forwards = ~(values < 0).any(axis=1)
    top = [FIXED_COLUMNS + n for n, path in enumerate(layout.host) if len(path) == 1]
    return there & forwards & (np.nansum(values[:, top], axis=1) <= values[:, WALL])


def step_table(groups: list[Rows], paths: tuple[SpanPath, ...]) -> StepTable:
    """Lay groups of rows into one table, in the order in which the rows were written."""
    order = np.concatenate([group.places for group in groups] or [np.empty(0, np.int64)])
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.argsort(order, kind="stable")] = np.arange(len(order))
    column = {path: number for number, path in enumerate(paths)}
    fixed = np.full((len(order), FIXED_COLUMNS), np.nan)
    host = np.full((len(order), len(paths)), np.nan)
    device = np.full((len(order), len(paths)), np.nan)
    device_wall = np.full(len(order), np.nan)
    attempt = np.zeros(len(order))
    done = 0
    for group in groups:
        here = rank[done : done + len(group.places)]
        done += len(group.places)
        attempt[here] = group.attempt
        fixed[here] = group.values[:, :FIXED_COLUMNS]
        host[here[:, None], [column[path] for path in group.layout.host]] = group.host
        if group.device_wall is not None and group.layout.device is not None:
            device_wall[here] = group.device_wall
            device[here[:, None], [column[path] for path in group.layout.device]] = group.device
    return StepTable(
        paths=paths,
        attempt=attempt,
        index=fixed[:, INDEX],
        start_us=_starts(attempt, fixed),
        wall_us=fixed[:, WALL],
        outside_us=fixed[:, OUTSIDE],
        samples=fixed[:, SAMPLES],
        micro_steps=fixed[:, MICRO_STEPS],
        host_us=host,
        device_wall_us=device_wall,
        device_us=device,
    )


def _starts(attempt: Array, fixed: Array) -> Array:
    """Start of each step since its attempt began: all that came before, plus its own gap."""
    starts = np.empty(len(attempt))
    for number in np.unique(attempt):
        rows = attempt == number
        spent = fixed[rows][:, [GAP, OUTSIDE, WALL]].sum(axis=1)
        starts[rows] = np.cumsum(spent) - spent + fixed[rows][:, GAP]
    return starts


def block_of_rows(groups: list[Rows], *, attempt: int, start_us: int | None) -> Block | None:
    """Summarise rows that no block summary covers: the last ones of a run that was cut off."""
    groups = [group for group in groups if len(group.places)]
    if not groups:
        return None
    fixed = np.concatenate([group.values[:, :FIXED_COLUMNS] for group in groups])
    device_walls = [group.device_wall for group in groups if group.device_wall is not None]
    return Block(
        attempt=attempt,
        first=int(fixed[:, INDEX].min()),
        last=int(fixed[:, INDEX].max()),
        start_us=start_us,
        outside_us=int(fixed[:, OUTSIDE].sum()),
        samples=_known_sum(fixed[:, SAMPLES]),
        micro_steps=_known_sum(fixed[:, MICRO_STEPS]),
        broken=0,
        wall=_distribution(fixed[:, WALL]),
        unaccounted=_distribution(np.concatenate([_unaccounted(group) for group in groups])),
        device_wall=_distribution(np.concatenate(device_walls)) if device_walls else None,
        spans=_span_blocks(groups),
    )


def _unaccounted(group: Rows) -> Array:
    """Wall less top-level spans; empty when the rows kept no spans, for then it is not known."""
    top = [number for number, path in enumerate(group.layout.host) if len(path) == 1]
    if not top:
        return np.empty(0)
    return group.values[:, WALL] - group.host[:, top].sum(axis=1)


def _span_blocks(groups: list[Rows]) -> dict[SpanPath, SpanBlock]:
    host: dict[SpanPath, list[Array]] = {}
    device: dict[SpanPath, list[Array]] = {}
    for group in groups:
        for number, path in enumerate(group.layout.host):
            host.setdefault(path, []).append(group.host[:, number])
        for number, path in enumerate(group.layout.device or ()):
            device.setdefault(path, []).append(group.device[:, number])
    return {
        path: SpanBlock(
            calls=None,
            host=_distribution(np.concatenate(values)),
            device=_distribution(np.concatenate(device[path])) if path in device else None,
        )
        for path, values in host.items()
    }


def _distribution(values: Array) -> Distribution:
    return Distribution.of(values[~np.isnan(values)].astype(np.int64).tolist())


def _known_sum(values: Array) -> int | None:
    return None if np.isnan(values).any() else int(values.sum())
