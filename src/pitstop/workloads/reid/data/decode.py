"""One image from storage to pixels, no finer than what will be shown of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from pitstop.data.cache.shared import SharedCache
from pitstop.data.images import open_sample, require_sample
from pitstop.data.loader.stages import stage
from pitstop.data.packed_files import PackedFolder, find_pack
from pitstop.data.read_through import read_through
from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import NIR, SK

Size = tuple[int, int]

_GREY: Final = frozenset((NIR, SK))
"""Modalities without colour: one channel is decoded, which takes half the time."""

PACK_FACTS: Final = ".pack.json"
"""Member of a pack of decoded images that says for which size they were decoded."""

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
    packed: PackedFolder | None = None
    """Where images lie, if not in folders."""

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
            if self.packed is None:
                data = require_sample(path)
            else:
                content = self.packed.content(path)
                if content.ndim > 1:
                    return Image.fromarray(content)
                data = content.tobytes()
        with stage("decode"):
            return decode(data, path, needed=self.needed, grey=modality in _GREY)


def reader_of(folder: Path, needed: Size) -> ImageReader:
    """Give the reader of images in a folder, which may lie in a pack.

    Raises:
        DataError: Where the pack's pixels were decoded for images of another size.
    """
    packed = find_pack(folder)
    if packed is None:
        return ImageReader(needed)
    known = _packed_facts(packed)
    if known is not None:
        _refuse_other_pixels(packed.pack.path, known, needed)
    return ImageReader(needed, packed=packed)


def packed_size(root: Path) -> Size | None:
    """Say for which size the images of a pack were decoded; None where nothing was decoded.

    Raises:
        DataError: Where the pack is damaged.
    """
    packed = find_pack(root)
    known = None if packed is None else _packed_facts(packed)
    return None if known is None else known[0]


def whole_size(data: bytes, path: Path) -> Size:
    """Give height and width of an image without decoding it.

    Raises:
        DataError: Where it is no image.
    """
    with open_sample(data, path) as image:
        return image.height, image.width


def is_grey(modality: str) -> bool:
    """Whether images of a modality are read as one channel."""
    return modality in _GREY


def _packed_facts(packed: PackedFolder) -> tuple[Size, int] | None:
    """Give the size that images were decoded for, and how many were reduced for it."""
    if PACK_FACTS not in packed.pack.members:
        return None
    try:
        facts = json.loads(packed.pack.content(PACK_FACTS).tobytes())
        height, width = facts["image_size"]
        return (int(height), int(width)), int(facts["reduced"])
    except (ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"{packed.pack.path} is damaged: {PACK_FACTS} cannot be read ({error}); pack the "
            "dataset again"
        ) from error


def _refuse_other_pixels(path: Path, known: tuple[Size, int], needed: Size) -> None:
    size, reduced = known
    if size == needed or (reduced == 0 and needed[0] >= size[0] and needed[1] >= size[1]):
        return
    raise DataError(
        f"{path} holds images decoded for data.image_size {list(size)}, and it is {list(needed)}; "
        "pack the dataset again by this configuration, or with --frames encoded, which serves "
        "every size"
    )


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
