"""Who is waited for: a rank or a whole host, and in which steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pitstop.doctor.ranks.grid import RankGrid, column_medians
from pitstop.doctor.ranks.times import RankTimes, own_excess_us
from pitstop.doctor.sampled import Rows
from pitstop.doctor.thresholds import WORTH_A_WARNING
from pitstop.records.run import Array

# A host is slow, and not one of its ranks, where this many of them exceed the others by half as
# much as its slowest does.
_OF_THE_HOST: Final = 0.75
_AS_SLOW: Final = 0.5

_MOST_NAMED: Final = 3

# Fewer windows do not tell a beginning from a whim.
_FEWEST_WINDOWS: Final = 4
# A shorter period is a moment, of which the stalls tell.
_FEWEST_STEPS: Final = 64
# How many of the windows between the first slow one and the last must be slow.
_WITHOUT_GAPS: Final = 0.8
# What begins or ends within this share of the run began or ended with it.
_AT_AN_END: Final = 0.05

Pattern = Literal["always", "from", "until", "between", "at times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """In which steps somebody was slow."""

    pattern: Pattern
    first_step: int
    last_step: int
    from_unix_s: float | None
    to_unix_s: float | None
    windows: int
    """Slow ones."""
    of_windows: int
    share: float
    """Share of a step that the others waited then: the median of the slow windows."""

    @property
    def is_a_period(self) -> bool:
        """Whether it began or ended within the run, and lasted for more than a moment."""
        steps = self.last_step - self.first_step + 1
        return self.pattern in ("from", "until", "between") and steps >= _FEWEST_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """A rank that the others wait for, or all of one host."""

    ranks: tuple[RankTimes, ...]
    """The slowest first."""
    is_host: bool
    """Whether it is the host that is slow, and not one rank on it."""
    excess_us: float
    """Own work of the slowest in a step, beyond that of the median of the other ranks."""
    part: str
    """Where it exceeds that rank most."""
    part_excess_us: float
    when: When

    @property
    def slowest(self) -> RankTimes:
        """The rank with most work of its own."""
        return self.ranks[0]

    @property
    def share(self) -> float:
        """Share of the wall clock that the others wait for it."""
        slowest = self.slowest
        if not slowest.total_us:
            return 0.0
        return min(1.0, self.excess_us * slowest.steps / slowest.total_us)

    @property
    def share_now(self) -> float:
        """Share that the others wait as the run goes on: more where it became slow on the way."""
        is_going_on = self.when.pattern == "from" and self.when.is_a_period
        return max(self.share, self.when.share) if is_going_on else self.share

    @property
    def is_worth_naming(self) -> bool:
        """Whether it costs a tenth of the run, or half of that and a tenth while it lasts."""
        lasts = self.when.is_a_period and self.when.share >= WORTH_A_WARNING
        return self.share >= (WORTH_A_WARNING / 2 if lasts else WORTH_A_WARNING)


def find_slow(times: Sequence[RankTimes], grid: RankGrid) -> tuple[SlowGroup, ...]:
    """Find those that hold the others up by a tenth of a step or more, the worst first."""
    left = [one for one in times if one.steps]
    found: list[SlowGroup] = []
    while len(left) >= 2 and len(found) < _MOST_NAMED:
        group = slowest_of(left, grid)
        if group is None or not group.is_worth_naming:
            break
        found.append(group)
        named = {one.rank for one in group.ranks}
        left = [one for one in left if one.rank not in named]
    return tuple(found)


def slowest_of(times: Sequence[RankTimes], grid: RankGrid) -> SlowGroup | None:
    """Find the rank with most work of its own, or its host where that is slow as a whole."""
    settled = [one for one in times if one.steps]
    if len(settled) < 2:
        return None
    slowest = max(settled, key=lambda one: one.whole_own_us)
    group = _host_of(slowest, settled) or [slowest]
    others = [one for one in settled if one not in group]
    excess = own_excess_us(slowest, others)
    part = max(excess, key=excess.__getitem__, default=None)
    if part is None:
        return None
    middle = float(np.median([other.whole_own_us for other in others]))
    return SlowGroup(
        ranks=tuple(sorted(group, key=lambda one: -one.whole_own_us)),
        is_host=len(group) > 1,
        excess_us=max(0.0, slowest.whole_own_us - middle),
        part=part,
        part_excess_us=excess[part],
        when=when_slow(grid, [one.rank for one in group]),
    )


def _host_of(slowest: RankTimes, times: Sequence[RankTimes]) -> list[RankTimes] | None:
    """Give all ranks of a rank's host, if they are slow together and the other ranks are more."""
    if slowest.host is None:
        return None
    mates = [one for one in times if one.host == slowest.host]
    others = [one.whole_own_us for one in times if one.host != slowest.host]
    if len(mates) < 2 or len(others) < len(mates):
        return None
    middle = float(np.median(others))
    as_slow = _AS_SLOW * (slowest.whole_own_us - middle)
    slow = sum(one.whole_own_us - middle >= as_slow for one in mates)
    return mates if slow >= _OF_THE_HOST * len(mates) and as_slow > 0 else None


def when_slow(grid: RankGrid, ranks: Sequence[int]) -> When:
    """Find the steps in which some ranks exceeded the others."""
    excess = _excess_of(grid, set(ranks))[grid.settled :]
    known = np.flatnonzero(~np.isnan(excess))
    clear = excess[known][excess[known] >= WORTH_A_WARNING / 2]
    level = float(np.median(clear)) if len(clear) else np.inf
    slow = np.flatnonzero(np.nan_to_num(excess, nan=-np.inf) >= _AS_SLOW * level)
    pattern: Pattern = "always"
    first, last = 0, max(0, len(excess) - 1)
    if len(known) >= _FEWEST_WINDOWS and len(slow):
        pattern = _pattern(slow, len(excess))
        if pattern != "always":
            first, last = int(slow[0]), int(slow[-1])
    first, last = first + grid.settled, last + grid.settled
    return When(
        pattern=pattern,
        first_step=grid.first_step[first],
        last_step=grid.last_of(last),
        from_unix_s=grid.unix_s[first],
        to_unix_s=grid.end_unix_s(last),
        windows=len(slow),
        of_windows=len(known),
        share=float(np.median(excess[slow])) if len(slow) else 0.0,
    )


def _excess_of(grid: RankGrid, ranks: set[int]) -> Array:
    """Own work of some ranks beyond that of the median of the others, by window."""
    inside = np.array([rank in ranks for rank in grid.ranks])
    mine, others = column_medians(grid.own_us[inside]), column_medians(grid.own_us[~inside])
    return (mine - others) / grid.step_us


def _pattern(slow: Rows, windows: int) -> Pattern:
    first, last = int(slow[0]), int(slow[-1])
    if len(slow) < _WITHOUT_GAPS * (last - first + 1):
        return "at times"
    give = _AT_AN_END * windows
    from_start, to_end = first <= give, last >= windows - 1 - give
    if from_start and to_end:
        return "always"
    if to_end:
        return "from"
    return "until" if from_start else "between"
