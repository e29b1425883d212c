"""What is done to a training image."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pitstop.workloads.reid.data.augment import DRAWS, PLAIN, Augment, View, show

UNIT = st.floats(0, 1, exclude_max=True)
NUMBERS = st.lists(UNIT, min_size=DRAWS, max_size=DRAWS)


def ramp(height: int = 60, width: int = 30) -> Image.Image:
    """Red grows to the right, green downwards."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 200, width)[None, :]
    pixels[..., 1] = np.linspace(0, 200, height)[:, None]
    return Image.fromarray(pixels)


def shown(image: Image.Image, view: View, size: tuple[int, int] = (40, 20)) -> np.ndarray:
    out = np.zeros((3, *size), np.uint8)
    show(image, view, out)
    return out


@given(NUMBERS)
def test_a_cut_has_the_area_asked_for_and_lies_inside(draws: list[float]) -> None:
    left, top, right, bottom = Augment(scale=(0.8, 1.0)).view(draws).box
    assert min(left, top) >= 0
    assert max(right, bottom) <= 1 + 1e-9
    assert 0.8 - 1e-9 <= (right - left) * (bottom - top) <= 1 + 1e-9
    assert 0.75 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9


@given(NUMBERS)
def test_an_erased_part_lies_inside(draws: list[float]) -> None:
    covered = Augment(erase=1.0).view(draws).covered
    assert covered is not None
    left, top, right, bottom = covered
    assert 0 <= left < right <= 1 + 1e-9
    assert 0 <= top < bottom <= 1 + 1e-9
    assert 0.02 - 1e-9 <= (right - left) * (bottom - top) <= 0.33 + 1e-9


def test_a_tall_image_is_not_cut_to_its_middle() -> None:
    # A range of ratios of 3/4 to 4/3 in pixels never fits a person twice as tall as wide: the
    # usual fallback shows the middle two thirds, always the same.
    random = np.random.default_rng(0)
    boxes = {Augment().view(random.random(DRAWS).tolist()).box for _ in range(50)}
    assert len(boxes) == 50
    assert min(bottom - top for _, top, _, bottom in boxes) > 0.79
    assert np.mean([bottom - top for _, top, _, bottom in boxes]) > 0.9


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0), (0.5, 500), (1.0, 1000)])
def test_probabilities_are_kept(probability: float, expected: int) -> None:
    random = np.random.default_rng(1)
    how = Augment(flip=probability, erase=probability)
    views = [how.view(random.random(DRAWS).tolist()) for _ in range(1000)]
    assert abs(sum(view.mirrored for view in views) - expected) < 60
    assert abs(sum(view.covered is not None for view in views) - expected) < 60


def test_a_plain_view_is_the_whole_image_resampled() -> None:
    image = ramp()
    expected = np.asarray(image.resize((20, 40), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(shown(image, PLAIN), expected)


def test_a_grey_image_fills_all_channels() -> None:
    out = shown(ramp().convert("L"), PLAIN)
    assert np.array_equal(out[0], out[1])
    assert np.array_equal(out[0], out[2])


def test_a_cut_is_resampled_from_the_image_itself() -> None:
    box = (0.5, 0.25, 1.0, 0.75)
    expected = ramp().crop((15, 15, 30, 45)).resize((20, 40), Image.Resampling.BILINEAR)
    out = shown(ramp(), View(box=box)).astype(int)
    assert abs(out - np.asarray(expected).transpose(2, 0, 1).astype(int)).max() <= 4


def test_a_mirror_image_is_the_other_way_round() -> None:
    assert np.array_equal(shown(ramp(), View(mirrored=True)), shown(ramp(), PLAIN)[..., ::-1])


def test_light_and_contrast_are_those_of_the_formula() -> None:
    plain = shown(ramp(), PLAIN).astype(float)
    mean = plain.transpose(1, 2, 0)[::4, ::4].mean()
    out = shown(ramp(), View(brightness=1.1, contrast=0.8)).astype(float)
    expected = (plain * 1.1 - mean * 1.1) * 0.8 + mean * 1.1
    assert abs(out - np.clip(expected, 0, 255)).max() <= 0.5 + 1e-9


def test_what_is_erased_has_one_colour_and_nothing_else_changes() -> None:
    out = shown(ramp(), View(covered=(0.25, 0.5, 0.75, 1.0)))
    plain = shown(ramp(), PLAIN)
    assert np.unique(out[:, 20:, 5:15].reshape(3, -1), axis=1).T.tolist() == [[124, 116, 104]]
    plain[:, 20:, 5:15] = out[:, 20:, 5:15]
    assert np.array_equal(out, plain)
