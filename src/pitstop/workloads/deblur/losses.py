"""How far restored frames are from sharp ones, as a sum over samples and their number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.config.workloads.deblur import DeblurLoss, PerceptualTerm
from pitstop.errors import ConfigError
from pitstop.train.task import Loss
from pitstop.workloads.deblur.model.features import Colours, Features, Normalisation, load_features
from pitstop.workloads.loss_terms import (
    WeightedTerm,
    due_terms,
    refuse_empty_steps,
    sum_over_samples,
)

Distance = Callable[[Tensor, Tensor], Tensor]
"""Takes restored and sharp frames (B, ...) and gives one number for each sample, (B,)."""

_PARTS: Final = {"charbonnier": "pixel_loss", "perceptual": "perceptual_loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(WeightedTerm):
    """One term of the loss."""

    distance: Distance


class PixelDistance(nn.Module):
    """Charbonnier's distance as a part that can be timed."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """(B, ...) -> (B,)."""
        return charbonnier(restored, sharp, eps=self.eps)


class PerceptualDistance(nn.Module):
    """Mean absolute difference of features, added up over layers.

    Frames are images of their own here. The network is frozen and goes to where the frames are;
    sharp frames keep nothing for backward.

    Args:
        features: The network with its weights.
        normalisation: Colours that the weights expect.
        precision: Type that the network runs in; None for that of the frames.
    """

    def __init__(
        self,
        features: Features,
        *,
        normalisation: Normalisation,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.colours = Colours.of(normalisation)
        self.precision = precision

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """(B, D, 3, H, W) -> (B,)."""
        self.to(restored.device)
        count = len(restored)
        found = self._features(restored)
        with torch.no_grad():
            wanted = self._features(sharp)
        apart = [
            (found[layer].float() - wanted[layer].float())
            .abs()
            .unflatten(0, (count, -1))
            .flatten(1)
            for layer in found
        ]
        return torch.stack([layer.mean(dim=1) for layer in apart]).sum(dim=0)

    def _features(self, clips: Tensor) -> dict[str, Tensor]:
        images = self.colours(clips.flatten(0, 1))
        device, precision = clips.device.type, self.precision
        with torch.autocast(device, dtype=precision, enabled=precision is not None):
            return self.features(images)


def build_terms(section: DeblurLoss, *, precision: str = "fp32") -> tuple[Term, ...]:
    """Make the terms that have a weight.

    Args:
        section: The settings.
        precision: Of training; under bf16 the feature network runs in it too. Under fp16 it does
            not, for its activations are not bounded.

    Raises:
        ConfigError: Where a term cannot be had, or steps would be left without any.
    """
    terms = []
    pixels, perceptual = section.charbonnier, section.perceptual
    if pixels.weight > 0:
        distance = PixelDistance(pixels.eps)
        terms.append(
            Term(
                name="charbonnier",
                weight=pixels.weight,
                every_steps=pixels.every_steps,
                distance=distance,
            )
        )
    if perceptual.weight > 0:
        terms.append(
            Term(
                name="perceptual",
                weight=perceptual.weight,
                every_steps=perceptual.every_steps,
                distance=_perceptual(perceptual, precision),
            )
        )
    refuse_empty_steps(terms)
    return tuple(terms)


def loss_parts(terms: Sequence[Term]) -> Mapping[str, nn.Module]:
    """Name the terms that are modules, for timing."""
    return {
        _PARTS[term.name]: term.distance for term in terms if isinstance(term.distance, nn.Module)
    }


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
    due = due_terms(terms, step)
    sums = {term.name: term.distance(restored, sharp).sum() for term in due}
    return sum_over_samples(due, sums, len(restored))


def _perceptual(section: PerceptualTerm, precision: str) -> PerceptualDistance:
    if section.weights is None:
        raise ConfigError(
            f"loss.perceptual.weight is {section.weight:g}, but loss.perceptual.weights is not "
            f"set: name a file of {section.network}'s weights, by torchvision's names, or leave "
            "the term out with loss.perceptual=null"
        )
    if not section.weights.is_file():
        raise ConfigError(
            f"loss.perceptual.weights names {section.weights}, which is not there; save the "
            f"state dictionary of torchvision's {section.network} to it, or leave the term out "
            "with loss.perceptual=null"
        )
    features = Features(section.network, section.layers)
    load_features(features, section.weights, normalisation=section.normalisation)
    return PerceptualDistance(
        features,
        normalisation=section.normalisation,
        precision=torch.bfloat16 if precision == "bf16" else None,
    )
