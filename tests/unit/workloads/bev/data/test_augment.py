"""Views against the matrices they are said to be."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pitstop.workloads.bev.data.augment import (
    Chance,
    ImageAugment,
    fitted,
    random_colours,
    random_ground,
    random_view,
    reduction_of,
    reductions_between,
    show,
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


def seen(image: Image.Image, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Show an image, decoded as small as its view allows, as (H, W, 3)."""
    step = reduction_of(matrix)
    original = (image.height, image.width)
    image.draft("RGB", (original[1] // step, original[0] // step))
    return show(np.asarray(image.convert("RGB")), original, matrix, size).transpose(1, 2, 0)


def places(shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read off a shown ramp where its pixels come from."""
    return shown[..., 0] / 0.75, shown[..., 1].astype(float)


def check(matrix: np.ndarray, size: tuple[int, int], form: str, tolerance: float) -> int:
    """Compare every pixel that comes from well inside the original; count them."""
    column, row = places(seen(ramp(form), matrix, size).astype(float))
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


@given(st.integers(0, 2**32), st.sampled_from([(0.3, 0.5), (0.6, 0.9)]))
def test_a_view_within_an_image_shows_whole_pixels_of_what_is_decoded(
    seed: int, resize: tuple[float, float]
) -> None:
    still = ImageAugment(resize=resize, rotate_deg=0.0, flip=True)
    size = (50, 90)
    matrix = random_view(ORIGINAL, size, still, Chance(seed))
    drawn = Chance(seed).uniform(*resize)
    assert abs(matrix[0, 0]) == pytest.approx(drawn, rel=0.04)
    assert matrix[1, 1] == pytest.approx(drawn, rel=0.04)
    ends = np.array([[-0.5, -0.5, 1], [size[1] - 0.5, size[0] - 0.5, 1]]).T
    corners = ((np.linalg.inv(matrix) @ ends)[:2] + 0.5) / reduction_of(matrix)
    np.testing.assert_allclose(corners, np.rint(corners), atol=1e-9)
    # Down to the last row that a reduced image has whole.
    assert round(corners[1].max()) == ORIGINAL[0] // reduction_of(matrix)


noise = st.integers(0, 2**32).map(
    lambda seed: np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8)
)


@settings(max_examples=40, deadline=None)
@given(noise, st.sampled_from([(20, 30), (33, 47), (40, 60), (64, 90)]))
def test_an_upright_view_has_the_levels_that_pillow_gives(
    pixels: np.ndarray, size: tuple[int, int]
) -> None:
    shown = show(pixels, (40, 60), stretched((40, 60), size), size)
    wanted = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    off = np.abs(shown.transpose(1, 2, 0).astype(int) - np.asarray(wanted))
    # Both take pixels in weights of a whole number of parts; not of the same number.
    assert off.max() <= 1


@pytest.mark.parametrize("scale", [0.6, 0.85, 1.0])
@pytest.mark.parametrize("flip", [(-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)])
def test_a_mirrored_view_is_the_mirrored_picture_to_the_byte(
    scale: float, flip: tuple[float, float]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*ORIGINAL, 3), dtype=np.uint8)
    size = (64, 128)
    upright = fitted(ORIGINAL, size, scale)
    ends = [(length - 1) * (sign < 0) for length, sign in zip(size[::-1], flip, strict=True)]
    turn = np.array([[flip[0], 0, ends[0]], [0, flip[1], ends[1]], [0, 0, 1.0]])
    shown = show(pixels, ORIGINAL, turn @ upright, size)
    plain = show(pixels, ORIGINAL, upright, size)
    assert plain.std() > 10
    np.testing.assert_array_equal(shown, plain[:, :: int(flip[1]), :: int(flip[0])])


def test_rounding_at_the_edge_does_not_change_how_a_view_is_made() -> None:
    """A hair outside of the image is inside: only turned views are looked up point by point."""
    pixels = np.random.default_rng(1).integers(0, 256, (*ORIGINAL, 3), dtype=np.uint8)
    matrix = stretched(ORIGINAL, (90, 200))
    nudged = matrix + np.array([[0, 0, 1e-9], [0, 0, -1e-9], [0, 0, 0]])
    np.testing.assert_array_equal(
        show(pixels, ORIGINAL, matrix, (90, 200)), show(pixels, ORIGINAL, nudged, (90, 200))
    )


@settings(max_examples=30, deadline=None)
@given(noise, st.integers(0, 2**32))
def test_colours_are_mixed_as_pillow_does_it(pixels: np.ndarray, seed: int) -> None:
    colours = random_colours(Chance(seed))
    mixed = show(pixels, (40, 60), np.eye(3), (40, 60), colours=colours)
    wanted = Image.fromarray(pixels).convert("RGB", tuple(colours.ravel().tolist()))
    np.testing.assert_array_equal(mixed.transpose(1, 2, 0), np.asarray(wanted))


def test_colours_of_large_pictures_are_mixed_to_the_end() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (*ORIGINAL, 3), dtype=np.uint8)
    colours = random_colours(Chance(0))
    mixed = show(pixels, ORIGINAL, np.eye(3), ORIGINAL, colours=colours)
    wanted = Image.fromarray(pixels).convert("RGB", tuple(colours.ravel().tolist()))
    np.testing.assert_array_equal(mixed.transpose(1, 2, 0), np.asarray(wanted))


def test_a_range_of_scales_is_decoded_at_these_sizes() -> None:
    assert reductions_between(0.9, 1.0) == [1]
    assert reductions_between(0.38, 0.55) == [2]
    assert reductions_between(0.45, 0.7) == [2, 1]
    assert reductions_between(0.1, 0.6) == [8, 4, 2, 1]


def test_a_view_wider_than_the_image_is_black_beside_it() -> None:
    shown = seen(ramp("PNG"), fitted(ORIGINAL, (64, 400), 0.9), (64, 400))
    assert shown[:, 300:].max() == 0
    assert shown[:, :280].max(axis=-1).min() >= 100


def test_files_are_decoded_no_larger_than_is_needed() -> None:
    for scale, width in ((0.5, 160), (0.25, 80), (0.6, 320), (0.12, 40)):
        image = ramp("JPEG")
        seen(image, fitted(ORIGINAL, (20, 30), scale), (20, 30))
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
    grey, red = (np.full((2, 2, 3), level, np.uint8) for level in (90, (200, 40, 30)))
    found = set()
    for seed in range(20):
        colours = random_colours(Chance(seed))
        level, other = (
            show(pixels, (2, 2), np.eye(3), (2, 2), colours=colours)[:, 0, 0].astype(int)
            for pixels in (grey, red)
        )
        assert np.ptp(level) <= 1
        found.add(tuple(other.tolist()))
    assert len(found) == 20


def test_chance_follows_from_where_a_sample_is() -> None:
    assert Chance(1, 2, 3).uniform(0, 1) == Chance(1, 2, 3).uniform(0, 1)
    assert Chance(1, 2, 3).uniform(0, 1) != Chance(1, 2, 4).uniform(0, 1)
    drawn = {tuple(Chance(number).some(4, 6)) for number in range(200)}
    assert len(drawn) == 15
