"""How a time was distributed over many steps: exact totals, quantiles within a stated error.

Distributions merge without looking at the single values again, so the summary of a million steps
is the sum of its blocks' summaries.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# The writer's buckets grow by 4 %; the middle of a bucket is within 2 % of all its members.
BUCKET_GROWTH = 1.04
QUANTILE_ERROR = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Counted microseconds: count, sum, least and most are exact, quantiles within 2 %."""

    count: int
    total_us: int
    least_us: int
    most_us: int
    buckets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values_us: Iterable[int]) -> "Distribution":
        """Summarise values directly."""
        values = list(values_us)
        buckets: dict[int, int] = {}
        for value in values:
            bucket = round(math.log(value + 1) / math.log(BUCKET_GROWTH))
            buckets[bucket] = buckets.get(bucket, 0) + 1
        return cls(
            count=len(values),
            total_us=sum(values),
            least_us=min(values, default=0),
            most_us=max(values, default=0),
            buckets=buckets,
        )

    @property
    def mean_us(self) -> float | None:
        """The exact mean, or None when nothing was counted."""
        return self.total_us / self.count if self.count else None

    def quantile_us(self, share: float) -> float | None:
        """The value below which `share` of all values lie, within 2 %; None when empty."""
        if not self.count:
            return None
        wanted = share * (self.count - 1)
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen > wanted:
                middle = BUCKET_GROWTH**bucket - 1
                return min(max(middle, self.least_us), self.most_us)
        return float(self.most_us)


EMPTY = Distribution(count=0, total_us=0, least_us=0, most_us=0)


def merge(parts: Iterable[Distribution]) -> Distribution:
    """Join distributions of disjoint sets of values."""
    kept = [part for part in parts if part.count]
    if not kept:
        return EMPTY
    buckets: dict[int, int] = {}
    for part in kept:
        for bucket, count in part.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
    return Distribution(
        count=sum(part.count for part in kept),
        total_us=sum(part.total_us for part in kept),
        least_us=min(part.least_us for part in kept),
        most_us=max(part.most_us for part in kept),
        buckets=buckets,
    )
