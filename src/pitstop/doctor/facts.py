"""The facts that rules judge: a rank's steps after warm-up, as shares of the wall clock."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pitstop.records.run import Array, RankRecord, StepTable
from pitstop.records.summary import RunSummary, summarise

_WARM_UP_SHARE = 0.1
_MOST_WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """One rank, settled: what the rules look at."""

    steps: int
    """Steps after warm-up."""
    warm_up_steps: int
    wall_us: Array
    """Wall clock of each step after warm-up."""
    parts_us: Mapping[str, Array]
    """Host time of each top-level part in each step; zero where it was not opened."""
    summary: RunSummary
    """The whole run, warm-up included."""

    @property
    def unaccounted_us(self) -> Array:
        """Wall clock of each step that no part saw."""
        return self.wall_us - sum(self.parts_us.values(), start=np.zeros(self.steps))

    def share(self, part: str) -> float | None:
        """Share of the wall clock that a part took; None when it was not measured."""
        times = self.parts_us.get(part)
        if times is None or not self.wall_us.sum():
            return None
        return float(times.sum() / self.wall_us.sum())

    def shares(self) -> dict[str, float]:
        """Share of every part and of what is unaccounted; they add up to one."""
        total = float(self.wall_us.sum())
        if not total:
            return {}
        shares = {name: float(times.sum()) / total for name, times in self.parts_us.items()}
        return {**shares, "unaccounted": float(self.unaccounted_us.sum()) / total}

    def quartiles_ms(self, part: str) -> tuple[float, float, float]:
        """First quartile, median and third quartile of a part's time in a step."""
        low, middle, high = np.percentile(self.parts_us[part], (25, 50, 75)) / 1e3
        return float(low), float(middle), float(high)


def facts_of(rank: RankRecord) -> Facts:
    """Leave out warm-up and lay the top-level parts side by side.

    Steps whose rows kept no spans (the byte budget ran out) are left out as well: their parts are
    not known.
    """
    assert rank.steps is not None, "rules need single steps; read the run with its steps"
    table = rank.steps
    top = [number for number, path in enumerate(table.paths) if len(path) == 1]
    known = _rows_with_parts(table, top)
    warm_up = min(_MOST_WARM_UP_STEPS, int(len(known) * _WARM_UP_SHARE))
    rows = known[warm_up:]
    host = np.nan_to_num(table.host_us[rows], nan=0.0)
    return Facts(
        steps=len(rows),
        warm_up_steps=warm_up,
        wall_us=table.wall_us[rows],
        parts_us={table.paths[number][0]: host[:, number] for number in top},
        summary=summarise(rank),
    )


def _rows_with_parts(table: StepTable, top: list[int]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    if not top:
        return np.arange(len(table))
    return np.flatnonzero(~np.isnan(table.host_us[:, top]).all(axis=1))
