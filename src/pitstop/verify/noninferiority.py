"""Is a candidate no worse than the baseline by more than a margin? A one-sided t-test.

The usual test asks whether two things differ, and a change passes it by having too few seeds. This
one asks for evidence that the candidate is not worse by the margin: without it nothing passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final

from pitstop.records.verify.quality import NonInferiority, Outcome
from pitstop.verify.distributions import power_of_t_test, t_cdf, t_quantile, welch_freedom

ALPHA: Final = 0.05
_WANTED_POWER: Final = 0.8
# Beyond it the advice "run more seeds" is none: the margin is too small for the noise.
_MOST_SEEDS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the runs."""

    metric: str
    higher_is_better: bool
    margin: float
    margin_from: str
    paired: bool = True


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A mean gain with the standard error of one run, which seeds divide."""

    gain: float
    error_of_one: float
    """Standard error of the gain times the root of the number of seeds."""
    freedom: float
    seeds: int

    @property
    def error(self) -> float:
        return self.error_of_one / math.sqrt(self.seeds)


def judge_noninferiority(
    question: Question, base: Sequence[float], candidate: Sequence[float]
) -> NonInferiority:
    """Test runs of a baseline and of a candidate.

    Args:
        question: Metric and margin.
        base: The metric of each baseline run.
        candidate: Of each candidate run; in the order of the same seeds where paired.
    """
    sign = 1.0 if question.higher_is_better else -1.0
    first, second = ([sign * value for value in values] for values in (base, candidate))
    gain = fmean(second) - fmean(first)
    estimate = _paired(first, second) if question.paired else _unpaired(first, second)
    low = high = p_value = power = None
    outcome: Outcome = "undecided"
    more = None
    if estimate is not None:
        margin = question.margin
        low, high = _interval(estimate)
        p_value = _p_value(estimate, margin)
        outcome = _outcome(p_value)
        power = _power(estimate, shift=margin, seeds=estimate.seeds)
        if outcome == "undecided":
            more = _more_seeds(estimate, margin)
    return NonInferiority(
        metric=question.metric,
        higher_is_better=question.higher_is_better,
        margin=question.margin,
        margin_from=question.margin_from,
        paired=question.paired,
        base=tuple(base),
        candidate=tuple(candidate),
        gain=gain,
        low=low,
        high=high,
        p_value=p_value,
        alpha=ALPHA,
        power=power,
        outcome=outcome,
        more_seeds=more,
    )


def _paired(first: Sequence[float], second: Sequence[float]) -> _Estimate | None:
    gains = [after - before for before, after in zip(first, second, strict=True)]
    if len(gains) < 2:
        return None
    return _Estimate(fmean(gains), math.sqrt(variance(gains)), len(gains) - 1, len(gains))


def _unpaired(first: Sequence[float], second: Sequence[float]) -> _Estimate | None:
    """Welch's form, for sides whose spreads may differ."""
    if min(len(first), len(second)) < 2:
        return None
    parts = (variance(first) / len(first), variance(second) / len(second))
    freedom = welch_freedom(parts, (len(first), len(second)))
    seeds = min(len(first), len(second))
    error_of_one = math.sqrt(sum(parts) * seeds)
    return _Estimate(fmean(second) - fmean(first), error_of_one, freedom, seeds)


def _interval(estimate: _Estimate) -> tuple[float, float]:
    reach = t_quantile(1 - ALPHA, estimate.freedom) * estimate.error
    return estimate.gain - reach, estimate.gain + reach


def _p_value(estimate: _Estimate, margin: float) -> float:
    if not estimate.error:  # runs that agree to the bit leave nothing to chance
        return float(estimate.gain <= -margin)
    return t_cdf(-(estimate.gain + margin) / estimate.error, estimate.freedom)


def _outcome(p_value: float) -> Outcome:
    if p_value < ALPHA:
        return "passes"
    return "fails" if p_value > 1 - ALPHA else "undecided"


def _power(estimate: _Estimate, *, shift: float, seeds: int) -> float:
    """Estimate how often so many seeds find a shift from the margin's border."""
    if not estimate.error_of_one:
        return 1.0
    freedom = max(1, round(estimate.freedom * (seeds - 1) / max(1, estimate.seeds - 1)))
    return power_of_t_test(shift * math.sqrt(seeds) / estimate.error_of_one, freedom, ALPHA)


def _more_seeds(estimate: _Estimate, margin: float) -> int | None:
    """Estimate the seeds until the gain seen so far would be decided, on whichever side."""
    shift = abs(estimate.gain + margin)
    if _power(estimate, shift=shift, seeds=_MOST_SEEDS) < _WANTED_POWER:
        return None
    low, high = estimate.seeds, _MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        enough = _power(estimate, shift=shift, seeds=middle) >= _WANTED_POWER
        low, high = (low, middle) if enough else (middle, high)
    return high - estimate.seeds
