"""Who it is, and that modalities agree on it.

All terms have static shapes: what is missing is masked, so nothing is read from the device. They
compare the samples of a batch with each other, and are means over those that can be compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.config.workloads.reid import IdentityTerm, ReidLoss, SdmTerm, TripletTerm
from pitstop.train.task import Loss
from pitstop.workloads.loss_terms import WeightedTerm, due_terms, refuse_empty_steps
from pitstop.workloads.reid.data.batch import ReidBatch
from pitstop.workloads.reid.model.clip import ReidOutput

ByEpoch = Sequence[tuple[int, float]]
Judge = Callable[[ReidOutput, ReidBatch, int], Tensor]
"""Takes an output, its batch and the epoch; gives the mean of a term as a scalar."""
Distance = Callable[[Tensor, Tensor], Tensor]
"""Takes logarithms of shares and wanted shares, (..., N, N), and judges each row: (..., N)."""

_RGB: Final = 0
_GUIDE_TEMPERATURES: Final = (0.15, 0.5)
_GUIDE_MOST: Final = 20.0
# Far below every cosine over a temperature, and finite: minus infinity in a row that is masked
# throughout makes its gradient NaN, even where the row is left out afterwards.
_NEVER: Final = -1e4
_KL_EPS: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(WeightedTerm):
    """One term of the loss."""

    by_epoch: ByEpoch
    judge: Judge

    def weight_at(self, epoch: int) -> float:
        """Give the weight in an epoch."""
        return self.weight * at_epoch(self.by_epoch, epoch)


def at_epoch(steps: ByEpoch, epoch: int) -> float:
    """Give the value of the latest entry that has begun; 1 before the first."""
    return next((value for begin, value in reversed(steps) if begin <= epoch), 1.0)


def build_terms(section: ReidLoss) -> tuple[Term, ...]:
    """Make the terms that have a weight.

    Raises:
        ConfigError: Where steps would be left without any.
    """
    known: tuple[tuple[str, IdentityTerm | SdmTerm | TripletTerm, Judge], ...] = (
        ("id", section.id, _identity(section.id)),
        ("sdm", section.sdm, _matching(section.sdm)),
        ("triplet", section.triplet, _triplets(section.triplet)),
    )
    terms = tuple(
        Term(
            name=name,
            weight=term.weight,
            by_epoch=term.weight_by_epoch if isinstance(term, SdmTerm) else (),
            every_steps=term.every_steps,
            judge=judge,
        )
        for name, term, judge in known
        if term.weight > 0
    )
    refuse_empty_steps(terms)
    return terms


def judge(
    terms: Sequence[Term], output: ReidOutput, batch: ReidBatch, *, step: int, epoch: int
) -> Loss:
    """Add up the terms that are due, as a sum over the samples of the batch.

    A term of weight 0 in this epoch is computed all the same: its value belongs into the log.
    """
    due = due_terms(terms, step)
    means = {term.name: term.judge(output, batch, epoch) for term in due}
    weighted = [term.weight_at(epoch) * means[term.name] for term in due]
    count = len(output.logits)
    return Loss(
        total=torch.stack(weighted).sum() * count,
        count=count,
        terms={name: mean.detach() for name, mean in means.items()},
    )


def identity_loss(logits: Tensor, persons: Tensor, *, smoothing: float) -> Tensor:
    """Mean cross-entropy, a share of the target spread over all people."""
    return functional.cross_entropy(logits, persons, label_smoothing=smoothing)


def guide_matching(cosines: Tensor, same: Tensor, counts: Tensor, *, temperature: float) -> Tensor:
    """Cross-entropy between similarities and who is who, both ways: the guide's definition.

    Args:
        cosines: (..., N, N), of each sample of one modality with each of another.
        same: bool, the same: whether both show one person.
        counts: bool, the same: whether both samples have their modality.
        temperature: Kept between 0.15 and 0.5.

    Returns:
        (...), the mean over rows and columns that have a pair; 0 where none has.
    """
    low, high = _GUIDE_TEMPERATURES
    scores = (cosines / min(max(temperature, low), high)).clamp(-_GUIDE_MOST, _GUIDE_MOST)
    return _both_ways(_cross_entropy, scores, same, counts) / 2


def irra_matching(cosines: Tensor, same: Tensor, counts: Tensor, *, temperature: float) -> Tensor:
    """Kullback-Leibler distance of similarities from who is who, both ways: IRRA's definition.

    Arguments as in `guide_matching`; the two ways are added and the temperature is taken as it is.
    """
    return _both_ways(_divergence, cosines / temperature, same, counts)


def triplet_loss(features: Tensor, persons: Tensor, *, margin: float) -> Tensor:
    """Mean over samples of margin + furthest of the same person - nearest of another, from 0 on.

    Samples without another of their person, or without a stranger, are left out; 0 where all are.
    """
    # By differences: the expanded square loses the digits of small distances.
    apart = (features.unsqueeze(0) - features.unsqueeze(1)).square().sum(-1)
    distances = (apart + 1e-12).sqrt()
    same = persons.unsqueeze(0) == persons.unsqueeze(1)
    other = same & ~torch.eye(len(persons), dtype=torch.bool, device=persons.device)
    furthest = distances.masked_fill(~other, -1.0).amax(dim=1)
    nearest = distances.masked_fill(same, float("inf")).amin(dim=1)
    counts = other.any(dim=1) & ~same.all(dim=1)
    hinge = (margin + furthest - torch.where(counts, nearest, 0.0)).clamp(min=0)
    return _masked_mean(hinge, counts)


def _identity(section: IdentityTerm) -> Judge:
    return lambda output, batch, _: identity_loss(
        output.logits, batch.persons, smoothing=section.label_smoothing
    )


def _matching(section: SdmTerm) -> Judge:
    match = guide_matching if section.kind == "guide" else irra_matching

    def judge_matching(output: ReidOutput, batch: ReidBatch, epoch: int) -> Tensor:
        features = functional.normalize(output.alone.float(), dim=-1)
        others = features[_RGB + 1 :]
        cosines = others @ features[_RGB].transpose(0, 1)
        present = batch.present.transpose(0, 1)
        counts = present[_RGB + 1 :].unsqueeze(-1) & present[_RGB]
        same = (batch.persons.unsqueeze(1) == batch.persons).expand_as(counts)
        temperature = section.temperature * at_epoch(section.temperature_by_epoch, epoch)
        return match(cosines, same, counts, temperature=temperature).mean()

    return judge_matching


def _triplets(section: TripletTerm) -> Judge:
    return lambda output, batch, _: triplet_loss(
        output.together.float(), batch.persons, margin=section.margin
    )


def _cross_entropy(log_shares: Tensor, wanted: Tensor) -> Tensor:
    return -(wanted * log_shares).sum(dim=-1)


def _divergence(log_shares: Tensor, wanted: Tensor) -> Tensor:
    return (log_shares.exp() * (log_shares - (wanted + _KL_EPS).log())).sum(dim=-1)


def _both_ways(distance: Distance, scores: Tensor, same: Tensor, counts: Tensor) -> Tensor:
    turned = (tensor.transpose(-1, -2) for tensor in (scores, same, counts))
    return _mean_over_pairs(distance, scores, same, counts) + _mean_over_pairs(distance, *turned)


def _mean_over_pairs(distance: Distance, scores: Tensor, same: Tensor, counts: Tensor) -> Tensor:
    """Judge each row by its distance, over the columns that count; mean of rows with a pair."""
    log_shares = scores.masked_fill(~counts, _NEVER).log_softmax(dim=-1)
    pairs = (same & counts).to(scores.dtype)
    number = pairs.sum(dim=-1, keepdim=True)
    wanted = pairs / number.clamp(min=1)
    return _masked_mean(distance(log_shares, wanted), number.squeeze(-1) > 0)


def _masked_mean(values: Tensor, counts: Tensor) -> Tensor:
    number = counts.sum(dim=-1)
    return torch.where(counts, values, 0.0).sum(dim=-1) / number.clamp(min=1)
