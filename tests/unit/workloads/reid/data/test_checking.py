"""A dataset of people read through."""

import json
import shutil
from pathlib import Path

import pytest

from pitstop.workloads.reid.data.checking import check_people, is_people
from pitstop.workloads.reid.synthetic.make import make_reid
from tests.unit.workloads.reid.people_files import FULL, write_people


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "people"
    make_reid(root, people=6, images=8, size=(48, 32))
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "people"))


def test_a_whole_dataset_has_no_problems(made: Path) -> None:
    check = check_people(made)
    assert check.problems == ()
    assert check.workload == "reid"
    assert not check.packed
    people = {name: split.sequences for name, split in check.splits.items()}
    assert people == {"train": 4, "test": 2}
    files = sum(split.files[kind] for split in check.splits.values() for kind in split.files)
    captions = check.splits["train"].files["text"]
    assert files - captions == len([*made.glob("*/*/*.jpg")])
    images = made.glob("*/*/*.jpg")
    assert sum(split.size_bytes for split in check.splits.values()) == sum(
        path.stat().st_size for path in images
    )


def test_every_broken_file_is_named(own: Path) -> None:
    broken = sorted(own.glob("*/*/*.jpg"))[::7]
    for path in broken:
        path.write_bytes(path.read_bytes()[:300])
    problems = check_people(own).problems
    assert [problem.split(" is damaged")[0] for problem in problems] == sorted(
        map(str, broken), key=lambda name: _order(own, name)
    )


def _order(root: Path, name: str) -> tuple[int, str]:
    return ("vis", "nir", "cp", "sk").index(Path(name).relative_to(root).parts[0]), name


def test_images_that_annotations_and_lists_are_about_must_be_there(own: Path) -> None:
    note = json.loads((own / "train_annos.json").read_text())[0]
    (own / note["file_path"]).unlink()
    [problem] = check_people(own).problems
    assert problem.endswith("which train_annos.json is about")
    assert str(own / note["file_path"]) in problem


def test_a_query_without_its_image_is_named(own: Path) -> None:
    lists = json.loads((own / "test_gallery_and_queries.json").read_text())
    _, path = lists["RGB_GALLERY"][0]
    (own / path).unlink()
    [problem] = check_people(own).problems
    assert problem == f"there is no {own / path}, which test_gallery_and_queries.json is about"


def test_the_same_file_under_two_people_is_a_mistake(own: Path) -> None:
    one, other = (next(folder.iterdir()) for folder in sorted((own / "vis").iterdir())[:2])
    other.write_bytes(one.read_bytes())
    [problem] = check_people(own).problems
    assert problem == f"{other} is the same file as {one}, of another person"


def test_annotations_that_cannot_be_read_are_one_problem(own: Path) -> None:
    (own / "train_annos.json").write_text("[{")
    [problem] = check_people(own).problems
    assert "train_annos.json is not JSON, or is cut off" in problem


def test_people_who_lack_a_modality_are_counted(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"01": FULL, "02": {"rgb": 1, "nir": 1}, "03": {"rgb": 1}})
    check = check_people(root)
    assert check.notes == (
        "1 of 3 people have no nir (near infrared) images",
        "2 of 3 people have no cp (colour pencil) images",
        "2 of 3 people have no sk (sketch) images",
    )


def test_people_are_told_from_other_datasets(made: Path, tmp_path: Path) -> None:
    assert is_people(made)
    assert is_people(write_people(tmp_path / "challenge", {"01": FULL, "02": FULL}))
    (tmp_path / "clips" / "train" / "clip" / "blur").mkdir(parents=True)
    assert not is_people(tmp_path / "clips")


def test_without_colour_images_it_still_counts_as_people(own: Path) -> None:
    shutil.rmtree(own / "vis")
    assert is_people(own)


def test_nobody_is_called_a_test_person_where_annotations_cannot_be_read(own: Path) -> None:
    (own / "train_annos.json").write_text("[")
    assert set(check_people(own).splits) == {"train or test"}


def test_captions_that_will_be_cut_are_counted(own: Path) -> None:
    path = own / "train_annos.json"
    notes = json.loads(path.read_text())
    notes[0]["caption"] = "word " * 1_000
    path.write_text(json.dumps(notes))
    check = check_people(own)
    said = f"1 of {len(notes)} captions have more than 75 words (the longest 1,000)"
    assert any(note.startswith(said) for note in check.notes)
    assert check.problems == ()
