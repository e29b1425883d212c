"""Where files lie, and what is said where they do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from pitstop.errors import DataError
from pitstop.workloads.reid.data.layout import find_layout, read_annotations
from tests.unit.workloads.reid.people_files import FULL, write_people

PEOPLE = {"0002": FULL, "0941": FULL}


@pytest.mark.parametrize(
    ("kind", "folder", "file"),
    [("challenge", "train", "text_annos.json"), ("release", ".", "train_annos.json")],
)
def test_layouts_are_told_apart_by_what_is_there(
    tmp_path: Path, kind: str, folder: str, file: str
) -> None:
    layout = find_layout(write_people(tmp_path, PEOPLE, layout=kind))
    assert layout.kind == kind
    assert layout.folder == tmp_path / folder
    assert layout.annotations == tmp_path / folder / file
    assert layout.test_lists is None
    assert layout.only_annotated == (kind == "release")


def test_a_folder_without_people_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no people: there is neither .*train/vis nor .*vis"):
        find_layout(tmp_path)


def test_images_without_captions_name_the_file_that_is_missing(tmp_path: Path) -> None:
    root = write_people(tmp_path, PEOPLE)
    (root / "train" / "text_annos.json").unlink()
    with pytest.raises(DataError, match=r"there is no .*text_annos.json, though"):
        find_layout(root)


def row(path: str, number: Any = 1, caption: Any = "words") -> dict[str, Any]:
    return {"id": number, "file_path": path, "caption": caption, "split": "train"}


def read(tmp_path: Path, content: Any) -> list[Any]:
    path = tmp_path / "text_annos.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return read_annotations(path)


def test_an_annotation_names_person_image_and_words(tmp_path: Path) -> None:
    [note] = read(tmp_path, [row("vis/0941/0941_sysu_0470_cam5_0007_vis.jpg", 562)])
    assert note == ("0941", "0941_sysu_0470_cam5_0007_vis.jpg", "words", 562)


def test_paths_with_backslashes_are_the_same_paths(tmp_path: Path) -> None:
    [note] = read(tmp_path, [row("vis\\0941\\a.jpg")])
    assert note.name == "a.jpg"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row("vis/01/a.jpg"), row("vis/01/a.jpg")], "names vis/01/a.jpg twice; remove one"),
        ([row("vis/01/a.jpg"), row("vis/02/b.jpg")], "id 1 stands for the folders 01 and 02"),
        ([row("vis/01/a.jpg"), row("vis/01/b.jpg", 2)], "the folder 01 has the ids 1 and 2"),
        ([row("../01/a.jpg")], "is not the path of an image"),
        ([row("vis/../a.jpg")], "is not the path of an image"),
        ([row("/vis/01/a.jpg")], "is not the path of an image"),
        ([row("nir/01/a.jpg")], "entry 0 is about nir/01/a.jpg, which is no colour image"),
        ([row("vis/01/a.jpg", caption=None)], "entry 0 has no caption"),
        ([{"id": 1}], "entry 0 has no file_path"),
        ({"rows": []}, "must hold a list of annotations, not a mapping"),
    ],
)
def test_annotations_that_cannot_be_right_are_refused(
    tmp_path: Path, rows: Any, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        read(tmp_path, rows)


def test_a_label_that_differs_from_its_folder_is_no_mistake(tmp_path: Path) -> None:
    # The number is a label of somebody else's making; the folder is the person.
    assert len(read(tmp_path, [row("vis/0941/a.jpg", 1), row("vis/0002/b.jpg", 2)])) == 2


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ('[{"caption": "caf\xe9"}]'.encode("latin-1"), r"is not UTF-8 \(byte 17\); save it as UTF"),
        (b'[{"id": 1, "file_pa', "is not JSON, or is cut off: .* line 1, column 12; fetch it anew"),
        (b"", "is not JSON, or is cut off"),
    ],
)
def test_files_that_are_no_json_are_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "text_annos.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=complaint) as caught:
        read_annotations(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mark_of_byte_order_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "text_annos.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([row("vis/01/a.jpg")]).encode())
    assert len(read_annotations(path)) == 1


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '[{"id": ' + "9" * 5_000 + "}]"],
    ids=["lists within lists", "a number of 5,000 digits"],
)
def test_json_that_python_gives_up_on_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train_annos.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is no usable JSON") as caught:
        read_annotations(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"caption": "a \ud83d coat"}, "entry 0: the caption holds half a character"),
        ({"file_path": "vis/0002/a\0.jpg"}, "entry 0: .* is not the path of an image"),
        ({"file_path": "vis/0002/a\ud83d.jpg"}, "entry 0: .* is not the path of an image"),
    ],
)
def test_what_no_file_can_be_called_or_say_is_refused(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    path = tmp_path / "train_annos.json"
    path.write_text(json.dumps([{"caption": "a", "file_path": "vis/0002/a.jpg"} | change]))
    with pytest.raises(DataError, match=said):
        read_annotations(path)
