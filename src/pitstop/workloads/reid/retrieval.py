"""A folder of images of people, searched for in a folder of colour images.

The modality of a query is named by a folder above it or by its file:

    queries/nir/anything.jpg        queries/nir/0941/anything.jpg        queries/0941_front_sk.jpg

Who it is, is known where the folder right above the file, or the number that its name begins with,
says so (`0941` in all but the first). Then the pictures are marked right or wrong, and scores are
given; otherwise they are not.

All files are checked before anything is written. What is written:

    rankings.json    every query with its best images, their similarities, and what is known of them
    rankings.csv     the same as one line for each pair
    pictures/        some queries beside their five best images
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import ImageOps
from torch import Tensor

from pitstop.data.images import DAMAGED, open_image, write_image
from pitstop.errors import DataError, os_errors_as
from pitstop.records.pictures import FOLDER, PictureCell, PictureRow, Pictures, write_pictures
from pitstop.records.store import write_json, write_text
from pitstop.records.units import listing, share_text
from pitstop.train.task import FilesMade
from pitstop.workloads.reid.data.layout import FOLDERS, is_image
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, RGB
from pitstop.workloads.reid.ranking import (
    UNKNOWN,
    Labels,
    normalised,
    rank,
    require_features,
    summary,
)

Encode = Callable[[Sequence[Path], str], Tensor]
"""Takes image files of one modality and gives their features (n, d), on any device."""

TOP: Final = 10
"""Images that are written down for each query."""
SHOWN: Final = 5
"""Of those, images that are shown."""

_BATCH: Final = 64
_SIDE: Final = 96
_BORDER: Final = 4
NOT_KNOWN: Final = (128, 128, 128)
MARKS: Final = {
    None: ("", NOT_KNOWN),
    True: (" right", (26, 127, 55)),
    False: (" wrong", (191, 38, 38)),
}
_MOST_NAMED: Final = 5
_NAMES: Final = {name: name for name in IMAGE_MODALITIES} | {
    folder: name for name, folder in FOLDERS.items()
}
_NUMBER: Final = re.compile(r"(\d+)_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image file, and what its path says of it."""

    path: Path
    name: str
    """Path within its folder."""
    modality: str
    person: str | None
    """None where the path does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for, and where."""

    queries: tuple[Picture, ...]
    gallery: tuple[Picture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedImage:
    """One image of the gallery, as a query ranks it."""

    image: str
    """Path within the gallery."""
    similarity: float
    """Cosine of the features."""
    right: bool | None
    """Whether it shows the query's person; None where the files do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQuery:
    """One query and its best images."""

    query: str
    """Path within the queries."""
    modality: str
    person: str | None
    """None where the file does not say."""
    ranking: tuple[RankedImage, ...]
    """The most alike first; equal ones in the order of the gallery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rankings:
    """What a search found."""

    images: int
    """In the gallery."""
    scored: int
    """Queries whose person is known to be in the gallery."""
    scores: dict[str, float] | None
    """Means over those, shares from 0 to 1; None where there are none."""
    queries: tuple[RankedQuery, ...]


def check_folders(queries: Path, gallery: Path) -> Search:
    """Find the images of both folders, at any depth, in the order of their paths.

    Where no query says its modality, all are colour images.

    Raises:
        DataError: Where a folder has no images, or some queries say their modality and others not.
    """
    found, unnamed = [], []
    paths = _images(queries, "queries")
    for path in paths:
        modality = _modality(path.relative_to(queries))
        if modality is None:
            unnamed.append(path.relative_to(queries).as_posix())
        else:
            found.append(_picture(path, queries, modality))
    if len(unnamed) == len(paths):
        found = [_picture(path, queries, RGB) for path in paths]
    elif unnamed:
        raise DataError(
            f"{queries}: nothing says the modality of {listing(unnamed, most=_MOST_NAMED)}"
            f"; put them into folders named {', '.join(IMAGE_MODALITIES)}"
        )
    images = [_picture(path, gallery, RGB) for path in _images(gallery, "the gallery")]
    return Search(queries=tuple(found), gallery=tuple(images))


def search_folders(
    search: Search, encode: Encode, folder: Path, *, top: int = TOP, shown: int = 8
) -> FilesMade:
    """Rank the gallery for every query and write what came of it, each file whole or not at all.

    Args:
        search: What `check_folders` found.
        encode: The model.
        folder: Where to write; it is made.
        top: Images to write down for each query.
        shown: Queries to show as pictures, spread evenly over all.

    Raises:
        DataError: Where an image cannot be read, or features cannot be compared.
        RecordError: Where a file cannot be written.
    """
    gallery = _encoded(search.gallery, encode)
    query = _encoded(search.queries, encode)
    require_features(query, gallery)
    found = _ranked(search, normalised(query), normalised(gallery), top)
    with os_errors_as(DataError, f"cannot make {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(found, folder / "rankings.json")
    write_text(folder / "rankings.csv", _as_csv(found))
    files = 2 + _draw(search, found, folder, shown)
    return FilesMade(samples=len(search.queries), files=files, notes=(_summary(found),))


def _images(folder: Path, what: str) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} to take {what} from")
    paths = sorted(path for path in folder.rglob("*") if is_image(path.name) and path.is_file())
    if not paths:
        raise DataError(f"{folder} holds no images (.jpg, .jpeg, .png, .bmp) for {what}")
    return paths


def _modality(path: Path) -> str | None:
    """Read the modality off the folders, the nearest first, or off the words of the file's name."""
    for name in reversed(path.parts[:-1]):
        if name.lower() in _NAMES:
            return _NAMES[name.lower()]
    words = {_NAMES[word] for word in re.split(r"[_\-. ]", path.stem.lower()) if word in _NAMES}
    return words.pop() if len(words) == 1 else None


def _picture(path: Path, root: Path, modality: str) -> Picture:
    inside = path.relative_to(root)
    above = inside.parent.name
    number = _NUMBER.match(path.name)
    named = number[1] if number else None
    person = above if above.isdecimal() else named
    return Picture(
        path=path,
        name=inside.as_posix(),
        modality=modality,
        # 941 and 0941 are one person.
        person=None if person is None else person.lstrip("0") or "0",
    )


def _encoded(pictures: Sequence[Picture], encode: Encode) -> Tensor:
    """Encode in batches of one modality; give features in the order of the pictures."""
    features: list[Tensor | None] = [None] * len(pictures)
    for modality in sorted({picture.modality for picture in pictures}):
        places = [place for place, one in enumerate(pictures) if one.modality == modality]
        for start in range(0, len(places), _BATCH):
            some = places[start : start + _BATCH]
            rows = encode([pictures[place].path for place in some], modality)
            assert len(rows) == len(some), "a feature for each image"
            for place, row in zip(some, rows, strict=True):
                features[place] = row
    return torch.stack([row for row in features if row is not None])


@torch.inference_mode()
def _ranked(search: Search, query: Tensor, gallery: Tensor, top: int) -> Rankings:
    scored, scores = _scores(search, query, gallery)
    columns = gallery.double().t()
    rows = []
    for start in range(0, len(query), _BATCH):
        products = query[start : start + _BATCH].double() @ columns
        similar, places = torch.sort(products, dim=1, descending=True, stable=True)
        best = zip(similar[:, :top].tolist(), places[:, :top].tolist(), strict=True)
        for place, (values, images) in enumerate(best, start=start):
            rows.append(_row(search, search.queries[place], zip(images, values, strict=True)))
    return Rankings(images=len(search.gallery), scored=scored, scores=scores, queries=tuple(rows))


def _row(search: Search, query: Picture, best: Iterable[tuple[int, float]]) -> RankedQuery:
    ranking = [
        RankedImage(
            image=search.gallery[place].name,
            similarity=value,
            right=_right(query, search.gallery[place]),
        )
        for place, value in best
    ]
    return RankedQuery(
        query=query.name, modality=query.modality, person=query.person, ranking=tuple(ranking)
    )


def _right(query: Picture, image: Picture) -> bool | None:
    if query.person is None or image.person is None:
        return None
    return query.person == image.person


def _scores(search: Search, query: Tensor, gallery: Tensor) -> tuple[int, dict[str, float] | None]:
    """Score the queries whose person is known to be in the gallery; count them."""
    numbers: dict[str | None, int] = {None: UNKNOWN}
    for image in search.gallery:
        numbers.setdefault(image.person, len(numbers))

    def labels(pictures: Sequence[Picture]) -> Labels:
        persons = [numbers.get(one.person, UNKNOWN) for one in pictures]
        return Labels(persons=np.array(persons, dtype=np.int64))

    ranked = rank(query, gallery, labels(search.queries), labels(search.gallery))
    known = len(ranked.queries)
    return known, summary(ranked).named() if known else None


def _summary(found: Rankings) -> str:
    if found.scores is None:
        return "not scored: for no query do file names say who it is and that the gallery has them"
    return (
        f"mAP {share_text(found.scores['mAP'])}, R1 {share_text(found.scores['r1'])} over "
        f"{found.scored:,} of {len(found.queries):,} queries, whose person is known to be in the "
        "gallery"
    )


def _as_csv(found: Rankings) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("query", "modality", "rank", "image", "similarity", "right"))
    for row in found.queries:
        for place, hit in enumerate(row.ranking, start=1):
            right = "" if hit.right is None else str(hit.right).lower()
            similarity = f"{hit.similarity:.6f}"
            writer.writerow((row.query, row.modality, place, hit.image, similarity, right))
    return text.getvalue()


def _draw(search: Search, found: Rankings, folder: Path, shown: int) -> int:
    """Write pictures of some queries and their index; give the number of files."""
    count = min(shown, len(search.queries))
    if not count:
        return 0
    paths = {image.name: image.path for image in search.gallery}
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    rows = []
    for number in np.linspace(0, len(search.queries) - 1, count).astype(int).tolist():
        row, name = found.queries[number], f"query_{number}"
        cells = [PictureCell(caption="query", file=f"{name}.jpg")]
        _thumbnail(search.queries[number].path, place / cells[0].file, NOT_KNOWN)
        for order, hit in enumerate(row.ranking[:SHOWN], start=1):
            word, colour = MARKS[hit.right]
            cells.append(PictureCell(caption=f"{order}{word}", file=f"{name}_{order}.jpg"))
            _thumbnail(paths[hit.image], place / cells[-1].file, colour)
        note = right_note(hit.right for hit in row.ranking[:SHOWN])
        title = f"{row.modality}: {row.query}"
        rows.append(PictureRow(title=title, cells=tuple(cells), note=note))
    write_pictures(folder, Pictures(rows=tuple(rows)))
    return 1 + sum(len(row.cells) for row in rows)


def right_note(rights: Iterable[bool | None]) -> str | None:
    """Say how many of the first images are right, as far as that is known of them."""
    known = [right for right in rights if right is not None]
    return f"{sum(known)} of the first {len(known)} right" if known else None


def _thumbnail(source: Path, path: Path, colour: tuple[int, int, int]) -> None:
    try:
        with open_image(source) as image:
            small = image.convert("RGB")
    except DAMAGED as error:
        raise DataError(f"cannot make {path} of {source}: {error}") from error
    small.thumbnail((_SIDE, 2 * _SIDE))
    write_image(path, ImageOps.expand(small, border=_BORDER, fill=colour), kind="JPEG")
