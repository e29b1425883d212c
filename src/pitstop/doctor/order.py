"""Which finding comes first: by the size of its bound, where that exceeds noise.

Two runs of one script give shares that differ a little. Where the intervals of two bounds overlap,
the larger one may be the smaller one next time; so findings that are about equal stand in a fixed
order, that of the catalogue, and say that they are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pitstop.doctor.rules.catalogue import CATALOGUE, ENTRIES
from pitstop.records.verdict import Finding, Outcome

# What makes every further step useless.
_IN_VAIN: Final = ("NAN001",)
# What decides nothing, however long it was: it came once.
_NEVER_DECIDES: Final = ("STALL001",)
# A specific finding comes before the general one that it explains at least half of.
_EXPLAINS: Final = 0.5

# By how much a share differs between two runs of one program even where steps are all alike.
_BETWEEN_RUNS: Final = 0.05

_PLACE: Final = {entry.code: place for place, entry in enumerate(CATALOGUE)}


def share_of(finding: Finding) -> float:
    """Share of the wall clock that a finding is about; 0 where it gains no time."""
    return finding.bound.share if finding.bound is not None else 0.0


def half_width(finding: Finding) -> float:
    """Half of the interval of a finding's bound: two standard errors, and what runs differ by."""
    if finding.bound is None:
        return 0.0
    return float(np.hypot(2 * finding.bound.error, _BETWEEN_RUNS * finding.bound.share))


def is_about_equal(one: Finding, other: Finding) -> bool:
    """Whether the intervals of two bounds overlap; never where one has none."""
    if one.bound is None or other.bound is None:
        return False
    distance = abs(one.bound.share - other.bound.share)
    return distance <= half_width(one) + half_width(other)


def primary_of(found: Sequence[Finding]) -> Finding | None:
    """Choose the finding that decides: the largest bound, unless another one explains it."""
    serious = [one for one in found if one.severity != "info" and one.code not in _NEVER_DECIDES]
    bounded = _by_size([finding for finding in serious if finding.bound is not None])
    largest = bounded[0] if bounded else None
    fatal = max(filter(is_fatal, serious), key=lambda f: f.code in _IN_VAIN, default=None)
    if fatal is not None and (largest is None or _goes_before(fatal, largest)):
        return fatal
    if largest is None:
        # What was not measured is the last thing to blame.
        return max(serious, key=lambda f: f.code != "TIME001", default=None)
    for finding in bounded:
        explains = share_of(finding) >= _EXPLAINS * share_of(largest)
        if _is_same_time(finding, largest) and explains and ENTRIES[finding.code].is_specific:
            return finding
    return largest


def ordered(found: Sequence[Finding], primary: Finding | None) -> tuple[Finding, ...]:
    """Put the primary finding first, then the fatal ones, then by the size of their bounds."""
    rest = [finding for finding in found if finding is not primary]
    fatal = [finding for finding in rest if is_fatal(finding)]
    bounded = [finding for finding in rest if finding.bound is not None]
    others = [finding for finding in rest if finding.bound is None and not is_fatal(finding)]
    first = [] if primary is None else [primary]
    findings = (*first, *fatal, *_by_size(bounded), *others)
    return tuple(_with_equals(finding, findings) for finding in findings)


def equals_of(finding: Finding, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Give the codes of findings on other parts with a similar bound."""
    if finding.severity == "info":
        return ()
    return tuple(
        other.code
        for other in findings
        if other.code != finding.code
        and other.severity != "info"
        and is_about_equal(finding, other)
        and not _is_same_time(finding, other)
    )


def _by_size(bounded: Sequence[Finding]) -> list[Finding]:
    """Sort by share; of those about equal to the largest that is left, by the catalogue."""
    left = sorted(bounded, key=lambda f: (-share_of(f), _PLACE[f.code]))
    found: list[Finding] = []
    while left:
        equal = [finding for finding in left if is_about_equal(finding, left[0])]
        found += sorted(equal, key=lambda f: (f.severity == "info", _PLACE[f.code]))
        left = [finding for finding in left if finding not in equal]
    return found


def _with_equals(finding: Finding, findings: Sequence[Finding]) -> Finding:
    codes = equals_of(finding, findings)
    if not codes:
        return finding
    text = f"about equal to {' and '.join(codes)}: the bounds differ by less than their intervals"
    return replace(finding, evidence=(*finding.evidence, text))


def _is_same_time(one: Finding, other: Finding) -> bool:
    """Whether two findings are about the same part, so that fixing one fixes the other."""
    return one.bound is not None and other.bound is not None and one.bound.part == other.bound.part


def outcome_of(primary: Finding | None, *, enough: bool) -> Outcome:
    """Sum a run up by its primary finding; where there is none, by whether enough was seen."""
    if primary is None:
        return "healthy" if enough else "not enough evidence"
    # What was not measured may hide anything: that is no verdict on what was.
    return "not enough evidence" if primary.code == "TIME001" else "bottleneck"


def is_fatal(finding: Finding) -> bool:
    """Whether a finding is critical though fixing it gains no time: the run itself is lost."""
    return finding.severity == "critical" and finding.bound is None


def _goes_before(fatal: Finding, bounded: Finding) -> bool:
    """Steps that train nothing need not be fast; else what is critical goes before what is not."""
    return fatal.code in _IN_VAIN or bounded.severity != "critical"
