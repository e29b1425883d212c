"""Records of people for training: one colour image with what belongs to it, or one image each.

An *anchored* record is a colour image and its caption, with one infrared image, one sketch and one
colour pencil drawing of the same person, drawn anew in each epoch; both drawings show the same
side of the person where there is one of it. A *single* record is one image, or one caption.

A record is a function of seed, epoch and index.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.stages import stage
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.reid.data.augment import DRAWS, PLAIN, Augment, show
from pitstop.workloads.reid.data.batch import ReidSample
from pitstop.workloads.reid.data.decode import ImageReader, Size, reader_of
from pitstop.workloads.reid.data.index import NO_CAMERA, VIEWS, ReidIndex, hold_out, load_index
from pitstop.workloads.reid.data.layout import find_layout
from pitstop.workloads.reid.data.modalities import (
    CP,
    IMAGE_MODALITIES,
    MODALITIES,
    NIR,
    RGB,
    SK,
    TEXT,
    bit,
)
from pitstop.workloads.reid.data.public_sets import (
    PublicSet,
    find_public_set,
    read_public_set,
    train_index,
)
from pitstop.workloads.reid.data.tokens import (
    CaptionTokenizer,
    TokenRows,
    WordTokenizer,
    encode_all,
)

Ints = npt.NDArray[np.int64]

_STREAM: Final = 0x52454944
_OWN_DRAWS: Final = 8
"""Random numbers a record takes for itself: one for each modality it draws or hides."""
_DRAWN: Final = (NIR, CP, SK)
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidSamples:
    """Records by index; small enough to travel to workers."""

    index: ReidIndex
    """Without captions."""
    tokens: TokenRows
    tokenizer: CaptionTokenizer
    kinds: npt.NDArray[np.int8]
    """Modality of each record as a place in `MODALITIES`, or -1 for an anchored one."""
    places: npt.NDArray[np.int32]
    """Image of each record in its modality's table, or its caption."""
    persons: Ints
    """Label of each record."""
    modality_masks: Ints
    """Modalities of each record as bits; what training hides is not taken out."""
    size: Size
    augment: Augment | None
    """None leaves images as they are."""
    dropout: float
    """Probability of hiding an image of an anchored record."""
    seed: int
    reader: ImageReader

    @property
    def people(self) -> int:
        """Number of people; labels are below it."""
        return len(self.index.people)

    @property
    def paired(self) -> int:
        """People with a colour image and a description of another kind."""
        owned = np.zeros(self.people, np.int64)
        np.bitwise_or.at(owned, self.persons, self.modality_masks)
        return int(np.count_nonzero((owned & bit(RGB)).astype(bool) & (owned > bit(RGB))))

    def __len__(self) -> int:
        return len(self.persons)

    def sample(self, epoch: int, index: int) -> ReidSample:
        """Read a record as this epoch has it.

        Raises:
            DataError: Where an image cannot be read; names it.
        """
        draws = _draws(self.seed, epoch, index)
        chosen = self._chosen(index, draws)
        images = np.zeros((len(IMAGE_MODALITIES), 3, *self.size), np.uint8)
        present = np.zeros(len(MODALITIES), np.bool_)
        for slot, modality in enumerate(IMAGE_MODALITIES):
            if chosen[slot] == _NONE:
                continue
            image = self.reader.image(self.index.path(modality, chosen[slot]), modality)
            begin = _OWN_DRAWS + slot * DRAWS
            with stage("transform"):
                view = PLAIN
                if self.augment is not None:
                    view = self.augment.view(draws[begin : begin + DRAWS])
                show(image, view, images[slot])
            present[slot] = True
        present[-1] = chosen[-1] != _NONE
        return ReidSample(
            images=torch.from_numpy(images),
            present=torch.from_numpy(present),
            tokens=torch.from_numpy(self.tokens.row(chosen[-1])),
            person=int(self.persons[index]),
            camera=self._camera(index),
            row=index,
        )

    def name_of(self, index: int) -> str:
        """Name the image of a record, or the one its caption is about."""
        kind, place = int(self.kinds[index]), int(self.places[index])
        if kind == MODALITIES.index(TEXT):
            image = int(np.flatnonzero(self.index.caption_of == place)[0])
            return f"the caption of {self.index.name(RGB, image)}"
        return self.index.name(RGB if kind < 0 else MODALITIES[kind], place)

    def with_cache(self, cache: SharedCache) -> "ReidSamples":
        """Give the same records, whose images are kept as pixels once they are read."""
        return replace(self, reader=replace(self.reader, cache=cache))

    def cache_keys(self, index: int) -> Iterator[str]:
        """Name the image of a record; which others an epoch adds to it is not known before."""
        kind = int(self.kinds[index])
        if kind != MODALITIES.index(TEXT):
            modality = RGB if kind < 0 else MODALITIES[kind]
            yield str(self.index.path(modality, int(self.places[index])))

    def _camera(self, index: int) -> int:
        kind = int(self.kinds[index])
        if kind == MODALITIES.index(TEXT):
            return NO_CAMERA
        modality = RGB if kind < 0 else MODALITIES[kind]
        return int(self.index.table(modality).cameras[self.places[index]])

    def _chosen(self, index: int, draws: list[float]) -> list[int]:
        """Choose an image of each modality, and a caption, by their places; -1 for none."""
        chosen = [_NONE] * len(MODALITIES)
        kind, place = int(self.kinds[index]), int(self.places[index])
        if kind >= 0:
            chosen[kind] = place
            return chosen
        person = int(self.persons[index])
        view = int(draws[0] * len(VIEWS))
        chosen[0] = place
        chosen[-1] = int(self.index.caption_of[place])
        for draw, modality in enumerate(_DRAWN, start=1):
            chosen[MODALITIES.index(modality)] = self._pick(modality, person, view, draws[draw])
        hidden = [draw < self.dropout for draw in draws[4:8]]
        shown = [_NONE if hide else one for hide, one in zip(hidden, chosen[:-1], strict=True)]
        # Somebody must be seen, or there is nothing to learn from.
        return chosen if max(*shown, chosen[-1]) == _NONE else [*shown, chosen[-1]]

    def _pick(self, modality: str, person: int, view: int, draw: float) -> int:
        """Pick one of a person's images, of the wanted side where there is one of it."""
        table = self.index.table(modality)
        own = table.of(person)
        if not own:
            return _NONE
        if modality != NIR:
            of_view = own.start + np.flatnonzero(table.views[own.start : own.stop] == view)
            if len(of_view):
                return int(of_view[int(draw * len(of_view))])
        return own[int(draw * len(own))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidPeople:
    """A dataset as far as it is known: who to train on, who is held back, and the words."""

    root: Path
    train: ReidIndex
    held_out: ReidIndex | None
    tokenizer: CaptionTokenizer
    test_lists: Path | None = None
    folder: Path = field(default_factory=Path)
    """Holds a folder for each modality."""
    public: PublicSet | None = None
    """What Market-1501, MSMT17 or SYSU-MM01 has, where it is one of them."""


def load_people(
    data: ReidData,
    *,
    tokenizer: CaptionTokenizer | None = None,
) -> ReidPeople:
    """Look at a dataset once, for training and for evaluation.

    Args:
        data: Where it lies, and the share of people to hold back.
        tokenizer: Who knows the words of captions; None for the words of the training captions.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where it cannot be used.
    """
    if data.root is None:
        raise ConfigError("data.root is not set: name the folder of the dataset")
    root = Path(data.root)
    public = find_public_set(root)
    if public is not None:
        return _load_public(root, read_public_set(public, data.split), data, tokenizer)
    layout = find_layout(root, data.split)
    # Not by the seed of the run: runs that differ by it are judged by the same people.
    train, held_out = hold_out(load_index(layout), data.holdout)
    return ReidPeople(
        root=root,
        train=train,
        held_out=held_out,
        tokenizer=tokenizer or WordTokenizer.of(train.captions),
        test_lists=layout.test_lists,
        folder=layout.folder,
    )


def _load_public(
    root: Path, found: PublicSet, data: ReidData, tokenizer: CaptionTokenizer | None
) -> ReidPeople:
    train, held_out = hold_out(train_index(found), data.holdout)
    return ReidPeople(
        root=root,
        train=train,
        held_out=held_out,
        tokenizer=tokenizer or WordTokenizer.of(train.captions),
        folder=found.layout.folder,
        public=found,
    )


def train_records(
    people: ReidPeople, data: ReidData, *, seed: int, text_len: int, augment: Augment | None = None
) -> ReidSamples:
    """Give the records to train on.

    Args:
        people: Who is there.
        data: Kind of records, size of images, and what is hidden or erased.
        seed: Decides everything random.
        text_len: Longest caption in tokens.
        augment: How images are changed; None for the usual, with `data.erase`.

    Raises:
        DataError: Where there are no records of that kind.
    """
    index = people.train
    rows = _anchored(index) if data.records == "anchored" else _single(index)
    kinds, places, persons, masks = rows
    if not len(kinds):
        raise DataError(
            f"{people.folder} has no records of the kind {data.records}: there are no colour images"
        )
    return ReidSamples(
        index=index.without_captions(),
        tokens=encode_all(people.tokenizer, index.captions, length=text_len),
        tokenizer=people.tokenizer,
        kinds=kinds,
        places=places,
        persons=persons,
        modality_masks=masks,
        size=data.image_size,
        augment=augment or Augment(erase=data.erase),
        dropout=data.modality_dropout if data.records == "anchored" else 0.0,
        seed=seed,
        reader=reader_of(index.folder, data.image_size),
    )


_Rows = tuple[npt.NDArray[np.int8], npt.NDArray[np.int32], Ints, Ints]


def _anchored(index: ReidIndex) -> _Rows:
    """List colour images; a record has what its person has, and its own caption."""
    table = index.table(RGB)
    persons = table.persons
    masks = np.full(len(table), bit(RGB), np.int64)
    for modality in _DRAWN:
        masks |= np.where(index.table(modality).counts[persons] > 0, bit(modality), 0)
    masks |= np.where(index.caption_of >= 0, bit(TEXT), 0)
    kinds = np.full(len(table), -1, np.int8)
    return kinds, np.arange(len(table), dtype=np.int32), persons.astype(np.int64), masks


def _single(index: ReidIndex) -> _Rows:
    """List every image and every caption."""
    kinds, places, persons = [], [], []
    for number, modality in enumerate(IMAGE_MODALITIES):
        table = index.table(modality)
        kinds.append(np.full(len(table), number, np.int8))
        places.append(np.arange(len(table), dtype=np.int32))
        persons.append(table.persons)
    captioned = index.caption_of >= 0
    kinds.append(np.full(int(captioned.sum()), MODALITIES.index(TEXT), np.int8))
    places.append(index.caption_of[captioned].astype(np.int32))
    persons.append(index.table(RGB).persons[captioned])
    kind = np.concatenate(kinds)
    masks = np.left_shift(np.int64(1), kind.astype(np.int64))
    return kind, np.concatenate(places), np.concatenate(persons).astype(np.int64), masks


def _draws(seed: int, epoch: int, index: int) -> list[float]:
    """Give all random numbers of a record, between 0 and 1."""
    count = _OWN_DRAWS + len(IMAGE_MODALITIES) * DRAWS
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, index, _STREAM]))
    return ((bits.random_raw(count) >> np.uint64(11)) * 2.0**-53).tolist()
