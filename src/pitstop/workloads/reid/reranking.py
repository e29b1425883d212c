"""k-reciprocal re-ranking: images are near where their nearest images are the same.

Two images that are among each other's nearest are reciprocal neighbours. Each image is described by
the weights of its reciprocal neighbours (those of close neighbours added where two thirds agree),
descriptions are averaged over the nearest few, and two images are as far apart as their
descriptions overlap little (Jaccard), mixed with the distance of their features.

A description has some dozens of numbers, so nothing of all images by all images is kept: what
grows with their product is computed in chunks. Public code keeps three such matrices.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.reid.ranking import normalised

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]

_CHUNK: Final = 512
_AGREEING: Final = 2 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """How far neighbours reach, and how much the first distance counts."""

    k1: int = 20
    """Nearest images that may be reciprocal neighbours."""
    k2: int = 6
    """Nearest images whose descriptions are averaged; 1 for none but its own."""
    weight: float = 0.3
    """Share of the distance of features in the result."""


@torch.inference_mode()
def rerank(query: Tensor, gallery: Tensor, settings: Reranking) -> Tensor:
    """Give distances (Q, G), float32 on the host: smaller is more alike.

    Args:
        query: Features (Q, d) on any device.
        gallery: (G, d) on the same device.
        settings: As published, k1 20, k2 6 and weight 0.3.

    Raises:
        DataError: Where there are fewer images than `k1` reaches for.
    """
    features = normalised(torch.cat((query, gallery)))
    count, asked = len(features), len(query)
    if count <= settings.k1:
        raise DataError(
            f"re-ranking looks at the {settings.k1} nearest images, and queries and gallery are "
            f"{count} together; lower data.rerank_k1"
        )
    nearest, furthest = _neighbours(features, settings.k1 + 1)
    described = _Described.of(features, nearest, furthest, settings.k1)
    if settings.k2 > 1:
        described = described.averaged(nearest[:, : settings.k2])
    columns = described.columns()
    result = torch.empty(asked, count - asked)
    for start in range(0, asked, _CHUNK):
        stop = min(start + _CHUNK, asked)
        first = _squares(features[start:stop], features).cpu().numpy()
        first /= furthest[start:stop, None]
        for row in range(start, stop):
            far = 1 - _overlap(described, columns, row, count)
            mixed = far * (1 - settings.weight) + first[row - start] * settings.weight
            result[row] = torch.from_numpy(mixed[asked:])
    return result


def _squares(rows: Tensor, features: Tensor) -> Tensor:
    """Squared distances of features of length one."""
    return (2 - 2 * (rows @ features.T)).clamp_min_(0)


def _neighbours(features: Tensor, reach: int) -> tuple[Integers, Floats]:
    """Give the nearest of every image, itself among them, and how far the furthest is."""
    nearest, furthest = [], []
    for start in range(0, len(features), _CHUNK):
        squares = _squares(features[start : start + _CHUNK], features)
        nearest.append(squares.topk(reach, largest=False, sorted=True).indices.cpu())
        furthest.append(squares.amax(dim=1).cpu())
    # All images equal: any share of nothing is nothing.
    far = torch.cat(furthest).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.cat(nearest).numpy(), far.float().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A sparse row of weights for each image."""

    first: Integers
    """Where each image's begin, and the end of the last."""
    others: Integers
    weights: Floats

    @classmethod
    def of(cls, features: Tensor, nearest: Integers, furthest: Floats, k1: int) -> "_Described":
        rows = [_expanded(nearest, image, k1) for image in range(len(nearest))]
        weights = []
        for image, row in enumerate(rows):
            chosen = torch.from_numpy(row).to(features.device)
            squares = _squares(features[image : image + 1], features[chosen])[0]
            near = np.exp(-squares.float().cpu().numpy() / furthest[image])
            weights.append(near / near.sum())
        return cls._joined(rows, weights)

    @classmethod
    def _joined(cls, rows: list[Integers], weights: list[Floats]) -> "_Described":
        first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(first=first, others=np.concatenate(rows), weights=np.concatenate(weights))

    def row(self, image: int) -> tuple[Integers, Floats]:
        own = slice(self.first[image], self.first[image + 1])
        return self.others[own], self.weights[own]

    def averaged(self, nearest: Integers) -> "_Described":
        """Average the descriptions of each image's nearest."""
        rows, weights = [], []
        for own in nearest:
            parts = [self.row(image) for image in own]
            others, places = np.unique(
                np.concatenate([part for part, _ in parts]), return_inverse=True
            )
            sums = np.bincount(places, np.concatenate([part for _, part in parts]))
            rows.append(others)
            weights.append((sums / len(own)).astype(np.float32))
        return self._joined(rows, weights)

    def columns(self) -> "_Described":
        """Give the same by the other side: who has each image in its description."""
        owners = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        order = np.argsort(self.others, kind="stable")
        counts = np.bincount(self.others, minlength=len(self.first) - 1)
        return _Described(
            first=np.concatenate(([0], np.cumsum(counts))),
            others=owners[order],
            weights=self.weights[order],
        )


def _expanded(nearest: Integers, image: int, k1: int) -> Integers:
    """Give the reciprocal neighbours of an image, with those of neighbours that mostly agree."""
    own = _reciprocal(nearest, image, k1)
    # Halves go to the even number, as the published code has it.
    half = round(k1 / 2)
    found = [own]
    for neighbour in own:
        theirs = _reciprocal(nearest, int(neighbour), half)
        if np.isin(theirs, own).sum() > _AGREEING * len(theirs):
            found.append(theirs)
    return np.unique(np.concatenate(found))


def _reciprocal(nearest: Integers, image: int, reach: int) -> Integers:
    forward = nearest[image, : reach + 1]
    return forward[(nearest[forward, : reach + 1] == image).any(axis=1)]


def _overlap(described: _Described, columns: _Described, image: int, count: int) -> Floats:
    """Give the Jaccard similarity of one description with those of all images."""
    others, weights = described.row(image)
    shared = np.zeros(count, np.float32)
    for other, weight in zip(others, weights, strict=True):
        owners, theirs = columns.row(int(other))
        shared[owners] += np.minimum(theirs, weight)
    return shared / (2 - shared)
