"""A generated dataset is there whole or not at all."""

from pathlib import Path

import pytest

from pitstop.data.new_dataset import folder_bytes, new_dataset, refuse_used_root
from pitstop.errors import DataError


def test_a_folder_appears_when_everything_is_written(tmp_path: Path) -> None:
    root = tmp_path / "sets" / "clips"
    with new_dataset(root, what="clips") as folder:
        (folder / "a").write_bytes(b"123")
        (folder / "deep").mkdir()
        (folder / "deep" / "b").write_bytes(b"45")
        assert folder_bytes(folder) == 5
        assert not root.exists()
    assert (root / "deep" / "b").read_bytes() == b"45"
    assert [path.name for path in root.parent.iterdir()] == ["clips"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("no such size")])
def test_what_is_interrupted_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    root = tmp_path / "clips"

    def make() -> None:
        with new_dataset(root, what="clips") as folder:
            (folder / "a").write_bytes(b"123")
            raise error

    with pytest.raises(type(error)):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "clips"
    with (
        pytest.raises(DataError, match=f"cannot write clips to {root}"),
        new_dataset(root, what="clips"),
    ):
        pass


def test_a_folder_in_use_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    refuse_used_root(tmp_path)
    refuse_used_root(tmp_path / "absent")
    (tmp_path / "file").touch()
    for root in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match="is there already"):
            refuse_used_root(root)
