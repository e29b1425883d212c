"""A dataset of people read through from end to end."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pitstop.config.workloads.reid import ReidData
from pitstop.data.check import DataCheck, SplitFound
from pitstop.data.packed_files import (
    damaged_in,
    find_pack,
    folders_in,
    is_file,
    is_folder,
    names_in,
)
from pitstop.errors import DataError
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.decode import packed_size
from pitstop.workloads.reid.data.index import ReidIndex, build_index
from pitstop.workloads.reid.data.layout import (
    FOLDERS,
    PeopleLayout,
    find_layout,
    is_image,
    read_annotations,
)
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, NAMES, RGB, TEXT
from pitstop.workloads.reid.data.public_checking import check_public_set
from pitstop.workloads.reid.data.public_sets import find_public_set
from pitstop.workloads.reid.data.queries import eval_set
from pitstop.workloads.reid.data.whole_images import WholeImages

WORKLOAD: Final = "reid"

_TRAINED: Final = "train"
_UNSORTED: Final = "train or test"
_LONG: Final = 75  # words; CLIP reads 77 tokens, two of them marks, and a word is one or more


@dataclass(slots=True)
class _Found:
    """What one part of a dataset holds, counted while it is read."""

    people: set[str] = field(default_factory=set)
    files: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0


def is_people(root: Path) -> bool:
    """Tell whether a folder holds people in one of the layouts."""
    names = FOLDERS.values()
    return (
        find_public_set(root) is not None
        or is_file(root / "train_annos.json")
        or any(is_folder(folder / name) for folder in (root / "train", root) for name in names)
    )


def check_people(root: Path, data: ReidData | None = None) -> DataCheck:
    """Decode every image of a dataset, and read every annotation and every list.

    Args:
        root: Folder of the dataset.
        data: Settings to look with; None for the usual splits.

    Raises:
        DataError: Where there is no dataset.
    """
    begun = time.perf_counter()
    section = data or _usual(root)
    public = find_public_set(root)
    if public is not None:
        return check_public_set(public, section, root)
    layout = find_layout(root, section.split)
    problems: list[str] = []
    notes: list[str] = []
    annotated: set[tuple[str, str]] = set()
    trained: set[str] | None = None
    try:
        annotated = {(note.person, note.name) for note in read_annotations(layout.annotations)}
        trained = {person for person, _ in annotated} or None
        notes += _long_captions(build_index(layout))
    except DataError as error:
        problems.append(str(error))
    splits = _read_through(layout, trained, problems)
    problems += _missing(layout, annotated)
    if _TRAINED in splits and trained is not None:
        splits[_TRAINED].files[TEXT] = len(annotated)
        notes += _gaps(layout, splits[_TRAINED])
    problems += _wrong_lists(root, section) if not problems else []
    return DataCheck(
        root=str(root),
        workload=WORKLOAD,
        packed=find_pack(root) is not None,
        splits={
            name: SplitFound(
                sequences=len(found.people), files=dict(found.files), size_bytes=found.size_bytes
            )
            for name, found in splits.items()
        },
        problems=(*problems, *damaged_in(root)),
        notes=tuple(notes),
        took_s=time.perf_counter() - begun,
    )


def _usual(root: Path) -> ReidData:
    """Give the usual settings; images of a pack are as large as they were decoded for."""
    usual = ReidData(root=root, holdout=0.0)
    size = packed_size(root)
    return usual if size is None else usual.model_copy(update={"image_size": size})


def _read_through(
    layout: PeopleLayout, trained: set[str] | None, problems: list[str]
) -> dict[str, _Found]:
    """Decode every image; the same bytes under two people are a mistake."""
    splits: dict[str, _Found] = {}
    images = WholeImages(problems)
    for modality, person, path in _images(layout):
        if not layout.only_annotated:
            part = _TRAINED
        elif trained is None:
            part = _UNSORTED
        else:
            part = _TRAINED if person in trained else "test"
        found = splits.setdefault(part, _Found())
        found.people.add(person)
        found.files[modality] += 1
        found.size_bytes += images.read(path, person)
    return splits


def _long_captions(index: ReidIndex) -> Iterator[str]:
    lengths = [len(caption.split()) for caption in index.captions]
    long = sum(length > _LONG for length in lengths)
    if long:
        yield (
            f"{long:,} of {len(lengths):,} captions have more than {_LONG} words (the longest "
            f"{max(lengths):,}); what is beyond model.text_len tokens is not read"
        )


def _images(layout: PeopleLayout) -> Iterator[tuple[str, str, Path]]:
    for modality in IMAGE_MODALITIES:
        folder = layout.folder / FOLDERS[modality]
        for person in folders_in(folder):
            for name in names_in(folder / person):
                if is_image(name):
                    yield modality, person, folder / person / name


def _missing(layout: PeopleLayout, annotated: set[tuple[str, str]]) -> list[str]:
    folder = layout.folder / FOLDERS[RGB]
    return [
        f"there is no {folder / person / name}, which {layout.annotations.name} is about"
        for person, name in sorted(annotated)
        if not is_file(folder / person / name)
    ]


def _gaps(layout: PeopleLayout, found: _Found) -> Iterator[str]:
    """Say how many people lack a modality; training hides it by its mask."""
    for modality in IMAGE_MODALITIES:
        folder = layout.folder / FOLDERS[modality]
        lacking = sum(
            not is_folder(folder / person) or not any(map(is_image, names_in(folder / person)))
            for person in found.people
        )
        if lacking:
            name = f"{modality} ({NAMES[modality]})"
            yield f"{lacking:,} of {len(found.people):,} people have no {name} images"


def _wrong_lists(root: Path, section: ReidData) -> list[str]:
    """Read the lists of queries, where there are any."""
    whole = section.model_copy(update={"root": root, "holdout": 0.0})
    try:
        people = load_people(whole)
        if people.test_lists is not None and section.eval_split == "test":
            listed = eval_set(people, whole, text_len=77).images
            paths = {listed.paths[place] for place in range(len(listed)) if listed.paths[place]}
            return [
                f"there is no {listed.folder / path}, which {people.test_lists.name} is about"
                for path in sorted(paths)
                if not is_file(listed.folder / path)
            ]
    except DataError as error:
        return [str(error)]
    return []
