"""From a file to pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pitstop.data.cache.shared import SharedCache
from pitstop.errors import DataError
from pitstop.workloads.reid.data.decode import ImageReader, decode
from tests.unit.workloads.reid.people_files import jpeg

NEEDED = (100, 50)


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((800, 400), (100, 50)),
        ((400, 200), (100, 50)),
        ((300, 150), (150, 75)),
        ((60, 30), (60, 30)),
    ],
)
def test_a_jpeg_is_decoded_no_finer_than_needed(
    size: tuple[int, int], decoded: tuple[int, int]
) -> None:
    image = decode(jpeg(size), Path("a.jpg"), needed=NEEDED, grey=False)
    assert (image.height, image.width) == decoded
    assert image.mode == "RGB"


def test_a_reduced_image_shows_the_same() -> None:
    pixels = np.zeros((400, 200, 3), np.uint8)
    pixels[200:, :, 0] = 200
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    small = np.asarray(decode(buffer.getvalue(), Path("a.jpg"), needed=NEEDED, grey=False))
    assert abs(small[:48, :, 0].astype(int)).max() < 12
    assert abs(small[52:, :, 0].astype(int) - 200).max() < 12


def test_modalities_without_colour_are_decoded_in_one_channel(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg((60, 30), level=200))
    reader = ImageReader(NEEDED)
    modes = {name: reader.image(path, name).mode for name in ("rgb", "cp", "nir", "sk")}
    assert modes == {"rgb": "RGB", "cp": "RGB", "nir": "L", "sk": "L"}


def test_other_formats_are_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGBA", (30, 60), (10, 20, 30, 255)).save(path)
    assert ImageReader(NEEDED).image(path, "rgb").getpixel((0, 0)) == (10, 20, 30)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "a.jpg is damaged: it is empty"),
        (b"not an image", "a.jpg is damaged: it is not an image"),
        (jpeg((600, 300))[:-200], "a.jpg is damaged: .*truncated"),
    ],
)
def test_a_damaged_image_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        decode(data, Path("some/a.jpg"), needed=NEEDED, grey=False)
    assert "0x" not in str(caught.value)


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*gone.jpg: No such file"):
        ImageReader(NEEDED).image(tmp_path / "gone.jpg", "rgb")


def test_more_than_8_bits_are_refused() -> None:
    buffer = BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(buffer, "PNG")
    with pytest.raises(DataError, match="has more than 8 bits a channel; convert it first"):
        decode(buffer.getvalue(), Path("a.png"), needed=NEEDED, grey=True)


@pytest.mark.parametrize("modality", ["rgb", "nir"])
def test_a_cache_gives_the_same_pixels_without_the_file(tmp_path: Path, modality: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg((300, 150), level=77))
    plain = np.asarray(ImageReader(NEEDED).image(path, modality))
    with SharedCache(8 << 20) as cache:
        reader = ImageReader(NEEDED, cache)
        assert np.array_equal(np.asarray(reader.image(path, modality)), plain)
        path.unlink()
        assert np.array_equal(np.asarray(reader.image(path, modality)), plain)
