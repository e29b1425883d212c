"""Where clips lie: in folders, or in a pack that stands for one.

A path into a pack is written as if the pack were a folder: `clips.pack/train/<clip>/blur/0.png`.
What is known of a file without reading all of it, and which reader gives its parts, is asked here.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from PIL import Image

from pitstop.data.images import open_image, require_sample
from pitstop.data.loader.stages import stage
from pitstop.data.pack import Pack, is_pack
from pitstop.data.packed_files import folders_of
from pitstop.errors import DataError, os_errors_as
from pitstop.workloads.deblur.data.frames import Bytes, FileReader, FrameReader, Size
from pitstop.workloads.deblur.spike import (
    PIXELS_PER_BYTE,
    Spikes,
    Window,
    cut_spikes,
    planes_in,
)

WORKLOAD: Final = "deblur"

_DEEP_MODES: Final = ("I", "F")  # more than 8 bits a channel; turning them into 8 would clip


class ClipStorage(Protocol):
    """Files of a dataset by their paths."""

    @property
    def reader(self) -> FrameReader:
        """Who gives parts of frames."""
        ...

    def folders(self, folder: Path) -> list[Path]:
        """List the folders in a folder, sorted; none where it does not exist."""
        ...

    def files(self, folder: Path) -> list[Path]:
        """List the files in a folder, sorted, but for hidden ones; none where it does not exist."""
        ...

    def size_bytes(self, path: Path) -> int:
        """Say how long a file is.

        Raises:
            DataError: Where it is not there.
        """
        ...

    def data(self, path: Path) -> bytes:
        """Give a whole file.

        Raises:
            DataError: Where it cannot be read.
        """
        ...

    def frame_size(self, path: Path) -> Size | str:
        """Give height and width of an image without decoding it, or what is wrong with it."""
        ...


def open_storage(root: Path) -> ClipStorage:
    """Open what a dataset's root points at: a folder or a pack.

    Raises:
        DataError: Where it is neither.
    """
    if not root.is_file():
        return FolderStorage()
    if not is_pack(root):
        raise DataError(f"{root} is neither a folder of clips nor a pack of them")
    pack = Pack(root)
    if pack.workload != WORKLOAD:
        raise DataError(f"{root} is a pack of {pack.workload}, not of clips")
    return PackStorage(pack)


def count_planes(storage: ClipStorage, path: Path, size: Size) -> int:
    """Count the spike frames of a file by its length.

    Raises:
        DataError: Where the file is not there, or is no whole number of frames.
    """
    return planes_in(storage.size_bytes(path), path, height=size[0], width=size[1])


@dataclass(frozen=True, slots=True)
class FolderStorage:
    """Files in folders."""

    reader: FrameReader = field(default_factory=FileReader)

    def folders(self, folder: Path) -> list[Path]:
        """Ask the system; a folder that may not be read is an error, not an empty one."""
        return [path for path in _entries(folder) if path.is_dir()]

    def files(self, folder: Path) -> list[Path]:
        """Ask the system as well."""
        return [path for path in _entries(folder) if not path.is_dir()]

    def size_bytes(self, path: Path) -> int:
        """Ask the system, following links."""
        with os_errors_as(DataError, f"cannot read {path}"):
            return path.stat().st_size

    def data(self, path: Path) -> bytes:
        """Read the file."""
        return require_sample(path)

    def frame_size(self, path: Path) -> Size | str:
        """Read the image's header."""
        try:
            if path.stat().st_size == 0:
                return f"{path} is not an image: it is empty"
            with open_image(path) as image:
                return _size_of(image, path)
        except (OSError, SyntaxError, ValueError) as error:
            return f"{path} is not an image: {error}"


class PackStorage:
    """Files in a pack."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._folders = folders_of(pack)
        self.reader: Final[FrameReader] = PackReader(pack)

    def folders(self, folder: Path) -> list[Path]:
        """Look into the pack's index."""
        inner, _ = self._folders.get(self._name(folder), ((), ()))
        return [folder / name for name in sorted(inner)]

    def files(self, folder: Path) -> list[Path]:
        """Look into the pack's index as well."""
        _, names = self._folders.get(self._name(folder), ((), ()))
        return [folder / name for name in sorted(names)]

    def size_bytes(self, path: Path) -> int:
        """Look into the pack's index."""
        return self._pack.content(self._name(path)).size

    def data(self, path: Path) -> bytes:
        """Copy the member."""
        return self._pack.content(self._name(path)).tobytes()

    def frame_size(self, path: Path) -> Size | str:
        """Take the shape of pixels, or read the header of an image that was left as it is."""
        content = self._pack.content(self._name(path))
        if content.ndim == 3:
            return content.shape[0], content.shape[1]
        try:
            with open_image(content.tobytes()) as image:
                return _size_of(image, path)
        except (OSError, SyntaxError, ValueError) as error:
            return f"{path} is not an image: {error}"

    def damaged(self) -> list[Path]:
        """Name the members whose bytes have changed since they were packed."""
        return [self._pack.path / name for name in self._pack.damaged()]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._pack.path).as_posix()


@dataclass(frozen=True, slots=True)
class PackReader:
    """Cuts parts out of the mapped file; pixels that were decoded before are only copied."""

    pack: Pack

    def frame(self, path: Path, window: Window) -> Bytes:
        """Give a part of an image."""
        top, left, height, width = window
        with stage("read"):
            content = self._content(path)
            if content.ndim == 3:
                return content[top : top + height, left : left + width]
            data = content.tobytes()
        with stage("decode"), open_image(data) as image:
            part = image.crop((left, top, left + width, top + height))
            return np.asarray(part.convert("RGB"))

    def spikes(self, path: Path, size: Size, window: Window) -> Spikes:
        """Give a part of spike frames; only the bytes it lies in are read."""
        height, width = size
        with stage("read"):
            content = self._content(path)
            planes = planes_in(content.size, path, height=height, width=width)
            packed = content.reshape(planes, height, width // PIXELS_PER_BYTE)
            return cut_spikes(packed, window)

    def _content(self, path: Path) -> Bytes:
        return self.pack.content(path.relative_to(self.pack.path).as_posix())


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os_errors_as(DataError, f"cannot read {folder}"):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _size_of(image: Image.Image, path: Path) -> Size | str:
    if image.mode.startswith(_DEEP_MODES):
        return f"{path} has more than 8 bits a channel; convert it first"
    return image.height, image.width
