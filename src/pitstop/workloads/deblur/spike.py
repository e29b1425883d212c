"""Files of a spike camera, and spikes counted into bins.

A file has no header. Spike frames lie back to back, a bit for each pixel: eight neighbours of a
row to the byte, the leftmost in the lowest bit, and the rows from the bottom of the picture up.
"""

from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError, os_errors_as
from pitstop.records.files import whole_file

Spikes = npt.NDArray[np.uint8]

PIXELS_PER_BYTE: Final = 8
_MOST_PLANES_IN_A_BIN: Final = 255


class Window(NamedTuple):
    """A rectangle of a frame in pixels, rows counted from the top."""

    top: int
    left: int
    height: int
    width: int


def read_dat(path: Path | str, *, height: int, width: int, window: Window | None = None) -> Spikes:
    """Read spikes as (T, H, W) of 0 and 1, the top row first.

    Args:
        path: The file.
        height: Rows of a spike frame.
        width: Columns of a spike frame.
        window: The part wanted; only the bytes it lies in are read. None for all.

    Raises:
        DataError: Where the file is not there, or is not a whole number of frames of this size.
    """
    planes = num_planes(path, height=height, width=width)
    packed = np.memmap(path, np.uint8, mode="r", shape=(planes, height, width // PIXELS_PER_BYTE))
    return cut_spikes(packed, window or Window(0, 0, height, width))


def cut_spikes(packed: Spikes, wanted: Window) -> Spikes:
    """Give a part of (T, H, W / 8) bytes, laid out as in a file, as (T, h, w) of 0 and 1."""
    _, height, row_bytes = packed.shape
    whole = Window(0, 0, height, row_bytes * PIXELS_PER_BYTE)
    assert _lies_within(wanted, whole), f"{wanted} is not within {whole.height}x{whole.width}"
    first_byte = wanted.left // PIXELS_PER_BYTE
    end_byte = -(-(wanted.left + wanted.width) // PIXELS_PER_BYTE)
    from_bottom = height - wanted.top - wanted.height
    rows = packed[:, from_bottom : from_bottom + wanted.height, first_byte:end_byte]
    bits = np.unpackbits(rows[:, ::-1], axis=-1, bitorder="little")
    skipped = wanted.left - first_byte * PIXELS_PER_BYTE
    return bits[..., skipped : skipped + wanted.width]


def num_planes(path: Path | str, *, height: int, width: int) -> int:
    """Count the spike frames of a file by its size alone.

    Raises:
        DataError: Where the file is not there, or is not a whole number of frames of this size.
    """
    _require_whole_bytes(height, width)
    with os_errors_as(DataError, f"cannot read {path}"):
        file_bytes = Path(path).stat().st_size
    return planes_in(file_bytes, path, height=height, width=width)


def planes_in(file_bytes: int, path: Path | str, *, height: int, width: int) -> int:
    """Count the spike frames in so many bytes; `path` says in messages whose they are.

    Raises:
        DataError: Where they are not a whole number of frames of this size.
    """
    _require_whole_bytes(height, width)
    frame_bytes = height * width // PIXELS_PER_BYTE
    if file_bytes == 0 or file_bytes % frame_bytes:
        raise DataError(
            f"{path} has {file_bytes} bytes, no whole number of spike frames of size "
            f"{height}x{width} ({frame_bytes} bytes each); the file is cut off, or the size is "
            "not data.spike_height x data.spike_width"
        )
    return file_bytes // frame_bytes


def write_dat(path: Path | str, spikes: Spikes) -> None:
    """Write (T, H, W) of 0 and 1, the whole file or nothing.

    Raises:
        DataError: Where rows do not fill whole bytes, or the file cannot be written.
    """
    _, height, width = spikes.shape
    _require_whole_bytes(height, width)
    path = Path(path)
    data = np.packbits(spikes[:, ::-1], axis=-1, bitorder="little").tobytes()
    with os_errors_as(DataError, f"cannot write {path}"), whole_file(path) as temporary:
        temporary.write_bytes(data)


def count_bins(spikes: Spikes, bins: int) -> Spikes:
    """Count (T, H, W) spikes into (bins, H, W): each plane in one bin, as evenly as can be.

    Where there are fewer planes than bins, the empty bins are spread over the time as well.

    Raises:
        DataError: Where a bin would gather more planes than a byte can count.
    """
    planes = len(spikes)
    if planes > bins * _MOST_PLANES_IN_A_BIN:
        raise DataError(
            f"{planes} spike planes do not go into {bins} bins of at most "
            f"{_MOST_PLANES_IN_A_BIN}; raise data.voxel_bins"
        )
    edges = np.arange(bins + 1) * planes // bins
    counts = np.empty((bins, *spikes.shape[1:]), np.uint8)
    # One sum a bin: `reduceat` over the same edges takes many times as long.
    for place, (start, end) in enumerate(pairwise(edges.tolist())):
        spikes[start:end].sum(axis=0, dtype=np.uint8, out=counts[place])
    return counts


def _require_whole_bytes(height: int, width: int) -> None:
    if width % PIXELS_PER_BYTE:
        raise DataError(
            f"spike frames of size {height}x{width} cannot be stored: the width must be a "
            f"multiple of {PIXELS_PER_BYTE}"
        )


def _lies_within(inner: Window, outer: Window) -> bool:
    return (
        min(inner) >= 0
        and inner.height > 0
        and inner.width > 0
        and inner.top + inner.height <= outer.height
        and inner.left + inner.width <= outer.width
    )
