"""A pack that stands for a folder: what is asked of paths has the same answer in both."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.pack import PackWriter
from pitstop.data.packed_files import (
    find_pack,
    folders_in,
    folders_of,
    is_file,
    is_folder,
    names_in,
    open_text,
    read_file,
    stamp_of,
)

FILES = {"a.txt": "one", "x/b.txt": "two", "x/y z/C.TXT": "three", "x2/b.txt": ""}
PLACES = ["x", "x/y z", "x2", "a.txt", "x/b.txt", "x/no", "no", "no/no", "a.txt/b"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "some files.pack"
    with PackWriter(path, workload="test") as writer:
        for name, text in FILES.items():
            writer.add(name, "text", text.encode())
    return path


def answer(question: Callable[[Path], object], path: Path) -> object:
    try:
        return question(path)
    except OSError as error:
        return type(error)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("question", [is_file, is_folder, folders_in, read_file])
def test_a_pack_answers_as_its_folder_does(
    folder: Path, packed: Path, question: Callable[[Path], object], place: str
) -> None:
    wanted, found = answer(question, folder / place), answer(question, packed / place)
    both_fail = isinstance(wanted, type) and isinstance(found, type)
    assert found == wanted or both_fail


@pytest.mark.parametrize("place", [".", "x", "x/y z"])
def test_files_of_a_folder_are_listed(folder: Path, packed: Path, place: str) -> None:
    wanted = [name for name in names_in(folder / place) if (folder / place / name).is_file()]
    assert names_in(packed / place) == wanted
    with pytest.raises(FileNotFoundError):
        names_in(packed / "nowhere")


def test_a_pack_itself_is_a_folder_to_who_asks(folder: Path, packed: Path) -> None:
    assert is_folder(packed)
    assert folders_in(packed) == folders_in(folder) == ["x", "x2"]


def test_text_is_read_from_both(folder: Path, packed: Path) -> None:
    for root in (folder, packed):
        with open_text(root / "x" / "b.txt", encoding="utf-8") as file:
            assert file.read() == "two"
        assert stamp_of(root / "x" / "b.txt")[0] == 3


def test_a_folder_is_no_pack_and_neither_is_what_is_missing(folder: Path) -> None:
    assert find_pack(folder / "a.txt") is None
    assert find_pack(folder / "missing" / "deeper") is None


def test_a_pack_that_was_written_anew_is_read_anew(packed: Path) -> None:
    assert read_file(packed / "a.txt") == b"one"
    packed.unlink()
    with PackWriter(packed, workload="test") as writer:
        writer.add("a.txt", "text", b"another one")
    assert read_file(packed / "a.txt") == b"another one"
    assert not is_file(packed / "x" / "b.txt")


def test_it_travels_to_other_processes_by_its_path(packed: Path) -> None:
    found = find_pack(packed / "x")
    assert found is not None
    again = pickle.loads(pickle.dumps(found))
    assert again.folders == found.folders
    assert again.content(packed / "a.txt").tobytes() == b"one"
    assert len(pickle.dumps(found)) < 600


@given(st.lists(st.sampled_from(["a", "b", "c/d", "c/e", "f/g/h"]), unique=True))
def test_folders_are_those_that_names_imply(names: list[str]) -> None:
    class Members:
        members = dict.fromkeys(names)

    found = folders_of(Members())  # type: ignore[arg-type]
    files = {
        f"{folder}/{name}".removeprefix("./") for folder, (_, own) in found.items() for name in own
    }
    assert files == set(names)
