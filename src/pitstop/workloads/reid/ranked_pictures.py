"""Queries of an evaluation beside what was found for them, marked right or wrong."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pitstop.data.images import write_image
from pitstop.records.pictures import PictureCell, PictureRow
from pitstop.workloads.reid.data.modalities import MODALITIES, RGB, TEXT, name_of_task
from pitstop.workloads.reid.data.queries import EvalImages, EvalSet
from pitstop.workloads.reid.protocol import Fuse, features_of
from pitstop.workloads.reid.retrieval import MARKS, NOT_KNOWN, SHOWN, right_note

Ints = npt.NDArray[np.int64]

_SIDE: Final = 96
_BORDER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """One question."""

    modalities: tuple[str, ...]
    items: tuple[int, ...]
    person: int
    gallery: Ints
    """Items that it is held against."""


@torch.inference_mode()
def draw_rankings(
    evaluation: EvalSet, tokens: Tensor, fuse: Fuse, folder: Path, *, count: int
) -> list[PictureRow]:
    """Write pictures of some queries, spread over all, and of the first images of their ranking.

    Raises:
        DataError: Where an image cannot be read, or a file cannot be written.
    """
    images = evaluation.images
    rows = []
    for number, query in enumerate(_chosen(evaluation, count)):
        items = np.array([query.items], np.int64)
        asked = features_of(tokens, items, query.modalities, fuse)
        found = features_of(tokens, query.gallery[:, None], (RGB,), fuse)
        order = (asked @ found.T)[0].argsort(descending=True, stable=True)[:SHOWN].cpu().numpy()
        rows.append(_row(images, query, query.gallery[order], folder, number=number))
    return rows


def _chosen(evaluation: EvalSet, count: int) -> Iterator[_Query]:
    """Choose queries that are spread evenly over all of them."""
    sizes = [len(task) for task in evaluation.tasks] or [
        len(search.queries) for search in evaluation.searches
    ]
    total = sum(sizes)
    ends = np.cumsum(sizes)
    for place in range(min(total, count)):
        number = (2 * place + 1) * total // (2 * min(total, count))
        part = int(np.searchsorted(ends, number, side="right"))
        yield _query(evaluation, part, number - int(ends[part]) + sizes[part])


def _query(evaluation: EvalSet, part: int, row: int) -> _Query:
    images = evaluation.images
    if evaluation.tasks:
        task = evaluation.tasks[part]
        return _Query(
            modalities=task.modalities,
            items=tuple(task.items[row].tolist()),
            person=int(task.persons[row]),
            gallery=images.gallery,
        )
    search = evaluation.searches[part]
    item = int(search.queries[row])
    gallery = search.galleries[0]
    person, camera = images.persons[item], images.cameras[item]
    if not search.by_person:  # the protocol leaves out what the query's own camera saw of them
        own = (images.persons[gallery] == person) & (images.cameras[gallery] == camera)
        gallery = gallery[~own]
    return _Query(modalities=(search.modality,), items=(item,), person=int(person), gallery=gallery)


def _row(
    images: EvalImages, query: _Query, found: Ints, folder: Path, *, number: int
) -> PictureRow:
    cells = []
    for modality, item in zip(query.modalities, query.items, strict=True):
        if modality != TEXT:
            caption = "query" if len(query.items) == 1 else f"query {modality}"
            cells.append(PictureCell(caption=caption, file=f"query_{number}_{modality}.jpg"))
            _write(images, item, folder / cells[-1].file, NOT_KNOWN)
    rights = []
    for order, item in enumerate(found.tolist(), start=1):
        right = None if query.person < 0 else bool(images.persons[item] == query.person)
        word, colour = MARKS[right]
        cells.append(PictureCell(caption=f"{order}{word}", file=f"query_{number}_{order}.jpg"))
        _write(images, item, folder / cells[-1].file, colour)
        rights.append(right)
    asked = " + ".join(images.paths[item] or "a caption" for item in query.items)
    return PictureRow(
        title=f"{name_of_task(query.modalities)}: {asked}",
        cells=tuple(cells),
        note=right_note(rights),
    )


def _write(images: EvalImages, item: int, path: Path, colour: tuple[int, int, int]) -> None:
    modality = MODALITIES[images.modalities[item]]
    picture = images.reader.image(images.folder / images.paths[item], modality).convert("RGB")
    picture.thumbnail((_SIDE, 2 * _SIDE), Image.Resampling.BILINEAR)
    write_image(path, ImageOps.expand(picture, border=_BORDER, fill=colour), kind="JPEG")
