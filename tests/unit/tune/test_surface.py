"""The model of a grid against the same written as plain loops."""

import itertools
import math
import random

import numpy as np
import pytest

from pitstop.tune.surface import Point, SurfaceModel

ORDERED = (True, False, False)
POINTS = tuple(itertools.product(range(4), range(2), range(3)))


def shared(some: Point, other: Point, part: float, pair: float) -> float:
    """What the logarithms of two points have in common, one axis and one pair at a time."""
    alike = [
        0.5 ** abs(one - two) if ordered else float(one == two)
        for one, two, ordered in zip(some, other, ORDERED, strict=True)
    ]
    total = 1.0 + sum(part**2 * each for each in alike)
    for first, second in itertools.combinations(alike, 2):
        total += (part * pair) ** 2 * first * second
    return total


def plain(
    points: list[Point], logs: list[float], wanted: Point, sizes: tuple[float, float, float]
) -> tuple[float, float]:
    """Condition a Gaussian on the trials by an inverse in full."""
    part, pair, noise = sizes
    among = np.array([[shared(a, b, part, pair) for b in points] for a in points])
    among += noise**2 * np.eye(len(points))
    across = np.array([shared(wanted, each, part, pair) for each in points])
    inverse = np.linalg.inv(among)
    mean = float(np.mean(logs))
    log = mean + float(across @ inverse @ (np.array(logs) - mean))
    return log, math.sqrt(max(shared(wanted, wanted, part, pair) - across @ inverse @ across, 0))


def averaged(
    model: SurfaceModel, points: list[Point], logs: list[float], wanted: Point
) -> tuple[float, float]:
    """Mean and deviation of the plain formula over the sizes that the model believes in."""
    found = []
    for fit in model.fits:
        sizes = (fit.sizes.part, fit.sizes.pair, fit.sizes.noise)
        found.append((fit.share, *plain(points, logs, wanted, sizes)))
    mean = sum(share * log for share, log, _ in found)
    square = sum(share * (error**2 + log**2) for share, log, error in found)
    return mean, math.sqrt(max(square - mean**2, 0))


@pytest.mark.parametrize("seed", range(5))
def test_estimates_are_those_of_the_plain_formula(seed: int) -> None:
    dice = random.Random(seed)
    points = [dice.choice(POINTS) for _ in range(12)]
    logs = [0.2 * point[1] - 0.1 * point[0] + dice.gauss(0, 0.02) for point in points]
    model = SurfaceModel(points, logs, ORDERED)
    found = model.estimate(POINTS)
    assert sum(fit.share for fit in model.fits) == pytest.approx(1)
    for at, point in enumerate(POINTS):
        log, error = averaged(model, points, logs, point)
        assert found.log[at] == pytest.approx(log, abs=1e-6)
        assert found.error[at] == pytest.approx(error, abs=1e-5)


def test_a_difference_is_surer_than_both_of_its_times() -> None:
    dice = random.Random(0)
    points = [dice.choice(POINTS) for _ in range(14)]
    logs = [0.3 * point[1] + dice.gauss(0, 0.01) for point in points]
    model = SurfaceModel(points, logs, ORDERED)
    slow, fast = (2, 1, 1), (2, 0, 1)
    both = model.estimate([slow, fast])
    log, error = model.difference(slow, fast)
    assert log == pytest.approx(float(both.log[0] - both.log[1]))
    assert error <= float(both.error[0] + both.error[1])
    assert log == pytest.approx(0.3, abs=4 * error + 0.02)


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_noise_is_learnt_from_the_trials(noise: float) -> None:
    dice = random.Random(1)
    points = [dice.choice(POINTS) for _ in range(40)]
    logs = [0.3 * point[1] + 0.1 * point[2] + dice.gauss(0, noise) for point in points]
    assert noise / 2 < SurfaceModel(points, logs, ORDERED).noise < 2.5 * noise


def test_a_choice_that_was_never_measured_alone_is_known_from_other_trials() -> None:
    """Every trial says something of each of its choices, whatever the others were."""
    points = [point for point in POINTS if point != (3, 1, 2)]
    logs = [0.3 * point[0] - 0.2 * point[1] + 0.1 * point[2] for point in points]
    found = SurfaceModel(points, logs, ORDERED).estimate([(3, 1, 2)])
    assert float(found.log[0]) == pytest.approx(0.9, abs=0.03)
