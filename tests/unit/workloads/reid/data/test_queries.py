"""What an evaluation looks at: everything once, and lists over it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.data.loader.fetch import NamedSamples
from pitstop.errors import DataError
from pitstop.workloads.reid.data.batch import collate
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.modalities import MODALITIES, name_of_task, task_names
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from tests.unit.workloads.reid.people_files import FULL, jpeg, names, write_people

torch.set_num_threads(1)

PEOPLE: dict[str, dict[str, int]] = {f"{7 * n + 3:04d}": FULL for n in range(6)} | {
    "0500": {"rgb": 2, "nir": 1},
    "0600": {"rgb": 1},
}


def evaluate(root: Path, **settings: Any) -> EvalSet:
    data = ReidData.model_validate({"root": root, "image_size": (16, 8), **settings})
    return eval_set(load_people(data), data, text_len=10)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> EvalSet:
    root = write_people(tmp_path_factory.mktemp("held"), PEOPLE)
    return evaluate(root, holdout=0.5)


def test_people_held_back_are_looked_for_in_32_ways(held: EvalSet) -> None:
    assert [task.modalities for task in held.tasks] == list(task_names())
    assert [task.name for task in held.tasks] == [name_of_task(task) for task in task_names()]
    assert held.people == 4


def test_a_query_is_one_person_in_the_modalities_of_its_task(held: EvalSet) -> None:
    for task in held.tasks:
        assert task.items.shape == (len(task), len(task.modalities))
        for column, modality in enumerate(task.modalities):
            items = task.items[:, column]
            assert np.all(held.images.modalities[items] == MODALITIES.index(modality))
            assert np.array_equal(held.images.persons[items], task.persons)


def test_the_first_modality_enumerates_the_queries(held: EvalSet) -> None:
    for task in held.tasks:
        first = task.items[:, 0]
        assert len(set(first)) == len(first)
        if len(task.modalities) == 1:
            kind = MODALITIES.index(task.modalities[0])
            assert sorted(first) == np.flatnonzero(held.images.modalities == kind).tolist()


def test_every_image_and_caption_is_there_once(held: EvalSet) -> None:
    paths = [held.images.paths[place] for place in range(len(held.images))]
    files = [path for path in paths if path]
    assert len(files) == len(set(files))
    assert files == [path for path in paths[: len(files)] if path]
    assert np.all(np.diff(held.images.modalities) >= 0)
    assert all((held.images.folder / path).is_file() for path in files)
    assert len(held.images.tokens) == len(paths) - len(files)


def test_the_gallery_is_every_colour_image_of_the_people(held: EvalSet) -> None:
    gallery = held.images.gallery
    assert all(held.images.paths[place].startswith("vis/") for place in gallery)
    assert set(held.images.persons[gallery]) == set(range(held.people))
    assert set(held.images.cameras[gallery]) <= {1, 2, 3, 4, 5, 6}


def test_partners_do_not_change_from_run_to_run(tmp_path: Path) -> None:
    root = write_people(tmp_path, PEOPLE)
    one, other = evaluate(root, holdout=0.5), evaluate(root, holdout=0.5)
    for a, b in zip(one.tasks, other.tasks, strict=True):
        assert np.array_equal(a.items, b.items)


def test_an_item_is_a_record_of_one_modality(held: EvalSet) -> None:
    assert isinstance(held.images, NamedSamples)
    for place in range(len(held.images)):
        sample = held.images.sample(5, place)
        kind = int(held.images.modalities[place])
        assert torch.nonzero(sample.present).flatten().tolist() == [kind]
        assert (sample.row, sample.person) == (place, held.images.persons[place])
        assert bool(sample.images.any()) == (kind < 4)
        words = sample.tokens[1:] != held.images.sample(0, 0).tokens[1:]
        assert bool(words.any()) == (kind == 4)


def test_packed_records_hold_every_item_once(held: EvalSet) -> None:
    packed = held.images.packed()
    items = packed.table[packed.table >= 0]
    assert sorted(items) == list(range(len(held.images)))
    counts = np.bincount(held.images.modalities)
    assert len(packed) == counts.max()
    batch = collate([packed.sample(0, row) for row in range(len(packed))])
    assert torch.equal(batch.present, torch.from_numpy(packed.table >= 0))
    for row, own in enumerate(packed.table):
        for slot, item in enumerate(own):
            if item < 0:
                continue
            alone = held.images.sample(0, int(item))
            if slot < 4:
                assert torch.equal(batch.images[row, slot], alone.images[slot])
            else:
                assert torch.equal(batch.tokens[row], alone.tokens)
    assert held.images.name_of(int(packed.table[0, 0])) in packed.name_of(0)


def release(root: Path, change: Any = None, **settings: Any) -> EvalSet:
    """A release whose last three people are for the test."""
    write_people(root, PEOPLE, layout="release")
    notes = json.loads((root / "train_annos.json").read_text())
    test = [*PEOPLE][-4:-1]
    kept = [note for note in notes if note["file_path"].split("/")[1] not in test]
    (root / "train_annos.json").write_text(json.dumps(kept))
    lists: dict[str, list[list[Any]]] = {"TEXT": [], "CP+NIR": [], "RGB_GALLERY": [], "NIR": []}
    for person in test:
        own = names(person, PEOPLE[person])
        number = int(person)
        lists["RGB_GALLERY"] += [[number, f"vis/{person}/{name}"] for name in own["rgb"]]
        lists["NIR"] += [[number, f"nir/{person}/{name}"] for name in own["nir"]]
        lists["TEXT"] += [[number, "somebody in red"], [number, "a red hat"]]
        lists["CP+NIR"] += [
            [number, f"cp/{person}/{name}", f"nir/{person}/{own['nir'][0]}"]
            for name in own.get("cp", ())
        ]
    if change is not None:
        change(lists)
    (root / "test_gallery_and_queries.json").write_text(json.dumps(lists))
    return evaluate(root, holdout=0.0, **settings)


def test_the_lists_of_the_release_are_taken_as_they_are(tmp_path: Path) -> None:
    found = release(tmp_path)
    counts = {task.name: len(task) for task in found.tasks}
    assert counts == {"TEXT": 6, "NIR": 5, "CP+NIR": 6}
    assert found.people == 3
    assert len(found.images.gallery) == 8
    # 5 infrared images stand in two lists, and the words of three people are the same.
    assert np.bincount(found.images.modalities).tolist() == [8, 5, 6, 0, 6]
    task = found.tasks[2]
    for person, (drawing, infrared) in zip(task.persons, task.items, strict=True):
        own = {found.images.paths[place].split("/")[1] for place in (drawing, infrared)}
        assert len(own) == 1
        assert found.images.persons[drawing] == found.images.persons[infrared] == person


def test_training_and_test_people_are_others(tmp_path: Path) -> None:
    found = release(tmp_path)
    data = ReidData(root=tmp_path, holdout=0.0)
    trained = set(load_people(data).train.people)
    tested = {found.images.paths[place].split("/")[1] for place in found.images.gallery}
    assert trained
    assert not trained & tested


def first(*entry: Any) -> Any:
    """Put something else at the head of the list NIR."""
    return lambda lists: lists["NIR"].__setitem__(0, list(entry))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lists: lists.pop("RGB_GALLERY"), "has no list RGB_GALLERY"),
        (lambda lists: lists.update(RGB_GALLERY=[], NIR=[], TEXT=[]), "who is not in RGB_GALLERY"),
        (first(38), "NIR, entry 0 must be a list of a person and 1"),
        (first("x", "nir/0038/a.jpg"), "does not begin with the number"),
        (first(99, "nir/0038/a.jpg"), "looks for person 99, who is not in"),
        (first(38, 7), "neither a path nor a caption"),
        (first(38, "cp/0038/a.jpg"), "no image of the modality nir"),
        (first(38, "../a.jpg"), "is not the path of an image"),
        (first(38, "nir/0500/x.jpg"), "do not belong together"),
        (lambda lists: lists.update({"NIR+DNA": []}), r"a list NIR\+DNA, which is no combination"),
        (lambda lists: lists.update({"NIR+NIR": []}), r"a list NIR\+NIR, which is no combination"),
    ],
)
def test_lists_that_cannot_be_right_are_refused(
    tmp_path: Path, change: Any, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        release(tmp_path, change)
    assert "test_gallery_and_queries.json" in str(caught.value)


def test_the_challenge_does_not_say_who_is_who(tmp_path: Path) -> None:
    root = write_people(tmp_path, PEOPLE)
    for folder, files in (("gallery", ("1.jpg", "2.jpg")), ("nir", ("7.jpg",)), ("cp", ("8.jpg",))):
        (root / "val" / folder).mkdir(parents=True)
        for name in files:
            (root / "val" / folder / name).write_bytes(jpeg())
    queries = [
        {"query_idx": 1, "query_type": "onemodal_NIR", "content": ["nir/7.jpg"]},
        {"query_idx": 2, "query_type": "twomodal", "content": ["cp/8.jpg", "a man in red"]},
    ]
    (root / "val" / "val_queries.json").write_text(json.dumps(queries))
    found = evaluate(root, holdout=0.0, eval_split="val")
    assert [task.name for task in found.tasks] == ["NIR", "CP+TEXT"]
    assert found.people == 0
    assert set(found.images.persons) == {-1}
    assert len(found.images.gallery) == 2
    assert found.images.sample(0, 2).present.tolist() == [False, True, False, False, False]


def test_a_dataset_with_nothing_to_evaluate_on_says_so(tmp_path: Path) -> None:
    root = write_people(tmp_path, PEOPLE)
    with pytest.raises(DataError, match=r"has nothing to evaluate on: .*set data.holdout above 0"):
        evaluate(root, holdout=0.0)


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"NIR": None}, "NIR must be a list of queries"),
        ({"TEXT": [[1, " "]]}, "TEXT, entry 0 asks with a caption that says nothing"),
        ({"TEXT": [[1, "a \ud83d coat"]]}, "TEXT, entry 0: the caption holds half a character"),
        ({}, "nothing to evaluate with: the lists of .* hold no query"),
        ({"NIR": []}, "nothing to evaluate with: the lists of .* hold no query"),
        ({"SK": [[1, "sk/0002/a.jpg"]]}, "there is no folder .*sk, though the lists ask"),
    ],
)
def test_lists_that_would_end_a_run_at_its_first_evaluation_are_refused_before(
    tmp_path: Path, lists: dict[str, Any], said: str
) -> None:
    people = {"0002": {"rgb": 1, "nir": 1}, "0003": {"rgb": 1, "nir": 1}}
    write_people(tmp_path, people, layout="release")
    path = tmp_path / "test_gallery_and_queries.json"
    path.write_text(json.dumps({"RGB_GALLERY": [[1, "vis/0002/a.jpg"]], **lists}))
    with pytest.raises(DataError, match=said):
        evaluate(tmp_path, holdout=0)


def test_people_held_back_with_colour_images_alone_are_refused_before(tmp_path: Path) -> None:
    root = write_people(tmp_path, {f"000{n}": {"rgb": 2} for n in range(4)}, notes=[])
    with pytest.raises(DataError, match="the people held back have colour images only"):
        evaluate(root, holdout=0.5)


def test_people_held_back_who_are_never_in_the_gallery_are_refused_before(tmp_path: Path) -> None:
    people = {f"{n:04d}": {"rgb" if n % 2 else "sk": 1} for n in range(16)}
    root = write_people(tmp_path, people, notes=[])
    with pytest.raises(DataError, match="so no query can find anything"):
        evaluate(root, holdout=0.5)
