"""Pictures written as files, each whole or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

from PIL import Image

from pitstop.errors import DataError


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
