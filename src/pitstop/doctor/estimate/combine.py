"""What several fixes give together: shares of disjoint parts add, speed-ups never multiply."""

import math
from collections.abc import Sequence

from pitstop.records.verdict import Bound, CumulativeGain, Finding


def combined_bound(findings: Sequence[Finding]) -> Bound | None:
    """Bound the gain of fixing everything.

    Bounds of one part overlap, so the largest counts. Those of one pool share its time, so they
    give no more than all of it: what the host wastes while the device works costs nothing. What
    remains can speed up once only, whatever goes.
    """
    headroom = 0.0
    errors: dict[str, float] = {}
    pools: dict[str, dict[str, float]] = {}
    sizes: dict[str, float] = {}
    for finding in findings:
        bound = finding.bound
        if bound is None:
            continue
        parts = pools.setdefault(bound.pool, {})
        parts[bound.part] = max(parts.get(bound.part, 0.0), bound.share)
        sizes[bound.pool] = max(sizes.get(bound.pool, 0.0), bound.pool_share)
        headroom = max(headroom, bound.cpu_headroom_share)
        errors[bound.part] = max(errors.get(bound.part, 0.0), bound.error)
    if not pools:
        return None
    shares = [min(sizes[pool], sum(parts.values())) for pool, parts in pools.items()]
    names = dict.fromkeys(name for parts in pools.values() for name in parts)
    share = min(1.0, sum(shares))
    return Bound(
        part=" + ".join(names),
        share=share,
        error=math.hypot(*errors.values()),
        cpu_headroom_share=min(headroom, 1 - share),
    )


def cumulative_gains(
    findings: Sequence[Finding], *, whole_run_hours: float | None
) -> tuple[CumulativeGain, ...]:
    """Bound what the first n fixes give together, for every n."""
    bounded = [finding for finding in findings if finding.bound is not None]
    gains = []
    for count, finding in enumerate(bounded, 1):
        bound = combined_bound(bounded[:count])
        assert bound is not None, "every finding here has a bound"
        saved = None if whole_run_hours is None else whole_run_hours * bound.saved_share
        gains.append(CumulativeGain(code=finding.code, bound=bound, hours_saved=saved))
    return tuple(gains)
