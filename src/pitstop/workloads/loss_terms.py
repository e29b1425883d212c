"""Terms of a loss that have a weight and a cadence: which are due, and what they add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.train.task import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTerm:
    """What the terms of every workload have."""

    name: str
    weight: float
    every_steps: int


TermT = TypeVar("TermT", bound=WeightedTerm)


def refuse_empty_steps(terms: Sequence[WeightedTerm]) -> None:
    """Make sure that some term is computed at every step.

    Raises:
        ConfigError: Where there is none; names the first term.
    """
    if all(term.every_steps > 1 for term in terms):
        rare = terms[0]
        raise ConfigError(
            f"loss.{rare.name}.every_steps is {rare.every_steps}, which leaves steps without any "
            "loss: no other term is computed at every step; set it to 1"
        )


def due_terms(terms: Sequence[TermT], step: int) -> list[TermT]:
    """Give the terms that are computed at a step."""
    due = [term for term in terms if step % term.every_steps == 0]
    assert due, "a step without any term"
    return due


def sum_over_samples(terms: Sequence[WeightedTerm], sums: Mapping[str, Tensor], count: int) -> Loss:
    """Add up terms whose values are sums over samples, so that losses of micro-batches add up."""
    total = torch.stack([term.weight * sums[term.name] for term in terms]).sum()
    means = {name: value.detach() / count for name, value in sums.items()}
    return Loss(total=total, count=count, terms=means)
