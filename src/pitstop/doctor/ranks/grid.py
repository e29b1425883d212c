"""Own work of every rank over the run: ranks by windows of steps.

Ranks do the same step at the same time, so windows are cut by the numbers of steps and no two
clocks are compared. The time of day is that of the first rank's host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.ranks.times import host_of, is_own, own_of_block
from pitstop.doctor.sampled import Rows
from pitstop.records.run import Array, Block, RankRecord

# As many as can be distinguished on a phone, and as tell when something began; of very many ranks
# fewer, so that a drawing of all cells stays small.
_MOST_WINDOWS: Final = 96
_MOST_CELLS: Final = 24_000
_FEWEST_STEPS: Final = 10
"""Of a window: fewer are one step's whim."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankGrid:
    """Means of a step, ranks x windows; NaN where a rank recorded nothing."""

    ranks: tuple[int, ...]
    hosts: tuple[str | None, ...]
    first_step: tuple[int, ...]
    """Of each window."""
    last_step: int
    unix_s: tuple[float | None, ...]
    """When each window began, by the clock of the first rank's host."""
    own_us: Array
    wall_us: Array
    settled: int
    """Windows at the beginning that hold warm-up."""

    @property
    def excess_share(self) -> Array:
        """Own work beyond that of the median rank, as a share of the step in that window."""
        if not self.own_us.size:
            return self.own_us
        return (self.own_us - column_medians(self.own_us)) / self.step_us

    @property
    def step_us(self) -> Array:
        """Wall clock of a step by window, of the median rank; NaN where it is not known."""
        found = column_medians(self.wall_us)
        return np.where(found > 0, found, np.nan)

    def last_of(self, window: int) -> int:
        """Number of a window's last step."""
        if window + 1 < len(self.first_step):
            return self.first_step[window + 1] - 1
        return self.last_step

    def end_unix_s(self, window: int) -> float | None:
        """When a window ended, as far as it is known."""
        if window + 1 < len(self.unix_s):
            return self.unix_s[window + 1]
        begin, steps = self.unix_s[window], self.last_of(window) - self.first_step[window] + 1
        step_us = float(self.step_us[window])
        return None if begin is None or np.isnan(step_us) else begin + step_us * steps / 1e6


def column_medians(values: Array) -> Array:
    """Median of each column, of what is known; NaN where nothing is."""
    found = np.full(values.shape[1], np.nan)
    some = (~np.isnan(values)).any(axis=0)
    found[some] = np.nanmedian(values[:, some], axis=0)
    return found


def grid_of_blocks(records: Sequence[RankRecord]) -> RankGrid:
    """Lay block summaries side by side, neighbours joined where there are many."""
    longest = max(records, key=lambda record: len(record.blocks))
    starts = sorted({block.first for block in longest.blocks if block.wall.count})
    most = max(8, min(_MOST_WINDOWS, _MOST_CELLS // len(records)))
    edges = np.array(starts[:: -(-len(starts) // most)] if starts else [0])
    own, wall, steps = (np.zeros((len(records), len(edges))) for _ in range(3))
    for row, record in enumerate(records):
        for block in record.blocks:
            window = max(0, int(np.searchsorted(edges, _middle(block), side="right")) - 1)
            count = block.wall.count
            own[row, window] += sum(own_of_block(block).values()) * count
            wall[row, window] += block.wall.total_us
            steps[row, window] += count
    with np.errstate(invalid="ignore", divide="ignore"):
        own, wall = own / steps, wall / steps
    return RankGrid(
        ranks=tuple(record.rank for record in records),
        hosts=tuple(map(host_of, records)),
        first_step=tuple(edges.tolist()),
        last_step=max((block.last for r in records for block in r.blocks), default=0),
        unix_s=tuple(_began(records[0], edge) for edge in edges.tolist()),
        own_us=own,
        wall_us=wall,
        settled=1 if len(edges) > 3 else 0,
    )


def _middle(block: Block) -> float:
    return (block.first + block.last) / 2


def _began(record: RankRecord, step: int) -> float | None:
    """When a rank began a step, as its blocks tell."""
    for block in record.blocks:
        if block.first <= step <= block.last and block.start_us is not None:
            began_s = record.attempts[block.attempt].started_unix_s if record.attempts else None
            return None if began_s is None else began_s + block.start_us / 1e6
    return None


def grid_of_facts(ranks: Sequence[Facts]) -> RankGrid:
    """Lay counted steps side by side: warm-up is left out already."""
    first = min((int(f.indices.min()) for f in ranks if f.steps), default=0)
    last = max((int(f.indices.max()) for f in ranks if f.steps), default=0)
    windows = max(1, min(_MOST_WINDOWS // 2, (last - first + 1) // _FEWEST_STEPS))
    edges = np.unique(np.linspace(first, last + 1, windows + 1).astype(int))[:-1]
    rows = [_row(facts, edges) for facts in ranks]
    return RankGrid(
        ranks=tuple(facts.summary.rank for facts in ranks),
        hosts=tuple(host_of(facts.record) for facts in ranks),
        first_step=tuple(edges.tolist()),
        last_step=last,
        unix_s=tuple(_step_began(ranks[0], edge) for edge in edges.tolist()),
        own_us=np.array([own for own, _ in rows]).reshape(len(ranks), len(edges)),
        wall_us=np.array([wall for _, wall in rows]).reshape(len(ranks), len(edges)),
        settled=0,
    )


def _row(facts: Facts, edges: Array) -> tuple[Array, Array]:
    """Own work and wall clock of a rank by window."""
    own = _own_of_steps(facts)
    places = np.searchsorted(edges, facts.indices, side="right") - 1
    wall = _means(facts.wall_us, places, len(edges))
    return _means(own, places, len(edges)), wall


def _own_of_steps(facts: Facts) -> Array:
    """Own work of each counted step; NaN where its parts are not known."""
    own = np.full(facts.steps, np.nan)
    table = facts.record.steps
    if facts.device is None or table is None:
        times = [us for name, us in facts.parts_us.items() if is_own(name)]
        own[facts.sampled] = sum(times, start=np.zeros(len(facts.sampled)))
        return own
    columns = [n for n, path in enumerate(table.paths) if len(path) == 1 and is_own(path[0])]
    rows = {index: row for row, index in enumerate(table.index.tolist())}
    marks = table.device_us[[rows[index] for index in facts.indices.tolist()]][:, columns]
    known = ~np.isnan(marks).all(axis=1)
    own[known] = np.nansum(marks[known], axis=1)
    return own


def _means(values: Array, places: Rows, windows: int) -> Array:
    known = ~np.isnan(values)
    at = places[known]
    sums = np.bincount(at, weights=values[known], minlength=windows)[:windows]
    counts = np.bincount(at, minlength=windows)[:windows]
    return np.where(counts > 0, sums / np.maximum(1, counts), np.nan)


def _step_began(facts: Facts, step: int) -> float | None:
    table, attempts = facts.record.steps, facts.record.attempts
    if table is None or not attempts or not len(table):
        return None
    place = int(np.argmin(np.abs(table.index - step)))
    began_s = attempts[int(table.attempt[place])].started_unix_s
    return None if began_s is None else began_s + float(table.start_us[place]) / 1e6
