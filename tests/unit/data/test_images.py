"""Pictures from elsewhere: of usual kinds and sizes, or refused before memory is taken."""

import os
import struct
import sys
import zlib
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from pitstop.data.images import DAMAGED, open_image


def png_claiming(width: int, height: int) -> bytes:
    """A picture that says to be of any size, with hardly anything behind it."""
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT": b"x"}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )


def test_a_picture_is_opened_from_a_file_and_from_bytes(tmp_path: Path) -> None:
    buffer = BytesIO()
    Image.new("RGB", (5, 3), (1, 2, 3)).save(buffer, format="PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    for source in (tmp_path / "a.png", buffer.getvalue()):
        with open_image(source) as image:
            assert image.size == (5, 3)
            assert image.getpixel((4, 2)) == (1, 2, 3)


@pytest.mark.parametrize("size", [(10_000, 10_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_a_claim_of_too_many_pixels_is_refused(size: tuple[int, int]) -> None:
    with (
        pytest.raises(ValueError, match="more than 89 million pixels"),
        open_image(png_claiming(*size)),
    ):
        pass


def test_a_picture_that_is_a_program_is_not_opened() -> None:
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with Image.open(BytesIO(program)) as image:
        assert image.format == "EPS"  # Pillow itself would run it
    with pytest.raises(DAMAGED), open_image(program):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(OSError, match="not a regular file"), open_image(tmp_path / "a.png"):
        pass
