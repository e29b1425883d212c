"""Metadata read once: the same as asking the file system for each, and kept between runs."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import DataError
from pitstop.workloads.reid.data import index as index_module
from pitstop.workloads.reid.data.index import (
    NO_CAMERA,
    NO_VIEW,
    VIEWS,
    ImageTable,
    ReidIndex,
    build_index,
    camera_of,
    hold_out,
    load_index,
    view_of,
)
from pitstop.workloads.reid.data.layout import FOLDERS, find_layout
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES
from pitstop.workloads.reid.data.strings import Strings
from tests.unit.workloads.reid.people_files import FULL, jpeg, write_people

PEOPLE = {
    "0941": FULL,
    "0002": {"rgb": 2, "nir": 1, "cp": 2},
    "0100": {"rgb": 1, "sk": 4},
    "0777": {"nir": 2, "sk": 1},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_people(tmp_path / "set", PEOPLE)


def test_every_image_is_found_where_a_glob_finds_it(root: Path) -> None:
    index = build_index(find_layout(root))
    assert index.people == ("0002", "0100", "0777", "0941")
    for modality in IMAGE_MODALITIES:
        table = index.table(modality)
        for label, person in enumerate(index.people):
            found = {index.path(modality, place) for place in table.of(label)}
            assert found == set((root / "train" / FOLDERS[modality] / person).glob("*.jpg"))
            assert all(table.persons[place] == label for place in table.of(label))


def test_captions_belong_to_their_images(root: Path) -> None:
    index = build_index(find_layout(root))
    notes = json.loads((root / "train" / "text_annos.json").read_text())
    said = {note["file_path"]: note["caption"] for note in notes}
    for place in range(len(index.table("rgb"))):
        caption = index.captions[int(index.caption_of[place])]
        assert caption == said[index.name("rgb", place)]
    own = [sum(f"/{name}/" in path for path in said) for name in index.people]
    assert own == [2, 1, 0, 3]


def test_no_folder_is_listed_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    scan = os.scandir

    def counted(path: Any) -> Any:
        listed.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    build_index(find_layout(root))
    assert len(listed) == len(set(listed))
    # One for each modality and one for each person in it; the rows do not come into it.
    assert len(listed) == 4 + sum(len(counts) for counts in PEOPLE.values())


def same(one: Any, other: Any) -> bool:
    return (
        one.people == other.people
        and list(one.captions) == list(other.captions)
        and np.array_equal(one.caption_of, other.caption_of)
        and all(
            list(a.names) == list(b.names)
            and np.array_equal(a.first, b.first)
            and np.array_equal(a.views, b.views)
            and np.array_equal(a.cameras, b.cameras)
            for a, b in zip(one.images, other.images, strict=True)
        )
    )


def test_the_second_run_reads_what_the_first_one_saved(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_index(find_layout(root))
    monkeypatch.setattr(index_module, "build_index", None)
    assert same(load_index(find_layout(root)), first)


@pytest.mark.parametrize("change", ["image", "gone", "person", "caption"])
def test_an_index_that_no_longer_fits_is_not_used(root: Path, change: str) -> None:
    before = load_index(find_layout(root))
    train = root / "train"
    if change == "image":
        (train / "nir" / "0941" / "0941_made_0001_cam3_0009_nir.jpg").write_bytes(jpeg())
    elif change == "gone":
        next((train / "sk" / "0941").iterdir()).unlink()
    elif change == "person":
        (train / "cp" / "0100").mkdir()
        (train / "cp" / "0100" / "a_front_cp.jpg").write_bytes(jpeg())
    else:
        path = train / "text_annos.json"
        path.write_text(path.read_text().replace("number 1", "number one"))
    after = load_index(find_layout(root))
    assert not same(after, before)
    assert same(after, build_index(find_layout(root)))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nonsense", None])
def test_a_damaged_index_is_made_anew(root: Path, damage: bytes | None) -> None:
    first = load_index(find_layout(root))
    [saved] = (root / "train" / ".pitstop-index").iterdir()
    saved.write_bytes(saved.read_bytes()[:-200] if damage is None else damage)
    assert same(load_index(find_layout(root)), first)


def test_a_folder_that_cannot_be_written_does_no_harm(root: Path) -> None:
    (root / "train" / ".pitstop-index").write_text("in the way")
    assert load_index(find_layout(root)).people


def test_old_indexes_do_not_pile_up(root: Path) -> None:
    path = root / "train" / "text_annos.json"
    for turn in range(8):
        path.write_text(path.read_text().replace("person", f"person {turn}"))
        load_index(find_layout(root))
    assert len([*(root / "train" / ".pitstop-index").iterdir()]) <= 4


def test_a_dataset_that_was_moved_keeps_its_index(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_index(find_layout(root))
    moved = root.rename(tmp_path / "elsewhere")
    monkeypatch.setattr(index_module, "build_index", None)
    found = load_index(find_layout(moved))
    assert same(found, first)
    assert found.path("rgb", 0).is_file()


def test_an_annotated_image_that_is_gone_keeps_its_place(root: Path) -> None:
    [image] = (root / "train" / "vis" / "0100").iterdir()
    image.unlink()
    index = build_index(find_layout(root))
    assert index.table("rgb").counts.tolist() == [2, 1, 0, 3]


def test_an_image_without_a_caption_is_one_all_the_same(tmp_path: Path) -> None:
    notes = [
        {"id": 1, "file_path": "vis/01/01_made_0470_cam1_0000_vis.jpg", "caption": "somebody"},
        {"id": 1, "file_path": "vis/01/01_made_0470_cam2_0001_vis.jpg", "caption": "  "},
    ]
    people = {"01": {"rgb": 3}, "02": {"rgb": 1}}
    index = build_index(find_layout(write_people(tmp_path, people, notes=notes)))
    assert index.caption_of.tolist() == [0, -1, -1, -1]


def test_the_release_trains_on_annotated_people_only(tmp_path: Path) -> None:
    root = write_people(tmp_path, PEOPLE, layout="release")
    path = root / "train_annos.json"
    notes = [note for note in json.loads(path.read_text()) if "0941" not in note["file_path"]]
    path.write_text(json.dumps(notes))
    assert build_index(find_layout(root)).people == ("0002", "0100")


@pytest.mark.parametrize(
    ("people", "complaint"),
    [({}, "holds no images of people"), ({"0001": FULL}, r"shows one person only \(0001\)")],
)
def test_too_few_people_are_refused(tmp_path: Path, people: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        build_index(find_layout(write_people(tmp_path, people)))


@pytest.mark.parametrize(
    ("name", "camera"),
    [
        ("0941_sysu_0470_cam5_0007_vis.jpg", 5),
        ("0001_c12_s1_000151_01.jpg", 12),
        ("cam3.jpg", 3),
        ("0941_front_0001_sk.jpg", NO_CAMERA),
        ("camera_vis.jpg", NO_CAMERA),
        ("abc5_vis.jpg", NO_CAMERA),
    ],
)
def test_cameras_are_read_from_names(name: str, camera: int) -> None:
    assert camera_of(name) == camera


def test_views_are_read_from_names() -> None:
    assert [VIEWS[view_of(f"0941_x_{view}_01_sk.jpg")] for view in VIEWS] == [*VIEWS]
    assert view_of("0941_cam5_vis.jpg") == NO_VIEW


def many(tmp_path: Path, count: int) -> Any:
    people = {f"{3 * n:04d}": {"rgb": 1 + n % 3, "nir": n % 2} for n in range(count)}
    return build_index(find_layout(write_people(tmp_path, people)))


def test_people_held_back_are_nobody_to_train_on(tmp_path: Path) -> None:
    index = many(tmp_path, 20)
    train, held = hold_out(index, 0.2, seed=3)
    assert held is not None
    assert (len(train.people), len(held.people)) == (16, 4)
    assert set(train.people) | set(held.people) == set(index.people)
    assert not set(train.people) & set(held.people)
    for part in (train, held):
        assert part.table("rgb").persons.max() == len(part.people) - 1
        for place in range(len(part.table("rgb"))):
            name = part.name("rgb", place)
            assert part.captions[int(part.caption_of[place])].split()[1] in name
    assert hold_out(index, 0.2, seed=3)[0].people == train.people
    assert hold_out(index, 0.2, seed=4)[0].people != train.people


def test_nobody_is_held_back_unless_asked_for(tmp_path: Path) -> None:
    index = many(tmp_path, 4)
    assert hold_out(index, 0.0) == (index, None)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_share_that_leaves_nobody_to_compare_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(DataError, match=r"both need at least 2, so change data\.holdout"):
        hold_out(many(tmp_path, 6), share)


@given(st.lists(st.integers(0, 19), unique=True, min_size=1))
def test_part_of_the_people_keeps_each_one_s_images(chosen: list[int]) -> None:
    def table(offset: int) -> ImageTable:
        counts = [(n * 7 + offset) % 4 for n in range(20)]
        names = [f"{n}_{k}" for n, count in enumerate(counts) for k in range(count)]
        return ImageTable(
            names=Strings.of(names),
            first=np.cumsum([0, *counts]),
            views=np.arange(len(names)).astype(np.uint8),
            cameras=np.arange(len(names)).astype(np.int16),
        )

    images = tuple(table(offset) for offset in range(4))
    rgb = images[0]
    caption_of = np.array([n if n % 3 else -1 for n in range(len(rgb))], np.int32)
    captions = Strings.of(f"about {name}" for name in rgb.names)
    whole = ReidIndex(
        folder=Path("x"),
        people=tuple(f"p{n}" for n in range(20)),
        images=images,
        captions=captions,
        caption_of=caption_of,
    )
    part = whole.of_people(chosen)
    assert part.people == tuple(f"p{n}" for n in chosen)
    for own, all_of in zip(part.images, images, strict=True):
        for label, person in enumerate(chosen):
            expected = [all_of.names[place] for place in all_of.of(person)]
            assert [own.names[place] for place in own.of(label)] == expected
    for place, number in enumerate(part.caption_of.tolist()):
        name = part.images[0].names[place]
        before = [*rgb.names].index(name)
        assert (number < 0) == (caption_of[before] < 0)
        if number >= 0:
            assert part.captions[number] == f"about {name}"


def test_an_empty_list_of_annotations_is_named(tmp_path: Path) -> None:
    root = write_people(tmp_path, {"0002": FULL, "0941": FULL}, layout="release", notes=[])
    with pytest.raises(DataError, match=r"train_annos\.json is an empty list"):
        build_index(find_layout(root))
