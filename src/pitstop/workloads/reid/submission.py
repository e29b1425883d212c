"""Rankings as a challenge takes them: one row of a CSV a query, the gallery in order.

Two formats are in use:

    keys        query_key,ranked_gallery_ids              ids of images, separated by spaces
    challenge   query_idx,query_type,ranking_list_idx     numbers of images, as a list in brackets

`challenge` is that of the omni-modality challenge, whose queries and images have numbers. In `keys`
a query of those lists has its number for a key; any other is named by how many and which modalities
it has and by its items, such as ``MM-2|CP+NIR|0941_front_cp+0941_cam3_nir``.
"""

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.errors import DataError, os_errors_as
from pitstop.workloads.reid.data.modalities import RGB
from pitstop.workloads.reid.data.queries import EvalImages, EvalSet, QueryTask
from pitstop.workloads.reid.protocol import Fuse, features_of
from pitstop.workloads.reid.reranking import Reranking, rerank

Style = Literal["keys", "challenge"]

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "keys": ("query_key", "ranked_gallery_ids"),
    "challenge": ("query_idx", "query_type", "ranking_list_idx"),
}
_CHUNK: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRankings:
    """The gallery in order for every query of a task."""

    task: QueryTask
    places: NDArray[np.int64]
    """(Q, top), places in the gallery, the most alike first."""


@torch.inference_mode()
def order_gallery(
    tokens: Tensor,
    evaluation: EvalSet,
    fuse: Fuse,
    *,
    top: int | None,
    reranking: Reranking | None = None,
) -> Iterator[TaskRankings]:
    """Order the gallery for the queries of each task; of equals the earlier comes first.

    Args:
        tokens: (N, d), one for each item.
        evaluation: Items, and the queries over them.
        fuse: The model's way from tokens to a feature.
        top: How many images of each order to keep; None for all.
        reranking: How to re-rank; None for cosines.
    """
    images = features_of(tokens, evaluation.images.gallery[:, None], (RGB,), fuse)
    for task in evaluation.tasks:
        asked = features_of(tokens, task.items, task.modalities, fuse)
        if reranking is not None:
            parts = [rerank(asked, images, reranking).argsort(dim=1, stable=True)[:, :top]]
        else:
            parts = [
                (some @ images.T).argsort(dim=1, descending=True, stable=True)[:, :top]
                for some in asked.split(_CHUNK)
            ]
        yield TaskRankings(task=task, places=torch.cat(parts).cpu().numpy())


def write_rankings(
    evaluation: EvalSet, rankings: Iterable[TaskRankings], path: Path, *, style: Style
) -> None:
    """Write rankings, the file whole or not at all.

    Raises:
        DataError: Where it cannot be written, or the lists have no numbers and the format needs
            them.
    """
    ids = _gallery_ids(evaluation.images, style)
    with os_errors_as(DataError, f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS[style])
            for ranked in rankings:
                writer.writerows(_rows(evaluation.images, ranked, ids, style))
        Path(name).replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def check_submission(path: Path, evaluation: EvalSet, *, style: Style, top: int | None) -> str:
    """Read a file as a judge would, who knows the queries and the gallery alone.

    Every query must be there once and no other, and each must order as many different images of
    the gallery as are asked for.

    Returns:
        What the file holds, in a sentence.

    Raises:
        DataError: Where it does not; says in which line.
    """
    ids = _gallery_ids(evaluation.images, style)
    known = set(ids)
    wanted = len(ids) if top is None else min(top, len(ids))
    keys = _all_keys(evaluation, style)
    seen: set[tuple[str, ...]] = set()
    try:
        with path.open(newline="", encoding="utf-8") as file, _fields_of_any_length():
            reader = csv.reader(file)
            header = tuple(next(reader, ()))
            if header != COLUMNS[style]:
                raise DataError(
                    f"{path} begins with {','.join(header)}, not {','.join(COLUMNS[style])}"
                )
            for line, row in enumerate(reader, start=2):
                where = f"{path}, line {line}"
                key = _checked_key(row, keys, seen, where)
                seen.add(key)
                _check_order(row[-1], known, wanted=wanted, where=where, style=style)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if len(seen) < len(keys):
        missing = min(keys - seen)
        raise DataError(
            f"{path} lacks {len(keys) - len(seen)} of {len(keys)} queries, such as {missing[0]}"
        )
    return f"{path} has {wanted} of {len(ids)} images in order for each of {len(keys):,} queries"


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Let a field be as long as a whole gallery; the limit is that of the whole process."""
    before = csv.field_size_limit(1 << 30)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _checked_key(
    row: Sequence[str], keys: set[tuple[str, ...]], seen: set[tuple[str, ...]], where: str
) -> tuple[str, ...]:
    key = tuple(row[:-1])
    if key not in keys:
        raise DataError(f"{where}: {','.join(key) or 'an empty line'} is no query of the lists")
    if key in seen:
        raise DataError(f"{where}: {','.join(key)} is there twice")
    return key


def _check_order(field: str, known: set[str], *, wanted: int, where: str, style: Style) -> None:
    if style == "challenge":
        if not (field.startswith("[") and field.endswith("]")):
            raise DataError(f"{where}: the ranking is no list in brackets")
        found = [one.strip() for one in field[1:-1].split(",") if one.strip()]
    else:
        found = field.split(" ")
    if len(found) != wanted:
        raise DataError(f"{where} orders {len(found)} images, not {wanted}")
    if len(set(found)) < len(found):
        raise DataError(f"{where} has an image twice")
    strangers = [one for one in found if one not in known]
    if strangers:
        raise DataError(f"{where}: {strangers[0]!r} is no image of the gallery")


def _rows(
    images: EvalImages, ranked: TaskRankings, ids: Sequence[str], style: Style
) -> Iterator[tuple[str, ...]]:
    for query, order in enumerate(ranked.places):
        key = _key(images, ranked.task, query, style)
        named = [ids[int(place)] for place in order]
        together = f"[{', '.join(named)}]" if style == "challenge" else " ".join(named)
        yield (*key, together)


def _all_keys(evaluation: EvalSet, style: Style) -> set[tuple[str, ...]]:
    keys = [
        _key(evaluation.images, task, query, style)
        for task in evaluation.tasks
        for query in range(len(task))
    ]
    if len(set(keys)) < len(keys):
        raise DataError("two queries of the lists have the same key, so no file can answer both")
    return set(keys)


def _key(images: EvalImages, task: QueryTask, query: int, style: Style) -> tuple[str, ...]:
    if task.numbers:
        number = str(task.numbers[query])
        return (number, task.kinds[query]) if style == "challenge" else (number,)
    if style == "challenge":
        raise DataError(
            "the lists give queries no number (query_idx); only those of the challenge do, so "
            "write keys instead"
        )
    items = [_short(images.name_of(item)) for item in task.items[query].tolist()]
    return (f"MM-{len(items)}|{task.name}|{'+'.join(items)}",)


def _gallery_ids(images: EvalImages, style: Style) -> list[str]:
    """Name the images of the gallery: a file's name where that suffices, else its path."""
    paths = [images.paths[place] for place in images.gallery.tolist()]
    short = [_short(path) for path in paths]
    ids = short if len(set(short)) == len(short) else [path.rpartition(".")[0] for path in paths]
    bad = [one for one in ids if " " in one or (style == "challenge" and not one.isdigit())]
    if bad:
        wanted = "a number" if style == "challenge" else "a name without spaces"
        raise DataError(f"the image {bad[0]!r} of the gallery needs {wanted} to be handed in")
    return ids


def _short(path: str) -> str:
    return PurePosixPath(path).stem if "/" in path else path
