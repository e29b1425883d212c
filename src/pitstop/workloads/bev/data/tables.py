"""The thirteen tables of nuScenes, read row by row.

The two largest tables of the full set have 2.6 million rows each, of which a fifteenth is used: so
a table is never held as a whole.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias, TypeVar

from pitstop.data.packed_files import folders_in, is_file, is_folder, open_text
from pitstop.errors import DataError

TABLES: Final = (
    "attribute",
    "calibrated_sensor",
    "category",
    "ego_pose",
    "instance",
    "log",
    "map",
    "sample",
    "sample_annotation",
    "sample_data",
    "scene",
    "sensor",
    "visibility",
)

T = TypeVar("T")
Row: TypeAlias = dict[str, Any]

_PIECE_CHARS: Final = 1 << 22
_BETWEEN: Final = " \t\r\n,"
_DECODER: Final = json.JSONDecoder()


def table_path(root: Path, version: str, table: str) -> Path:
    """Say where a table lies."""
    return root / version / f"{table}.json"


def versions_in(root: Path) -> list[str]:
    """Name the versions of tables in a folder or pack."""
    return [name for name in folders_in(root) if is_file(table_path(root, name, "sample_data"))]


def check_tables(root: Path, version: str) -> None:
    """Make sure that a version of the set is there, with all of its tables.

    Raises:
        DataError: Where it is not; names what is missing.
    """
    if not is_folder(root):
        raise DataError(f"there is no folder {root}; data.root must be that of a nuScenes set")
    if not is_folder(root / version):
        found = versions_in(root)
        there = f"it has {', '.join(found)}" if found else "it has no tables at all"
        raise DataError(f"{root} has no version {version} (data.version); {there}")
    missing = [name for name in TABLES if not is_file(table_path(root, version, name))]
    if missing:
        named = ", ".join(f"{name}.json" for name in missing)
        raise DataError(f"{root / version} lacks {named}; a nuScenes set has all 13 tables")


def rows(path: Path) -> Iterator[Row]:
    """Read the rows of a table.

    Raises:
        DataError: Where the file is no list of objects; names it and the row.
    """
    try:
        with open_text(path, encoding="utf-8-sig") as file:
            text, at, number = _opened(file, path), 0, 0
            while (at := _skip(text, at)) == len(text) or text[at] != "]":
                found = _row(text, at)
                if found is None:
                    more = file.read(_PIECE_CHARS)
                    if not more:
                        raise DataError(f"{path} is damaged: row {number + 1:,} is not whole")
                    text, at = text[at:] + more, 0
                    continue
                row, at = found
                number += 1
                yield row
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it is not UTF-8 ({error.reason})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        # Lists within lists without end, or a number of thousands of digits.
        raise DataError(f"{path} is damaged: {error}") from error


def each(path: Path, made_of: Callable[[Row], T]) -> Iterator[T]:
    """Make something of every row of a table.

    Raises:
        DataError: Where a row lacks a field or has something else in it.
    """
    for number, row in enumerate(rows(path), start=1):
        try:
            yield made_of(row)
        except KeyError as error:
            raise DataError(f"{path}: row {number:,} has no {error}") from error
        except (TypeError, ValueError, IndexError) as error:
            raise DataError(f"{path}: row {number:,} cannot be used: {error}") from error


def _opened(file: TextIO, path: Path) -> str:
    text = file.read(_PIECE_CHARS).lstrip()
    if not text.startswith("["):
        raise DataError(f"{path} is damaged: it is not a list of rows")
    return text[1:]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
    return at


def _row(text: str, at: int) -> tuple[Row, int] | None:
    """Decode the object that begins at a place; None where its end is not there."""
    if text[at : at + 1] != "{":
        return None
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError:
        return None
