"""When two ways to train reach the same quality: in samples, and on the wall clock."""

from collections.abc import Callable, Sequence
from statistics import median

from pitstop.records.verify.quality import NonInferiority, QualityPoint, TimeToQuality
from pitstop.records.verify.trial import TrialResult

Curve = tuple[QualityPoint, ...]


def time_to_quality(
    test: NonInferiority, base: Sequence[TrialResult], candidate: Sequence[TrialResult]
) -> TimeToQuality | None:
    """Compare when each side reached what every baseline run reached in the end.

    None where a run has no evaluation, or nobody knows when it was.
    """
    first, second = (
        [run.metrics.get(test.metric, ()) for run in side] for side in (base, candidate)
    )
    ends_s = [[curve[-1].wall_s if curve else None for curve in side] for side in (first, second)]
    first_s, second_s = (_all_known(side) for side in ends_s)
    if not first_s or not second_s:
        return None
    # When all runs of the side that ends first have ended.
    end_s = min(max(first_s), max(second_s))
    sign = 1.0 if test.higher_is_better else -1.0
    level = sign * min(sign * curve[-1].value for curve in first) - sign * test.margin

    def reached(
        curves: Sequence[Curve], of: Callable[[QualityPoint], float | None]
    ) -> float | None:
        return _median([_first(curve, sign, level, of) for curve in curves])

    base_s, candidate_s = (reached(side, lambda point: point.wall_s) for side in (first, second))
    return TimeToQuality(
        metric=test.metric,
        level=level,
        base_s=base_s,
        candidate_s=candidate_s,
        base_samples=reached(first, lambda point: point.samples),
        candidate_samples=reached(second, lambda point: point.samples),
        speedup=base_s / candidate_s if base_s and candidate_s else None,
        equal_time_s=end_s,
        base_then=_median([_by(curve, end_s) for curve in first]),
        candidate_then=_median([_by(curve, end_s) for curve in second]),
    )


def _first(
    curve: Curve, sign: float, level: float, of: Callable[[QualityPoint], float | None]
) -> float | None:
    return next((of(point) for point in curve if sign * point.value >= sign * level), None)


def _by(curve: Curve, end_s: float) -> float | None:
    values = [point.value for point in curve if (point.wall_s or 0.0) <= end_s]
    return values[-1] if values else None


def _median(values: Sequence[float | None]) -> float | None:
    """The median; None where a run has none, since leaving it out would flatter its side."""
    known = _all_known(values)
    return median(known) if known else None


def _all_known(values: Sequence[float | None]) -> list[float]:
    """Give the values, or none at all where one is missing."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
