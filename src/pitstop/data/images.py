"""Pictures as files: written whole or not at all, and what reading a damaged one raises."""

import os
import secrets
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from PIL import Image

from pitstop.errors import DataError

DAMAGED: Final = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    zlib.error,
    Image.DecompressionBombError,
)
"""What Pillow raises over a file that begins like an image and does not go on like one."""


def write_image(path: Path, image: Image.Image, *, kind: Literal["PNG", "JPEG"] = "PNG") -> None:
    """Write a picture, and the folders above it that are missing.

    Raises:
        DataError: Where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(temporary, format=kind)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
