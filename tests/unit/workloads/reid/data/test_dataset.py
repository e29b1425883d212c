"""Records to train on: pure functions of seed, epoch and index."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.data.cache.cached_samples import CacheableSamples
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.fetch import BatchFetcher, NamedSamples, Request, WorkerBoard
from pitstop.data.sampling.pk_sampler import PKSampler
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.reid.data.augment import Augment
from pitstop.workloads.reid.data.batch import ReidSample, collate
from pitstop.workloads.reid.data.dataset import ReidPeople, ReidSamples, load_people, train_records
from pitstop.workloads.reid.data.index import VIEWS, ImageTable, ReidIndex
from pitstop.workloads.reid.data.modalities import (
    IMAGE_MODALITIES,
    MODALITIES,
)
from pitstop.workloads.reid.data.strings import Strings
from pitstop.workloads.reid.data.tokens import WordTokenizer
from tests.unit.workloads.reid.people_files import FULL, mask_of, modalities_in, names, write_people

torch.set_num_threads(1)

PEOPLE: dict[str, dict[str, int]] = {
    "0941": FULL,
    "0002": {"rgb": 2, "nir": 1, "cp": 2},
    "0100": {"rgb": 1, "sk": 4},
    "0500": FULL,
    "0600": {"nir": 2},
    "0777": {"rgb": 4},
}
STILL = Augment(scale=(1.0, 1.0), flip=0, brightness=0, contrast=0, erase=0)


def records(
    root: Path, *, seed: int = 0, augment: Augment | None = None, **settings: Any
) -> ReidSamples:
    options = {"holdout": 0.0, "image_size": (16, 8), "modality_dropout": 0.0, **settings}
    data = ReidData.model_validate({"root": root, **options})
    return train_records(load_people(data), data, seed=seed, text_len=12, augment=augment)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("people"), PEOPLE)


def equal(one: ReidSample, other: ReidSample) -> bool:
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.present, other.present)
        and torch.equal(one.tokens, other.tokens)
        and (one.person, one.camera, one.row) == (other.person, other.camera, other.row)
    )


def shown_by(samples: ReidSamples, sample: ReidSample) -> dict[str, tuple[int, int]]:
    """Person and number of each image, read back from its level (see people_files)."""
    found = {}
    for slot, modality in enumerate(IMAGE_MODALITIES):
        if sample.present[slot]:
            assert samples.augment == STILL
            level = float(sample.images[slot, 0].float().mean())
            person, place = divmod(round((level - 10) / 2), 10)
            found[modality] = (person, place)
    return found


def record_of(samples: ReidSamples, person: str) -> int:
    return int(np.flatnonzero(samples.persons == samples.index.people.index(person))[0])


def test_an_anchored_record_is_one_person_in_all_its_modalities(root: Path) -> None:
    samples = records(root, augment=STILL)
    order = {person: place for place, person in enumerate(PEOPLE)}
    for index in range(len(samples)):
        sample = samples.sample(0, index)
        person = samples.index.people[sample.person]
        assert {who for who, _ in shown_by(samples, sample).values()} == {order[person]}
        has = {*PEOPLE[person], "text"}
        assert {MODALITIES[n] for n in torch.nonzero(sample.present).flatten()} == has
        assert set(modalities_in(int(samples.modality_masks[index]))) == has
        absent = [slot for slot in range(4) if not sample.present[slot]]
        assert not sample.images[absent].any()


def test_records_are_colour_images_and_everybody_is_labelled(root: Path) -> None:
    samples = records(root)
    assert len(samples) == sum(counts.get("rgb", 0) for counts in PEOPLE.values())
    assert samples.people == len(PEOPLE)
    assert sorted(np.unique(samples.persons)) == [0, 1, 2, 4, 5]  # 0600 has no colour image
    assert samples.persons.dtype == samples.modality_masks.dtype == np.int64


def test_a_record_is_a_function_of_seed_epoch_and_index(root: Path) -> None:
    samples, again, other = records(root), records(root), records(root, seed=1)
    for index in (3, 0, 7):
        assert equal(samples.sample(2, index), again.sample(2, index))
        assert not equal(samples.sample(2, index), samples.sample(3, index))
        assert not equal(samples.sample(2, index), other.sample(2, index))


def test_other_processes_read_the_same(root: Path) -> None:
    samples = records(root)
    sent = pickle.loads(pickle.dumps(samples))
    assert all(equal(sent.sample(1, index), samples.sample(1, index)) for index in range(4))


def test_both_drawings_show_the_side_that_was_drawn(root: Path) -> None:
    samples = records(root, augment=STILL)
    index = record_of(samples, "0941")
    seen: set[int] = set()
    for epoch in range(30):
        shown = shown_by(samples, samples.sample(epoch, index))
        # Files 0, 1 and 2 are front, back and side.
        assert shown["cp"][1] == shown["sk"][1]
        seen.add(shown["cp"][1])
    assert seen == {0, 1, 2}


def test_another_side_stands_in_for_one_that_is_missing(tmp_path: Path) -> None:
    # No colour pencil drawing of this person from the side.
    root = write_people(tmp_path, {"01": {"rgb": 1, "cp": 2, "sk": 3}, "02": {"rgb": 1}})
    samples = records(root, augment=STILL)
    picks = [shown_by(samples, samples.sample(epoch, 0)) for epoch in range(40)]
    sides = {(one["cp"][1], one["sk"][1]) for one in picks}
    assert sides == {(0, 0), (1, 1), (0, 2), (1, 2)}
    assert len(VIEWS) == 3


def test_every_image_of_a_pool_has_its_turn(root: Path) -> None:
    samples = records(root, augment=STILL)
    index = record_of(samples, "0941")
    drawn = [shown_by(samples, samples.sample(epoch, index)) for epoch in range(40)]
    for modality in ("nir", "cp", "sk"):
        assert {one[modality][1] for one in drawn} == set(range(FULL[modality]))
    assert len({one["rgb"] for one in drawn}) == 1


def test_images_are_hidden_as_often_as_asked_for(root: Path) -> None:
    samples = records(root, modality_dropout=0.3)
    index = record_of(samples, "0941")
    present = torch.stack([samples.sample(epoch, index).present for epoch in range(300)])
    shares = present.float().mean(dim=0)
    assert torch.all((shares[:4] - 0.7).abs() < 0.1)
    assert shares[4] == 1
    # The sampler counts what a record has, not what an epoch hides.
    assert samples.modality_masks[index] == mask_of(MODALITIES)


def test_never_is_everything_hidden(tmp_path: Path) -> None:
    people = {"01": {"rgb": 1}, "02": {"rgb": 1, "nir": 1}}
    samples = records(write_people(tmp_path, people, notes=[]), modality_dropout=0.9)
    for index in range(2):
        assert all(samples.sample(epoch, index).present.any() for epoch in range(50))


def test_single_records_are_every_image_and_every_caption(root: Path) -> None:
    samples = records(root, records="single", augment=STILL)
    counts = {name: sum(own.get(name, 0) for own in PEOPLE.values()) for name in IMAGE_MODALITIES}
    assert len(samples) == sum(counts.values()) + counts["rgb"]
    kinds = [modalities_in(int(mask)) for mask in samples.modality_masks]
    assert all(len(kind) == 1 for kind in kinds)
    found = {name: kinds.count((name,)) for name in MODALITIES}
    assert found == {**counts, "text": counts["rgb"]}
    for index in range(len(samples)):
        sample = samples.sample(0, index)
        assert mask_of(MODALITIES[n] for n in torch.nonzero(sample.present).flatten()) == int(
            samples.modality_masks[index]
        )
        for who, _ in shown_by(samples, sample).values():
            assert [*PEOPLE][who] == samples.index.people[sample.person]


def test_captions_are_those_of_the_image(root: Path) -> None:
    samples = records(root)
    words = samples.tokenizer
    for index in range(len(samples)):
        person = samples.index.people[samples.persons[index]]
        number = int(samples.name_of(index).split("_")[4])
        row = samples.sample(0, index).tokens.tolist()
        assert row[1:5] == list(words.words(f"person {person} number {number}"))


def test_cameras_are_those_of_the_image(root: Path) -> None:
    for kind in ("anchored", "single"):
        samples = records(root, records=kind)
        for index in range(len(samples)):
            name, camera = samples.name_of(index), samples.sample(0, index).camera
            is_photograph = "_cam" in name and "caption" not in name
            assert camera == (int(name.split("_cam")[1][0]) if is_photograph else -1)


def test_records_have_names(root: Path) -> None:
    samples = records(root, records="single")
    assert isinstance(samples, NamedSamples)
    assert samples.name_of(0) == "vis/0002/0002_made_0470_cam1_0000_vis.jpg"
    assert samples.name_of(len(samples) - 1).startswith("the caption of vis/0941/")


@pytest.mark.parametrize("kind", ["anchored", "single"])
def test_a_cache_changes_nothing(root: Path, kind: str) -> None:
    samples = records(root, records=kind)
    assert isinstance(samples, CacheableSamples)
    with SharedCache(8 << 20) as cache:
        cached = samples.with_cache(cache)
        for _ in range(2):
            for index in range(0, len(samples), 3):
                assert equal(cached.sample(1, index), samples.sample(1, index))
        assert cache.stats().hits > 0
    assert all(Path(str(key)).is_file() for key in samples.cache_keys(0))


def test_a_damaged_image_is_named_or_skipped(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"01": {"rgb": 2}, "02": {"rgb": 2}})
    broken = root / "train" / "vis" / "01" / names("01", {"rgb": 2})["rgb"][0]
    broken.write_bytes(broken.read_bytes()[:-100])
    samples = records(root)

    def fetch(corrupt: Any) -> Any:
        fetcher = BatchFetcher(samples, collate, corrupt=corrupt, board=WorkerBoard(0))
        return fetcher[Request(0, [0, 2])]

    failed = fetch("raise")
    assert failed.batch is None
    assert str(broken) in failed.failure
    assert "sample 0 (vis/01/" in failed.failure
    skipped = fetch("skip")
    assert skipped.batch.rows.tolist() == [1, 2]
    assert str(broken) in skipped.skipped[0]


def test_a_missing_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"01": {"rgb": 2}, "02": {"rgb": 2}})
    gone = root / "train" / "vis" / "02" / names("02", {"rgb": 2})["rgb"][1]
    gone.unlink()
    samples = records(root)
    samples.sample(0, 2)
    with pytest.raises(DataError, match=f"cannot read {gone}: No such file"):
        samples.sample(0, 3)


def sampler(samples: ReidSamples, **options: Any) -> PKSampler:
    return PKSampler(samples.persons, samples.modality_masks, **options)


@pytest.mark.parametrize("kind", ["anchored", "single"])
def test_the_sampler_s_promises_hold_for_these_records(root: Path, kind: str) -> None:
    samples = records(root, records=kind)
    order = sampler(samples, identities_per_batch=3, records_per_identity=2)
    batches = [*order]
    assert len(batches) == len(order)
    pairs = _pairs(samples)
    for indices in batches:
        read = collate([samples.sample(0, index) for index in indices])
        people, counts = np.unique(read.persons.numpy(), return_counts=True)
        assert len(people) == 3
        assert set(counts) == {2}
        for person in people:
            rows = read.present[read.persons == person]
            if person in pairs:
                assert rows[:, 0].any()
                assert rows[:, 1:].any()


def _pairs(samples: ReidSamples) -> set[int]:
    found = set()
    for person in np.unique(samples.persons):
        masks = samples.modality_masks[samples.persons == person]
        if (masks & 1).any() and (masks >> 1).any():
            found.add(int(person))
    return found


def test_two_numbers_of_steps_for_one_epoch_cannot_be(tmp_path: Path) -> None:
    # 14,910 records and 320 people at 8 x 4: 40 batches pass over people once, 465 over records.
    persons = np.sort(np.arange(14_910) % 320)
    masks = np.full(14_910, mask_of(MODALITIES))
    lengths = {
        unit: len(PKSampler(persons, masks, epoch_unit=unit)) for unit in ("identities", "records")
    }
    assert lengths == {"identities": 40, "records": 465}


def test_fewer_people_than_a_batch_needs_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match="people"):
        sampler(records(root), identities_per_batch=8)


def test_people_without_a_pair_are_refused_where_pairs_are_needed(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"01": {"rgb": 2}, "02": {"rgb": 2}}, notes=[])
    samples = records(root)
    with pytest.raises(DataError, match="pair"):
        sampler(samples, identities_per_batch=2, require_pair=True)


def test_no_dataset_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"data\.root is not set"):
        load_people(ReidData())


def test_people_without_colour_images_give_no_anchored_records(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"01": {"nir": 2}, "02": {"nir": 2}})
    with pytest.raises(DataError, match="has no records of the kind anchored"):
        records(root)
    assert len(records(root, records="single")) == 4


def test_words_of_people_held_back_are_not_known(tmp_path: Path) -> None:
    root = write_people(tmp_path, {f"{n:04d}": {"rgb": 1} for n in range(10)})
    data = ReidData(root=root, holdout=0.2)
    people = load_people(data)
    assert people.held_out is not None
    vocabulary = getattr(people.tokenizer, "vocabulary", ())
    assert set(people.train.people) <= set(vocabulary)
    assert not set(people.held_out.people) & set(vocabulary)
    samples = train_records(people, data, seed=0, text_len=8)
    assert samples.people == 8


@pytest.mark.parametrize("kind", ["anchored", "single"])
def test_the_sampler_and_the_loader_mean_the_same_people_after_a_split(
    tmp_path: Path, kind: str
) -> None:
    # Where a part of a dataset keeps a list of the whole, batches are of other people than planned.
    root = write_people(tmp_path, {f"{n:04d}": {"rgb": 1 + n % 3, "nir": n % 2} for n in range(10)})
    samples = records(root, records=kind, holdout=0.3)
    assert len(samples.persons) == len(samples.modality_masks) == len(samples)
    assert samples.persons.max() < samples.people == 7
    for index in range(len(samples)):
        label = samples.sample(0, index).person
        assert label == samples.persons[index]
        assert f"/{samples.index.people[label]}/" in samples.name_of(index)


def test_18420_rows_travel_to_a_worker_in_less_than_5_mb(tmp_path: Path) -> None:
    samples = _large(tmp_path)
    assert len(samples) == 18_420
    assert len(pickle.dumps(samples)) < 5 << 20


def _large(root: Path) -> ReidSamples:
    """As many names and captions as the challenge has, without a file behind them."""
    counts = {"rgb": 18_420, "nir": 10_400, "cp": 7_200, "sk": 7_200}

    def table(modality: str) -> ImageTable:
        total = counts[modality]
        first = np.linspace(0, total, 401).astype(np.int64)
        files = [f"0941_sysu_{n * 7919 % 9973:04d}_cam5_{n:05d}.jpg" for n in range(total)]
        return ImageTable(
            names=Strings.of(files),
            first=first,
            views=np.zeros(total, np.uint8),
            cameras=np.zeros(total, np.int16),
        )

    said = [" ".join(f"word{n * k % 1999}" for k in range(60)) for n in range(100)]
    captions = [said[n % 100] for n in range(counts["rgb"])]
    index = ReidIndex(
        folder=root,
        people=tuple(f"{n:04d}" for n in range(400)),
        images=tuple(table(modality) for modality in IMAGE_MODALITIES),
        captions=Strings.of(captions),
        caption_of=np.arange(counts["rgb"], dtype=np.int32),
    )
    people = ReidPeople(root=root, train=index, held_out=None, tokenizer=WordTokenizer.of(captions))
    return train_records(people, ReidData(root=root), seed=0, text_len=77)
