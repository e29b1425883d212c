"""Files of a dataset by their paths: in folders, or in a pack that stands for a folder.

A path into a pack is written as if the pack were a folder: `people.pack/vis/0001/a.jpg`. Nothing on
disk has such a path, so the system is asked first, and where there is no pack nothing is slower.
"""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO

from pitstop.data.pack import Bytes, Pack, is_pack
from pitstop.records.files import read_regular

_MOST_BYTES: Final = 1 << 34

Folders = Mapping[str, tuple[set[str], list[str]]]
"""Folders and files in each folder of a pack, by its name; `.` is the pack itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    """A pack with the folders that the names of its members imply."""

    pack: Pack
    folders: Folders

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the pack, which is opened again; folders are found again."""
        return _with_folders, (self.pack,)

    def name(self, path: Path) -> str:
        """Name a path within the pack, with slashes; `.` for the pack itself."""
        return path.relative_to(self.pack.path).as_posix()

    def is_pixels(self, path: Path) -> bool:
        """Whether a path is a member that was decoded when it was packed."""
        member = self.pack.members.get(self.name(path))
        return member is not None and member.shape is not None

    def content(self, path: Path) -> Bytes:
        """Give a member as `Pack.content` does.

        Raises:
            DataError: Where there is no such member.
        """
        return self.pack.content(self.name(path))


_OPENED: Final[dict[Path, tuple[tuple[int, int], PackedFolder]]] = {}
"""Packs of this process with the size and time of their files; an index is read once."""


def find_pack(path: Path) -> PackedFolder | None:
    """Give the pack that a path is or leads into; None where it is an ordinary path.

    Raises:
        DataError: Where the pack is damaged or cut off.
    """
    for above in (path, *path.parents):
        try:
            found = above.stat()
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode) or not is_pack(above):
            return None
        stamp = (found.st_size, found.st_mtime_ns)
        known = _OPENED.get(above)
        if known is None or known[0] != stamp:
            known = (stamp, _with_folders(Pack(above)))
            _OPENED[above] = known
        return known[1]
    return None


def _with_folders(pack: Pack) -> PackedFolder:
    return PackedFolder(pack=pack, folders=folders_of(pack))


def folders_of(pack: Pack) -> Folders:
    """Find the folders that the names of members imply."""
    folders: dict[str, tuple[set[str], list[str]]] = {".": (set(), [])}
    for name in pack.members:
        *above_names, file = name.split("/")
        above = "."
        for depth, folder in enumerate(above_names, start=1):
            folders[above][0].add(folder)
            above = "/".join(above_names[:depth])
            folders.setdefault(above, (set(), []))
        folders[above][1].append(file)
    return folders


def is_file(path: Path) -> bool:
    """Tell whether there is a file, on disk or in a pack."""
    if path.is_file():
        return True
    packed = find_pack(path)
    return packed is not None and packed.name(path) in packed.pack.members


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder, on disk or in a pack; a pack is one."""
    if path.is_dir():
        return True
    packed = find_pack(path)
    return packed is not None and packed.name(path) in packed.folders


def folders_in(folder: Path) -> list[str]:
    """Name the folders in a folder, sorted, but for hidden ones; none where it does not exist.

    Raises:
        OSError: It may not be read.
    """
    packed = None if folder.is_dir() else find_pack(folder)
    if packed is not None:
        inside, _ = packed.folders.get(packed.name(folder), ((), ()))
        return sorted(name for name in inside if not name.startswith("."))
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()
        )


def names_in(folder: Path) -> list[str]:
    """Name what is in a folder, sorted; of a pack only files.

    Raises:
        OSError: It is not there, or may not be read.
    """
    packed = None if folder.is_dir() else find_pack(folder)
    if packed is None:
        with os.scandir(folder) as entries:  # paths as objects would take ten times as long
            return sorted(entry.name for entry in entries)
    name = packed.name(folder)
    if name not in packed.folders:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    return sorted(packed.folders[name][1])


def read_file(path: Path, *, most_bytes: int = _MOST_BYTES) -> bytes:
    """Read a whole file, on disk or in a pack.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    try:
        return read_regular(path, most_bytes=most_bytes)
    except NotADirectoryError:
        packed = find_pack(path)
        if packed is None:
            raise
        if packed.name(path) not in packed.pack.members:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        return packed.content(path).tobytes()


def open_text(path: Path, *, encoding: str) -> TextIO:
    """Open a file of text, on disk or in a pack.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return path.open(encoding=encoding)
    except NotADirectoryError:
        return TextIOWrapper(BytesIO(read_file(path)), encoding=encoding)


def damaged_in(root: Path) -> list[str]:
    """Say which members of a pack have changed since they were packed; nothing of a folder."""
    packed = find_pack(root)
    if packed is None:
        return []
    return [f"{root / name} is damaged: its bytes have changed" for name in packed.pack.damaged()]


def stamp_of(path: Path) -> tuple[int, int]:
    """Give size and time of change of a file; those of the pack's own file where it is in one.

    Raises:
        OSError: It is not there.
    """
    packed = find_pack(path)
    if packed is None:
        found = path.stat()
        return found.st_size, found.st_mtime_ns
    size_bytes = packed.pack.members[packed.name(path)].size_bytes
    return size_bytes, packed.pack.path.stat().st_mtime_ns
