"""Student's t distribution, and how sure a one-sided t-test is to decide.

Written out here because nothing that pitstop depends on has them. The cumulative distribution goes
through the regularised incomplete beta function, computed by its continued fraction.
"""

import math
from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_TINY: Final = 1e-300
_MOST_TERMS: Final = 10_000
_CONVERGED: Final = 1e-15
# Nodes of the integral over a smooth function: more do not change its sixth digit.
_NODES: Final = 96


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0 and x from 0 to 1."""
    if not 0.0 < x < 1.0:
        return float(x >= 1.0)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The fraction converges fast on one side of the mean only; symmetry gives the other side.
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for part in (even, odd):
            d = 1.0 / _nonzero(1.0 + part * d)
            c = _nonzero(1.0 + part / c)
            value *= c * d
        if abs(c * d - 1.0) < _CONVERGED:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_cdf(t: float, freedom: float) -> float:
    """Probability that Student's t with this many degrees of freedom is at most `t`."""
    if math.isinf(t):
        return float(t > 0)
    tail = 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return tail if t < 0 else 1.0 - tail


@lru_cache(1024)
def t_quantile(share: float, freedom: float) -> float:
    """The t that a share of the distribution does not exceed, for shares strictly in 0 to 1."""
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1.0 - share, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def welch_freedom(parts: tuple[float, float], sizes: tuple[int, int]) -> float:
    """Degrees of freedom of a difference of two means, whose squared errors are `parts`."""
    total = parts[0] + parts[1]
    if not total:
        return float(sizes[0] + sizes[1] - 2)
    # By shares: the squares of tiny parts would vanish.
    shares = (part / total for part in parts)
    return 1.0 / sum(share**2 / (size - 1) for share, size in zip(shares, sizes, strict=True))


def rank_sum_p(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> float:
    """Give the chance of values that lie so far below earlier ones where both are alike.

    The rank-sum test of Wilcoxon, Mann and Whitney, by the normal distribution with its correction
    for ties and for steps of one half.
    """
    sizes = len(before), len(after)
    above = float(np.sum(after[:, None] > before) + np.sum(after[:, None] == before) / 2)
    together = sum(sizes)
    _, tied = np.unique(np.concatenate([before, after]), return_counts=True)
    ties = float(np.sum(tied**3 - tied)) / (together * (together - 1))
    spread = math.sqrt(sizes[0] * sizes[1] / 12 * (together + 1 - ties))
    if not spread:  # all are equal
        return 1.0
    return _normal_cdf((above - sizes[0] * sizes[1] / 2 + 0.5) / spread)


def power_of_t_test(shift: float, freedom: int, alpha: float) -> float:
    """Probability that a one-sided t-test at level `alpha` finds a true shift.

    Args:
        shift: True mean over its true standard error; above 0 where the test should find it.
        freedom: Degrees of freedom of the spread's estimate.
        alpha: Level of the test.
    """
    critical = t_quantile(1.0 - alpha, freedom)
    # t = (z + shift) / r where r, the spread's estimate over its truth, is a root of a chi-squared
    # over its freedom; given r the test rejects where z > critical r - shift.
    reach = 7.5 / math.sqrt(2 * freedom)
    low, high = max(0.0, 1 - reach), 1 + reach
    nodes, weights = _nodes()
    ratio = (low + high) / 2 + (high - low) / 2 * nodes
    log_density = (freedom - 1) * np.log(ratio) - freedom * ratio**2 / 2
    density = weights * np.exp(log_density - log_density.max())
    rejects = np.array([_normal_cdf(shift - critical * one) for one in ratio])
    return float(np.sum(rejects * density) / np.sum(density))


@cache
def _nodes() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(_NODES)


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
