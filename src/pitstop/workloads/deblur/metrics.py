"""Quality of restored frames: PSNR and SSIM over colours and over luma, in constant memory.

As published numbers have it: colours are rounded to the 256 levels of a file, every frame counts
once, frames are averaged over their clip and clips over the set.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.data.inputs import enlarged

LEVELS: Final = 255.0
SSIM_WINDOW: Final = 11
SSIM_SIGMA: Final = 1.5
_C1: Final = (0.01 * LEVELS) ** 2
_C2: Final = (0.03 * LEVELS) ** 2
METRICS: Final = ("psnr", "psnr_y", "ssim", "ssim_y", "psnr_input")
"""PSNR and SSIM, each over colours and over luma, of what was restored, and PSNR of what there was
to restore; higher is better."""

LPIPS: Final = "lpips"
"""Where its weights are given; lower is better."""

_LUMA: Final = (65.481, 128.553, 24.966)
_LUMA_BASE: Final = 16.0

Likeness = Callable[[Tensor, Tensor], Tensor]
"""Takes two images (1, 3, H, W) of colours in [0, 1] and gives (1,)."""


def psnr(image: Tensor, reference: Tensor) -> Tensor:
    """Peak signal to noise ratio in dB of one image, levels 0 to 255, any layout."""
    error = (image - reference).square().mean()
    return 10 * torch.log10(LEVELS**2 / error)


def luma(image: Tensor) -> Tensor:
    """Y of YCbCr (BT.601, 16 to 235) of a (3, H, W) image, levels 0 to 255; not rounded."""
    red, green, blue = (
        weight / LEVELS * channel for weight, channel in zip(_LUMA, image, strict=True)
    )
    return red + green + blue + _LUMA_BASE


def ssim(image: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity of one (C, H, W) image, levels 0 to 255.

    A Gaussian window of 11x11, only where it fits whole, averaged over channels.

    Raises:
        DataError: Where the image is smaller than the window.
    """
    height, width = image.shape[-2:]
    if min(height, width) < SSIM_WINDOW:
        raise DataError(
            f"SSIM cannot be had of frames of size {height}x{width}: its window is {SSIM_WINDOW} "
            "pixels wide; raise data.eval_crop"
        )
    maps = torch.stack((image, reference, image * image, reference * reference, image * reference))
    mean_x, mean_y, square_x, square_y, product = _windowed(maps)
    variance_x, variance_y = square_x - mean_x * mean_x, square_y - mean_y * mean_y
    covariance = product - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return (
        likeness / ((mean_x.square() + mean_y.square() + _C1) * (variance_x + variance_y + _C2))
    ).mean()


def to_levels(colours: Tensor) -> Tensor:
    """Colours in [0, 1] as the levels that a file would hold, in double precision."""
    return (colours.double().clamp(0, 1) * LEVELS).round()


class FrameQuality:
    """Sums of metrics by clip; one frame at a time, so memory does not grow with clips.

    Args:
        num_clips: Clips of the evaluation set; all ranks count the same ones.
        lpips: Measures LPIPS; None leaves it out.
    """

    def __init__(self, num_clips: int, lpips: Likeness | None = None) -> None:
        self._num_clips = num_clips
        self._lpips = lpips
        self._names = METRICS if lpips is None else (*METRICS, LPIPS)
        self._sums: Tensor | None = None

    def update(self, output: Tensor, batch: ClipBatch) -> None:
        """Take in one batch; nothing is read from the device."""
        if self._sums is None:
            self._sums = torch.zeros(
                self._num_clips, len(self._names) + 1, dtype=torch.float64, device=output.device
            )
        for place in range(len(output)):
            frames = zip(output[place], batch.blur[place], batch.sharp[place], strict=True)
            rows = torch.stack([self._row(*frame) for frame in frames])
            # Chosen, not multiplied: a frame restored without error is infinitely good.
            counted = torch.where(batch.fresh[place][:, None], rows, 0.0)
            self._sums.index_add_(0, batch.clip[place : place + 1], counted.sum(dim=0)[None])

    def state(self) -> Tensor:
        """Give everything gathered as one vector; vectors of ranks add up."""
        if self._sums is None:
            return torch.zeros(self._num_clips * (len(self._names) + 1), dtype=torch.float64)
        return self._sums.flatten()

    def result(self, state: Tensor) -> dict[str, float]:
        """Average over frames, then over the clips that were seen; nothing where none were."""
        sums = state.view(self._num_clips, len(self._names) + 1).cpu()
        seen = sums[sums[:, -1] > 0]
        if not len(seen):
            return {}
        means = (seen[:, :-1] / seen[:, -1:]).mean(dim=0)
        return dict(zip(self._names, means.tolist(), strict=True))

    def _row(self, restored: Tensor, blurred: Tensor, sharp: Tensor) -> Tensor:
        """What one frame adds to the sums: in the order of the names, then the frame itself."""
        levels, wanted = to_levels(restored), sharp.double()
        quality = [
            psnr(levels, wanted),
            psnr(luma(levels), luma(wanted)),
            ssim(levels, wanted),
            ssim(luma(levels)[None], luma(wanted)[None]),
            psnr(enlarged(blurred[None], wanted.shape)[0], wanted),
        ]
        if self._lpips is not None:
            colours = [(image / LEVELS).float()[None] for image in (levels, wanted)]
            quality.append(self._lpips(*colours)[0].double())
        return torch.stack((*quality, torch.ones_like(quality[0])))


def _windowed(maps: Tensor) -> Tensor:
    """Average (N, C, H, W) maps under the window, along one axis and then the other."""
    reach = torch.arange(SSIM_WINDOW, dtype=maps.dtype, device=maps.device) - SSIM_WINDOW // 2
    weights = torch.exp(-reach.square() / (2 * SSIM_SIGMA**2))
    weights = (weights / weights.sum()).view(1, 1, -1, 1)
    single = functional.conv2d(maps.flatten(0, 1)[:, None], weights)
    return functional.conv2d(single, weights.transpose(2, 3)).unflatten(0, maps.shape[:2])[:, :, 0]
