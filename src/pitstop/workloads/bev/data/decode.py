"""One image from storage to pixels, no finer than its view asks for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.data.cache.items import Key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.images import open_sample, require_sample
from pitstop.data.loader.stages import stage
from pitstop.data.packed_files import PackedFolder
from pitstop.data.read_through import read_through
from pitstop.errors import DataError
from pitstop.workloads.bev.data.augment import Bytes
from pitstop.workloads.bev.data.raster import Mask

Size = tuple[int, int]
_REDUCTIONS: Final = (1, 2, 4, 8)
Masks = tuple[Mask, Mask]
"""(K, h, w) of classes and (h, w) of what is seen."""


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads images as pixels; a cache keeps them as they come out of their files.

    What is shown of an image is another part in every epoch, so it is kept whole. A JPEG that is
    wanted at a half, a quarter or an eighth is another item for each of them. What is drawn beside
    an image is kept as bits, where it is the same in every epoch.
    """

    cache: SharedCache | None = None
    packed: PackedFolder | None = None
    """Where images lie, if not in folders."""

    def pixels(self, path: Path, size: Size, reduction: int) -> Bytes:
        """Give an image as (H, W, 3), not to be written to.

        Args:
            path: Its file.
            size: Height and width that the file must have.
            reduction: 1, 2, 4 or 8; how much smaller it may be, where its format has that.

        Raises:
            DataError: Where it is not there, has another size or is no whole image; names it.
        """
        if self.cache is None:
            return self._read(path, size, reduction)
        key = picture_key(path, reduction)
        return read_through(self.cache, key, lambda: self._read(path, size, reduction))

    def drawn(self, path: Path, draw: Callable[[], Masks]) -> Masks:
        """Give what is to be found around an image, drawn once if there is a cache."""
        if self.cache is None:
            return draw()

        def draw_both() -> Mask:
            classes, seen = draw()
            return np.concatenate((classes, seen[None]))

        both = read_through(self.cache, drawn_key(path), draw_both)
        return both[:-1], both[-1]

    def _read(self, path: Path, size: Size, reduction: int) -> Bytes:
        with stage("read"):
            if self.packed is None:
                data = require_sample(path)
            else:
                content = _packed_picture(self.packed, path, reduction)
                if content.ndim > 1:
                    return content
                data = content.tobytes()
        with stage("decode"):
            return decode(data, path, size, reduction)


def packed_name(name: str, reduction: int) -> str:
    """Name the pixels of an image in a pack; whole ones stand under the name of its file."""
    return name if reduction == 1 else f".reduced-{reduction}/{name}"


def packed_pictures(packed: PackedFolder, name: str) -> list[Bytes]:
    """Give all that a pack holds of an image: its file, or pixels, whole or reduced."""
    stored = (packed_name(name, step) for step in _REDUCTIONS)
    return [packed.pack.content(one) for one in stored if one in packed.pack.members]


def is_packed(packed: PackedFolder, name: str) -> bool:
    """Tell whether a pack holds an image, whole or reduced."""
    return any(packed_name(name, step) in packed.pack.members for step in _REDUCTIONS)


def _packed_picture(packed: PackedFolder, path: Path, reduction: int) -> Bytes:
    """Give the pixels of an image at a reduction, or the bytes of its file."""
    name = packed.name(path)
    members = packed.pack.members
    reduced = packed_name(name, reduction)
    if reduced in members:
        return packed.pack.content(reduced)
    if name in members and members[name].shape is None:
        return packed.pack.content(name)
    if not is_packed(packed, name):
        raise DataError(f"{packed.pack.path} has no member {name}")
    raise DataError(
        f"{packed.pack.path} holds {name} decoded at another size than 1/{reduction}, which "
        "data.image_size and data.resize ask for; pack the set again by this configuration, or "
        "with --frames encoded, which serves every size"
    )


def picture_key(path: Path, reduction: int) -> Key:
    """Name an image in a cache."""
    return str(path), reduction


def drawn_key(path: Path) -> Key:
    """Name what is drawn for an image in a cache."""
    return str(path), "drawn"


def decode(data: bytes, path: Path, size: Size, reduction: int) -> Bytes:
    """Decode an image as (H, W, 3), as much smaller as its format has it.

    Raises:
        DataError: Where it has another size or is no whole image.
    """
    with open_sample(data, path) as image:
        _refuse_other_size(path, image.size, size)
        image.draft("RGB", (size[1] // reduction, size[0] // reduction))
        return np.asarray(image.convert("RGB"))


def _refuse_other_size(path: Path, found: tuple[int, int], stated: Size) -> None:
    if found[::-1] != stated:
        raise DataError(
            f"{path} is {found[1]}x{found[0]}, but sample_data.json says "
            f"{'x'.join(map(str, stated))}: its calibration would not fit"
        )
