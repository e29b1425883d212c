"""Views of images and of the ground, each with the matrix that it amounts to.

A view of an image is one matrix from pixels of the original to those of the network, and the image
is brought there in one go. Pixel centres have whole coordinates; so scaling by s takes u to
s * (u + 1/2) - 1/2, and a mirrored image of width w has u at w - 1 - u.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from pitstop.workloads.bev.poses import Floats

Bytes = npt.NDArray[np.uint8]

_HALF: Final = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
_REDUCTIONS: Final = (8, 4, 2)
# What the ground goes through, as the published camera models are trained.
_TURN_RAD: Final = math.radians(45)
_SCALE: Final = (0.9, 1.1)
_SHIFT_M: Final = 0.5
# Levels, factors and degrees of a training image's colours.
_BRIGHTNESS: Final = 32.0
_CONTRAST: Final = (0.5, 1.5)
_SATURATION: Final = (0.5, 1.5)
_HUE_DEG: Final = 18.0
_GREY: Final = np.array([0.299, 0.587, 0.114])


class Chance:
    """Numbers that follow from a sample's place in a run, whatever else was drawn."""

    def __init__(self, *entropy: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(entropy))

    def uniform(self, low: float, high: float) -> float:
        """Draw from a range."""
        return low + (high - low) * int(self._bits.random_raw() >> 11) * 2.0**-53

    def flag(self) -> bool:
        """Toss a coin."""
        return self.uniform(0, 1) < 0.5

    def some(self, count: int, of: int) -> list[int]:
        """Choose some of several places, in their order."""
        keys = self._bits.random_raw(of)
        return sorted(np.argsort(keys, kind="stable")[:count].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAugment:
    """How much training images are changed at random."""

    resize: tuple[float, float]
    rotate_deg: float
    flip: bool


def stretched(original: tuple[int, int], size: tuple[int, int]) -> Floats:
    """Give the matrix that brings a whole image to a size, without keeping its ratio."""
    return _unshifted(np.diag([size[1] / original[1], size[0] / original[0], 1.0]))


def fitted(original: tuple[int, int], size: tuple[int, int], scale: float) -> Floats:
    """Give the matrix that scales an image and keeps its bottom, in the middle."""
    left = max(0.0, original[1] * scale - size[1]) / 2
    return _cut(original, size, scale, left)


def random_view(
    original: tuple[int, int], size: tuple[int, int], augment: ImageAugment, chance: Chance
) -> Floats:
    """Draw a scale, a place from left to right, whether to mirror, and a rotation."""
    scale = chance.uniform(*augment.resize)
    left = chance.uniform(0, max(0.0, original[1] * scale - size[1]))
    matrix = _cut(original, size, scale, left)
    mirrors = chance.flag()
    if augment.flip and mirrors:
        matrix = np.array([[-1.0, 0.0, size[1] - 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) @ matrix
    angle = math.radians(chance.uniform(-augment.rotate_deg, augment.rotate_deg))
    return _about(angle, ((size[1] - 1) / 2, (size[0] - 1) / 2)) @ matrix


def random_ground(chance: Chance) -> Floats:
    """Draw a 4x4 matrix that turns, scales, mirrors and shifts the ground."""
    angle = chance.uniform(-_TURN_RAD, _TURN_RAD)
    scale = chance.uniform(*_SCALE)
    signs = [-1.0 if chance.flag() else 1.0 for _ in range(2)]
    cosine, sine = math.cos(angle), math.sin(angle)
    matrix = np.eye(4)
    matrix[:2, :2] = np.diag(signs) @ np.array([[cosine, -sine], [sine, cosine]])
    matrix[:3, :3] *= scale
    matrix[:3, 3] = [chance.uniform(-_SHIFT_M, _SHIFT_M) for _ in range(3)]
    return matrix


def random_colours(chance: Chance) -> tuple[float, ...]:
    """Draw brightness, contrast, saturation and hue as one 3x4 matrix over colours."""
    level = chance.uniform(-_BRIGHTNESS, _BRIGHTNESS)
    contrast = chance.uniform(*_CONTRAST)
    saturation = chance.uniform(*_SATURATION)
    angle = math.radians(chance.uniform(-_HUE_DEG, _HUE_DEG))
    grey = np.broadcast_to(_GREY, (3, 3))
    around = np.full((3, 3), 1 / 3)
    skew = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
    # A turn about the axis of greys, which leaves them as they are.
    hue = math.cos(angle) * (np.eye(3) - around) + around + math.sin(angle) * skew
    mix = contrast * hue @ (grey + saturation * (np.eye(3) - grey))
    return tuple(np.concatenate((mix, np.full((3, 1), level)), axis=1).ravel().tolist())


def apply(
    image: Image.Image,
    matrix: Floats,
    size: tuple[int, int],
    colours: tuple[float, ...] | None,
) -> Bytes:
    """Bring an image where a matrix says, as (H, W, 3); what lies outside it is black."""
    original = image.size
    image.draft("RGB", _drafted(original, matrix))
    reduction = round(original[0] / image.size[0])
    corner = _HALF @ matrix @ np.linalg.inv(_HALF) @ np.diag([reduction, reduction, 1.0])
    shown = _resized(image.convert("RGB"), corner, size)
    if colours is not None:
        shown = shown.convert("RGB", colours)
    return np.asarray(shown)


def _drafted(original: tuple[int, int], matrix: Floats) -> tuple[int, int]:
    """Say how small a file may be decoded without losing what the view shows."""
    scale = math.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    tallest = max(scale, float(np.abs(matrix[:2, :2]).max()))
    reduction = next((step for step in _REDUCTIONS if step * tallest <= 1.125), 1)
    return original[0] // reduction, original[1] // reduction


def _resized(image: Image.Image, corner: Floats, size: tuple[int, int]) -> Image.Image:
    height, width = size
    back = np.linalg.inv(corner)
    is_upright = back[0, 1] == back[1, 0] == 0 and back[0, 0] > 0 and back[1, 1] > 0
    box = (back[0, 2], back[1, 2], *(back @ (width, height, 1))[:2])
    inside = box[0] >= 0 and box[1] >= 0 and box[2] <= image.width and box[3] <= image.height
    if is_upright and inside:
        # Whole pixels are averaged first where there are two or more to one: half the time.
        return image.resize((width, height), Image.Resampling.BILINEAR, box=box, reducing_gap=1.0)
    return image.transform(
        (width, height),
        Image.Transform.AFFINE,
        tuple(back[:2].ravel().tolist()),
        Image.Resampling.BILINEAR,
    )


def _cut(original: tuple[int, int], size: tuple[int, int], scale: float, left: float) -> Floats:
    """Scale, then keep so much from the left on, down to the bottom."""
    top = original[0] * scale - size[0]
    return _unshifted(np.array([[scale, 0.0, -left], [0.0, scale, -top], [0.0, 0.0, 1.0]]))


def _unshifted(corner: Floats) -> Floats:
    """Turn a matrix over corners of pixels into one over their centres."""
    return np.linalg.inv(_HALF) @ corner @ _HALF


def _about(angle: float, centre: tuple[float, float]) -> Floats:
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = centre
    return np.array(
        [
            [cosine, -sine, x - cosine * x + sine * y],
            [sine, cosine, y - sine * x - cosine * y],
            [0.0, 0.0, 1.0],
        ]
    )
