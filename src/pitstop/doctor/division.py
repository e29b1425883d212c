"""How far stack samples tell into what the Python between two parts was divided.

Each sample says what the training thread was doing at one moment. So a share of few samples is
known as a proportion is that was drawn by chance, and Wilson's interval says how well. Samples are
also placed in the order of the step, which tells more; that is left out.

A step is divided by the samples there are when it is handed over. So the first steps are divided by
fewer than the record counts, and where that gave other shares, the difference is an error as well.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Final

from pitstop.records.run import Array
from pitstop.records.script import GapShares, HostLines

# Standard errors to either side: an interval that holds the truth about 19 times in 20.
_REACH: Final = 2.0

# Last steps that show how a gap was divided in the end, and how near to the record's shares.
_LAST_STEPS: Final = 5
_SAME_SHARE: Final = 0.02


def gaps_of(part: str, found: HostLines | None) -> tuple[GapShares, ...]:
    """Give the gaps that were divided among a part and others."""
    return tuple(gap for gap in (() if found is None else found.gaps) if part in gap.shares)


def division_error(gap: GapShares, part: str, parts_us: Mapping[str, Array]) -> float:
    """Give the standard error of a part's share of a gap.

    Two of it reach at least to the farther end of Wilson's interval.
    """
    share = min(1.0, max(0.0, gap.shares[part]))
    low, high = wilson_interval(share, gap.samples)
    by_chance = max(high - share, share - low) / _REACH
    return sqrt(by_chance**2 + _divided_early(share, part, gap, parts_us) ** 2)


def wilson_interval(share: float, samples: int) -> tuple[float, float]:
    """Give the proportions that a share of so many samples is compatible with."""
    if samples < 1:
        return 0.0, 1.0
    squared = _REACH**2
    middle = (share + squared / (2 * samples)) / (1 + squared / samples)
    spread = sqrt(share * (1 - share) / samples + squared / (4 * samples**2))
    half = _REACH * spread / (1 + squared / samples)
    return max(0.0, middle - half), min(1.0, middle + half)


def _divided_early(share: float, part: str, gap: GapShares, parts_us: Mapping[str, Array]) -> float:
    """By how much a part's share over all steps differs from the one that all samples give.

    0 where its parts hold other time besides the gap's, which the last steps show.
    """
    times = [parts_us[name] for name in gap.shares if name in parts_us]
    if len(times) < len(gap.shares):
        return 0.0
    whole, own = sum(times[1:], start=times[0]), parts_us[part]
    last = slice(-_LAST_STEPS, None)
    if not whole[last].sum() > 0 or abs(own[last].sum() / whole[last].sum() - share) > _SAME_SHARE:
        return 0.0
    return abs(float(own.sum() / whole.sum()) - share)
