"""Changes stay in a table of gains where its turns say so beyond their noise."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pitstop.tune.evidence import Evidence

TURNS = 3
Rule = Callable[[Sequence[int], npt.NDArray[np.float64]], list[int]]
"""Gives those of some changes that are left out, for the times of a table, turn by turn."""


def by_evidence() -> Rule:
    evidence = Evidence()

    def left_out(changes: Sequence[int], times: npt.NDArray[np.float64]) -> list[int]:
        for at, change in enumerate(changes):
            evidence.add((change, 1), list(times[:, at] / times[:, at + 1]))
        asked = [(change, 1) for change in changes]
        return [change for change, _ in evidence.unsure(asked, list(times[:, 0] / times[:, -1]))]

    return left_out


def faster_in_every_turn() -> Rule:
    return lambda changes, times: [
        change for at, change in enumerate(changes) if not (times[:, at] > times[:, at + 1]).all()
    ]


def kept(rule: Rule, gains: Sequence[float], noise: float, dice: np.random.Generator) -> list[int]:
    """Measure tables until nothing more is left out of them, as the tuner does."""
    changes = list(range(len(gains)))
    while changes:
        logarithms = -np.cumsum([0.0, *(np.log(gains[change]) for change in changes)])
        times = np.exp(logarithms + noise * dice.standard_normal((TURNS, len(changes) + 1)))
        left_out = rule(changes, times)
        if not left_out:
            break
        changes = [change for change in changes if change not in left_out]
    return changes


def studies(make: Callable[[], Rule], gains: Sequence[float], noise: float) -> list[list[int]]:
    dice = np.random.default_rng(7)
    return [kept(make(), gains, noise, dice) for _ in range(400)]


def test_where_nothing_can_be_gained_hardly_anything_is_kept() -> None:
    for noise in (0.02, 0.2):
        found = studies(by_evidence, [1.0, 1.0, 1.0], noise)
        assert np.mean([bool(changes) for changes in found]) < 0.08


def test_more_of_a_gain_is_kept_than_where_every_turn_must_be_faster() -> None:
    gains = [1.5, 1.2, 1.1]
    for noise in (0.15, 0.25):
        shares = [
            np.mean([np.log([gains[one] for one in changes]).sum() for changes in found])
            for make in (by_evidence, faster_in_every_turn)
            for found in [studies(make, gains, noise)]
        ]
        assert shares[0] > 1.15 * shares[1]


def test_without_noise_what_is_faster_is_kept_and_nothing_else() -> None:
    dice = np.random.default_rng(0)
    assert kept(by_evidence(), [1.1, 1.0, 0.9, 1.2], 0.0, dice) == [0, 3]


def test_what_could_not_be_run_once_is_left_out() -> None:
    evidence = Evidence()
    evidence.add((0, 1), [2.0, 2.1, 1.9])
    evidence.add((1, 2), [1.5, 0.0, 1.5])
    assert evidence.unsure([(0, 1), (1, 2)], [3.0, 3.0, 3.0]) == [(1, 2)]


def test_where_all_together_are_not_faster_in_every_turn_the_least_sure_goes() -> None:
    evidence = Evidence()
    evidence.add((0, 1), [1.30, 1.31, 1.29])
    evidence.add((1, 1), [1.10, 1.11, 1.09])
    assert evidence.unsure([(0, 1), (1, 1)], [1.4, 0.9, 1.4]) == [(1, 1)]
    assert evidence.unsure([(0, 1), (1, 1)], [1.4, 1.4, 1.4]) == []


def test_what_earlier_tables_said_counts() -> None:
    evidence = Evidence()
    evidence.add((0, 1), [1.5, 1.4, 1.6])
    evidence.add((1, 1), [1.0, 0.9, 1.1])
    assert evidence.unsure([(0, 1), (1, 1)], [1.5, 1.3, 1.7]) == [(1, 1)]
    evidence.add((0, 1), [1.2, 0.97, 1.6])  # a noisy second table alone would leave it out
    assert evidence.unsure([(0, 1)], [1.2, 1.01, 1.6]) == []
