"""Sums of a dataset's files: raw numbers do not show that a bit of them has changed.

The file is that of ``sha256sum``: a sum and a path on each line, so ``sha256sum -c`` reads it too.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pitstop.errors import DataError, os_errors_as
from pitstop.records.files import open_regular, read_regular
from pitstop.records.store import write_text

_MOST_BYTES: Final = 1 << 30
_MOST_NAMED: Final = 100
_LINE: Final = re.compile(r"(?P<escaped>\\?)(?P<sum>[0-9a-f]{64})  (?P<name>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsFound:
    """What sums say of a dataset."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def check_sums(root: Path, path: Path) -> SumsFound:
    """Compare every file below a folder with the sums in a file; write those where there are none.

    Raises:
        DataError: The sums cannot be read or written, or are none.
    """
    present = dict(_sums_of(root, leave_out=path))
    if not path.exists():
        lines = (_line(name, value) for name, value in present.items())
        write_text(path, "".join(lines))
        return SumsFound(
            problems=(), notes=(f"wrote the checksums of {len(present)} files to {path}",)
        )
    problems = list(_differences(root, present, _read(path)))
    notes = () if len(problems) <= _MOST_NAMED else (f"{len(problems)} files differ from {path}",)
    return SumsFound(
        problems=tuple(problems[:_MOST_NAMED]),
        notes=(*notes, f"compared {len(present)} files with the checksums in {path}"),
    )


def _differences(
    root: Path, present: Mapping[str, str], stated: Mapping[str, str]
) -> Iterator[str]:
    for name in sorted(present.keys() | stated.keys()):
        if name not in present:
            yield f"{root / name} is missing: the file of checksums lists it"
        elif name not in stated:
            yield f"{root / name} is new: the file of checksums does not list it"
        elif present[name] != stated[name]:
            yield f"{root / name} has changed: its checksum differs"


def _sums_of(root: Path, *, leave_out: Path) -> Iterator[tuple[str, str]]:
    own = leave_out.resolve()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if path.resolve() == own:
                continue
            with os_errors_as(DataError, f"cannot read {path}"), open_regular(path) as file:
                value = hashlib.file_digest(file, "sha256").hexdigest()
            yield path.relative_to(root).as_posix(), value


def _read(path: Path) -> dict[str, str]:
    try:
        lines = read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} holds no checksums: it is not text") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{path} holds no checksums: line {number} is no checksum and path")
        name = match["name"]
        if match["escaped"]:
            name = re.sub(r"\\(.)", lambda letter: "\n" if letter[1] == "n" else letter[1], name)
        found[name] = match["sum"]
    return found


def _line(name: str, value: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{'' if escaped == name else chr(92)}{value}  {escaped}\n"
