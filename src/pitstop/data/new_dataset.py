"""A new folder: of a generated dataset, which appears whole or not at all, or of outputs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pitstop.errors import DataError, os_errors_as


def refuse_used_root(root: Path) -> None:
    """Make sure that something new may be made at a place.

    Raises:
        DataError: Where something is there already.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(f"{root} is there already; name another folder, or remove it first")


@contextmanager
def new_dataset(root: Path, *, what: str) -> Iterator[Path]:
    """Give a folder to write to, which becomes `root` when everything is written.

    Args:
        root: Where the dataset will lie; see `refuse_used_root`.
        what: What is written, for the message.

    Raises:
        DataError: Where it cannot be written; nothing is left behind.
    """
    with os_errors_as(DataError, f"cannot write {what} to {root}"):
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}.", dir=root.parent) as scratch:
            # A folder of its own, for the scratch one is closed to others.
            folder = Path(scratch) / "dataset"
            folder.mkdir()
            yield folder
            folder.rename(root)


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
