"""A public set of people read through from end to end."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pitstop.config.workloads.reid import ReidData
from pitstop.data.check import DataCheck, SplitFound
from pitstop.data.packed_files import damaged_in, find_pack
from pitstop.errors import DataError
from pitstop.workloads.reid.data.public_sets import (
    NOBODY,
    Photograph,
    PublicLayout,
    PublicSet,
    read_public_set,
    train_index,
)
from pitstop.workloads.reid.data.whole_images import WholeImages

_MOST_NAMED: Final = 5


def check_public_set(layout: PublicLayout, data: ReidData, root: Path) -> DataCheck:
    """Decode every image of a set, and hold its parts against each other."""
    begun = time.perf_counter()
    problems: list[str] = []
    splits: dict[str, SplitFound] = {}
    notes: tuple[str, ...] = ()
    try:
        found = read_public_set(layout, data.split)
        train_index(found)
    except DataError as error:
        problems.append(str(error))
    else:
        tested = (*found.query, *found.gallery)
        splits = {
            data.split: _read_through(layout.folder, found.train, problems),
            "test": _read_through(layout.folder, tested, problems),
        }
        notes = tuple(_notes(found))
    return DataCheck(
        root=str(root),
        workload="reid",
        packed=find_pack(root) is not None,
        splits=splits,
        problems=(*problems, *damaged_in(root)),
        notes=notes,
        took_s=time.perf_counter() - begun,
    )


def _read_through(folder: Path, images: Sequence[Photograph], problems: list[str]) -> SplitFound:
    """Decode images; the same bytes under two people of a part are a mistake."""
    # Of this part alone: numbers of people begin anew in each part of MSMT17.
    whole = WholeImages(problems)
    files = Counter(image.modality for image in images)
    size_bytes = sum(whole.read(folder / image.path, image.person) for image in images)
    people = {image.person for image in images} - {NOBODY}
    return SplitFound(sequences=len(people), files=dict(files), size_bytes=size_bytes)


def _notes(found: PublicSet) -> Iterator[str]:
    layout = found.layout
    queries, gallery = len(found.query), len(found.gallery)
    yield f"layout {layout.kind}: {queries:,} queries, {gallery:,} gallery images"
    if found.junk:
        yield f"{found.junk:,} junk images (person -1) are left out, as the set asks"
    distractors = sum(image.person == NOBODY for image in found.gallery)
    if distractors:
        yield f"{distractors:,} distractors (person 0000) stay in the gallery"
    there = {image.person for image in found.gallery}
    lost = sorted({image.person for image in found.query} - there)
    if lost:
        named = ", ".join(str(person) for person in lost[:_MOST_NAMED])
        yield f"{len(lost):,} people are asked for and not in the gallery ({named}); not counted"
