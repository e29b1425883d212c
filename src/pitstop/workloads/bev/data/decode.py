"""One image from storage to pixels, no finer than its view asks for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pitstop.data.cache.items import Key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.images import open_sample, require_sample
from pitstop.data.loader.stages import stage
from pitstop.data.read_through import read_through
from pitstop.errors import DataError
from pitstop.workloads.bev.data.augment import Bytes
from pitstop.workloads.bev.data.raster import Mask

Size = tuple[int, int]
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
            return _read(path, size, reduction)
        key = picture_key(path, reduction)
        return read_through(self.cache, key, lambda: _read(path, size, reduction))

    def drawn(self, path: Path, draw: Callable[[], Masks]) -> Masks:
        """Give what is to be found around an image, drawn once if there is a cache.

        Args:
            path: File of the image that it belongs to.
            draw: Gives the same for this image each time.
        """
        if self.cache is None:
            return draw()

        def draw_both() -> Mask:
            classes, seen = draw()
            return np.concatenate((classes, seen[None]))

        both = read_through(self.cache, drawn_key(path), draw_both)
        return both[:-1], both[-1]


def picture_key(path: Path, reduction: int) -> Key:
    """Name an image in a cache."""
    return str(path), reduction


def drawn_key(path: Path) -> Key:
    """Name what is drawn for an image in a cache."""
    return str(path), "drawn"


def _read(path: Path, size: Size, reduction: int) -> Bytes:
    with stage("read"):
        data = require_sample(path)
    with stage("decode"), open_sample(data, path) as image:
        _refuse_other_size(path, image.size, size)
        image.draft("RGB", (size[1] // reduction, size[0] // reduction))
        return np.asarray(image.convert("RGB"))


def _refuse_other_size(path: Path, found: tuple[int, int], stated: Size) -> None:
    if found[::-1] != stated:
        raise DataError(
            f"{path} is {found[1]}x{found[0]}, but sample_data.json says "
            f"{'x'.join(map(str, stated))}: its calibration would not fit"
        )
