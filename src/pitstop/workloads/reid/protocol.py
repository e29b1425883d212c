"""Evaluation over the 32 query tasks of ORBench, every image and caption encoded once.

A task is a list of queries, each of one to four modalities of a person; the gallery is RGB. The
first modality of a task's name enumerates its queries, the others are partners of the same person.
Nearly all images and captions take part in several tasks, so each is turned into a token once, and
queries are fused from the tokens:

    items --encode--> tokens (N, d) --fuse, by task and in chunks--> features --rank--> scores

Scores are averaged over the tasks of one, two, three and four modalities; the mean of the four
average mAPs is the challenge score.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import MODALITIES, RGB
from pitstop.workloads.reid.data.queries import QueryTask
from pitstop.workloads.reid.ranking import (
    DEFAULT_BUDGET_BYTES,
    Labels,
    Ranked,
    Summary,
    normalised,
    rank,
    rank_similarities,
    summary,
)
from pitstop.workloads.reid.reranking import Reranking, rerank

Fuse = Callable[[Tensor, Tensor], Tensor]
"""Takes tokens (n, 5, d), zeros where there is none, and bool (n, 5) of those that are there, both
in the order of `MODALITIES`; gives features (n, d)."""

SIZES: Final = ("one", "two", "three", "four")
SCORES: Final = ("mAP", "mINP", "r1", "r5", "r10")
SCORE: Final = "score"
METRICS: Final = (SCORE, *(f"{score}_{size}" for size in SIZES for score in SCORES))
"""Names of `ProtocolScores.named`; higher is better in all."""

_CHUNK: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The RGB images that are ranked."""

    items: NDArray[np.int64]
    persons: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """How well one task was answered."""

    name: str
    modalities: int
    """How many a query has, from 1 to 4."""
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolScores:
    """How well all tasks were answered; those whose people are not in the gallery are left out."""

    tasks: tuple[TaskScores, ...]

    def by_size(self) -> dict[str, dict[str, float]]:
        """Average over the tasks of each size; sizes without a task are not in it."""
        averages = {}
        for number, size in enumerate(SIZES, start=1):
            rows = [task.summary.named() for task in self.tasks if task.modalities == number]
            if rows:
                averages[size] = {
                    score: math.fsum(row[score] for row in rows) / len(rows) for score in SCORES
                }
        return averages

    @property
    def score(self) -> float | None:
        """The challenge score; None where a size has no task."""
        sizes = self.by_size()
        if len(sizes) < len(SIZES):
            return None
        return math.fsum(scores["mAP"] for scores in sizes.values()) / len(SIZES)

    def named(self) -> dict[str, float]:
        """Give the score and the averages under the names of `METRICS`; NaN where there is none."""
        sizes = self.by_size()
        named = {SCORE: math.nan if self.score is None else self.score}
        for size in SIZES:
            for score in SCORES:
                named[f"{score}_{size}"] = sizes.get(size, {}).get(score, math.nan)
        return named

    def by_task(self) -> dict[str, float]:
        """Give every score of every task, such as mAP/CP+NIR."""
        return {
            f"{score}/{task.name}": value
            for task in self.tasks
            for score, value in task.summary.named().items()
        }


@torch.inference_mode()
def evaluate_protocol(
    tokens: Tensor,
    gallery: Gallery,
    tasks: Sequence[QueryTask],
    fuse: Fuse,
    *,
    reranking: Reranking | None = None,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> ProtocolScores:
    """Answer all tasks from tokens that are there already.

    Args:
        tokens: (N, d), one for each item, on any device.
        gallery: Which items are ranked.
        tasks: Which items are asked with.
        fuse: The model's way from tokens to a feature.
        reranking: How to re-rank; None for cosines.
        budget_bytes: Most memory that ranking takes beside features. Re-ranking keeps a number for
            every query of a task and image of the gallery beside it.

    Raises:
        DataError: Where gallery or queries are empty, features are not finite, or no query of any
            task has an image of its person in the gallery.
    """
    if not len(gallery.items):
        raise DataError("there is nothing to rank: the gallery has no images")
    if not any(len(task.persons) for task in tasks):
        raise DataError("there is nothing to ask: no task has a query")
    who = Labels(persons=gallery.persons)
    images = features_of(tokens, gallery.items[:, None], (RGB,), fuse)
    scores = []
    for task in tasks:
        if not np.isin(task.persons, who.persons).any():
            continue
        asked = Labels(persons=task.persons)
        features = features_of(tokens, task.items, task.modalities, fuse)
        ranked = ranked_by((features, asked), (images, who), reranking, budget_bytes=budget_bytes)
        scores.append(
            TaskScores(name=task.name, modalities=len(task.modalities), summary=summary(ranked))
        )
    if not scores:
        raise DataError(
            f"none of the {sum(len(task.persons) for task in tasks):,} queries has an image of its "
            "person in the gallery; check that queries and gallery name people the same way"
        )
    return ProtocolScores(tasks=tuple(scores))


def ranked_by(
    query: tuple[Tensor, Labels],
    gallery: tuple[Tensor, Labels],
    reranking: Reranking | None,
    *,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> Ranked:
    """Rank the gallery by cosines, or re-rank it where that is asked for."""
    features, asked = query
    images, who = gallery
    if reranking is None:
        return rank(features, images, asked, who, budget_bytes=budget_bytes)
    return rank_similarities(-rerank(features, images, reranking), asked, who)


def features_of(
    tokens: Tensor, items: NDArray[np.int64], modalities: Sequence[str], fuse: Fuse
) -> Tensor:
    """Fuse the tokens of items (n, modalities) in chunks, and bring features to length one."""
    places = [MODALITIES.index(modality) for modality in modalities]
    chunks = []
    for start in range(0, len(items), _CHUNK):
        some = torch.from_numpy(items[start : start + _CHUNK]).to(tokens.device)
        fused = tokens.new_zeros(len(some), len(MODALITIES), tokens.shape[1])
        present = torch.zeros(len(some), len(MODALITIES), dtype=torch.bool, device=tokens.device)
        fused[:, places] = tokens[some]
        present[:, places] = True
        chunks.append(normalised(fuse(fused, present)))
    return torch.cat(chunks)
