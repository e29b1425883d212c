"""How far restored frames are from sharp ones, as a sum over samples and their number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pitstop.config.deblur import DeblurLoss
from pitstop.errors import ConfigError
from pitstop.train.task import Loss

Distance = Callable[[Tensor, Tensor], Tensor]
"""Takes restored and sharp frames (B, ...) and gives one number for each sample, (B,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the loss."""

    name: str
    weight: float
    every_steps: int
    distance: Distance


def build_terms(section: DeblurLoss) -> tuple[Term, ...]:
    """Make the terms that have a weight.

    Raises:
        ConfigError: Where a term cannot be had, or steps would be left without any.
    """
    if section.perceptual.weight > 0:
        raise ConfigError(
            "loss.perceptual is not built yet: there is no way to give it weights of VGG16; set "
            "loss.perceptual.weight to 0"
        )
    pixels = section.charbonnier
    if pixels.every_steps > 1:
        raise ConfigError(
            f"loss.charbonnier.every_steps is {pixels.every_steps}, which leaves steps without "
            "any loss: no other term is computed at every step; set it to 1"
        )
    distance = partial(charbonnier, eps=pixels.eps)
    return (Term(name="charbonnier", weight=pixels.weight, every_steps=1, distance=distance),)


def charbonnier(restored: Tensor, sharp: Tensor, *, eps: float) -> Tensor:
    """Mean of sqrt(d^2 + eps) for each sample.

    In fp32 at least: the gradient at d = 0 divides by the root of `eps`, and fp16 has no 1e-9.
    """
    precision = torch.promote_types(restored.dtype, torch.float32)
    error = restored.to(precision) - sharp.to(precision)
    return (error.square() + eps).sqrt().flatten(1).mean(dim=1)


def judge(terms: Sequence[Term], restored: Tensor, sharp: Tensor, *, step: int) -> Loss:
    """Add up the terms that are due at a step.

    Every sample counts the same, whatever its size, so losses of micro-batches add up.
    """
    due = [term for term in terms if step % term.every_steps == 0]
    assert due, "a step without any term"
    distances = {term.name: term.distance(restored, sharp).sum() for term in due}
    total = torch.stack([term.weight * distances[term.name] for term in due]).sum()
    count = len(restored)
    means = {name: distance.detach() / count for name, distance in distances.items()}
    return Loss(total=total, count=count, terms=means)
