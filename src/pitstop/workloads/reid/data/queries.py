"""What an evaluation looks at: every image and caption once, and lists of queries over them.

A query is one to four descriptions of a person in different modalities; it is held against the
colour images of all people of the test. The 32 tasks are ordered combinations: the first modality
says which queries there are, one for each of its images or captions; the others are partners of
the same person. An item that stands in many queries is encoded once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.data.loader.stages import stage
from pitstop.data.packed_files import is_file, is_folder, names_in
from pitstop.errors import DataError
from pitstop.workloads.reid.data.augment import PLAIN, show
from pitstop.workloads.reid.data.batch import ReidSample
from pitstop.workloads.reid.data.dataset import ReidPeople
from pitstop.workloads.reid.data.decode import ImageReader, Size, reader_of
from pitstop.workloads.reid.data.index import NO_CAMERA, ReidIndex, camera_of
from pitstop.workloads.reid.data.layout import (
    FOLDERS,
    GALLERY,
    VAL_LISTS,
    is_image,
    read_json,
    require_text,
    split_path,
)
from pitstop.workloads.reid.data.modalities import (
    CP,
    IMAGE_MODALITIES,
    MODALITIES,
    NIR,
    PARTNER_ORDER,
    RGB,
    SK,
    TEXT,
    name_of_task,
    task_names,
)
from pitstop.workloads.reid.data.public_queries import PublicSearch, public_queries
from pitstop.workloads.reid.data.public_sets import NOBODY, PublicSet
from pitstop.workloads.reid.data.strings import Strings
from pitstop.workloads.reid.data.tokens import CaptionTokenizer, TokenRows, encode_all

Ints = npt.NDArray[np.int64]

_PARTNER_STREAM: Final = 0x50415254
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTask:
    """One list of queries."""

    name: str
    """Such as CP+NIR."""
    modalities: tuple[str, ...]
    """Of each query, in the order of the name."""
    persons: Ints
    """(Q,), who is looked for; -1 where nobody says."""
    items: Ints
    """(Q, modalities), places among the items."""
    numbers: tuple[int, ...] = ()
    """Of each query in the challenge's lists; empty where lists have none."""
    kinds: tuple[str, ...] = ()
    """What those lists call the kind of each query."""

    def __len__(self) -> int:
        return len(self.persons)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalImages:
    """Images and captions, each once, by index; sorted by modality."""

    folder: Path
    """What paths begin in."""
    paths: Strings
    """Where images lie; empty for captions."""
    tokens: TokenRows
    """Of the captions, which are the last items."""
    modalities: npt.NDArray[np.int8]
    """Place in `MODALITIES` of each."""
    persons: Ints
    """Who is shown; -1 where nobody says."""
    cameras: Ints
    """-1 where not known."""
    size: Size
    reader: ImageReader

    def __len__(self) -> int:
        return len(self.persons)

    @property
    def gallery(self) -> Ints:
        """Places of the colour images, which queries are held against."""
        return np.flatnonzero(self.modalities == MODALITIES.index(RGB))

    def sample(self, epoch: int, index: int) -> ReidSample:
        """Read one item, as a record that has nothing else; `row` is its place.

        Raises:
            DataError: Where the image cannot be read; names it.
        """
        del epoch
        chosen = [_NONE] * len(MODALITIES)
        chosen[self.modalities[index]] = index
        return self.record(chosen, row=index)

    def record(self, items: list[int], *, row: int) -> ReidSample:
        """Read an item of each modality as one record; -1 for none."""
        images = np.zeros((len(IMAGE_MODALITIES), 3, *self.size), np.uint8)
        for slot, modality in enumerate(IMAGE_MODALITIES):
            if items[slot] != _NONE:
                path = self.folder / self.paths[items[slot]]
                image = self.reader.image(path, modality)
                with stage("transform"):
                    show(image, PLAIN, images[slot])
        known = [item for item in items if item != _NONE]
        caption = _NONE if items[-1] == _NONE else items[-1] - len(self) + len(self.tokens)
        return ReidSample(
            images=torch.from_numpy(images),
            present=torch.from_numpy(np.array(items) != _NONE),
            tokens=torch.from_numpy(self.tokens.row(caption)),
            person=int(self.persons[known[0]]),
            camera=int(self.cameras[known[0]]),
            row=row,
        )

    def name_of(self, index: int) -> str:
        """Name an item by its file."""
        return self.paths[index] or f"caption {index - len(self) + len(self.tokens)}"

    def packed(self) -> "PackedImages":
        """Put items of different modalities side by side, four images and a caption a record."""
        places = [np.flatnonzero(self.modalities == slot) for slot in range(len(MODALITIES))]
        table = np.full((max(map(len, places)), len(MODALITIES)), _NONE, np.int64)
        for slot, own in enumerate(places):
            table[: len(own), slot] = own
        return PackedImages(images=self, table=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImages:
    """All items in as few records as there can be: a record has one of each modality.

    They have nothing to do with each other, so nothing may be fused: a batch is a way to bring
    items to a model that has a place for each modality. `table[batch.rows]` says which they are.
    """

    images: EvalImages
    table: Ints
    """(records, 5), places of items; -1 for none."""

    def __len__(self) -> int:
        return len(self.table)

    def sample(self, epoch: int, index: int) -> ReidSample:
        """Read up to five items.

        Raises:
            DataError: Where an image cannot be read; names it.
        """
        del epoch
        return self.images.record(self.table[index].tolist(), row=index)

    def name_of(self, index: int) -> str:
        """Name the images of a record."""
        items = [item for item in self.table[index].tolist() if item != _NONE]
        return ", ".join(self.images.name_of(item) for item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Items, and the queries over them."""

    images: EvalImages
    tasks: tuple[QueryTask, ...]
    people: int
    """How many there are; 0 where nobody says who is who."""
    searches: tuple[PublicSearch, ...] = ()
    """What is asked instead of tasks, where the dataset is a public set with its own protocol."""


def eval_set(people: ReidPeople, data: ReidData, *, text_len: int) -> EvalSet:
    """Give what to evaluate on: people held back, or the lists that come with the dataset.

    With `data.holdout` above 0 it is the people held back, with the 32 tasks made of their images.
    Otherwise `data.eval_split`: `test` for the release's lists, `val` for the challenge's, which
    do not say who is who. A public set is asked by its own protocol.

    Raises:
        DataError: Where there is nothing to evaluate on, or lists cannot be used.
    """
    if people.held_out is not None:
        gathered = _Items(people.held_out.folder)
        tasks = _held_out_tasks(people.held_out, gathered)
    elif people.public is not None:
        return _public_eval_set(people, people.public, data, text_len=text_len)
    elif is_file(lists := people.root / data.eval_split / VAL_LISTS):
        gathered = _Items(lists.parent)
        tasks = _challenge_tasks(lists, gathered)
    elif data.eval_split == "test" and people.test_lists is not None:
        gathered = _Items(people.test_lists.parent)
        tasks = _release_tasks(people.test_lists, gathered)
    else:
        raise DataError(
            f"{people.root} has nothing to evaluate on: neither lists for data.eval_split "
            f"{data.eval_split} nor people held back; set data.holdout above 0"
        )
    images, order = gathered.finish(people.tokenizer, size=data.image_size, text_len=text_len)
    if not len(images.gallery):
        raise DataError(
            f"{images.folder} has no colour images to evaluate on: the gallery is empty"
        )
    _check_askable(people, images, tasks)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return EvalSet(
        images=images,
        tasks=tuple(_renumbered(task, places) for task in tasks if len(task)),
        people=int(images.persons.max()) + 1,
    )


def _public_eval_set(
    people: ReidPeople, found: PublicSet, data: ReidData, *, text_len: int
) -> EvalSet:
    if data.eval_split != "test":
        raise DataError(
            f"{people.root} ({found.layout.kind}) has no part {data.eval_split} to evaluate on; "
            "set data.eval_split=test"
        )
    asked = public_queries(found)
    persons = np.array([image.person for image in asked.images], np.int64)
    images = EvalImages(
        folder=found.layout.folder,
        paths=Strings.of(image.path for image in asked.images),
        tokens=encode_all(people.tokenizer, [], length=text_len),
        modalities=np.array([MODALITIES.index(image.modality) for image in asked.images], np.int8),
        persons=persons,
        cameras=np.array([image.camera for image in asked.images], np.int64),
        size=data.image_size,
        reader=reader_of(found.layout.folder, data.image_size),
    )
    count = len(np.unique(persons[persons != NOBODY]))
    return EvalSet(images=images, tasks=(), people=count, searches=asked.searches)


def _check_askable(people: ReidPeople, images: EvalImages, tasks: list[QueryTask]) -> None:
    """Say now what would otherwise end a run at its first evaluation."""
    if not any(map(len, tasks)):
        source = "the people held back have colour images only"
        if people.held_out is None:
            source = f"the lists of {images.folder} hold no query"
        elif people.public is not None:
            source += "; set data.holdout=0 to be judged by the dataset's own queries"
        raise DataError(
            f"there is nothing to evaluate with: {source}; a query is an infrared image, a "
            "drawing or a caption"
        )
    if people.held_out is not None:
        shown = set(images.persons[images.gallery].tolist())
        if not any(shown.intersection(task.persons.tolist()) for task in tasks):
            raise DataError(
                f"none of the people held back of {images.folder} has both a colour image and "
                "another description, so no query can find anything; change data.holdout"
            )
        return
    for modality in sorted({one for task in tasks if len(task) for one in task.modalities}):
        if modality != TEXT and not is_folder(images.folder / FOLDERS[modality]):
            raise DataError(
                f"there is no folder {images.folder / FOLDERS[modality]}, though the lists ask "
                f"with images of it; fetch it, or set data.holdout above 0"
            )


class _Items:
    """Gathers images and captions, each once; numbers are those of their coming."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number: dict[tuple[str, str, int], int] = {}
        self._cameras: list[int] = []

    def find(self, modality: str, content: Any, person: int) -> int | None:
        """Give the number of an item that has come before."""
        return self._number.get((modality, content, person)) if isinstance(content, str) else None

    def add(self, modality: str, content: str, person: int, camera: int = NO_CAMERA) -> int:
        """Take an item in; the same caption of two people is two items."""
        number = self._number.setdefault((modality, content, person), len(self._number))
        if number == len(self._cameras):
            self._cameras.append(camera)
        return number

    def finish(
        self, tokenizer: CaptionTokenizer, *, size: Size, text_len: int
    ) -> tuple[EvalImages, Ints]:
        """Give the items sorted by modality, and the numbers they came with."""
        kinds = np.array([MODALITIES.index(modality) for modality, _, _ in self._number], np.int8)
        order = np.argsort(kinds, kind="stable")
        contents = [content for _, content, _ in self._number]
        persons = np.array([person for _, _, person in self._number], np.int64)
        text = MODALITIES.index(TEXT)
        sorted_kinds = kinds[order]
        images = EvalImages(
            folder=self.folder,
            paths=Strings.of("" if kinds[place] == text else contents[place] for place in order),
            tokens=encode_all(
                tokenizer,
                [contents[place] for place in order[sorted_kinds == text]],
                length=text_len,
            ),
            modalities=sorted_kinds,
            persons=persons[order],
            cameras=np.array(self._cameras, np.int64)[order],
            size=size,
            reader=reader_of(self.folder, size),
        )
        return images, order


def _renumbered(task: QueryTask, places: Ints) -> QueryTask:
    return replace(task, items=places[task.items])


def _task(modalities: tuple[str, ...], rows: list[tuple[int, ...]]) -> QueryTask:
    table = np.array(rows, np.int64).reshape(len(rows), 1 + len(modalities))
    return QueryTask(
        name=name_of_task(modalities),
        modalities=modalities,
        persons=table[:, 0],
        items=table[:, 1:],
    )


def _held_out_tasks(index: ReidIndex, items: _Items) -> list[QueryTask]:
    pools = {modality: _pool(index, items, modality) for modality in MODALITIES}
    return [_task(modalities, list(_generated(pools, modalities))) for modalities in task_names()]


def _pool(index: ReidIndex, items: _Items, modality: str) -> list[list[int]]:
    """Give the items of each person."""
    table = index.table(RGB if modality == TEXT else modality)
    pool: list[list[int]] = []
    for person in range(len(index.people)):
        own: list[int] = []
        for place in table.of(person):
            if modality != TEXT:
                name, camera = index.name(modality, place), int(table.cameras[place])
                own.append(items.add(modality, name, person, camera))
            elif index.caption_of[place] >= 0:
                own.append(items.add(TEXT, index.captions[int(index.caption_of[place])], person))
        pool.append(list(dict.fromkeys(own)))
    return pool


def _generated(
    pools: Mapping[str, list[list[int]]], modalities: tuple[str, ...]
) -> Iterator[tuple[int, ...]]:
    """Make the queries of a task; a person without one of its partners has none."""
    first, *partners = modalities
    code = [MODALITIES.index(modality) for modality in modalities]
    for person, own in enumerate(pools[first]):
        others = [pools[partner][person] for partner in partners]
        if not own or not all(others):
            continue
        # The same partners whatever the seed of the run: all runs answer the same queries.
        entropy = np.random.SeedSequence([0, _PARTNER_STREAM, person, *code])
        draws = np.random.PCG64(entropy).random_raw(max(1, len(own) * len(partners))).tolist()
        for number, item in enumerate(own):
            drawn = draws[number * len(partners) : (number + 1) * len(partners)]
            picked = [pool[draw % len(pool)] for pool, draw in zip(others, drawn, strict=True)]
            yield (person, item, *picked)


def _release_tasks(path: Path, items: _Items) -> list[QueryTask]:
    lists = read_json(path)
    if not isinstance(lists, dict) or not isinstance(lists.get(GALLERY), list):
        raise DataError(f"{path} has no list {GALLERY}, the colour images to search in")
    people = _People(path)
    for place, row in enumerate(lists[GALLERY]):
        _query(row, (RGB,), (items, people), f"{path}, {GALLERY}, entry {place}")
    people.close()
    tasks = []
    for name, rows in lists.items():
        if name == GALLERY:
            continue
        modalities = _modalities(name, path)
        if not isinstance(rows, list):
            raise DataError(f"{path}: {name} must be a list of queries; fix or remove it")
        where = f"{path}, {name}, entry"
        queries = [
            _query(row, modalities, (items, people), f"{where} {place}")
            for place, row in enumerate(rows)
        ]
        tasks.append(_task(modalities, queries))
    order = {name_of_task(one): place for place, one in enumerate(task_names())}
    return sorted(tasks, key=lambda task: order.get(task.name, len(order)))


class _People:
    """Numbers of the lists as labels; each is held against the folder its images lie in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder_of: dict[int, str] = {}
        self._number_of: dict[str, int] = {}
        self._label_of: dict[int, int] = {}
        self._closed = False

    def close(self) -> None:
        """Let nobody in who is not in the gallery: such a query could find nothing."""
        self._closed = True

    def label(self, number: Any, where: str) -> int:
        """Give the label of a person of the lists."""
        if not isinstance(number, int):
            raise DataError(f"{where} does not begin with the number of a person")
        if self._closed and number not in self._label_of:
            raise DataError(f"{where} looks for person {number}, who is not in {GALLERY}")
        return self._label_of.setdefault(number, len(self._label_of))

    def check(self, number: int, folder: str) -> None:
        """Hold a number against the folder of an image."""
        is_same = self._folder_of.setdefault(number, folder) == folder
        if not is_same or self._number_of.setdefault(folder, number) != number:
            raise DataError(
                f"{self._path}: person {number} and the folder {folder} do not belong together "
                "everywhere; a folder is one person, so fix the lists"
            )


def _modalities(name: str, path: Path) -> tuple[str, ...]:
    found = tuple(part.lower() for part in name.split("+"))
    if len(set(found)) < len(found) or not set(found) <= set(PARTNER_ORDER):
        raise DataError(
            f"{path} has a list {name}, which is no combination of "
            f"{', '.join(one.upper() for one in PARTNER_ORDER)}"
        )
    return found


def _query(
    row: Any, modalities: tuple[str, ...], into: tuple[_Items, _People], where: str
) -> tuple[int, ...]:
    items, people = into
    if not isinstance(row, list) or len(row) != 1 + len(modalities):
        raise DataError(f"{where} must be a list of a person and {len(modalities)} items")
    label = people.label(row[0], where)
    found = [label]
    for modality, content in zip(modalities, row[1:], strict=True):
        # The same item stands in many lists, and taking a path apart takes a while.
        number = items.find(modality, content, label)
        if number is None:
            number = _new_item((modality, content), (row[0], label), into, where)
        found.append(number)
    return tuple(found)


def _new_item(
    item: tuple[str, Any], person: tuple[int, int], into: tuple[_Items, _People], where: str
) -> int:
    modality, content = item
    number, label = person
    items, people = into
    if not isinstance(content, str):
        raise DataError(f"{where} has an item that is neither a path nor a caption")
    if modality == TEXT:
        if not content.strip():
            raise DataError(f"{where} asks with a caption that says nothing; remove the query")
        return items.add(TEXT, require_text(content, where), label)
    folder, owner, name = split_path(content, where)
    if folder != FOLDERS[modality]:
        raise DataError(f"{where}: {content} is no image of the modality {modality}")
    people.check(number, owner)
    return items.add(modality, f"{folder}/{owner}/{name}", label, camera_of(name))


def _challenge_tasks(path: Path, items: _Items) -> list[QueryTask]:
    """Read queries without names of people; the gallery is a folder of images."""
    gallery = path.parent / "gallery"
    names = names_in(gallery) if is_folder(gallery) else []
    for name in filter(is_image, names):
        items.add(RGB, f"gallery/{name}", _NONE, camera_of(name))
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"{path} must hold a list of queries")
    queries: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    called: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for place, row in enumerate(rows):
        content = row.get("content") if isinstance(row, dict) else None
        if not isinstance(content, list) or not all(isinstance(one, str) for one in content):
            raise DataError(f"{path}, entry {place} has no content, a list of paths and captions")
        modalities = tuple(_content_modality(one) for one in content)
        numbers = [
            items.add(modality, one, _NONE)
            for modality, one in zip(modalities, content, strict=True)
        ]
        queries.setdefault(modalities, []).append((_NONE, *numbers))
        number, kind = row.get("query_idx"), row.get("query_type")
        if isinstance(number, int):
            called.setdefault(modalities, []).append((number, str(kind or "")))
    return [
        _numbered(_task(modalities, found), called.get(modalities, []))
        for modalities, found in queries.items()
    ]


def _numbered(task: QueryTask, names: list[tuple[int, str]]) -> QueryTask:
    """Keep what the lists call their queries, where they name all of them."""
    if len(names) != len(task):
        return task
    numbers, kinds = zip(*names, strict=True)
    return replace(task, numbers=numbers, kinds=kinds)


def _content_modality(content: str) -> str:
    head = content.split("/", maxsplit=1)[0]
    for modality in (NIR, CP, SK):
        if head == FOLDERS[modality] and is_image(content):
            return modality
    return TEXT
