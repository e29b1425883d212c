"""The frames to restore: read from files, or made of the sharp ones.

Super-resolution is trained on sharp frames that were made smaller, denoising on sharp frames with
noise laid over them. Either is a function of the sharp frames and of seed, epoch and index.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pitstop.config.workloads.deblur import DeblurData, VrtModel
from pitstop.workloads.deblur.spike import Window

_NOISE_STREAM: Final = 0x4E4F4953
COLOURS: Final = 3
_MOST_LEVEL: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """How frames to restore come about."""

    kind: Literal["files", "bicubic", "noise"] = "files"
    scale: int = 1
    """How many times larger the sharp frames are, along each side."""
    noise_levels: tuple[float, float] = (0.0, 0.0)
    """Least and largest standard deviation of noise, in levels of 255."""
    has_map: bool = False
    """Whether a fourth channel tells the standard deviation of the noise, in levels."""

    @property
    def file_scale(self) -> int:
        """How many times larger sharp frames are than the files beside them."""
        return self.scale if self.kind == "files" else 1

    @property
    def channels(self) -> int:
        """Channels of a frame to restore."""
        return COLOURS + self.has_map

    @property
    def dtype(self) -> torch.dtype:
        """Type of a frame to restore: noise lies between levels and beyond them."""
        return torch.float32 if self.has_map or self.kind == "noise" else torch.uint8

    def small(self, window: Window) -> Window:
        """Give the part of a frame to restore that becomes a part of the sharp one."""
        return Window(*(length // self.scale for length in window))

    def of_sharp(self, sharp: Tensor, entropy: tuple[int, ...]) -> Tensor:
        """Make frames to restore of (D, 3, H, W) sharp ones, levels 0 to 255."""
        if self.kind == "bicubic":
            return self.with_map(shrink(sharp, self.scale), self.noise_levels[0])
        draws = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        level = float(draws.uniform(*self.noise_levels))
        noise = torch.from_numpy(draws.standard_normal(sharp.shape, dtype=np.float32))
        return self.with_map(sharp + level * noise, level)

    def with_map(self, frames: Tensor, level: float | None = None) -> Tensor:
        """Append the channel that tells how much noise there is, where there is such a channel.

        Args:
            frames: (..., 3, H, W), levels.
            level: Standard deviation; None for the least that samples have.
        """
        if not self.has_map:
            return frames
        shape = (*frames.shape[:-3], 1, *frames.shape[-2:])
        told = torch.full(shape, self.noise_levels[0] if level is None else level)
        return torch.cat((frames.float(), told), dim=-3)


FROM_FILES: Final = Inputs()


def noise_entropy(seed: int, epoch: int, index: int) -> tuple[int, ...]:
    """Give what the noise of a sample is drawn from."""
    return (seed, epoch, index, _NOISE_STREAM)


def train_inputs(data: DeblurData, model: VrtModel) -> Inputs:
    """Say how the frames of training come about."""
    known = data.eval_noise, data.eval_noise
    levels = data.noise_levels if data.input == "noise" else known
    return Inputs(
        kind=data.input, scale=model.upscale, noise_levels=levels, has_map=model.noise_map
    )


def eval_inputs(data: DeblurData, model: VrtModel) -> Inputs:
    """Say how the frames of an evaluation come about: with one level of noise for all."""
    return Inputs(
        kind=data.input,
        scale=model.upscale,
        noise_levels=(data.eval_noise, data.eval_noise),
        has_map=model.noise_map,
    )


def shrink(frames: Tensor, scale: int) -> Tensor:
    """Make (D, 3, H, W) frames smaller, bicubic over all that a pixel covers, as files hold it.

    Sides must be multiples of the scale.
    """
    height, width = frames.shape[-2:]
    size = [height // scale, width // scale]
    small = functional.interpolate(frames.float(), size=size, mode="bicubic", antialias=True)
    return small.round().clamp(0, _MOST_LEVEL).to(torch.uint8)


def enlarged(frames: Tensor, size: tuple[int, ...]) -> Tensor:
    """Colours of (..., 3 or 4, h, w) frames at a size, bilinear, as an untrained network has it."""
    colours = frames[..., :COLOURS, :, :].double()
    if tuple(colours.shape[-2:]) == tuple(size[-2:]):
        return colours
    flat = colours.flatten(0, -4)
    large = functional.interpolate(flat, size=list(size[-2:]), mode="bilinear")
    return large.unflatten(0, colours.shape[:-3]) if colours.ndim > 4 else large
