"""Where the files of Market-1501, MSMT17 and SYSU-MM01 lie, and what their names say.

    market1501   <root>/bounding_box_train/0002_c1s1_000451_03.jpg     person, camera, sequence
                 <root>/{query,bounding_box_test}/*.jpg                -1 is junk, 0000 a distractor
    msmt17       <root>/{train,test}/0000/0000_000_01_0303morning_0015_0.jpg     third: the camera
                 <root>/list_{train,val,query,gallery}.txt             a path and a label a line
    sysu_mm01    <root>/cam{1..6}/0001/0001.jpg                        3 and 6 are infrared
                 <root>/exp/{train,val,test}_id.txt                    numbers between commas

The root may also be the folder above, as the archives unpack (`Market-1501-v15.09.15`,
`MSMT17_V1`; `MSMT17_V2` with its `mask_train_v2` and `mask_test_v2`).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from pitstop.data.packed_files import is_file, is_folder, names_in, read_file
from pitstop.errors import DataError
from pitstop.workloads.reid.data.index import NO_VIEW, ImageTable, ReidIndex
from pitstop.workloads.reid.data.layout import is_image
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, NIR, RGB
from pitstop.workloads.reid.data.strings import Strings

PublicKind = Literal["market1501", "msmt17", "sysu_mm01"]

NOBODY: Final = -1
"""Person of a distractor: an image that stays in the gallery and is nobody's match."""

SYSU_VISIBLE: Final = (1, 2, 4, 5)
SYSU_INFRARED: Final = (3, 6)

_MARKET: Final = ("bounding_box_train", "query", "bounding_box_test")
_MARKET_JUNK: Final = -1
"""Boxes that are neither right nor wrong; they are left out."""
_MARKET_DISTRACTOR: Final = 0
_MARKET_NAME: Final = re.compile(r"(-1|\d{1,5})_c(\d{1,3})")
_MSMT_FOLDERS: Final = (("train", "test"), ("mask_train_v2", "mask_test_v2"))
_MSMT_NAME: Final = re.compile(r"[^_/]+_[^_/]+_(\d{1,3})_[^/]*")
_NESTED: Final = ("Market-1501-v15.09.15", "MSMT17_V1", "MSMT17_V2")
_MOST_LIST_BYTES: Final = 1 << 28


class Photograph(NamedTuple):
    """One image of a public set."""

    path: str
    """Below the folder of the set."""
    person: int
    """The set's own number, or `NOBODY`."""
    camera: int
    modality: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicLayout:
    """Which set it is, and where its folders begin."""

    kind: PublicKind
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """All images of a set by their part."""

    layout: PublicLayout
    train: tuple[Photograph, ...]
    query: tuple[Photograph, ...]
    gallery: tuple[Photograph, ...]
    """All that a search may be held against; SYSU-MM01 draws from them."""
    junk: int
    """Images that the set itself leaves out."""


def find_public_set(root: Path) -> PublicLayout | None:
    """Recognise a set by its folders, in the root or one of the archives' own folders in it."""
    for folder in (root, *(root / name for name in _NESTED)):
        if all(is_folder(folder / name) for name in _MARKET):
            return PublicLayout(kind="market1501", folder=folder)
        if _msmt_folders(folder) is not None:
            return PublicLayout(kind="msmt17", folder=folder)
        if is_file(folder / "exp" / "test_id.txt") and is_folder(folder / "cam1"):
            return PublicLayout(kind="sysu_mm01", folder=folder)
    return None


def read_public_set(layout: PublicLayout, split: str = "train") -> PublicSet:
    """List the images of a set.

    Args:
        layout: What `find_public_set` found.
        split: Part to train on: `train`, or `trainval` with the validation people or images where
            the set has any.

    Raises:
        DataError: Where a list or a name cannot be used, or there is no such part.
    """
    if split not in ("train", "trainval"):
        raise DataError(
            f"{layout.folder} ({layout.kind}) has no part {split} to train on; set data.split to "
            "train or trainval"
        )
    if layout.kind == "market1501":
        return _market(layout)
    return _msmt(layout, split) if layout.kind == "msmt17" else _sysu(layout, split)


def train_index(found: PublicSet) -> ReidIndex:
    """Give the people to train on as an index; nobody has a caption.

    Raises:
        DataError: Where there are fewer than two.
    """
    people = sorted({image.person for image in found.train})
    if len(people) < 2:
        raise DataError(
            f"{found.layout.folder} shows {len(people)} people to train on; telling people apart "
            "needs at least two"
        )
    tables = tuple(_table(found.train, people, modality) for modality in IMAGE_MODALITIES)
    return ReidIndex(
        folder=found.layout.folder,
        people=tuple(f"{person:04d}" for person in people),
        images=tables,
        captions=Strings.of(()),
        caption_of=np.full(len(tables[IMAGE_MODALITIES.index(RGB)]), -1, np.int32),
        names_are_paths=True,
    )


def _table(images: Sequence[Photograph], people: Sequence[int], modality: str) -> ImageTable:
    own: dict[int, list[Photograph]] = defaultdict(list)
    for image in images:
        if image.modality == modality:
            own[image.person].append(image)
    ordered = [image for person in people for image in sorted(own[person])]
    return ImageTable(
        names=Strings.of(image.path for image in ordered),
        first=np.cumsum([0, *(len(own[person]) for person in people)], dtype=np.int64),
        views=np.full(len(ordered), NO_VIEW, np.uint8),
        cameras=np.array([image.camera for image in ordered], np.int16),
    )


def _market(layout: PublicLayout) -> PublicSet:
    parts = [
        [_market_image(layout.folder, folder, name) for name in _images_in(layout.folder / folder)]
        for folder in _MARKET
    ]
    train, query, gallery = (
        tuple(image for image in part if image.person != _MARKET_JUNK) for part in parts
    )
    distractors = [image.path for image in (*train, *query) if image.person == _MARKET_DISTRACTOR]
    if distractors:
        raise DataError(
            f"{layout.folder / distractors[0]} is person 0000, a distractor, which belongs into "
            f"{_MARKET[2]} alone ({len(distractors)} such images); move or remove it"
        )
    return PublicSet(
        layout=layout,
        train=train,
        query=query,
        gallery=tuple(
            image._replace(person=NOBODY) if image.person == _MARKET_DISTRACTOR else image
            for image in gallery
        ),
        junk=sum(map(len, parts)) - len(train) - len(query) - len(gallery),
    )


def _market_image(root: Path, folder: str, name: str) -> Photograph:
    match = _MARKET_NAME.match(name)
    if match is None:
        raise DataError(
            f"{root / folder / name} does not name a person and a camera, as "
            "0002_c1s1_000451_03.jpg does; rename or remove it"
        )
    return Photograph(f"{folder}/{name}", int(match[1]), int(match[2]), RGB)


def _msmt_folders(folder: Path) -> tuple[str, str] | None:
    if not is_file(folder / "list_query.txt"):
        return None
    return next((pair for pair in _MSMT_FOLDERS if is_folder(folder / pair[1])), None)


def _msmt(layout: PublicLayout, split: str) -> PublicSet:
    folders = _msmt_folders(layout.folder)
    assert folders is not None, "found by its folders"
    train, test = folders
    lists = ("train", "val") if split == "trainval" else ("train",)
    return PublicSet(
        layout=layout,
        train=tuple(image for part in lists for image in _msmt_list(layout.folder, part, train)),
        query=tuple(_msmt_list(layout.folder, "query", test)),
        gallery=tuple(_msmt_list(layout.folder, "gallery", test)),
        junk=0,
    )


def _msmt_list(root: Path, part: str, folder: str) -> Iterator[Photograph]:
    path = root / f"list_{part}.txt"
    for number, line in enumerate(_read_list(path).splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        match = _MSMT_NAME.fullmatch(name.rsplit("/", 1)[-1])
        if match is None or not label.isdecimal() or ".." in name.split("/"):
            raise DataError(
                f"{path}, line {number}: {line.strip()!r} is not a path with a camera and a label, "
                "such as 0000/0000_000_01_0303morning_0015_0.jpg 0; fetch the list anew"
            )
        yield Photograph(f"{folder}/{name}", int(label), int(match[1]), RGB)


def _sysu(layout: PublicLayout, split: str) -> PublicSet:
    ids = {part: _sysu_people(layout.folder, part) for part in ("train", "val", "test")}
    for part in ("train", "val"):
        both = ids[part] & ids["test"]
        if both:
            raise DataError(
                f"{layout.folder / 'exp'}: {part}_id.txt and test_id.txt both name person "
                f"{min(both)} ({len(both)} in all); nobody may be trained on and tested with"
            )
    trained = ids["train"] | ids["val"] if split == "trainval" else ids["train"]
    every = (*SYSU_VISIBLE, *SYSU_INFRARED)
    return PublicSet(
        layout=layout,
        train=tuple(_sysu_images(layout.folder, trained, every)),
        query=tuple(_sysu_images(layout.folder, ids["test"], SYSU_INFRARED)),
        gallery=tuple(_sysu_images(layout.folder, ids["test"], SYSU_VISIBLE)),
        junk=0,
    )


def _sysu_people(root: Path, part: str) -> set[int]:
    path = root / "exp" / f"{part}_id.txt"
    if part == "val" and not is_file(path):
        return set()
    words = re.split(r"[,\s]+", _read_list(path).strip())
    if not all(word.isdecimal() for word in words):
        raise DataError(f"{path} is not a list of numbers between commas; fetch it anew")
    return {int(word) for word in words}


def _sysu_images(root: Path, people: Iterable[int], cameras: Sequence[int]) -> Iterator[Photograph]:
    """List images by person, then camera, then name: the order that draws count in."""
    for person in sorted(people):
        for camera in cameras:
            folder = f"cam{camera}/{person:04d}"
            modality = NIR if camera in SYSU_INFRARED else RGB
            if is_folder(root / folder):
                for name in _images_in(root / folder):
                    yield Photograph(f"{folder}/{name}", person, camera, modality)


def _images_in(folder: Path) -> list[str]:
    try:
        return [name for name in names_in(folder) if is_image(name)]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _read_list(path: Path) -> str:
    try:
        return read_file(path, most_bytes=_MOST_LIST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); fetch it anew") from error
