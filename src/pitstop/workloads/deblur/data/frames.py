"""One frame or one file of spikes at a time: the only place of a sample that touches storage.

A sample asks a `FrameReader` for parts of files by their paths. `FileReader` opens the files;
others may stand in its place, as long as they give the same bytes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pitstop.data.cache.shared import SharedCache
from pitstop.data.images import open_sample, read_sample
from pitstop.data.loader.stages import stage
from pitstop.data.read_through import read_through
from pitstop.workloads.deblur.spike import Spikes, Window, read_dat

Bytes = npt.NDArray[np.uint8]
Size = tuple[int, int]


class FrameReader(Protocol):
    """Gives parts of frames; travels to workers by pickle."""

    def frame(self, path: Path, window: Window) -> Bytes:
        """Give a part of an image as (H, W, 3), levels 0 to 255."""
        ...

    def spikes(self, path: Path, size: Size, window: Window) -> Spikes:
        """Give a part of spike frames of a size as (T, H, W) of 0 and 1, the top row first."""
        ...


@dataclass(frozen=True, slots=True)
class FileReader:
    """Opens a file each time it is asked."""

    def frame(self, path: Path, window: Window) -> Bytes:
        """Decode an image and cut the part out."""
        with stage("read"):
            data = read_sample(path)
        with stage("decode"):
            return decode_part(data, path, window)

    def spikes(self, path: Path, size: Size, window: Window) -> Spikes:
        """Read only the bytes the part lies in."""
        with stage("read"):
            return read_dat(path, height=size[0], width=size[1], window=window)


def decode_part(data: bytes, path: Path, window: Window) -> Bytes:
    """Decode an image and cut a part out as (H, W, 3); `path` says in messages what it is.

    Raises:
        DataError: Where they are no whole image.
    """
    top, left, height, width = window
    with open_sample(data, path) as image:
        part = image.crop((left, top, left + width, top + height))
        return np.asarray(part.convert("RGB"))


@dataclass(frozen=True, slots=True)
class FrameCache:
    """Looks into a shared cache before it asks a reader.

    What is not there is read whole and put there: another epoch will want another part of it.
    Frames lie there as bytes, spikes as bits.
    """

    shared: SharedCache

    def frame(self, reader: FrameReader, path: Path, size: Size, window: Window) -> Bytes:
        """Give a part of an image of a size as (H, W, 3)."""
        whole = Window(0, 0, *size)
        return read_through(
            self.shared, str(path), lambda: reader.frame(path, whole), window=_slices(window)
        )

    def spikes(self, reader: FrameReader, path: Path, size: Size, window: Window) -> Spikes:
        """Give a part of spike frames of a size as (T, H, W) of 0 and 1."""
        whole = Window(0, 0, *size)
        spikes = read_through(
            self.shared,
            str(path),
            lambda: reader.spikes(path, size, whole).astype(np.bool_),
            window=(slice(None), *_slices(window)),
        )
        return spikes.view(np.uint8)


def _slices(window: Window) -> tuple[slice, slice]:
    top, left, height, width = window
    return slice(top, top + height), slice(left, left + width)
