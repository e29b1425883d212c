"""All ranks of a run as the rules see them: a few whole, of many the rest by summaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.ranks.grid import RankGrid, grid_of_blocks, grid_of_facts
from pitstop.doctor.ranks.slow import SlowGroup, find_slow
from pitstop.doctor.ranks.times import RankTimes, times_of, times_of_blocks
from pitstop.records.run import RankRecord, RunRecord
from pitstop.records.store import rank_files, read_run

MOST_WHOLE: Final = 16
"""Ranks whose every step is read. Of more, the steps of those that decide are read, and block
summaries of all: reading them all takes memory that grows with ranks times steps."""

# Ranks that wait for each other have steps of one length, up to this.
_SAME_LENGTH: Final = 0.98


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """One run's ranks side by side."""

    times: tuple[RankTimes, ...]
    """Of every rank, in the order of their numbers."""
    facts: tuple[Facts, ...]
    """Of the ranks whose steps were read: of all, where they are few."""
    grid: RankGrid

    @cached_property
    def slow(self) -> tuple[SlowGroup, ...]:
        """Those that the others wait for, the worst first."""
        return find_slow(self.times, self.grid)

    @property
    def judged(self) -> Facts:
        """The rank that the verdict rests on."""
        return self.of(judged_number(self.times)) or self.facts[0]

    def of(self, rank: int) -> Facts | None:
        """Facts of a rank, where its steps were read."""
        return next((facts for facts in self.facts if facts.summary.rank == rank), None)


def ranks_of(records: Sequence[RankRecord]) -> Ranks:
    """Lay ranks side by side; at least one has its steps."""
    facts = tuple(facts_of(record) for record in records if record.steps is not None)
    if len(facts) == len(records):
        grid, times = grid_of_facts(facts), tuple(map(times_of, facts))
    else:
        # All by their blocks, also those whose steps are known: like is compared with like.
        grid, times = grid_of_blocks(records), tuple(map(times_of_blocks, records))
    return Ranks(times=times, facts=facts, grid=grid)


def judged_number(times: Sequence[RankTimes]) -> int:
    """Choose the rank that the others wait for.

    Where all steps take equally long, because ranks wait for each other, it is the one with most
    work of its own; where that is equal, too, the first.
    """
    longest_us = max(one.step_us for one in times)
    slow = [one for one in times if one.step_us >= _SAME_LENGTH * longest_us]
    own = [one.whole_own_us for one in slow]
    most = int(np.argmax(own))
    return (slow[most] if own[0] < _SAME_LENGTH * own[most] else slow[0]).rank


def deciding_ranks(records: Sequence[RankRecord]) -> set[int]:
    """Choose the ranks whose steps a verdict needs, by the summaries of all.

    The first, for what it alone read; the one that is judged; those that the others wait for; and
    the one that waits least for the exchange of gradients.
    """
    times = [times_of_blocks(record) for record in records]
    chosen = {times[0].rank, judged_number(times)}
    chosen |= {group.slowest.rank for group in find_slow(times, grid_of_blocks(records))}
    exposed = [one for one in times if one.exposed_us is not None and one.step_us]
    if exposed:
        chosen.add(min(exposed, key=lambda one: (one.exposed_us or 0.0) / one.step_us).rank)
    return chosen


def read_ranks(source: str | Path, *more: Path) -> RunRecord:
    """Read a run to judge it: whole where its ranks are few, else what the verdict needs.

    Args:
        source: Its folder, or the file of a rank.
        more: Its folders on other hosts.

    Raises:
        RecordError: It cannot be read.
    """
    files = [file for folder in (Path(source), *more) for file in rank_files(folder)]
    steps_of = None if len(files) <= MOST_WHOLE else deciding_ranks
    return read_run(source, *more, steps_of=steps_of)
