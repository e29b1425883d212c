"""Everything known of a dataset without opening an image, as arrays; kept on disk between runs.

Each folder is listed once. What was found is saved beside the dataset under a name made of the
names and times of all folders and of the annotations' own bytes, so that an index that no longer
fits is never found, and nothing has to be compared.
"""

import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pitstop.data.packed_files import find_pack, folders_in, names_in
from pitstop.errors import DataError
from pitstop.workloads.reid.data.layout import (
    FOLDERS,
    Annotation,
    PeopleLayout,
    is_image,
    read_annotations,
)
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, RGB, TEXT
from pitstop.workloads.reid.data.strings import Strings

Ints = npt.NDArray[np.int64]

VIEWS: Final = ("front", "back", "side")
NO_VIEW: Final = len(VIEWS)
NO_CAMERA: Final = -1

_VERSION: Final = 1
_CACHE: Final = ".pitstop-index"
_CAMERA: Final = re.compile(r"(?:^|_)c(?:am)?(\d{1,4})(?:_|\.|$)", re.IGNORECASE)
_MOST_KEPT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTable:
    """The images of one modality, person by person."""

    names: Strings
    """Files in the folders of their persons."""
    first: Ints
    """Where each person's begin, and the end of the last."""
    views: npt.NDArray[np.uint8]
    """Place in `VIEWS`, or `NO_VIEW`."""
    cameras: npt.NDArray[np.int16]
    """Number of the camera, or `NO_CAMERA`."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> Ints:
        """Images of each person."""
        return np.diff(self.first)

    @property
    def persons(self) -> Ints:
        """Person of each image."""
        return np.repeat(np.arange(len(self.first) - 1), self.counts)

    def of(self, person: int) -> range:
        """Give the places of a person's images."""
        return range(int(self.first[person]), int(self.first[person + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidIndex:
    """People, their images by modality, and captions; a person's label is its place."""

    folder: Path
    """Holds a folder for each modality."""
    people: tuple[str, ...]
    """Folder of each person."""
    images: tuple[ImageTable, ...]
    """In the order of `IMAGE_MODALITIES`."""
    captions: Strings
    """Empty in an index that travels to workers, which get tokens."""
    caption_of: npt.NDArray[np.int32]
    """Place of each colour image's caption, or -1."""
    names_are_paths: bool = False
    """Whether tables hold paths below `folder`, where folders do not name modality and person."""

    def table(self, modality: str) -> ImageTable:
        """Give the images of a modality."""
        return self.images[IMAGE_MODALITIES.index(modality)]

    def path(self, modality: str, place: int) -> Path:
        """Say where an image lies."""
        return self.folder / self.name(modality, place)

    def name(self, modality: str, place: int) -> str:
        """Name an image by its path in the dataset."""
        table = self.table(modality)
        if self.names_are_paths:
            return table.names[place]
        person = int(np.searchsorted(table.first, place, side="right")) - 1
        return f"{FOLDERS[modality]}/{self.people[person]}/{table.names[place]}"

    def without_captions(self) -> "ReidIndex":
        """Leave out what workers do not need."""
        return replace(self, captions=Strings.of(()))

    def of_people(self, chosen: Sequence[int] | Ints) -> "ReidIndex":
        """Give the part that shows some people; they are labelled from 0 on in their order."""
        labels = np.asarray(chosen, np.int64)
        rgb_places = _places_of(self.table(RGB), labels)
        kept = self.caption_of[rgb_places]
        places = kept[kept >= 0]
        caption_of = np.full(len(kept), -1, np.int32)
        caption_of[kept >= 0] = np.arange(len(places), dtype=np.int32)
        return ReidIndex(
            folder=self.folder,
            people=tuple(self.people[label] for label in labels.tolist()),
            images=tuple(_table_of(table, labels) for table in self.images),
            captions=self.captions.take(places),
            caption_of=caption_of,
            names_are_paths=self.names_are_paths,
        )


def load_index(layout: PeopleLayout) -> ReidIndex:
    """Give the index of a dataset, from disk where nothing has changed since it was saved.

    It lies beside the annotations. Where it cannot be written, every run makes it anew; of a pack,
    whose own index says everything, it is made anew as well.

    Raises:
        DataError: Where the dataset cannot be used.
    """
    if find_pack(layout.folder) is not None:
        return build_index(layout)
    folder = layout.annotations.parent / _CACHE
    path = folder / f"{layout.annotations.stem}-{fingerprint(layout)}.npz"
    index = _read(path, layout.folder)
    if index is None:
        index = build_index(layout)
        with suppress(OSError):
            _write(path, index)
    return index


def fingerprint(layout: PeopleLayout) -> str:
    """Sum up what an index depends on: names and times of folders, and the annotations.

    Raises:
        DataError: Where something is not there.
    """
    digest = hashlib.blake2b(f"{_VERSION} {layout.kind}".encode(), digest_size=16)
    try:
        digest.update(layout.annotations.read_bytes())
        for modality in IMAGE_MODALITIES:
            for entry in _folders(layout.folder / FOLDERS[modality]):
                stamp = f"{modality}/{entry.name}\0{entry.stat().st_mtime_ns}\0"
                digest.update(stamp.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def build_index(layout: PeopleLayout) -> ReidIndex:
    """List every folder of a dataset once.

    Raises:
        DataError: Where the dataset cannot be used.
    """
    notes = read_annotations(layout.annotations)
    if not notes and layout.only_annotated:
        raise DataError(
            f"{layout.annotations} is an empty list, and it says whom to train on; fetch it anew"
        )
    listed = {name: _list_people(layout.folder / FOLDERS[name]) for name in IMAGE_MODALITIES}
    annotated = {note.person for note in notes}
    people = sorted(annotated if layout.only_annotated else annotated.union(*listed.values()))
    captions = _by_image(notes)
    for person, name in captions:
        # Named when it is read, as any file that cannot be.
        listed[RGB].setdefault(person, set()).add(name)
    names = {
        modality: [sorted(listed[modality].get(person, ())) for person in people]
        for modality in IMAGE_MODALITIES
    }
    index = ReidIndex(
        folder=layout.folder,
        people=tuple(people),
        images=tuple(_table(names[modality]) for modality in IMAGE_MODALITIES),
        **_captions(people, names[RGB], captions),
    )
    _check(index, layout)
    return index


def hold_out(
    index: ReidIndex, share: float, *, seed: int = 0
) -> tuple[ReidIndex, ReidIndex | None]:
    """Part people into those to train on and those held back; nobody is in both.

    Args:
        index: Everybody.
        share: Part to hold back; 0 for none.
        seed: Decides who.

    Returns:
        Who to train on, and who is held back, each labelled from 0 on.

    Raises:
        DataError: Where there are too few people for that.
    """
    count = len(index.people)
    held = round(count * share)
    if share == 0:
        return index, None
    if held < 2 or count - held < 2:
        raise DataError(
            f"holding back {share:g} of {count} people leaves {count - held} to train on and "
            f"{held} to evaluate on; both need at least 2, so change data.holdout"
        )
    bits = np.random.PCG64(np.random.SeedSequence([seed, 0x484F4C44])).random_raw(count)
    order = np.argsort(bits, kind="stable")
    return index.of_people(np.sort(order[held:])), index.of_people(np.sort(order[:held]))


def view_of(name: str) -> int:
    """Tell from a file's name from which side a person is drawn."""
    for place, view in enumerate(VIEWS):
        if f"_{view}" in name:
            return place
    return NO_VIEW


def camera_of(name: str) -> int:
    """Tell from a file's name which camera took it (`cam5` or `c5`)."""
    match = _CAMERA.search(name)
    return NO_CAMERA if match is None else int(match[1])


def _folders(folder: Path) -> list["os.DirEntry[str]"]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return sorted(found, key=lambda entry: entry.name)


def _list_people(folder: Path) -> dict[str, set[str]]:
    """Give the images in each person's folder; a person without any is left out."""
    found: dict[str, set[str]] = {}
    try:
        for person in folders_in(folder):
            names = {name for name in names_in(folder / person) if is_image(name)}
            if names:
                found[person] = names
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    return found


def _by_image(notes: Iterable[Annotation]) -> dict[tuple[str, str], str]:
    return {(note.person, note.name): note.caption for note in notes}


def _table(names: list[list[str]]) -> ImageTable:
    flat = [name for own in names for name in own]
    return ImageTable(
        names=Strings.of(flat),
        first=np.cumsum([0, *map(len, names)], dtype=np.int64),
        views=np.array([view_of(name) for name in flat], np.uint8),
        cameras=np.array([camera_of(name) for name in flat], np.int16),
    )


def _captions(
    people: list[str], names: list[list[str]], captions: dict[tuple[str, str], str]
) -> dict[str, Any]:
    kept: list[str] = []
    caption_of: list[int] = []
    for person, own in zip(people, names, strict=True):
        for name in own:
            caption = captions.get((person, name), "")
            # Nothing said is no caption: an empty one would count as a modality.
            caption_of.append(len(kept) if caption.strip() else -1)
            if caption.strip():
                kept.append(caption)
    return {"captions": Strings.of(kept), "caption_of": np.array(caption_of, np.int32)}


def _check(index: ReidIndex, layout: PeopleLayout) -> None:
    if not index.people or not sum(map(len, index.images)):
        raise DataError(f"{layout.folder} holds no images of people; is it the right folder?")
    if len(index.people) == 1:
        raise DataError(
            f"{layout.folder} shows one person only ({index.people[0]}); telling people apart "
            "needs at least two"
        )


def _places_of(table: ImageTable, labels: Ints) -> Ints:
    parts = [np.array(table.of(label), np.int64) for label in labels.tolist()]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _table_of(table: ImageTable, labels: Ints) -> ImageTable:
    places = _places_of(table, labels)
    counts = table.counts[labels]
    return ImageTable(
        names=table.names.take(places),
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        views=table.views[places],
        cameras=table.cameras[places],
    )


def _write(path: Path, index: ReidIndex) -> None:
    """Save an index whole or not at all, and forget the oldest."""
    arrays: dict[str, npt.NDArray[Any]] = {"caption_of": index.caption_of}
    pools = {"people": Strings.of(index.people), TEXT: index.captions}
    for modality, table in zip(IMAGE_MODALITIES, index.images, strict=True):
        pools[modality] = table.names
        arrays[f"{modality}.of"] = table.first
        arrays[f"{modality}.views"] = table.views
        arrays[f"{modality}.cameras"] = table.cameras
    for name, pool in pools.items():
        arrays[f"{name}.data"] = np.frombuffer(pool.data, np.uint8)
        arrays[f"{name}.first"] = pool.first
    path.parent.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".npz", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    saved = sorted(path.parent.glob("[!.]*.npz"), key=lambda one: one.stat().st_mtime_ns)
    for old in saved[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)


def _read(path: Path, folder: Path) -> ReidIndex | None:
    """Load a saved index; one that is damaged is as good as none."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            pools = {
                name: Strings(saved[f"{name}.data"].tobytes(), saved[f"{name}.first"])
                for name in ("people", TEXT, *IMAGE_MODALITIES)
            }
            images = tuple(
                ImageTable(
                    names=pools[modality],
                    first=saved[f"{modality}.of"],
                    views=saved[f"{modality}.views"],
                    cameras=saved[f"{modality}.cameras"],
                )
                for modality in IMAGE_MODALITIES
            )
            return ReidIndex(
                folder=folder,
                people=tuple(pools["people"]),
                images=images,
                captions=pools[TEXT],
                caption_of=saved["caption_of"],
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
