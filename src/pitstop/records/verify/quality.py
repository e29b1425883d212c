"""A metric of two ways to train, over several seeds each: is the second no worse than the first?"""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passes", "fails", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """A one-sided test that a candidate is not worse than a baseline by a margin or more."""

    metric: str
    higher_is_better: bool
    margin: float
    """In the metric's own unit; a candidate worse by less counts as equal."""
    margin_from: str
    """Where the margin comes from, such as ``--margin``."""
    paired: bool
    """Whether the runs of a seed share weights and data, so that their difference is tested."""
    base: tuple[float, ...]
    candidate: tuple[float, ...]
    gain: float
    """Mean of the candidate over that of the baseline; above 0 is better, whichever way it is."""
    low: float | None
    """With 95 % confidence the gain is at least this; None from a single run each."""
    high: float | None
    """With 95 % confidence the gain is at most this."""
    p_value: float | None
    """Probability of such a gain or a larger one if the candidate were worse by the margin."""
    alpha: float
    """The test passes where `p_value` is below this."""
    power: float | None
    """Estimated probability that this test passes a candidate that is equal; from the spread of
    these runs, so that it is as uncertain as they are few."""
    outcome: Outcome
    more_seeds: int | None
    """Estimated seeds on top of these until a decision, with a probability of 80 %; None where it
    is decided, or where no number that can be run would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoint:
    """A metric at one evaluation of one run."""

    step: int
    samples: int | None
    wall_s: float | None
    """Since the run's first step began; None for what was read from printed lines."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToQuality:
    """Both sides held at equal samples and at equal time. Medians over the seeds."""

    metric: str
    level: float
    """Quality to reach: the worst that the baseline's runs ended with, less the margin."""
    base_s: float | None
    """Until the baseline reached it; None where a run never did."""
    candidate_s: float | None
    base_samples: float | None
    candidate_samples: float | None
    speedup: float | None
    """Of the candidate, to the same quality."""
    equal_time_s: float | None
    """When the side that ends first ends."""
    base_then: float | None
    """Quality of the last evaluation by then."""
    candidate_then: float | None
