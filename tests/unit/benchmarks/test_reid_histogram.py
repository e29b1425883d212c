"""Histograms against counting pixel by pixel, and what both baselines score."""

import numpy as np
import pytest
import torch
from benchmarks.reid_histogram import (
    colour_histograms,
    histogram_tokens,
    mean_of_present,
    random_tokens,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.workloads.reid.data.batch import ReidSample
from pitstop.workloads.reid.data.modalities import MODALITIES
from pitstop.workloads.reid.ranking import Labels, normalised, rank, summary

torch.set_num_threads(1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    height=st.integers(1, 9),
    width=st.integers(1, 5),
    data=st.data(),
)
def test_every_pixel_counts_in_its_stripe_and_colour(
    seed: int, height: int, width: int, data: st.DataObject
) -> None:
    stripes = data.draw(st.integers(1, height))
    images = np.random.default_rng(seed).integers(0, 256, (2, 3, height, width), dtype=np.uint8)
    expected = np.zeros((2, stripes, 4, 4, 4))
    rows_of = [0] * stripes
    for row in range(height):
        rows_of[row * stripes // height] += 1
    for image in range(2):
        for row in range(height):
            for column in range(width):
                stripe = row * stripes // height
                red, green, blue = (int(value) // 64 for value in images[image, :, row, column])
                share = 1 / (rows_of[stripe] * width)
                expected[image, stripe, red, green, blue] += share
    found = colour_histograms(images, stripes=stripes)
    np.testing.assert_allclose(found**2 * stripes, expected.reshape(2, -1), atol=1e-6)
    np.testing.assert_allclose((found**2).sum(1), 1, atol=1e-6)


def test_the_same_colours_are_alike_and_others_are_not_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 2, (1, 3, 12, 8), dtype=np.uint8) * 255
    mirrored = image[..., ::-1].copy()
    grey = np.full_like(image, 128)
    first, second, third = (colour_histograms(one)[0] for one in (image, mirrored, grey))
    assert first @ second == pytest.approx(1.0, abs=1e-6)
    assert first @ third == 0.0


def test_histograms_find_people_by_their_clothes_and_random_features_do_not() -> None:
    rng = np.random.default_rng(0)
    persons = np.arange(200) // 5
    clothes = rng.integers(0, 256, (40, 3, 6, 1))
    images = clothes[persons].repeat(4, axis=2).repeat(8, axis=3)
    noisy = np.clip(images + rng.normal(0, 12, images.shape), 0, 255).astype(np.uint8)

    def mean_ap(features: torch.Tensor) -> float:
        who = Labels(persons=persons, cameras=np.arange(200))
        return summary(
            rank(normalised(features), normalised(features), who, who)
        ).mean_average_precision

    chance = mean_ap(random_tokens(200, seed=3))
    assert chance < 0.1
    assert mean_ap(torch.from_numpy(colour_histograms(noisy))) > 5 * chance


def test_random_features_are_those_of_their_seed() -> None:
    assert torch.equal(random_tokens(3, seed=1), random_tokens(3, seed=1))
    assert not torch.equal(random_tokens(3, seed=1), random_tokens(3, seed=2))


def test_the_mean_hears_only_what_is_there() -> None:
    tokens = torch.arange(20.0).view(2, 5, 2)
    present = torch.tensor([[True, False, True, False, False], [False] * 4 + [True]])
    expected = torch.tensor([[2.0, 3.0], [18.0, 19.0]])
    torch.testing.assert_close(mean_of_present(tokens, present), expected)


class FakeItems:
    """An infrared image, a sketch and a caption."""

    def __init__(self) -> None:
        self.modalities = np.array([1, 3, 4], dtype=np.int8)
        self.pixels = torch.randint(0, 256, (3, 3, 12, 6), dtype=torch.uint8)

    def __len__(self) -> int:
        return 3

    def sample(self, epoch: int, index: int) -> ReidSample:
        place = int(self.modalities[index])
        images = torch.zeros(4, 3, 12, 6, dtype=torch.uint8)
        if place < 4:
            images[place] = self.pixels[index]
        present = torch.arange(len(MODALITIES)) == place
        tokens = torch.zeros(1, dtype=torch.int64)
        return ReidSample(
            images=images, present=present, tokens=tokens, person=0, camera=-1, row=index
        )


def test_images_get_the_histogram_of_their_own_modality_and_captions_none() -> None:
    items = FakeItems()
    tokens = histogram_tokens(items)
    expected = colour_histograms(items.pixels[:2].numpy())
    np.testing.assert_array_equal(tokens[:2].numpy(), expected)
    assert not tokens[2].any()
