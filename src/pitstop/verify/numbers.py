"""Losses and gradients of two runs held side by side: equal to the bit, or how far apart.

A distance alone says little: a loss of 0.31 against 0.30 is rounding in one training and harm in
another. Two baseline runs that differ in their seed give the measure.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.records.verify.trial import TrialResult
from pitstop.records.verify.verification import ExactComparison, NumericalComparison

# Of the distance between two seeds. Chosen on twelve seeds of a small task, where bf16 came to 0.17
# at most and planted harms to 0.42 at least, and tested on twelve others (docs/commands/verify.md).
MOST_RATIO: Final = 0.25

Gradients = Mapping[str, np.ndarray]


def compare_exactly(base: TrialResult, candidate: TrialResult) -> ExactComparison:
    """Compare every loss and metric that both recorded; a step that one lacks is a difference."""
    first, second = _values(base), _values(candidate)
    names = list(dict.fromkeys((*first, *second)))
    different = [name for name in names if first.get(name) != second.get(name)]
    shown = None
    if different:
        name = different[0]
        shown = f"{name}: {first.get(name)!r} and {second.get(name)!r}"
    return ExactComparison(
        values=len(names), equal=len(names) - len(different), first_difference=shown
    )


def _values(result: TrialResult) -> dict[str, float | None]:
    losses: dict[str, float | None] = {
        f"loss of step {step}": loss for step, loss in result.losses.items()
    }
    metrics = {
        f"{name} at step {point.step}": point.value
        for name, points in result.metrics.items()
        for point in points
    }
    return {**losses, **metrics}


def compare_numerically(
    base: TrialResult,
    candidate: TrialResult,
    other_seed: TrialResult,
    gradients: tuple[Sequence[Gradients], Sequence[Gradients], Sequence[Gradients]],
) -> NumericalComparison:
    """Hold a candidate against its baseline, by the distance of another seed of the baseline.

    Args:
        base: A baseline run.
        candidate: The candidate with the same seed.
        other_seed: The baseline with another seed.
        gradients: Of the three runs, step by step.
    """
    ratios = [
        ratio
        for one, changed, other in zip(*gradients, strict=False)
        if (ratio := _ratio(_distance(one, changed), _distance(one, other))) is not None
    ]
    scale = None
    if gradients[0] and gradients[1]:
        norms = [_norm(side[0]) for side in gradients[:2]]
        scale = norms[1] / norms[0] if norms[0] else None
    return NumericalComparison(
        loss_ratio=_ratio(
            loss_distance(base.losses, candidate.losses),
            loss_distance(base.losses, other_seed.losses),
        ),
        gradient_ratios=tuple(ratios),
        gradient_scale=scale,
        most=MOST_RATIO,
    )


def read_gradients(folder: Path, steps: int) -> list[Gradients]:
    """Read what a trial kept; numbers alone, nothing that is read can run code."""
    found: list[Gradients] = []
    for step in range(steps):
        with np.load(folder / f"gradients-{step}.npz", allow_pickle=False) as arrays:
            found.append({name: arrays[name] for name in arrays.files})
    return found


def _ratio(distance: float | None, measure: float | None) -> float | None:
    if distance is None or measure is None:
        return None
    if not measure:
        return 0.0 if not distance else float("inf")
    return distance / measure


def _distance(one: Gradients, other: Gradients) -> float | None:
    """Give the Euclidean distance over the first's norm; None where that is zero.

    Infinite where shapes differ or numbers are not finite: those are gradients of another model.
    """
    if {k: v.shape for k, v in one.items()} != {k: v.shape for k, v in other.items()}:
        return float("inf")
    norm = _norm(one)
    if not norm:
        return None
    squares = sum(float(np.sum((one[k].astype(float) - other[k]) ** 2)) for k in one)
    return float(np.sqrt(squares)) / norm if np.isfinite(squares) else float("inf")


def _norm(gradients: Gradients) -> float:
    return float(np.sqrt(sum(float(np.sum(v.astype(float) ** 2)) for v in gradients.values())))


def loss_distance(
    one: Mapping[int, float | None], other: Mapping[int, float | None]
) -> float | None:
    """Give the mean gap over the steps that both have; None where there is none.

    Infinite where a loss was not finite.
    """
    pairs = [(one[step], other[step]) for step in one if step in other]
    if not pairs:
        return None
    gaps = [
        float("inf") if first is None or second is None else abs(first - second)
        for first, second in pairs
    ]
    return float(np.mean(gaps))
