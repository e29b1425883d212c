"""A made dataset of people in five modalities, in the layout of ORBench's release.

Everything follows from the seed. What makes the real task hard is in it on purpose: people who
differ in one garment, people without infrared or without drawings, people seen once, images
without a caption, numbers of images with a long tail, and, where asked for, files that are broken.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from PIL import Image

from pitstop.data.new_dataset import folder_bytes, new_dataset, refuse_used_root
from pitstop.errors import DataError
from pitstop.workloads.reid.data.index import VIEWS
from pitstop.workloads.reid.data.layout import FOLDERS, GALLERY, TEST_LISTS
from pitstop.workloads.reid.data.modalities import (
    CP,
    MODALITIES,
    NIR,
    RGB,
    SK,
    TEXT,
    name_of_task,
    task_names,
)
from pitstop.workloads.reid.synthetic.figures import (
    Camera,
    infrared,
    make_camera,
    make_pose,
    pencil,
    photograph,
    sketch,
)
from pitstop.workloads.reid.synthetic.people import (
    Person,
    Random,
    describe,
    make_look_alike,
    make_person,
)

Size = tuple[int, int]

CAMERAS: Final = {RGB: (1, 2, 4, 5), NIR: (3, 6)}

_SHARES: Final = {RGB: 0.42, NIR: 0.24, CP: 0.17, SK: 0.17}
"""Of a person's images, about as in ORBench."""
_TEST: Final = 0.4
_LOOK_ALIKE: Final = 0.12
_LACKING: Final = 0.07
"""Probability of having no images of a modality."""
_SEEN_ONCE: Final = 0.04
_UNCAPTIONED: Final = 0.03
_CUT_AT: Final = 0.4
"""Share of its bytes that a broken file keeps."""
_MAKE, _LOOKS, _CAMERA, _ORDER, _PARTNER, _BREAK = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePeople:
    """A dataset that was made."""

    root: str
    people: Mapping[str, int]
    """By split."""
    images: Mapping[str, int]
    """By modality."""
    captions: int
    queries: int
    height: int
    width: int
    look_alikes: int
    """People who differ from another in one thing."""
    corrupt: tuple[str, ...]
    """Files that were broken on purpose."""
    seed: int
    size_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Studio:
    """What pictures of everybody have in common."""

    images: int
    size: Size
    seed: int
    cameras: Mapping[int, Camera]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """One person's files."""

    folder: str
    split: str
    files: Mapping[str, list[str]]
    """Paths by modality."""
    captions: Mapping[str, str]
    """By the path of a colour image."""


def make_reid(
    root: Path,
    *,
    people: int = 100,
    images: int = 40,
    size: Size = (192, 96),
    seed: int = 0,
    corrupt: int = 0,
) -> MadePeople:
    """Make a dataset; the folder appears whole or not at all.

    Args:
        root: Folder of the dataset, which must not hold anything yet.
        people: How many; two in five are for the test.
        images: About how many of each person, in all modalities together.
        size: Height and width of an image in pixels.
        seed: Decides everything; somebody does not depend on how many others there are.
        corrupt: Training images to break.

    Raises:
        DataError: Where it cannot be made so, or the folder is in use or cannot be written.
    """
    begun = time.perf_counter()
    _check_request(root, people, images, size)
    with new_dataset(root, what="people") as folder:
        invented = _people(people, seed)
        studio = _Studio(images=images, size=size, seed=seed, cameras=_cameras(seed))
        made = [
            _write_person(folder, number, person, studio)
            for number, (person, _) in enumerate(invented)
        ]
        made = _parted(made, people)
        queries = _write_lists(folder, made, seed)
        broken = _break(folder, made, corrupt, seed)
        size_bytes = folder_bytes(folder)
    return MadePeople(
        root=str(root),
        people=dict(Counter(one.split for one in made)),
        images={name: sum(len(one.files[name]) for one in made) for name in FOLDERS},
        captions=sum(len(one.captions) for one in made),
        queries=queries,
        height=size[0],
        width=size[1],
        look_alikes=sum(is_like for _, is_like in invented),
        corrupt=tuple(broken),
        seed=seed,
        size_bytes=size_bytes,
        took_s=time.perf_counter() - begun,
    )


def _check_request(root: Path, people: int, images: int, size: Size) -> None:
    if people < 5 or images < 4:
        raise DataError(
            f"{people} people with {images} images each cannot be made: at least 5 people are "
            "needed for a training and a test part, and 4 images of each"
        )
    if min(size) < 32:
        raise DataError(f"people of {size[0]}x{size[1]} pixels look the same; take at least 32")
    refuse_used_root(root)


def _people(count: int, seed: int) -> list[tuple[Person, bool]]:
    """Invent everybody; some look nearly like the one before."""
    people: list[tuple[Person, bool]] = []
    for number in range(count):
        random = Random(seed, _LOOKS, number)
        is_like = number > 0 and random.chance(_LOOK_ALIKE)
        person = make_look_alike(random, people[-1][0]) if is_like else make_person(random)
        people.append((person, is_like))
    return people


def _cameras(seed: int) -> dict[int, Camera]:
    numbers = [number for own in CAMERAS.values() for number in own]
    return {number: make_camera(Random(seed, _CAMERA, number)) for number in numbers}


def _write_person(folder: Path, number: int, person: Person, studio: _Studio) -> _Made:
    random = Random(studio.seed, _MAKE, number)
    counts = _counts(random, studio.images)
    # Folders have gaps and are no labels: whoever takes them for some is found out.
    name = f"{3 * number + 2:04d}"
    files: dict[str, list[str]] = {modality: [] for modality in FOLDERS}
    captions: dict[str, str] = {}
    for modality, count in counts.items():
        own = folder / FOLDERS[modality] / name
        own.mkdir(parents=True)
        for shot in range(count):
            turn = VIEWS[(number + shot) % len(VIEWS)]
            view = turn if modality in (CP, SK) else random.choice(VIEWS)
            file, data = _picture(person, random, (modality, view, shot), studio)
            path = f"{FOLDERS[modality]}/{name}/{name}_{file}"
            (folder / path).write_bytes(data)
            files[modality].append(path)
            if modality == RGB and (shot == 0 or not random.chance(_UNCAPTIONED)):
                captions[path] = describe(person, view, random)
    return _Made(folder=name, split="", files=files, captions=captions)


def _counts(random: Random, images: int) -> dict[str, int]:
    """Say how many images of each modality there are; many have few, few have many."""
    # The product of two numbers has a long tail; its mean is 1.
    tail = (0.35 + 1.3 * random.uniform()) * (0.5 + random.uniform())
    counts = {name: max(1, round(images * share * tail)) for name, share in _SHARES.items()}
    for name in (CP, SK):
        counts[name] = max(1, round(images * _SHARES[name]))
    if random.chance(_SEEN_ONCE):
        counts[RGB] = 1
    for name in (NIR, CP, SK):
        if random.chance(_LACKING):
            counts[name] = 0
    return {name: count for name, count in counts.items() if count}


def _picture(
    person: Person, random: Random, shot: tuple[str, str, int], studio: _Studio
) -> tuple[str, bytes]:
    """Take or draw one picture; gives the end of its name and its bytes."""
    modality, view, number = shot
    pose = make_pose(random, view)
    quality = 60 + random.below(36)
    if modality in CAMERAS:
        place = random.choice(CAMERAS[modality])
        take = photograph if modality == RGB else infrared
        image = take(person, pose, random, camera=studio.cameras[place], size=studio.size)
        name = f"made_{random.below(10_000):04d}_cam{place}_{number:04d}_{FOLDERS[modality]}.jpg"
    else:
        draw = pencil if modality == CP else sketch
        image = draw(person, pose, random, studio.size)
        name = f"made_{view}_{number:04d}_{FOLDERS[modality]}.jpg"
    return name, _jpeg(image, quality)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _parted(made: list[_Made], people: int) -> list[_Made]:
    """Let everybody in turn into the test who makes two in five."""
    return [
        _Made(
            folder=one.folder,
            split="test" if int((n + 1) * _TEST) > int(n * _TEST) else "train",
            files=one.files,
            captions=one.captions,
        )
        for n, one in zip(range(people), made, strict=True)
    ]


def _write_lists(folder: Path, made: list[_Made], seed: int) -> int:
    train = [one for one in made if one.split == "train"]
    test = [one for one in made if one.split == "test"]
    numbers = Random(seed, _ORDER).shuffled(range(1, len(train) + 1))
    notes = [
        {"id": number, "file_path": path, "caption": caption, "split": "train"}
        for number, one in zip(numbers, train, strict=True)
        for path, caption in one.captions.items()
    ]
    _write_json(folder / "train_annos.json", notes)
    lists: dict[str, list[list[Any]]] = {
        GALLERY: [[int(one.folder), path] for one in test for path in one.files[RGB]]
    }
    for modalities in task_names():
        random = Random(seed, _PARTNER, *map(MODALITIES.index, modalities))
        lists[name_of_task(modalities)] = list(_queries(test, modalities, random))
    _write_json(folder / TEST_LISTS, lists)
    return sum(map(len, lists.values())) - len(lists[GALLERY])


def _queries(
    people: list[_Made], modalities: tuple[str, ...], random: Random
) -> Iterator[list[Any]]:
    for one in people:
        pools = [
            list(one.captions.values()) if modality == TEXT else one.files[modality]
            for modality in modalities
        ]
        if all(pools):
            for item in pools[0]:
                yield [int(one.folder), item, *(random.choice(pool) for pool in pools[1:])]


def _break(folder: Path, made: list[_Made], count: int, seed: int) -> list[str]:
    """Cut files off in the middle, of people who have others."""
    random = Random(seed, _BREAK)
    train = [one for one in made if one.split == "train" and len(one.files[RGB]) > 2]
    broken = [one.files[RGB][1] for one in random.shuffled(train)[:count]]
    if len(broken) < count:
        raise DataError(f"{count} images cannot be broken: there are {len(train)} people for it")
    for path in broken:
        data = (folder / path).read_bytes()
        (folder / path).write_bytes(data[: int(len(data) * _CUT_AT)])
    return broken


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
