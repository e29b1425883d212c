"""Market-1501, MSMT17 and SYSU-MM01: who is where, and what is said of sets that are not whole."""

import random
from pathlib import Path

import pytest

from pitstop.config.workloads.reid import ReidData
from pitstop.errors import DataError
from pitstop.workloads.reid.data.checking import check_people, is_people
from pitstop.workloads.reid.data.dataset import load_people, train_records
from pitstop.workloads.reid.data.public_queries import DRAWS, public_queries
from pitstop.workloads.reid.data.public_sets import (
    NOBODY,
    PublicSet,
    find_public_set,
    read_public_set,
    train_index,
)
from pitstop.workloads.reid.data.queries import eval_set
from tests.unit.workloads.reid.public_files import WRITERS, write_market, write_msmt, write_sysu


def found_in(root: Path, split: str = "train") -> PublicSet:
    layout = find_public_set(root)
    assert layout is not None
    return read_public_set(layout, split)


def test_market_leaves_junk_out_and_keeps_distractors(tmp_path: Path) -> None:
    found = found_in(write_market(tmp_path))
    assert {image.person for image in found.train} == {2, 7, 11, 1500}
    assert len(found.query) == 10
    assert len(found.gallery) == 5 * 6 + 2
    assert found.junk == 3
    assert {image.camera for image in found.gallery} == {1, 2, 6}
    # A distractor is nobody's match: not even another distractor's.
    assert {image.person for image in found.gallery} == {NOBODY, 1, 5, 8, 9, 1501}


@pytest.mark.parametrize(
    ("nested", "write"), [("Market-1501-v15.09.15", write_market), ("MSMT17_V1", write_msmt)]
)
def test_the_folder_of_an_archive_is_found(tmp_path: Path, nested: str, write: object) -> None:
    assert callable(write)
    write(tmp_path / nested)
    layout = find_public_set(tmp_path)
    assert layout is not None
    assert layout.folder == tmp_path / nested


def test_msmt_reads_its_lists(tmp_path: Path) -> None:
    write_msmt(tmp_path)
    found = found_in(tmp_path)
    assert (len(found.train), len(found.query), len(found.gallery)) == (20, 8, 16)
    assert len(found_in(tmp_path, "trainval").train) == 24
    first = found.query[0]
    assert first.path == "test/0000/0000_000_01_0303morning_0015_0.jpg"
    assert (first.person, first.camera) == (0, 1)


def test_msmt_of_the_second_version_has_other_folders(tmp_path: Path) -> None:
    write_msmt(tmp_path)
    (tmp_path / "train").rename(tmp_path / "mask_train_v2")
    (tmp_path / "test").rename(tmp_path / "mask_test_v2")
    assert found_in(tmp_path).query[0].path.startswith("mask_test_v2/0000/")
    assert not check_people(tmp_path).problems


def test_sysu_parts_people_by_its_lists_and_modalities_by_camera(tmp_path: Path) -> None:
    write_sysu(tmp_path)
    found = found_in(tmp_path)
    assert {image.person for image in found.train} == {1, 2, 4}
    assert {image.person for image in found_in(tmp_path, "trainval").train} == {1, 2, 3, 4}
    assert {(image.camera, image.modality) for image in found.query} == {(3, "nir"), (6, "nir")}
    assert {image.modality for image in found.gallery} == {"rgb"}
    index = train_index(found)
    assert index.people == ("0001", "0002", "0004")
    assert index.name("nir", 0) == "cam3/0001/0001.jpg"


def test_sysu_draws_what_the_generator_of_python_draws(tmp_path: Path) -> None:
    """Written anew from folders, with the module's global generator."""
    write_sysu(tmp_path)
    queries = public_queries(found_in(tmp_path))
    for name, cameras in (("all", (1, 2, 4, 5)), ("indoor", (1, 2))):
        search = next(one for one in queries.searches if one.name == name)
        assert len(search.galleries) == DRAWS
        for draw, gallery in enumerate(search.galleries):
            random.seed(draw)
            drawn = []
            for person in ("0006", "0010", "0012", "0014", "0333"):
                for camera in cameras:
                    folder = tmp_path / f"cam{camera}" / person
                    if folder.is_dir():
                        drawn.append(random.choice(sorted(folder.iterdir())))
            shown = [tmp_path / queries.images[item].path for item in gallery.tolist()]
            assert shown == drawn


@pytest.mark.parametrize("kind", WRITERS)
def test_records_and_queries_can_be_read(tmp_path: Path, kind: str) -> None:
    data = ReidData(root=WRITERS[kind](tmp_path), image_size=(16, 8), holdout=0.0)
    people = load_people(data)
    records = train_records(people, data, seed=0, text_len=8)
    assert records.people == len({image.person for image in found_in(tmp_path).train})
    sample = records.sample(0, 0)
    assert sample.present[0]
    assert not sample.present[4]
    assert sample.camera >= 1
    packed = eval_set(people, data, text_len=8).images.packed()
    assert all(packed.sample(0, place).present.any() for place in range(len(packed)))


def test_held_back_people_of_one_modality_cannot_be_asked_for(tmp_path: Path) -> None:
    data = ReidData(root=write_market(tmp_path), holdout=0.5)
    with pytest.raises(DataError, match=r"data\.holdout=0"):
        eval_set(load_people(data), data, text_len=8)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_whole_set_has_no_problem(tmp_path: Path, kind: str) -> None:
    root = WRITERS[kind](tmp_path)
    assert is_people(root)
    found = check_people(root)
    assert found.problems == ()
    assert set(found.splits) == {"train", "test"}
    assert any(f"layout {kind}" in note for note in found.notes)


def test_what_is_damaged_missing_or_doubled_is_named(tmp_path: Path) -> None:
    root = write_msmt(tmp_path)
    paths = sorted((root / "train").rglob("*.jpg"))
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    paths[2].write_bytes(paths[-2].read_bytes())
    problems = check_people(root).problems
    assert len(problems) == 3
    assert str(paths[0]) in problems[0]
    assert str(paths[1]) in problems[1]
    assert "of another person" in problems[2]


def test_junk_and_distractors_are_counted(tmp_path: Path) -> None:
    notes = check_people(write_market(tmp_path)).notes
    assert any(note.startswith("3 junk images") for note in notes)
    assert any(note.startswith("2 distractors") for note in notes)


@pytest.mark.parametrize(
    ("kind", "file", "content", "said"),
    [
        ("market1501", "query/nobody.jpg", "", "does not name a person and a camera"),
        ("market1501", "query/0000_c1s1_000000_00.jpg", "", "a distractor"),
        ("msmt17", "list_query.txt", "0000/no_camera.jpg 0", "line 1"),
        ("msmt17", "list_gallery.txt", "0000/0_0_01_x.jpg\n", "line 1"),
        ("msmt17", "list_train.txt", "../0000/0_0_01_x.jpg 0\n", "line 1"),
        ("sysu_mm01", "exp/train_id.txt", "1,2,x", "between commas"),
        ("sysu_mm01", "exp/val_id.txt", "3,10", "person 10"),
    ],
)
def test_lists_and_names_that_cannot_be_used(
    tmp_path: Path, kind: str, file: str, content: str, said: str
) -> None:
    root = WRITERS[kind](tmp_path)
    (root / file).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        found_in(root)
    assert any(said in problem for problem in check_people(root).problems)


def test_a_part_that_a_set_does_not_have_is_refused(tmp_path: Path) -> None:
    root = write_sysu(tmp_path)
    with pytest.raises(DataError, match="train or trainval"):
        found_in(root, "everything")
    data = ReidData(root=root, holdout=0.0, eval_split="val")
    with pytest.raises(DataError, match=r"data\.eval_split=test"):
        eval_set(load_people(data), data, text_len=8)
