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
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.draws import Draws

Bytes = npt.NDArray[np.uint8]

Colours = npt.NDArray[np.float32]
"""(3, 4), from red, green, blue and 1 to red, green and blue."""
Shape = tuple[int, ...]
Box = tuple[float, float, float, float]

_HALF: Final = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
_UNHALF: Final = np.array([[1.0, 0.0, -0.5], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])
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
_EYE: Final = np.eye(3)
# Around the axis of greys.
_AROUND: Final = np.full((3, 3), 1 / 3)
_SKEW: Final = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
# Products with whole levels, and their sums, then are whole multiples too, and fit in the 24
# bits of a float: no order of adding them gives another byte.
_COLOUR_STEPS: Final = 4096
# OpenBLAS takes one thread for fewer than 2**18 multiplications; all workers would start theirs.
_MIXED_AT_ONCE: Final = 16384
# Pixels between corners that are the same, as they come out of a few matrix products.
_ROUNDING: Final = 1e-6


class Chance(Draws):
    """Numbers that follow from a sample's place in a run, whatever else was drawn."""

    def flag(self) -> bool:
        """Toss a coin."""
        return self.chance(0.5)

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


def random_colours(chance: Chance) -> Colours:
    """Draw brightness, contrast, saturation and hue as one matrix over colours."""
    level = chance.uniform(-_BRIGHTNESS, _BRIGHTNESS)
    contrast = chance.uniform(*_CONTRAST)
    saturation = chance.uniform(*_SATURATION)
    angle = math.radians(chance.uniform(-_HUE_DEG, _HUE_DEG))
    # A turn about the axis of greys, which leaves them as they are.
    hue = math.cos(angle) * (_EYE - _AROUND) + _AROUND + math.sin(angle) * _SKEW
    colours = np.empty((3, 4))
    colours[:, :3] = contrast * hue @ (_GREY + saturation * (_EYE - _GREY))
    colours[:, 3] = level
    return (np.rint(colours * _COLOUR_STEPS) / _COLOUR_STEPS).astype(np.float32)


def reduction_of(matrix: Floats) -> int:
    """Say how much smaller a file may be decoded without losing what a view shows."""
    (a, b), (c, d) = matrix[:2, :2].tolist()
    return _reduction(max(math.sqrt(abs(a * d - b * c)), abs(a), abs(b), abs(c), abs(d)))


def reductions_between(low: float, high: float) -> list[int]:
    """List what views of scales from `low` to `high` may be decoded at."""
    return [step for step in (*_REDUCTIONS, 1) if _reduction(high) <= step <= _reduction(low)]


def show(
    pixels: Bytes,
    original: tuple[int, int],
    matrix: Floats,
    size: tuple[int, int],
    *,
    colours: Colours | None = None,
) -> Bytes:
    """Bring an image where a matrix says, as (3, H, W); what lies outside it is black.

    Args:
        pixels: (H, W, 3), the image or a reduced one.
        original: Height and width before it was reduced.
        matrix: From pixels of the original to those that are shown.
        size: Height and width of what is shown.
        colours: What becomes of its colours, or None to leave them.
    """
    reduction = round(original[1] / pixels.shape[1])
    back = _corners_back(matrix, reduction)
    box = _box(back, pixels.shape[:2], size)
    if box is not None:
        mirrored = [axis for axis, step in ((2, back[0]), (1, back[4])) if step < 0]
        shown = _resized(pixels, box, size).flip(mirrored).numpy()
    else:
        shown = _planes(
            Image.fromarray(pixels).transform(
                (size[1], size[0]), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR
            )
        )
    return shown if colours is None else _coloured(shown, colours)


def _reduction(scale: float) -> int:
    return next((step for step in _REDUCTIONS if step * scale <= 1.125), 1)


def _corners_back(matrix: Floats, reduction: int) -> tuple[float, ...]:
    """Give what leads from corners of shown pixels to those of a reduced image, as six numbers."""
    (a, b, x), (c, d, y) = (_HALF @ matrix @ _UNHALF)[:2].tolist()
    scale = reduction * (a * d - b * c)
    ends = (d / scale, -b / scale, (b * y - d * x) / scale)
    return (*ends, -c / scale, a / scale, (c * x - a * y) / scale)


def _box(back: tuple[float, ...], inside: Shape, size: Shape) -> Box | None:
    """Give left, top, right and bottom of what is shown; None where it is turned or reaches out."""
    a, b, x, c, d, y = back
    if b != 0 or c != 0:
        return None
    ends = (*sorted((x, x + a * size[1])), *sorted((y, y + d * size[0])))
    left, right, top, bottom = (_whole(end) for end in ends)
    fits = left >= 0 and top >= 0 and right <= inside[1] and bottom <= inside[0]
    return (left, top, right, bottom) if fits else None


def _whole(end: float) -> float:
    """Take a corner for that of a pixel where only rounding is between them."""
    nearest = round(end)
    return nearest if abs(end - nearest) < _ROUNDING else end


def _resized(pixels: Bytes, box: Box, size: tuple[int, int]) -> Tensor:
    """Bring a part of an image to a size, as (3, H, W)."""
    left, top, right, bottom = box
    if not all(isinstance(end, int) for end in box):
        # Whole pixels are averaged first where there are two or more to one: half the time.
        whole = Image.fromarray(pixels)
        bilinear = Image.Resampling.BILINEAR
        shown = whole.resize((size[1], size[0]), bilinear, box=box, reducing_gap=1.0)
        return torch.from_numpy(_planes(shown))
    # Copied, for a cache's memory must not be written to, and tensors know no such memory.
    part = np.array(pixels[int(top) : int(bottom), int(left) : int(right)])
    planes = torch.from_numpy(part).permute(2, 0, 1)[None]
    # A third of the time that Pillow takes, with the same weights.
    return functional.interpolate(planes, size=list(size), mode="bilinear", antialias=True)[0]


def _planes(image: Image.Image) -> Bytes:
    return np.array(np.asarray(image).transpose(2, 0, 1), order="C")


def _coloured(planes: Bytes, colours: Colours) -> Bytes:
    """Mix the colours of (3, H, W) pixels; exact, whatever order the sums are taken in."""
    mixed = np.empty(planes.shape, np.uint8)
    into, out_of = mixed.reshape(3, -1), planes.reshape(3, -1)
    mix, level = colours[:, :3], colours[:, 3:] + np.float32(0.5)
    for begin in range(0, into.shape[1], _MIXED_AT_ONCE):
        part = slice(begin, begin + _MIXED_AT_ONCE)
        sums = mix @ out_of[:, part].astype(np.float32)
        sums += level
        np.clip(sums, 0, 255, out=sums)
        np.copyto(into[:, part], sums, casting="unsafe")
    return mixed


def _cut(original: tuple[int, int], size: tuple[int, int], scale: float, left: float) -> Floats:
    """Scale, then keep so much from the left on, down to the bottom.

    Where an image is large enough, what is kept are whole pixels of what will be decoded. So its
    scales down and across differ a little from what was asked for.
    """
    step = _reduction(scale)
    rows, columns = (round(length / (scale * step)) for length in size)
    margin = (original[0] // step - rows, original[1] // step - columns)
    if min(margin) < 0 or min(rows, columns) < 1:
        top = original[0] * scale - size[0]
        return _unshifted(np.array([[scale, 0.0, -left], [0.0, scale, -top], [0.0, 0.0, 1.0]]))
    down, across = size[0] / (rows * step), size[1] / (columns * step)
    first = (margin[0] * step, min(round(left / (scale * step)), margin[1]) * step)
    corner = [[across, 0.0, -across * first[1]], [0.0, down, -down * first[0]], [0.0, 0.0, 1.0]]
    return _unshifted(np.array(corner))


def _unshifted(corner: Floats) -> Floats:
    """Turn a matrix over corners of pixels into one over their centres."""
    return _UNHALF @ corner @ _HALF


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
