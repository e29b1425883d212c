"""PSNR and SSIM against formulas written out anew, and sums that add over ranks."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.metrics import FrameQuality, luma, psnr, ssim, to_levels


def ssim_by_definition(image: np.ndarray, reference: np.ndarray) -> float:
    """Window by window, with weighted means, variances and covariance of each."""
    offsets = np.arange(11) - 5
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None, :] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    channels, height, width = image.shape
    values = []
    for channel in range(channels):
        for top in range(height - 10):
            for left in range(width - 10):
                x = image[channel, top : top + 11, left : left + 11]
                y = reference[channel, top : top + 11, left : left + 11]
                mean_x, mean_y = (weights * x).sum(), (weights * y).sum()
                variance_x = (weights * (x - mean_x) ** 2).sum()
                variance_y = (weights * (y - mean_y) ** 2).sum()
                covariance = (weights * (x - mean_x) * (y - mean_y)).sum()
                values.append(
                    (2 * mean_x * mean_y + 2.55**2)
                    * (2 * covariance + 7.65**2)
                    / (mean_x**2 + mean_y**2 + 2.55**2)
                    / (variance_x + variance_y + 7.65**2)
                )
    return float(np.mean(values))


def psnr_by_definition(image: np.ndarray, reference: np.ndarray) -> float:
    return 20 * math.log10(255 / math.sqrt(((image - reference) ** 2).mean()))


def luma_by_definition(image: np.ndarray) -> np.ndarray:
    """Y of BT.601 with head and foot room, from colours in [0, 1]."""
    red, green, blue = image / 255
    return 16 + 65.481 * red + 128.553 * green + 24.966 * blue


def picture(seed: int, shape: tuple[int, ...] = (3, 14, 17)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_both_agree_with_their_definitions(seed: int) -> None:
    reference = picture(seed)
    image = np.clip(reference + picture(seed + 9) / 8 - 12, 0, 255)
    found = ssim(torch.from_numpy(image), torch.from_numpy(reference))
    assert found.item() == pytest.approx(ssim_by_definition(image, reference), abs=1e-10)
    found = psnr(torch.from_numpy(image), torch.from_numpy(reference))
    assert found.item() == pytest.approx(psnr_by_definition(image, reference), abs=1e-10)


def test_luma_weighs_colours_and_has_head_and_foot_room() -> None:
    image = picture(0)
    found = luma(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(found, luma_by_definition(image), atol=1e-10)
    black_and_white = torch.tensor([0.0, 255.0]).view(1, 1, 2).expand(3, 1, 2)
    np.testing.assert_allclose(luma(black_and_white).numpy(), [[16, 235]], atol=1e-4)


def test_an_image_is_like_itself() -> None:
    image = torch.from_numpy(picture(0))
    assert ssim(image, image).item() == pytest.approx(1.0, abs=1e-12)
    assert psnr(image, image).item() == math.inf


def test_frames_smaller_than_the_window_are_refused() -> None:
    with pytest.raises(DataError, match="8x20"):
        ssim(torch.zeros(3, 8, 20), torch.zeros(3, 8, 20))


def test_colours_are_rounded_to_the_levels_of_a_file() -> None:
    colours = torch.tensor([-0.1, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 1.7])
    assert to_levels(colours).tolist() == [0, 0, 0, 1, 255, 255]


def batch_of(clips: list[int], *, frames: int = 2, seed: int = 0) -> tuple[Tensor, ClipBatch]:
    generator = torch.Generator().manual_seed(seed)

    def levels() -> Tensor:
        shape = (len(clips), frames, 3, 12, 13)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    sharp, blur = levels(), levels()
    output = sharp.float() / 255 + 0.1 * torch.rand(sharp.shape, generator=generator)
    fresh = torch.ones(len(clips), frames, dtype=torch.bool)
    clip = torch.tensor(clips)
    return output, ClipBatch(blur=blur, sharp=sharp, spikes=None, clip=clip, fresh=fresh)


def part(output: Tensor, batch: ClipBatch, places: slice) -> tuple[Tensor, ClipBatch]:
    return output[places], ClipBatch(
        blur=batch.blur[places],
        sharp=batch.sharp[places],
        spikes=None,
        clip=batch.clip[places],
        fresh=batch.fresh[places],
    )


def test_frames_are_averaged_over_their_clip_and_clips_over_the_set() -> None:
    """Clip 0 has four frames and clip 2 has two; both count the same. Clip 1 was not seen."""
    output, batch = batch_of([0, 2, 0])
    metrics = FrameQuality(3)
    metrics.update(output, batch)
    sharp = batch.sharp.double().numpy()
    restored = np.rint(np.clip(output.double().numpy(), 0, 1) * 255)
    blurred = batch.blur.double().numpy()

    def mean(of: Callable[[np.ndarray, np.ndarray], float], images: np.ndarray) -> float:
        by_clip = {
            clip: [of(images[b, d], sharp[b, d]) for b in places for d in range(2)]
            for clip, places in ((0, (0, 2)), (2, (1,)))
        }
        return float(np.mean([np.mean(values) for values in by_clip.values()]))

    found = metrics.result(metrics.state())
    assert found["psnr"] == pytest.approx(mean(psnr_by_definition, restored), abs=1e-9)
    bright, wanted = (
        np.stack([[luma_by_definition(images[b, d]) for d in (0, 1)] for b in range(3)])
        for images in (restored, sharp)
    )
    luminous = [[psnr_by_definition(bright[b, d], wanted[b, d]) for d in (0, 1)] for b in range(3)]
    by_clip = np.mean([luminous[0], luminous[2]]), np.mean(luminous[1])
    assert found["psnr_y"] == pytest.approx(np.mean(by_clip), abs=1e-9)
    alike = [
        [ssim_by_definition(bright[b, d][None], wanted[b, d][None]) for d in (0, 1)]
        for b in range(3)
    ]
    by_clip = np.mean([alike[0], alike[2]]), np.mean(alike[1])
    assert found["ssim_y"] == pytest.approx(np.mean(by_clip), abs=1e-9)
    assert found["ssim"] == pytest.approx(mean(ssim_by_definition, restored), abs=1e-9)
    assert found["psnr_input"] == pytest.approx(mean(psnr_by_definition, blurred), abs=1e-9)


def test_a_measure_of_likeness_is_taken_where_there_is_one() -> None:
    output, batch = batch_of([0, 1])
    seen: list[tuple[torch.Size, float]] = []

    def likeness(image: Tensor, reference: Tensor) -> Tensor:
        seen.append((image.shape, max(image.max().item(), reference.max().item())))
        return (image - reference).abs().mean()[None]

    metrics = FrameQuality(2, likeness)
    metrics.update(output, batch)
    found = metrics.result(metrics.state())
    levels = to_levels(output)
    wanted = (levels - batch.sharp.double()).abs().mean() / 255
    assert found["lpips"] == pytest.approx(wanted.item(), rel=1e-5)
    assert {shape for shape, _ in seen} == {torch.Size((1, 3, 12, 13))}
    assert max(brightest for _, brightest in seen) <= 1
    assert "lpips" not in FrameQuality(2).result(torch.ones(12))


def test_states_of_ranks_add_up() -> None:
    output, batch = batch_of([0, 1, 1, 0])
    whole, first, second = FrameQuality(2), FrameQuality(2), FrameQuality(2)
    whole.update(output, batch)
    first.update(*part(output, batch, slice(0, 1)))
    second.update(*part(output, batch, slice(1, 4)))
    torch.testing.assert_close(
        whole.state(), first.state() + second.state() + FrameQuality(2).state()
    )
    assert whole.state().dtype == torch.float64


def test_a_frame_seen_before_does_not_count_again_even_if_it_is_perfect() -> None:
    output, batch = batch_of([0])
    output[0, 0] = batch.sharp[0, 0].float() / 255
    batch.fresh[0, 0] = False
    metrics = FrameQuality(1)
    metrics.update(output, batch)
    restored = np.rint(np.clip(output[0, 1].double().numpy(), 0, 1) * 255)
    wanted = psnr_by_definition(restored, batch.sharp[0, 1].double().numpy())
    assert metrics.result(metrics.state())["psnr"] == pytest.approx(wanted, abs=1e-9)


def test_nothing_seen_is_no_number() -> None:
    metrics = FrameQuality(2)
    assert metrics.result(metrics.state()) == {}


def test_the_state_does_not_grow() -> None:
    metrics = FrameQuality(2)
    output, batch = batch_of([0, 1])
    metrics.update(output, batch)
    size = metrics.state().numel()
    metrics.update(output, batch)
    assert metrics.state().numel() == size


@given(seed=st.integers(0, 2**32 - 1), height=st.integers(11, 40), width=st.integers(11, 40))
@settings(max_examples=25, deadline=None)
def test_both_agree_with_scikit_image(seed: int, height: int, width: int) -> None:
    random = np.random.default_rng(seed)
    reference = random.integers(0, 256, (3, height, width)).astype(np.float64)
    image = np.clip(reference + random.normal(0, random.uniform(1, 60), reference.shape), 0, 255)
    one, other = torch.from_numpy(image), torch.from_numpy(reference)
    theirs = peak_signal_noise_ratio(reference, image, data_range=255)
    assert psnr(one, other).item() == pytest.approx(theirs, abs=1e-4)
    theirs = structural_similarity(
        image,
        reference,
        data_range=255,
        channel_axis=0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert ssim(one, other).item() == pytest.approx(theirs, abs=1e-4)
