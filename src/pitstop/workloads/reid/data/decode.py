"""One image from storage to pixels, no finer than what will be shown of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from pitstop.data.cache.shared import SharedCache
from pitstop.data.images import open_sample, require_sample
from pitstop.data.loader.stages import stage
from pitstop.data.read_through import read_through
from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import NIR, SK

Size = tuple[int, int]

_GREY: Final = frozenset((NIR, SK))
"""Modalities without colour: one channel is decoded, which takes half the time."""

_DEEP_MODES: Final = ("I", "F")  # turning them into 8 bits would clip


@dataclass(frozen=True, slots=True)
class ImageReader:
    """Reads images fine enough for a size; a cache keeps them as pixels.

    An image is never reduced below the size that the network sees. How it is cut does not come
    into it, so that training and evaluation find the same pixels in a cache.
    """

    needed: Size
    """Height and width below which no image is reduced."""
    cache: SharedCache | None = None

    def image(self, path: Path, modality: str) -> Image.Image:
        """Give an image, grey where its modality has no colour.

        Raises:
            DataError: Where it is not there or is no whole image; names it.
        """
        if self.cache is None:
            return self._read(path, modality)
        pixels = read_through(self.cache, str(path), lambda: np.asarray(self._read(path, modality)))
        return Image.fromarray(np.asarray(pixels))

    def _read(self, path: Path, modality: str) -> Image.Image:
        with stage("read"):
            data = require_sample(path)
        with stage("decode"):
            return decode(data, path, needed=self.needed, grey=modality in _GREY)


def decode(data: bytes, path: Path, *, needed: Size, grey: bool) -> Image.Image:
    """Decode an image; a JPEG no finer than needed, which leaves out most of the work.

    Args:
        data: The file.
        path: What to call it in messages.
        needed: Height and width that must remain, where there are as many.
        grey: Whether to give one channel instead of three.

    Raises:
        DataError: Where it is no whole image.
    """
    mode = "L" if grey else "RGB"
    with open_sample(data, path) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise DataError(f"{path} has more than 8 bits a channel; convert it first")
        image.draft(mode, (needed[1], needed[0]))
        image.load()
        return image if image.mode == mode else image.convert(mode)
