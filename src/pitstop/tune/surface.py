"""Times of all points of a grid from the few that were measured, with how sure that is.

The logarithm of a time is modelled as a sum: one part for the choice on every axis, a smaller one
for every pair of choices, and the noise of a trial (a Gaussian process on the grid). So every trial
says something of each of its choices, whatever the others were, and noise averages out over trials
of different points. How large parts and noise are is taken from the trials themselves, as far as
they tell.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Point = tuple[int, ...]
"""The place on each axis."""

_LEVEL: Final = 1.0
"""Spread of the time of the whole surface around the mean of the trials, as a logarithm."""
_PARTS: Final = (0.01, 0.03, 0.1, 0.3, 0.8)
"""Usual size of what a choice changes, as far as it is looked at."""
_PAIRS: Final = (0.2, 0.6)
"""Size of what a pair of choices changes beside that."""
_NOISES: Final = (0.003, 0.007, 0.015, 0.03, 0.06, 0.12)
_USUAL_NOISE: Final = 0.015
_NOISE_DOUBT: Final = 1.0
"""Spread of the logarithm of the noise before anything was measured twice."""
_MOST_FITS: Final = 8
"""Sizes that are averaged over, the likeliest."""
_RARE: Final = 0.02
"""Sizes less likely than this are left out."""
_NEIGHBOURS: Final = 0.5
"""How alike neighbours on an ordered axis are: 1 were the same, 0 strangers."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of some points: the logarithm of their time, and its standard error."""

    log: Numbers
    error: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large things are on a surface."""

    part: float
    """What a choice usually changes."""
    pair: float
    """What a pair of choices changes beside that, over a part."""
    noise: float
    """Of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The trials, as they are understood with certain sizes."""

    sizes: Sizes
    share: float
    """How likely these sizes are among those that are kept."""
    root: Numbers
    """Of the covariance of the trials."""
    weights: Numbers


class SurfaceModel:
    """Fitted to trials; estimates any points, as an average over sizes that are likely.

    A dozen trials do not say how large noise is; to believe in one size is to be too sure.

    Args:
        points: One a trial; a point may come often.
        logs: Of the times.
        ordered: For each axis, whether its neighbours are alike.
    """

    def __init__(
        self, points: Sequence[Point], logs: Sequence[float], ordered: Sequence[bool]
    ) -> None:
        self._points = np.array(points)
        self._ordered = tuple(ordered)
        self._mean = float(np.mean(logs))
        alike = self._alike(self._points, self._points)
        self.fits = _likely(alike, np.array(logs) - self._mean)
        self._shares = np.array([fit.share for fit in self.fits])

    @property
    def noise(self) -> float:
        """What the logarithm of a time usually scatters by from trial to trial."""
        squares = np.array([fit.sizes.noise**2 for fit in self.fits])
        return math.sqrt(float(self._shares @ squares))

    def estimate(self, points: Sequence[Point]) -> Estimate:
        """Estimate points, measured or not."""
        across = self._alike(np.array(points), self._points)
        own = self._alike(self._points[:1], self._points[:1])
        logs: list[Numbers] = []
        squares: list[Numbers] = []
        for fit in self.fits:
            shared = _covariance(across, fit.sizes)
            solved = np.linalg.solve(fit.root, shared.T)
            logs.append(shared @ fit.weights)
            squares.append(_covariance(own, fit.sizes)[0, 0] - (solved**2).sum(axis=0))
        log, error = self._averaged(np.array(logs), np.array(squares))
        return Estimate(log=self._mean + log, error=error)

    def difference(self, before: Point, after: Point) -> tuple[float, float]:
        """Give the logarithm of the time of one point over that of another, and its error."""
        both = np.array([before, after])
        across, within = self._alike(both, self._points), self._alike(both, both)
        logs: list[float] = []
        squares: list[float] = []
        for fit in self.fits:
            shared = _covariance(across, fit.sizes)
            solved = np.linalg.solve(fit.root, shared.T)
            left = _covariance(within, fit.sizes) - solved.T @ solved
            logs.append(float((shared[0] - shared[1]) @ fit.weights))
            squares.append(float(left[0, 0] + left[1, 1] - 2 * left[0, 1]))
        log, error = self._averaged(np.array(logs), np.array(squares))
        return float(log), float(error)

    def _averaged(self, logs: Numbers, squares: Numbers) -> tuple[Numbers, Numbers]:
        """Average over sizes; where they disagree, that is an error too."""
        log = self._shares @ logs
        spread = np.maximum(squares, 0.0) + (logs - log) ** 2
        return log, np.sqrt(self._shares @ spread)

    def _alike(self, some: NDArray[np.int_], others: NDArray[np.int_]) -> tuple[Numbers, Numbers]:
        """On how many axes all pairs of points are alike, and on how many pairs of axes."""
        total = np.zeros((len(some), len(others)))
        squares = np.zeros_like(total)
        for axis, ordered in enumerate(self._ordered):
            apart = np.abs(some[:, axis, None] - others[None, :, axis]).astype(np.float64)
            same = _NEIGHBOURS**apart if ordered else (apart == 0).astype(np.float64)
            total += same
            squares += same**2
        return total, (total**2 - squares) / 2


def _covariance(alike: tuple[Numbers, Numbers], sizes: Sizes) -> Numbers:
    """Add up the shared parts of points; each pair of axes once."""
    total, pairs = alike
    return _LEVEL**2 + sizes.part**2 * total + (sizes.pair * sizes.part) ** 2 * pairs


def _likely(alike: tuple[Numbers, Numbers], rest: Numbers) -> tuple[Fit, ...]:
    """Try all sizes at once; keep those with which the trials are likely."""
    tried = [
        Sizes(part=part, pair=pair, noise=noise)
        for part, pair, noise in itertools.product(_PARTS, _PAIRS, _NOISES)
    ]
    noises = np.array([sizes.noise for sizes in tried])
    size = len(rest)
    kinds = np.stack([_covariance(alike, sizes) for sizes in tried])
    roots = np.linalg.cholesky(kinds + noises[:, None, None] ** 2 * np.eye(size))
    halves = np.linalg.solve(roots, np.broadcast_to(rest[:, None], (len(noises), size, 1)))
    logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    doubts = np.log(noises / _USUAL_NOISE) / _NOISE_DOUBT
    likelihoods = -0.5 * (halves[..., 0] ** 2).sum(axis=1) - logs - doubts**2 / 2
    shares = np.exp(likelihoods - likelihoods.max())
    shares /= shares.sum()
    likeliest: list[int] = np.argsort(-shares)[:_MOST_FITS].tolist()
    kept = [at for at in likeliest if shares[at] > _RARE] or likeliest[:1]
    known = float(shares[kept].sum())
    return tuple(
        Fit(
            sizes=tried[at],
            share=float(shares[at]) / known,
            root=roots[at],
            weights=np.linalg.solve(roots[at].T, halves[at, :, 0]),
        )
        for at in kept
    )
