"""Made people: all of it follows from the seed, and the task is hard but possible."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pitstop.config.workloads.reid import ReidData
from pitstop.errors import DataError
from pitstop.workloads.reid.data.dataset import load_people, train_records
from pitstop.workloads.reid.data.decode import decode
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from pitstop.workloads.reid.synthetic.make import MadePeople, make_reid
from pitstop.workloads.reid.synthetic.people import Random, describe, make_look_alike, make_person

torch.set_num_threads(1)

SIZE = (96, 48)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadePeople:
    root = tmp_path_factory.mktemp("made") / "people"
    return make_reid(root, people=30, images=14, size=SIZE, seed=3, corrupt=1)


@pytest.fixture(scope="module")
def root(made: MadePeople) -> Path:
    return Path(made.root)


@pytest.fixture(scope="module")
def queries(root: Path) -> EvalSet:
    data = ReidData(root=root, holdout=0.0, image_size=SIZE)
    return eval_set(load_people(data), data, text_len=40)


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and ".pitstop" not in str(path)
    }


def test_a_seed_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        make_reid(tmp_path / name, people=5, images=5, size=SIZE, seed=seed, corrupt=1)
    one = digest(tmp_path / "one")
    assert digest(tmp_path / "again") == one
    other = digest(tmp_path / "other")
    assert not [name for name in one if name.endswith("jpg") and other.get(name) == one[name]]


def test_somebody_does_not_depend_on_how_many_others_there_are(tmp_path: Path) -> None:
    make_reid(tmp_path / "few", people=5, images=5, size=SIZE)
    make_reid(tmp_path / "many", people=8, images=5, size=SIZE)
    few, many = digest(tmp_path / "few"), digest(tmp_path / "many")
    assert all(many[name] == value for name, value in few.items() if name.endswith("jpg"))


def test_files_lie_as_in_the_release(root: Path, made: MadePeople) -> None:
    assert {path.name for path in root.iterdir() if not path.name.startswith(".")} == {
        "vis",
        "nir",
        "cp",
        "sk",
        "train_annos.json",
        "test_gallery_and_queries.json",
    }
    assert made.people == {"train": 18, "test": 12}
    counts = {name: len([*(root / name).glob("*/*.jpg")]) for name in ("vis", "nir", "cp", "sk")}
    assert counts == dict(zip(counts, made.images.values(), strict=True))
    for name in ("cp", "sk"):
        sides = Counter(path.name.split("_")[2] for path in (root / name).glob("*/*.jpg"))
        assert set(sides) == {"front", "back", "side"}
    assert made.size_bytes == sum((root / name).stat().st_size for name in digest(root))


def test_ids_are_labels_and_folders_are_people(root: Path) -> None:
    notes = json.loads((root / "train_annos.json").read_text())
    pairs = {(note["id"], note["file_path"].split("/")[1]) for note in notes}
    assert sorted(number for number, _ in pairs) == list(range(1, 19))
    # Were they in the same order, taking one for the other would go unnoticed.
    assert [folder for _, folder in sorted(pairs)] != sorted(folder for _, folder in pairs)


def test_nobody_is_in_both_parts(root: Path, queries: EvalSet) -> None:
    people = load_people(ReidData(root=root, holdout=0.0))
    tested = {queries.images.paths[place].split("/")[1] for place in queries.images.gallery}
    assert len(people.train.people) == 18
    assert len(tested) == queries.people == 12
    assert not tested & set(people.train.people)
    assert len(queries.tasks) == 32


def test_no_two_images_are_the_same(root: Path) -> None:
    images = [value for name, value in digest(root).items() if name.endswith(".jpg")]
    assert len(set(images)) == len(images)


def test_hard_cases_are_in_it(root: Path, made: MadePeople) -> None:
    people = load_people(ReidData(root=root, holdout=0.0)).train
    counts = np.stack([table.counts for table in people.images])
    assert (counts[1:] == 0).any(), "somebody lacks a modality"
    assert counts[0].max() > 3 * counts[0].min(), "numbers of images have a tail"
    assert made.look_alikes > 0
    [broken] = made.corrupt
    with pytest.raises(DataError, match="damaged"):
        decode((root / broken).read_bytes(), root / broken, needed=SIZE, grey=False)
    notes = json.loads((root / "train_annos.json").read_text())
    assert broken in {note["file_path"] for note in notes}


def test_records_can_be_read_but_for_the_broken_one(root: Path, made: MadePeople) -> None:
    data = ReidData(root=root, holdout=0.0, image_size=(32, 16), modality_dropout=0.0)
    samples = train_records(load_people(data), data, seed=0, text_len=40)
    failed = []
    for index in range(len(samples)):
        try:
            samples.sample(0, index)
        except DataError:
            failed.append(samples.name_of(index))
    assert failed == list(made.corrupt)


def test_a_look_alike_differs_in_one_thing() -> None:
    for number in range(40):
        random = Random(7, number)
        one = make_person(random)
        other = make_look_alike(random, one)
        differ = [
            name for name in one.__dataclass_fields__ if getattr(one, name) != getattr(other, name)
        ]
        assert len(differ) == 1


def test_captions_leave_things_out_and_use_other_words() -> None:
    person = make_person(Random(1))
    said = {describe(person, "front", Random(2, number)) for number in range(60)}
    assert len(said) > 30
    assert all(text.startswith(("A ", "The ")) and text.endswith(".") for text in said)


def test_infrared_is_no_grey_copy(root: Path, made: MadePeople) -> None:
    # Across people, how bright the clothes are in one says little about the other.
    levels = []
    for folder in sorted((root / "nir").iterdir()):
        files = (root / "vis" / folder.name).iterdir()
        colour = [path for path in files if f"vis/{folder.name}/{path.name}" not in made.corrupt]
        pair = (np.mean([_chest(path) for path in group]) for group in (colour, folder.iterdir()))
        levels.append(tuple(pair))
    first, second = np.array(levels).T
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def _chest(path: Path) -> float:
    with Image.open(path) as image:
        return float(np.asarray(image.convert("L"))[30:45, 20:28].mean())


def _map(queries: EvalSet, task: int, features: np.ndarray) -> float:
    """Mean average precision by sorting, as the definition says."""
    wanted = queries.tasks[task]
    gallery = queries.images.gallery
    precisions = []
    for person, item in zip(wanted.persons, wanted.items[:, 0], strict=True):
        order = np.argsort(-features[gallery] @ features[item], kind="stable")
        hits = np.flatnonzero(queries.images.persons[gallery][order] == person)
        precisions.append(np.mean(np.arange(1, len(hits) + 1) / (hits + 1)))
    return float(np.mean(precisions))


def _colours(queries: EvalSet) -> np.ndarray:
    """Histograms of the colours of three stripes of the middle of each image."""
    rows = []
    for place in range(len(queries.images)):
        kind = int(queries.images.modalities[place])
        if kind == 4:
            rows.append(np.zeros(3 * 64))
            continue
        pixels = queries.images.sample(0, place).images[kind].numpy()[:, 20:86, 16:32] // 64
        codes = pixels[0] * 16 + pixels[1] * 4 + pixels[2]
        stripes = [np.bincount(part.ravel(), minlength=64) for part in np.array_split(codes, 3)]
        rows.append(np.sqrt(np.concatenate(stripes).astype(float)))
    found = np.array(rows)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


def test_colours_alone_help_but_do_not_solve_it(queries: EvalSet) -> None:
    features = _colours(queries)
    noise = np.random.default_rng(0).standard_normal(features.shape)
    drawings = next(n for n, task in enumerate(queries.tasks) if task.name == "CP")
    sketches = next(n for n, task in enumerate(queries.tasks) if task.name == "SK")
    chance = _map(queries, drawings, noise)
    assert 1.2 * chance < _map(queries, drawings, features) < 0.5
    assert _map(queries, sketches, features) < 2 * chance


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"people": 4}, "at least 5 people are needed"),
        ({"images": 3}, "and 4 images of each"),
        ({"size": (96, 16)}, "people of 96x16 pixels look the same"),
        ({"people": 5, "images": 4, "size": SIZE, "corrupt": 9}, "9 images cannot be broken"),
    ],
)
def test_what_cannot_be_made_is_refused(
    tmp_path: Path, request_: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        make_reid(tmp_path / "set", **request_)
    assert not [*tmp_path.iterdir()]


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="is there already; name another folder"):
        make_reid(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
