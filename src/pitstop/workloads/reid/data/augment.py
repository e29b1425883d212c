"""How a training image is changed: cut, mirrored, lit and partly covered, by numbers drawn before.

Shares of an image are shares of its own sides. A fixed range of aspect ratios, as photographs of
things have it, would never fit a standing person: every attempt fails, and what is left is the
middle of the body, the same one in each epoch.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]

DRAWS: Final = 12
"""Random numbers that one image takes."""

_GREY_STEP: Final = 4  # the mean of every 16th pixel is as good, and takes a tenth of the time
_COVER: Final[Bytes] = np.array([[[124]], [[116]], [[104]]], np.uint8)
"""What an erased part becomes: the mean colour of photographs, which normalises to about 0."""


class View(NamedTuple):
    """What is shown of an image, and how; shares of its sides throughout."""

    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    """Left, top, right and bottom of the part."""
    mirrored: bool = False
    brightness: float = 1.0
    contrast: float = 1.0
    covered: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom of what is erased, of the part."""


PLAIN: Final = View()


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """How far training images are changed."""

    scale: tuple[float, float] = (0.8, 1.0)
    """Share of the area that is cut out."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Most that a cut changes the ratio of width to height by."""
    flip: float = 0.5
    """Probability of a mirror image."""
    brightness: float = 0.2
    """Most that brightness changes by, as a share."""
    contrast: float = 0.2
    erase: float = 0.3
    """Probability of covering a rectangle."""
    erase_area: tuple[float, float] = (0.02, 0.33)
    """Share of the area that is covered."""
    erase_ratio: tuple[float, float] = (0.3, 3.3)

    def view(self, draws: list[float]) -> View:
        """Decide by `DRAWS` numbers between 0 and 1."""
        covered = None
        if draws[7] < self.erase:
            covered = _rectangle(self.erase_area, self.erase_ratio, draws[8:12])
        return View(
            box=_rectangle(self.scale, self.ratio, draws[:4]),
            mirrored=draws[4] < self.flip,
            brightness=1 + self.brightness * (2 * draws[5] - 1),
            contrast=1 + self.contrast * (2 * draws[6] - 1),
            covered=covered,
        )


def show(image: Image.Image, view: View, out: Bytes) -> None:
    """Put what a view shows of an image into (3, H, W), resampled once from the image itself."""
    height, width = out.shape[1:]
    left, top, right, bottom = view.box
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    part = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(part)
    if view.brightness != 1.0 or view.contrast != 1.0:
        pixels = _levels(pixels, view).take(pixels)
    if view.mirrored:
        pixels = pixels[:, ::-1]
    out[...] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if view.covered is not None:
        left, top, right, bottom = view.covered
        rows = slice(round(top * height), round(bottom * height))
        out[:, rows, round(left * width) : round(right * width)] = _COVER


def _rectangle(
    area: tuple[float, float], ratio: tuple[float, float], draws: list[float]
) -> tuple[float, float, float, float]:
    """Draw a rectangle inside the unit square whose area and ratio are in range; always fits."""
    share = area[0] + (area[1] - area[0]) * draws[0]
    low, high = max(math.log(ratio[0]), math.log(share)), min(math.log(ratio[1]), -math.log(share))
    shape = math.exp((low + (high - low) * draws[1]) / 2)
    side = math.sqrt(share)
    width, height = min(1.0, side * shape), min(1.0, side / shape)
    left, top = (1 - width) * draws[2], (1 - height) * draws[3]
    return left, top, left + width, top + height


def _levels(pixels: Bytes, view: View) -> Bytes:
    """Make the table that lights a picture, and then scales its contrast about the mean."""
    grey = pixels[::_GREY_STEP, ::_GREY_STEP].mean() * view.brightness
    lit = np.arange(256) * view.brightness
    levels = (lit - grey) * view.contrast + grey
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
