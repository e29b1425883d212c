"""Scores of Market-1501, MSMT17 and SYSU-MM01, as their communities count them.

Market-1501 and MSMT17 leave out images of the query's person by the query's camera.

SYSU-MM01 leaves out all images of camera 2 for queries of camera 3, and counts r1 to r20 over
people: a person's place is that of its best image, so two images of one stranger before the right
one cost one place. mAP and mINP are over images. Scores are means over ten galleries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import RGB
from pitstop.workloads.reid.data.public_queries import SYSU_SEARCHES, PublicSearch
from pitstop.workloads.reid.data.queries import EvalImages
from pitstop.workloads.reid.protocol import SCORES, Fuse, features_of, ranked_by
from pitstop.workloads.reid.ranking import Labels, Ranked, rank_similarities, summary
from pitstop.workloads.reid.reranking import Reranking, rerank

SYSU_METRICS: Final = tuple(
    f"{score}_{name}" for name in SYSU_SEARCHES for score in (*SCORES, "r20")
)
"""Names of the scores where there are several searches; others have `SCORES`."""

_BESIDE: Final = (3, 2)
"""Camera of a query, and the one beside it whose images it is never held against."""


@torch.inference_mode()
def evaluate_public(
    tokens: Tensor,
    images: EvalImages,
    searches: Sequence[PublicSearch],
    fuse: Fuse,
    *,
    reranking: Reranking | None = None,
) -> dict[str, float]:
    """Answer every search from tokens that are there already.

    Args:
        tokens: (N, d), one for each item, on any device.
        images: Who is on each item, and which camera took it.
        searches: What is asked.
        fuse: The model's way from tokens to a feature.
        reranking: How to re-rank; None for cosines.

    Raises:
        DataError: Where no query of a search has a match.
    """
    found: dict[str, float] = {}
    for search in searches:
        query = features_of(tokens, search.queries[:, None], (search.modality,), fuse)
        scores = []
        for gallery in search.galleries:
            held = _Held(
                query=query,
                gallery=features_of(tokens, gallery[:, None], (RGB,), fuse),
                query_persons=images.persons[search.queries],
                query_cameras=images.cameras[search.queries],
                gallery_persons=images.persons[gallery],
                gallery_cameras=images.cameras[gallery],
            )
            judge = _by_person if search.by_person else _by_image
            scores.append(judge(held, reranking))
        ending = f"_{search.name}" if search.name else ""
        for name in scores[0]:
            found[name + ending] = float(np.mean([one[name] for one in scores]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Queries and one gallery they are held against."""

    query: Tensor
    gallery: Tensor
    query_persons: NDArray[np.int64]
    query_cameras: NDArray[np.int64]
    gallery_persons: NDArray[np.int64]
    gallery_cameras: NDArray[np.int64]


def _by_image(held: _Held, reranking: Reranking | None) -> dict[str, float]:
    asked = Labels(persons=held.query_persons, cameras=held.query_cameras)
    there = Labels(persons=held.gallery_persons, cameras=held.gallery_cameras)
    return summary(ranked_by((held.query, asked), (held.gallery, there), reranking)).named()


def _by_person(held: _Held, reranking: Reranking | None) -> dict[str, float]:
    if reranking is None:
        # In one type for both kinds of scores: they must not see ties differently.
        similarities = (held.query.double() @ held.gallery.double().t()).cpu()
    else:
        similarities = -rerank(held.query, held.gallery, reranking).double().cpu()
    near, beside = _BESIDE
    is_near = held.query_cameras == near
    parts: list[tuple[Ranked, NDArray[np.int64]]] = []
    for rows, columns in (
        (np.flatnonzero(is_near), np.flatnonzero(held.gallery_cameras != beside)),
        (np.flatnonzero(~is_near), np.arange(len(held.gallery_cameras))),
    ):
        if len(rows) and len(columns):
            some = similarities[rows][:, columns]
            asked, there = held.query_persons[rows], held.gallery_persons[columns]
            ranked = rank_similarities(some, Labels(persons=asked), Labels(persons=there))
            parts.append((ranked, person_ranks(some.numpy(), asked, there)[ranked.queries]))
    return _averaged(parts, len(held.query))


def person_ranks(
    similarities: NDArray[np.float64],
    query_persons: NDArray[np.int64],
    gallery_persons: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Rank the query's person among all people by their best images, from 1 on.

    Args:
        similarities: (Q, G); equal ones are ordered by place in the gallery.
        query_persons: Of the rows.
        gallery_persons: Of the columns.

    Returns:
        Of each query; beyond the last person where the gallery does not have its own.
    """
    order = np.argsort(-similarities, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    by_person = np.argsort(gallery_persons, kind="stable")
    people, first = np.unique(gallery_persons[by_person], return_index=True)
    best = np.minimum.reduceat(place[:, by_person], first, axis=1)
    own = np.where(people[None] == query_persons[:, None], best, order.shape[1]).min(axis=1)
    return 1 + (best < own[:, None]).sum(axis=1)


def _averaged(parts: Sequence[tuple[Ranked, NDArray[np.int64]]], queries: int) -> dict[str, float]:
    counted = sum(len(ranked.queries) for ranked, _ in parts)
    if not counted:
        raise DataError(
            f"none of the {queries:,} queries has an image of its person in the gallery; check "
            "that the folders of the cameras are whole"
        )
    places = np.concatenate([ranks for _, ranks in parts])
    averages = {
        "mAP": np.concatenate([ranked.average_precision for ranked, _ in parts]),
        "mINP": np.concatenate([ranked.inverse_penalty for ranked, _ in parts]),
    }
    averages |= {f"r{most}": places <= most for most in (1, 5, 10, 20)}
    return {name: float(values.mean()) for name, values in averages.items()}
