"""Times of all points of a grid from the few that were measured, with how sure that is.

The logarithm of a time is modelled as a sum: one part for the choice on every axis, a smaller one
for every pair of choices, and the noise of a trial (a Gaussian process on the grid). So every trial
says something of each of its choices, whatever the others were, and noise averages out over trials
of different points. How large parts and noise are is taken from the trials themselves.
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
"""Usual size of what a choice changes, of which the likeliest is taken."""
_PAIRS: Final = (0.2, 0.6)
"""Size of what a pair of choices changes beside that."""
_NOISES: Final = (0.003, 0.007, 0.015, 0.03, 0.06, 0.12)
_USUAL_NOISE: Final = 0.015
_NOISE_DOUBT: Final = 1.0
"""Spread of the logarithm of the noise before anything was measured twice."""
_NEIGHBOURS: Final = 0.5
"""How alike neighbours on an ordered axis are: 1 were the same, 0 strangers."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of some points: the logarithm of their time, and its standard error."""

    log: Numbers
    error: Numbers


class SurfaceModel:
    """Fitted to trials; estimates any points.

    `sizes` are the usual size of a part, that of a pair over it, and the noise of a trial.

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
        sizes = list(itertools.product(_PARTS, _PAIRS, _NOISES))
        same = self._same(self._points, self._points)
        kinds = np.stack([_covariance(same, part, pair) for part, pair, _ in sizes])
        noises = np.array([noise for _, _, noise in sizes])
        fit = _likeliest(kinds, noises, np.array(logs) - self._mean)
        self._root, self._weights = fit.root, fit.weights
        self.sizes = sizes[fit.at]

    def estimate(self, points: Sequence[Point]) -> Estimate:
        """Estimate points, measured or not."""
        wanted = np.array(points)
        across = _covariance(self._same(wanted, self._points), *self.sizes[:2])
        solved = np.linalg.solve(self._root, across.T)
        one = [np.ones((1, 1)) for _ in self._ordered]
        own = float(_covariance(one, *self.sizes[:2])[0, 0])
        error = np.sqrt(np.maximum(own - (solved**2).sum(axis=0), 0.0))
        return Estimate(log=self._mean + across @ self._weights, error=error)

    def difference(self, before: Point, after: Point) -> tuple[float, float]:
        """Give the logarithm of the time of one point over that of another, and its error."""
        both = np.array([before, after])
        across = _covariance(self._same(both, self._points), *self.sizes[:2])
        within = _covariance(self._same(both, both), *self.sizes[:2])
        solved = np.linalg.solve(self._root, across.T)
        left = within - solved.T @ solved
        log = float((across[0] - across[1]) @ self._weights)
        return log, math.sqrt(max(left[0, 0] + left[1, 1] - 2 * left[0, 1], 0.0))

    def _same(self, some: NDArray[np.int_], others: NDArray[np.int_]) -> list[Numbers]:
        """For each axis, how alike the choices of all pairs of points are."""
        found: list[Numbers] = []
        for axis, ordered in enumerate(self._ordered):
            apart = np.abs(some[:, axis, None] - others[None, :, axis]).astype(np.float64)
            found.append(_NEIGHBOURS**apart if ordered else (apart == 0).astype(np.float64))
        return found


def _covariance(same: Sequence[Numbers], part: float, pair: float) -> Numbers:
    """Add up the shared parts of points; each pair of axes once."""
    total = np.zeros_like(same[0])
    squares = np.zeros_like(same[0])
    for each in same:
        total += each
        squares += each**2
    pairs = (total**2 - squares) / 2
    return _LEVEL**2 + part**2 * total + (pair * part) ** 2 * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    at: int
    root: Numbers
    weights: Numbers


def _likeliest(kinds: Numbers, noises: Numbers, rest: Numbers) -> _Fit:
    """Find the sizes of parts and noise with which the trials are likeliest, all at once."""
    size = len(rest)
    roots = np.linalg.cholesky(kinds + noises[:, None, None] ** 2 * np.eye(size))
    halves = np.linalg.solve(roots, np.broadcast_to(rest[:, None], (len(noises), size, 1)))
    logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    doubts = np.log(noises / _USUAL_NOISE) / _NOISE_DOUBT
    likelihoods = -0.5 * (halves[..., 0] ** 2).sum(axis=1) - logs - doubts**2 / 2
    at = int(likelihoods.argmax())
    return _Fit(at=at, root=roots[at], weights=np.linalg.solve(roots[at].T, halves[at, :, 0]))
