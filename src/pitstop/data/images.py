"""Pictures as files: written whole or not at all, and what reading a damaged one raises."""

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from PIL import Image, UnidentifiedImageError

from pitstop.errors import DataError, os_errors_as
from pitstop.records.files import open_regular, read_regular, whole_file

DAMAGED: Final = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    zlib.error,
)
"""What Pillow raises over a file that begins like an image and does not go on like one."""

# No picture has as many: a file that never ends must not fill the memory.
_MOST_BYTES: Final = 1 << 30
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "PPM", "GIF")
_MOST_MPIXELS: Final = 89  # where Pillow begins to warn


def read_sample(path: Path) -> bytes:
    """Read a file of a dataset whole; what has no end, or would be waited for, is refused.

    Raises:
        OSError: It cannot be read, or is no regular file of a sample's size.
    """
    return read_regular(path, most_bytes=_MOST_BYTES)


def require_sample(path: Path) -> bytes:
    """Read a file that a dataset cannot do without.

    Raises:
        DataError: It cannot be read; names it.
    """
    with os_errors_as(DataError, f"cannot read {path}"):
        return read_sample(path)


@contextmanager
def open_image(source: Path | bytes) -> Iterator[Image.Image]:
    """Open a picture of a usual kind and size; its pixels are not read yet.

    Other kinds are refused, although Pillow reads them: one of them (EPS) is a program.

    Raises:
        ValueError: Where it claims more pixels than a frame has.
        OSError, SyntaxError: Where it cannot be read, or is no picture.
    """
    with BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                image = Image.open(file, formats=_FORMATS)
            except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
                raise ValueError(f"it claims more than {_MOST_MPIXELS} million pixels") from error
        with image:
            yield image


@contextmanager
def open_sample(data: bytes, path: Path | str) -> Iterator[Image.Image]:
    """Open the bytes of a sample; also what decoding them raises is said of `path`.

    Raises:
        DataError: Where they are no whole image.
    """
    try:
        with open_image(data) as image:
            yield image
    except UnidentifiedImageError as error:
        # Its own words name the buffer, by an address that is another one each time.
        what = "it is not an image" if data else "it is empty"
        raise DataError(f"{path} is damaged: {what}") from error
    except DAMAGED as error:
        raise DataError(f"{path} is damaged: {error}") from error


def write_image(path: Path, image: Image.Image, *, kind: Literal["PNG", "JPEG"] = "PNG") -> None:
    """Write a picture, and the folders above it that are missing.

    Raises:
        DataError: Where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            image.save(temporary, format=kind)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
