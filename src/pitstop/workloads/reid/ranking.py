"""Exact retrieval scores: where in the gallery the images of the same person come.

Only the images of the query's own person are ranked. The rank of one is how many images of the
gallery come before it, and counting those takes no sorted row:

- the few images near the top of a row are sorted, as whole numbers that order by query, falling
  similarity and rising place in the gallery;
- images of the person further down are compared with the whole row, one by one;
- a row with very many of those is sorted after all.

Which way is taken changes the time, never the result. Equal similarities are ordered by place in
the gallery, the lower first. "Equal" means equal as computed: products of queries with the whole
gallery, in the type of the features (float64 on a GPU, so that neither TF32 nor autocast touches
them). Products are always of 256 queries, cut at the same ones, so results do not depend on the
memory allowed. Where two similarities differ by rounding alone, another processor may order them
otherwise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.errors import DataError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Similarities = NDArray[np.float32] | NDArray[np.float64]

DEFAULT_BUDGET_BYTES: Final = 1 << 30
UNKNOWN: Final = -1
"""Of a person or a camera: equal to nothing, not even to itself."""

_MULTIPLIED: Final = 256
"""Queries that are multiplied with the gallery at a time."""
_TILE: Final = 64
"""Of those, queries that are ranked at a time; a multiple of it is multiplied."""
_ROW_BITS: Final = 6
_COLUMN_BITS: Final = 26
_SAMPLED: Final = 256
_TOP: Final = 192
"""About how many images of a row are sorted; comparing a row once takes as long."""
_MOST_COMPARED: Final = 128
"""Images of one person that are compared with a row, before sorting all of it is faster."""
_DEVICE_COMPARE_BYTES: Final = 16
"""For each image compared on a GPU: its similarity and the truth values made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Who is on each image, and which camera took it."""

    persons: Integers
    """-1 where nobody knows; such an image is nobody's match."""
    cameras: Integers | None = None
    """-1 where it is not known. Given for queries and gallery, images of the query's person by the
    query's camera are left out (the protocol of Market-1501)."""

    @classmethod
    def of(cls, persons: Tensor, cameras: Tensor | None = None) -> "Labels":
        """Take labels from tensors of any device."""
        return cls(
            persons=persons.cpu().numpy().astype(np.int64),
            cameras=None if cameras is None else cameras.cpu().numpy().astype(np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """How early each query meets its person; queries without a match in the gallery are left out.

    All arrays have one entry for each number in `queries`.
    """

    queries: Integers
    """Which queries the other arrays speak of, rising."""
    average_precision: Floats
    """Mean over the person's images of the share of right images down to that one."""
    inverse_penalty: Floats
    """Images of the person over the rank of the last of them."""
    first_rank: Integers
    """Rank of the first image of the person, from 1 on."""
    matches: Integers
    """Images of the person in the gallery, at least one."""
    total: int
    """Queries asked, those without a match among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means over the queries that have a match; shares from 0 to 1."""

    mean_average_precision: float
    mean_inverse_penalty: float
    r1: float
    """Share of queries whose first image is right."""
    r5: float
    r10: float
    queries: int
    """Queries averaged over."""
    without_match: int
    """Queries left out because the gallery has no image of their person."""

    def named(self) -> dict[str, float]:
        """Give the five scores under the names that records use."""
        return {
            "mAP": self.mean_average_precision,
            "mINP": self.mean_inverse_penalty,
            "r1": self.r1,
            "r5": self.r5,
            "r10": self.r10,
        }


def normalised(features: Tensor) -> Tensor:
    """Bring rows to length one, so that products are cosines; a row of zeros stays as it is."""
    wide = features if features.dtype == torch.float64 else features.float()
    return torch.nn.functional.normalize(wide, dim=-1)


@torch.inference_mode()
def rank(
    query: Tensor,
    gallery: Tensor,
    query_labels: Labels,
    gallery_labels: Labels,
    *,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> Ranked:
    """Rank the gallery for every query by the products of their features.

    Args:
        query: (Q, d) on any device; half precision is widened to float32.
        gallery: (G, d) on the same device.
        query_labels: Q of them.
        gallery_labels: G of them.
        budget_bytes: Most memory to take beside the features, and beside their copy in float64 on
            a GPU. What is left of it above the least lets a GPU compare more at once.

    Raises:
        DataError: Where features or labels do not fit together, are empty or not finite, or the
            budget is less than `needed_bytes`.
    """
    require_features(query, gallery)
    _require_labels(query_labels, len(query), "query")
    _require_labels(gallery_labels, len(gallery), "gallery")
    kind = _product_type(query, gallery)
    least = needed_bytes(len(gallery), kind.itemsize)
    if budget_bytes < least:
        raise DataError(
            f"ranking a gallery of {len(gallery):,} images needs {least:,} bytes, and the budget "
            f"is {budget_bytes:,}; raise it"
        )
    own = _Own.find(query_labels, gallery_labels)
    spare = budget_bytes - least
    tiles = _products(query, gallery, kind)
    parts = [_ranked_tile(own, start, tile, spare) for start, tile in tiles]
    return _joined(parts, len(query))


def rank_similarities(similarities: Tensor, query_labels: Labels, gallery_labels: Labels) -> Ranked:
    """Rank by similarities (Q, G) that are there already; higher is more alike.

    Raises:
        DataError: Where labels do not fit, or a similarity is not finite.
    """
    queries, images = similarities.shape
    _require_labels(query_labels, queries, "query")
    _require_labels(gallery_labels, images, "gallery")
    own = _Own.find(query_labels, gallery_labels)
    wide = similarities if similarities.dtype == torch.float64 else similarities.float()
    parts = []
    for start in range(0, queries, _TILE):
        tile = wide[start : start + _TILE]
        if not math.isfinite(_sum(tile)):
            _require_finite(wide, "rows of similarities")
        parts.append(_ranked_tile(own, start, tile, DEFAULT_BUDGET_BYTES))
    return _joined(parts, queries)


def summary(ranked: Ranked) -> Summary:
    """Average over the queries that have a match.

    Raises:
        DataError: Where none has.
    """
    count = len(ranked.queries)
    if not count:
        raise DataError(
            f"none of the {ranked.total:,} queries has an image of its person in the gallery; "
            "check that queries and gallery name people the same way"
        )
    first = ranked.first_rank
    return Summary(
        mean_average_precision=float(ranked.average_precision.mean()),
        mean_inverse_penalty=float(ranked.inverse_penalty.mean()),
        r1=float((first <= 1).mean()),
        r5=float((first <= 5).mean()),
        r10=float((first <= 10).mean()),
        queries=count,
        without_match=ranked.total - count,
    )


def needed_bytes(images: int, itemsize: int = 4) -> int:
    """Say the least budget for a gallery: similarities of 256 queries and what is made of them."""
    row = images * (itemsize + 24)
    return images * (_MULTIPLIED * itemsize + _TILE) + row + (8 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """Which images of the gallery show the person of each query."""

    columns: Integers
    """Places in the gallery, by person."""
    first: Integers
    last: Integers
    """Those of query q are columns[first[q] : last[q]], rising."""
    query_cameras: Integers | None
    gallery_cameras: Integers | None

    @classmethod
    def find(cls, query: Labels, gallery: Labels) -> "_Own":
        if (query.cameras is None) != (gallery.cameras is None):
            raise DataError(
                "cameras are given for the queries or for the gallery alone; leaving out images "
                "of the same camera needs both"
            )
        columns = np.argsort(gallery.persons, kind="stable")
        persons = gallery.persons[columns]
        first = np.searchsorted(persons, query.persons, "left")
        last = np.searchsorted(persons, query.persons, "right")
        return cls(
            columns=columns,
            first=first,
            last=np.where(query.persons == UNKNOWN, first, last),
            query_cameras=query.cameras,
            gallery_cameras=gallery.cameras,
        )

    def of(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Give row and column of every such image of a tile, by row and then by column."""
        first = self.first[start:stop]
        counts = self.last[start:stop] - first
        rows = np.repeat(np.arange(stop - start), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.columns[np.repeat(first, counts) + within]

    def left_out(self, queries: Integers, columns: Integers) -> NDArray[np.bool_]:
        """Say which of them the query's own camera took."""
        if self.query_cameras is None or self.gallery_cameras is None:
            return np.zeros(len(queries), dtype=np.bool_)
        cameras = self.query_cameras[queries]
        return (cameras != UNKNOWN) & (cameras == self.gallery_cameras[columns])


def _product_type(query: Tensor, gallery: Tensor) -> torch.dtype:
    if query.device.type == "cuda" or torch.float64 in (query.dtype, gallery.dtype):
        return torch.float64
    return torch.float32


def _products(query: Tensor, gallery: Tensor, kind: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Multiply many queries at a time, always as many: the last ones are filled up with zeros."""
    columns = gallery.to(kind).t()
    products = torch.empty(_MULTIPLIED, len(gallery), dtype=kind, device=gallery.device)
    for start in range(0, len(query), _MULTIPLIED):
        rows = query[start : start + _MULTIPLIED].to(kind)
        count = len(rows)
        if count < _MULTIPLIED:
            rows = torch.cat((rows, rows.new_zeros(_MULTIPLIED - count, rows.shape[1])))
        # Into memory of its own type: autocast leaves such a product alone.
        torch.mm(rows, columns, out=products)
        for place in range(0, count, _TILE):
            yield start + place, products[place : min(place + _TILE, count)]


def _ranked_tile(own: _Own, start: int, tile: Tensor, spare_bytes: int) -> Ranked:
    rows, columns = own.of(start, start + len(tile))
    if tile.device.type == "cpu":
        ranks = ranks_by_sorting_the_top(tile.numpy(), rows, columns)
    else:
        ranks = ranks_by_comparing(tile, rows, columns, spare_bytes=spare_bytes)
    left_out = own.left_out(rows + start, columns)
    return _scores(rows + start, ranks, left_out)


def _scores(queries: Integers, ranks: Integers, left_out: NDArray[np.bool_]) -> Ranked:
    """Turn ranks of all images of a person into scores of the query."""
    order = np.lexsort((ranks, queries))
    queries, ranks, left_out = queries[order], ranks[order], left_out[order]
    before = np.cumsum(left_out)
    begins = np.searchsorted(queries, queries)
    ranks = ranks - (before - before[begins] + left_out[begins])
    queries, ranks = queries[~left_out], ranks[~left_out]
    asked, begins, counts = np.unique(queries, return_index=True, return_counts=True)
    within = np.arange(1, len(queries) + 1) - np.repeat(begins, counts)
    precision = np.add.reduceat(within / ranks, begins) if len(begins) else np.empty(0)
    return Ranked(
        queries=asked,
        average_precision=precision / counts,
        inverse_penalty=counts / ranks[begins + counts - 1],
        first_rank=ranks[begins],
        matches=counts,
        total=0,
    )


def _joined(parts: list[Ranked], total: int) -> Ranked:
    return Ranked(
        queries=np.concatenate([part.queries for part in parts]),
        average_precision=np.concatenate([part.average_precision for part in parts]),
        inverse_penalty=np.concatenate([part.inverse_penalty for part in parts]),
        first_rank=np.concatenate([part.first_rank for part in parts]),
        matches=np.concatenate([part.matches for part in parts]),
        total=total,
    )


def ranks_by_sorting_the_top(
    similarities: Similarities, rows: Integers, columns: Integers
) -> Integers:
    """Rank images (row, column) of a tile of at most 64 rows, from 1 on, on the host.

    Args:
        similarities: (n, G), finite.
        rows: Of the images to rank, rising.
        columns: Of the same images, rising within a row.
    """
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    values = similarities[rows, columns]
    ranks = np.zeros(len(rows), dtype=np.int64)
    if similarities.dtype == np.float32 and similarities.shape[1] < 1 << _COLUMN_BITS:
        floor, top = _top_of(similarities, rows, values)
        near = values >= floor[rows]
        ranks[near] = _ranks_near_the_top(similarities, top, rows[near], columns[near])
        deep = np.flatnonzero(~near)
    else:
        deep = np.arange(len(rows))
    borders = np.searchsorted(rows[deep], np.arange(len(similarities) + 1))
    seen = np.empty(similarities.shape[1], dtype=np.bool_)
    for row in np.unique(rows[deep]).tolist():
        some = deep[borders[row] : borders[row + 1]]
        ranks[some] = _ranks_in_row(similarities[row], columns[some], seen)
    return ranks


def _top_of(
    similarities: Similarities, rows: Integers, values: Similarities
) -> tuple[NDArray[np.float32], Integers]:
    """Choose for each row the similarity from which on it is sorted; infinite for not at all.

    It is that of the person's last image, or that of about the 192nd image, judged by a sample of
    the row, if that is higher.

    Returns:
        The similarities, and the places in the flattened tile that reach theirs.
    """
    count, images = similarities.shape
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    floor = np.full(count, np.inf, dtype=np.float32)
    floor[rows[begins]] = np.minimum.reduceat(values, begins)
    sample = similarities[:, :: max(1, images // _SAMPLED)]
    place = max(0, sample.shape[1] - 1 - sample.shape[1] * _TOP // images)
    floor = np.maximum(floor, np.partition(sample, place, axis=1)[:, place])
    top = similarities >= floor[:, None]
    if np.count_nonzero(top) > 4 * _TOP * count:
        # Equal similarities by the thousand, or a sample that misled: not worth sorting.
        crowded = np.count_nonzero(top, axis=1) > 8 * _TOP
        floor[crowded] = np.inf
        top[crowded] = False
    return floor, np.flatnonzero(top)


def _ranks_near_the_top(
    similarities: Similarities, top: Integers, rows: Integers, columns: Integers
) -> Integers:
    images = similarities.shape[1]
    top_rows = top // images
    keys = _keys(similarities.reshape(-1)[top], top_rows, top - top_rows * images)
    keys.sort()
    first_of_row = np.arange(len(similarities), dtype=np.uint64) << np.uint64(64 - _ROW_BITS)
    begins = np.searchsorted(keys, first_of_row)
    wanted = _keys(similarities[rows, columns], rows, columns)
    return np.searchsorted(keys, wanted) - begins[rows] + 1


def _keys(values: Similarities, rows: Integers, columns: Integers) -> NDArray[np.uint64]:
    """Make whole numbers that rise with the row, falling similarity, and the column."""
    # Adding zero makes one zero of the two.
    bits = (values + np.float32(0)).astype(np.float32, copy=False).view(np.uint32)
    falling = np.where(bits >> np.uint32(31), bits, ~bits & np.uint32(0x7FFFFFFF))
    return (
        (rows.astype(np.uint64) << np.uint64(64 - _ROW_BITS))
        | (falling.astype(np.uint64) << np.uint64(_COLUMN_BITS))
        | columns.astype(np.uint64)
    )


def _ranks_in_row(row: Similarities, columns: Integers, seen: NDArray[np.bool_]) -> Integers:
    if len(columns) > _MOST_COMPARED:
        places = np.empty(len(row), dtype=np.int64)
        places[np.argsort(-row, kind="stable")] = np.arange(1, len(row) + 1)
        return places[columns]
    ranks = np.empty(len(columns), dtype=np.int64)
    for place, column in enumerate(columns.tolist()):
        value = row[column]
        np.greater_equal(row[:column], value, out=seen[:column])
        np.greater(row[column:], value, out=seen[column:])
        ranks[place] = np.count_nonzero(seen) + 1
    return ranks


def ranks_by_comparing(
    similarities: Tensor, rows: Integers, columns: Integers, *, spare_bytes: int
) -> Integers:
    """Rank images (row, column) of a tile, from 1 on, on the device of its similarities.

    Args:
        similarities: (n, G), finite.
        rows: Of the images to rank.
        columns: Of the same images.
        spare_bytes: Memory for comparing more than one image with its row at a time.
    """
    device, images = similarities.device, similarities.shape[1]
    places = torch.arange(images, device=device)
    block = max(1, spare_bytes // (images * _DEVICE_COMPARE_BYTES))
    all_rows, all_columns = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
    found = []
    for start in range(0, len(rows), block):
        some = all_columns[start : start + block, None]
        compared = similarities[all_rows[start : start + block]]
        value = compared.gather(1, some)
        before = (compared > value) | ((compared == value) & (places < some))
        found.append(before.sum(1) + 1)
    if not found:
        return np.empty(0, dtype=np.int64)
    return torch.cat(found).cpu().numpy()


def require_features(query: Tensor, gallery: Tensor) -> None:
    """Refuse features that cannot be held against each other.

    Raises:
        DataError: Where there are none, their widths differ, or they are not finite.
    """
    for name, features in (("query", query), ("gallery", gallery)):
        if features.ndim != 2:
            raise DataError(
                f"{name} features must be rows of a matrix, not of shape {tuple(features.shape)}"
            )
        if not len(features):
            raise DataError(f"there is nothing to rank: the {name} has no images")
        _require_finite(features, f"{name} features")
    if query.shape[1] != gallery.shape[1]:
        raise DataError(
            f"query features have {query.shape[1]} numbers and gallery features "
            f"{gallery.shape[1]}; both must come from the same model"
        )


def _require_finite(values: Tensor, name: str) -> None:
    broken = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten().tolist()
    if broken:
        raise DataError(
            f"{len(broken):,} of {len(values):,} {name} hold NaN or infinity, the first is number "
            f"{broken[0]}; the model or its precision is at fault"
        )


def _sum(tile: Tensor) -> float:
    if tile.device.type != "cpu":
        return float(tile.sum())
    # In NumPy: starting threads would cost more than the sum.
    with np.errstate(invalid="ignore", over="ignore"):
        return float(tile.numpy().sum())


def _require_labels(labels: Labels, count: int, name: str) -> None:
    for what, values in (("person", labels.persons), ("camera", labels.cameras)):
        if values is not None and values.shape != (count,):
            raise DataError(
                f"{count:,} {name} images need a {what} label each, and have labels of shape "
                f"{values.shape}"
            )
