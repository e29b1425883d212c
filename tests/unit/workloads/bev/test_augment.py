"""Views against the matrices they are said to be."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pitstop.workloads.bev.augment import (
    Chance,
    ImageAugment,
    apply,
    fitted,
    random_colours,
    random_ground,
    random_view,
    stretched,
)

ORIGINAL = (180, 320)
WILD = ImageAugment(resize=(0.4, 0.9), rotate_deg=15.0, flip=True)


def ramp(form: str) -> Image.Image:
    """An image whose red is its column and whose green is its row."""
    row, column = np.mgrid[: ORIGINAL[0], : ORIGINAL[1]]
    pixels = np.stack((column * 0.75, row, np.full(ORIGINAL, 128.0)), axis=-1)
    buffer = BytesIO()
    picture = Image.fromarray(np.rint(pixels).astype(np.uint8))
    picture.save(buffer, form, **({"quality": 98, "subsampling": 0} if form == "JPEG" else {}))
    return Image.open(buffer)


def places(shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read off a shown ramp where its pixels come from."""
    return shown[..., 0] / 0.75, shown[..., 1].astype(float)


def check(matrix: np.ndarray, size: tuple[int, int], form: str, tolerance: float) -> int:
    """Compare every pixel that comes from well inside the original; count them."""
    column, row = places(apply(ramp(form), matrix, size, None).astype(float))
    v, u = np.mgrid[: size[0], : size[1]]
    back = np.linalg.inv(matrix) @ np.stack((u, v, np.ones_like(u))).reshape(3, -1)
    inside = (back[0] > 4) & (back[0] < 315) & (back[1] > 4) & (back[1] < 175)
    for found, wanted in ((column, back[0]), (row, back[1])):
        error = np.abs(found.ravel() - wanted)[inside]
        assert error.max(initial=0) < tolerance
    return int(inside.sum())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["PNG", "JPEG"]))
def test_a_random_view_shows_pixels_where_its_matrix_says(seed: int, form: str) -> None:
    matrix = random_view(ORIGINAL, (64, 128), WILD, Chance(seed))
    assert check(matrix, (64, 128), form, 1.7 if form == "PNG" else 4) > 1000


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(180, 320), (120, 160), (200, 400), (22, 40)])
def test_a_stretched_view_shows_the_whole_image(size: tuple[int, int], form: str) -> None:
    matrix = stretched(ORIGINAL, size)
    corner = np.linalg.inv(matrix) @ (size[1] - 0.5, size[0] - 0.5, 1)
    np.testing.assert_allclose(corner[:2], (319.5, 179.5))
    assert check(matrix, size, form, 1.7 if form == "PNG" else 4) > size[0] * size[1] * 0.8


def test_a_fitted_view_keeps_the_bottom_in_the_middle() -> None:
    matrix = fitted(ORIGINAL, (64, 128), 0.5)
    np.testing.assert_allclose(matrix @ (159.5, 179.5, 1), (63.5, 63.5, 1))
    assert check(matrix, (64, 128), "PNG", 1.7) > 7000


def test_a_mirrored_view_swaps_the_first_column_and_the_last() -> None:
    still = ImageAugment(resize=(1.0, 1.0), rotate_deg=0.0, flip=True)
    mirrored = np.array([[-1.0, 0.0, 319.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = [random_view(ORIGINAL, ORIGINAL, still, Chance(seed)) for seed in range(20)]
    same = [bool(np.allclose(matrix, np.eye(3))) for matrix in found]
    assert 0 < sum(same) < 20
    for matrix, is_same in zip(found, same, strict=True):
        np.testing.assert_allclose(matrix, np.eye(3) if is_same else mirrored, atol=1e-9)


def test_a_view_wider_than_the_image_is_black_beside_it() -> None:
    shown = apply(ramp("PNG"), fitted(ORIGINAL, (64, 400), 0.9), (64, 400), None)
    assert shown[:, 300:].max() == 0
    assert shown[:, :280].max(axis=-1).min() >= 100


def test_files_are_decoded_no_larger_than_is_needed() -> None:
    for scale, width in ((0.5, 160), (0.25, 80), (0.6, 320), (0.12, 40)):
        image = ramp("JPEG")
        apply(image, fitted(ORIGINAL, (20, 30), scale), (20, 30), None)
        assert image.size[0] == width


@given(st.integers(0, 2**32))
def test_the_ground_keeps_its_angles_and_moves_little(seed: int) -> None:
    matrix = random_ground(Chance(seed))
    scale = np.abs(np.linalg.det(matrix[:3, :3])) ** (1 / 3)
    assert 0.9 <= scale <= 1.1
    np.testing.assert_allclose(matrix[:3, :3] @ matrix[:3, :3].T, scale**2 * np.eye(3), atol=1e-9)
    assert np.abs(matrix[:3, 3]).max() <= 0.5
    assert matrix[2, 2] > 0


def test_colours_change_and_greys_stay_grey() -> None:
    grey = Image.new("RGB", (2, 2), (90, 90, 90))
    red = Image.new("RGB", (2, 2), (200, 40, 30))
    seen = set()
    for seed in range(20):
        colours = random_colours(Chance(seed))
        level = apply(grey, np.eye(3), (2, 2), colours)[0, 0].astype(int)
        assert np.ptp(level) <= 1
        seen.add(tuple(apply(red, np.eye(3), (2, 2), colours)[0, 0].tolist()))
    assert len(seen) == 20


def test_chance_follows_from_where_a_sample_is() -> None:
    assert Chance(1, 2, 3).uniform(0, 1) == Chance(1, 2, 3).uniform(0, 1)
    assert Chance(1, 2, 3).uniform(0, 1) != Chance(1, 2, 4).uniform(0, 1)
    drawn = {tuple(Chance(number).some(4, 6)) for number in range(200)}
    assert len(drawn) == 15
