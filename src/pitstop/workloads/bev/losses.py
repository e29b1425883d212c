"""How far logits are from the ground truth, as a sum over samples and their number.

One camera, as the PON benchmark has it: cells that are seen count by cross-entropy, in which the
cells of a rare class have as weight the square root of how rare it is; cells that are not seen are
only pulled towards how frequent each class is. Six cameras: focal loss, summed over classes.
Every mean is over all cells, so every sample counts the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.config.sections import LossTerm
from pitstop.config.workloads.bev import MonoLoss, SurroundLoss
from pitstop.train.task import Loss
from pitstop.workloads.loss_terms import WeightedTerm, due_terms, sum_over_samples

Distance = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes logits and targets (B, K, h, w) and the mask (B, h, w); gives one number a sample, (B,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(WeightedTerm):
    """One term of the loss."""

    distance: Distance


def mono_terms(section: MonoLoss, frequencies: Sequence[float], device: torch.device) -> list[Term]:
    """Make the terms of one camera; `frequencies` are those of the classes.

    What they read lies on the device already: copying it there in every step would wait for it.
    """
    rates = torch.tensor(frequencies, device=device)
    distances: dict[str, Distance] = {
        "bce": partial(seen_entropy, rare=(1 / rates).sqrt()),
        "prior": partial(unseen_entropy, rates=rates),
    }
    return _terms({"bce": section.bce, "prior": section.prior}, distances)


def surround_terms(section: SurroundLoss) -> list[Term]:
    """Make the terms of six cameras."""
    return _terms(
        {"focal": section.focal}, {"focal": partial(focal_entropy, gamma=section.focal.gamma)}
    )


def judge(
    terms: Sequence[Term], logits: Tensor, targets: Tensor, mask: Tensor, *, step: int
) -> Loss:
    """Add up the terms that are due at a step."""
    due = due_terms(terms, step)
    # Logits of half precision would lose what rare classes add to a mean over all cells.
    logits, wanted, seen = logits.float(), targets.float(), mask.float()
    sums = {term.name: term.distance(logits, wanted, seen).sum() for term in due}
    return sum_over_samples(due, sums, len(logits))


def seen_entropy(logits: Tensor, targets: Tensor, mask: Tensor, *, rare: Tensor) -> Tensor:
    """Cross-entropy where the ground is seen; a class's own cells have the weight `rare`, (K,)."""
    weights = 1 + (rare.view(-1, 1, 1) - 1) * targets
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (weights * entropy * mask[:, None]).flatten(1).mean(dim=1)


def unseen_entropy(logits: Tensor, targets: Tensor, mask: Tensor, *, rates: Tensor) -> Tensor:
    """Cross-entropy against the frequencies of the classes, (K,), where nothing is seen."""
    del targets
    wanted = rates.view(-1, 1, 1).expand_as(logits)
    entropy = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (entropy * (1 - mask[:, None])).flatten(1).mean(dim=1)


def focal_entropy(logits: Tensor, targets: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """Cross-entropy in which cells that are right already count less; summed over classes."""
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    # What is missing to the right answer; a difference from 1 would lose it where it is small.
    missing = ((1 - 2 * targets) * logits).sigmoid()
    return (missing.pow(gamma) * entropy * mask[:, None]).mean(dim=(2, 3)).sum(dim=1)


def _terms(sections: dict[str, LossTerm], distances: dict[str, Distance]) -> list[Term]:
    return [
        Term(
            name=name,
            weight=section.weight,
            every_steps=section.every_steps,
            distance=distances[name],
        )
        for name, section in sections.items()
        if section.weight
    ]
