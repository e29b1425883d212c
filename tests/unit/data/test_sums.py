"""Sums of a dataset: the file of sha256sum, and every difference named."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pitstop.data.sums import check_sums
from pitstop.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "a b").mkdir(parents=True)
    for name in ("a b/x.dat", "y", "with\nnewline", "back\\slash", "Ünï"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_what_changed_is_missing_or_new_is_named(root: Path, tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    assert check_sums(root, sums).problems == ()
    assert check_sums(root, sums).problems == ()
    (root / "y").write_bytes(b"Y")
    (root / "Ünï").unlink()
    (root / "z").write_bytes(b"")
    assert check_sums(root, sums).problems == (
        f"{root / 'y'} has changed: its checksum differs",
        f"{root / 'z'} is new: the file of checksums does not list it",
        f"{root / 'Ünï'} is missing: the file of checksums lists it",
    )


def test_sums_may_lie_in_the_folder_itself(root: Path) -> None:
    for _ in range(2):
        assert check_sums(root, root / "sums").problems == ()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_agrees(root: Path, tmp_path: Path) -> None:
    check_sums(root, tmp_path / "sums")
    command = ["sha256sum", "--quiet", "--check", str(tmp_path / "sums")]
    subprocess.run(command, cwd=root, check=True)


@pytest.mark.parametrize("text", [b"hello\n", b"\xff\xfe", b"\n"])
def test_a_file_of_something_else_is_refused(root: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "sums").write_bytes(text)
    with pytest.raises(DataError, match="holds no checksums"):
        check_sums(root, tmp_path / "sums")
