"""Pictures of people who do not exist, as cameras see them and as hands draw them.

A figure is first a map of parts, drawn as plain shapes; each modality then paints the parts in its
own way. Infrared comes from how fabrics reflect it, so it is no grey copy of the colour image, and
drawings come from a pose of their own.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from pitstop.workloads.reid.synthetic.people import Colour, Person, Random

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Point = tuple[float, float]
Size = tuple[int, int]

GROUND, SKIN, HAIR, TOP, BOTTOM, SHOES, BAG, HAT = range(8)

_INFRARED_SKIN: Final = 205
_INK: Final = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """How one camera colours, blurs and frames what it sees."""

    tint: tuple[float, float, float]
    gain: float
    blur: float
    noise: float
    ground: tuple[Colour, Colour]
    """Colours at the top and at the bottom of what stands behind people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pose:
    """How somebody stands in the picture."""

    view: str
    stride: float
    """How far legs and arms are apart, from -1 to 1."""
    left: float
    """Where the middle is, as a share of the width."""
    foot: float
    """Where the ground is, as a share of the height."""
    scale: float
    faces_left: bool


def make_camera(random: Random) -> Camera:
    """Put up a camera."""
    tint = (random.uniform(0.82, 1.12), random.uniform(0.9, 1.06), random.uniform(0.82, 1.12))
    return Camera(
        tint=tint,
        gain=random.uniform(0.72, 1.18),
        blur=random.uniform(0.0, 0.9),
        noise=random.uniform(0.01, 0.05),
        ground=(_shade(random), _shade(random)),
    )


def _shade(random: Random) -> Colour:
    return 60 + random.below(140), 60 + random.below(140), 60 + random.below(140)


def make_pose(random: Random, view: str) -> Pose:
    """Let somebody walk through the picture."""
    return Pose(
        view=view,
        stride=random.uniform(-1, 1),
        left=random.uniform(0.42, 0.58),
        foot=random.uniform(0.93, 0.99),
        scale=random.uniform(0.86, 1.0),
        faces_left=random.chance(0.5),
    )


def photograph(
    person: Person, pose: Pose, random: Random, *, camera: Camera, size: Size
) -> Image.Image:
    """Take a colour picture."""
    parts = _parts(person, pose, size)
    pixels = _painted(person, pose, parts, _colours(person))
    pixels *= _light(parts, random)[..., None]
    behind = _behind(camera, random, size)
    pixels = np.where((parts == GROUND)[..., None], behind, pixels)
    gain = camera.gain * random.uniform(0.85, 1.15)
    pixels *= np.array(camera.tint, np.float32) * np.float32(gain)
    return _taken(pixels, camera, random)


def infrared(
    person: Person, pose: Pose, random: Random, *, camera: Camera, size: Size
) -> Image.Image:
    """Take an infrared picture: one channel, lit by the camera itself."""
    parts = _parts(person, pose, size)
    garments = (person.hair, person.top, person.bottom, person.shoes, person.bag, person.hat)
    levels = np.array([0, _INFRARED_SKIN, *(one.infrared for one in garments)], np.float32)
    pixels = levels[parts]
    # Dyes are nearly clear in infrared: a pattern is hinted at.
    pixels[_pattern(person, pose, parts)] *= 0.9
    pixels *= _light(parts, random)
    behind = _behind(camera, random, size).mean(axis=2) * 0.5
    pixels = np.where(parts == GROUND, behind, pixels)
    height, width = size
    rows = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    columns = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    pixels *= (1.05 - 0.4 * (rows**2 + columns**2)) * camera.gain * random.uniform(0.85, 1.15)
    return _taken(pixels, camera, random)


def sketch(person: Person, pose: Pose, random: Random, size: Size) -> Image.Image:
    """Draw in pencil: outlines, and hatching where clothes are dark."""
    parts = _parts(person, pose, size)
    tones = _painted(person, pose, parts, _colours(person)).mean(axis=2)
    tones[parts == GROUND] = 255
    pixels = 246 + random.noise(size).astype(np.float32) * 0.03
    for shade, slope, step in ((150.0, 1, 5), (85.0, -1, 4)):
        lines = _hatching(random, size, slope, step)
        pixels[(tones < shade) & lines] = 120 + 40 * random.uniform()
    pixels[_wobbled(_edges(parts), random)] = _INK
    pixels[_edges(_pattern(person, pose, parts).astype(np.uint8))] = _INK + 60
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).convert("RGB")


def pencil(person: Person, pose: Pose, random: Random, size: Size) -> Image.Image:
    """Draw in colour pencil: few, pale colours between outlines, on paper."""
    parts = _parts(person, pose, size)
    colours = _colours(person)
    hand = np.array([random.uniform(0.86, 1.1) for _ in range(3)], np.float32)
    grey = colours.mean(axis=1, keepdims=True)
    pale = (0.62 * colours + 0.38 * grey) * hand * 0.82 + 46
    pixels = _painted(person, pose, parts, np.rint(pale / 42) * 42)
    strokes = _hatching(random, size, random.choice((1, -1)), 3)
    pixels[strokes] += 26
    pixels[parts == GROUND] = 244
    pixels += random.noise(size)[..., None] * np.float32(0.05)
    pixels[_wobbled(_edges(parts), random)] = _INK
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _colours(person: Person) -> Floats:
    worn = (person.hair, person.top, person.bottom, person.shoes, person.bag, person.hat)
    levels = [(0, 0, 0), person.skin, *(garment.level for garment in worn)]
    return np.array(levels, np.float32)


def _painted(person: Person, pose: Pose, parts: Bytes, colours: Floats) -> Floats:
    pixels = colours[parts]
    where = _pattern(person, pose, parts)
    if where.any():
        pixels[where] = 0.5 * colours[TOP] + 0.5 * np.array(person.second, np.float32)
        if person.pattern != "logo":
            pixels[where] = np.array(person.second, np.float32)
    return pixels


def _pattern(person: Person, pose: Pose, parts: Bytes) -> npt.NDArray[np.bool_]:
    """Say where the second colour of the top is."""
    top = parts == TOP
    if person.pattern == "plain" or not top.any():
        return np.zeros_like(top)
    rows, columns = np.flatnonzero(top.any(axis=1)), np.flatnonzero(top.any(axis=0))
    y = np.arange(parts.shape[0])[:, None] - rows[0]
    x = np.arange(parts.shape[1])[None, :] - (columns[0] + columns[-1]) // 2
    step = max(2, round(person.period * parts.shape[0] * pose.scale / 1000))
    if person.pattern == "logo":
        span = max(3, len(columns) // 5)
        is_chest = (abs(x) < span) & (y > len(rows) // 5) & (y < len(rows) // 5 + 2 * span)
        return top & is_chest & (pose.view == "front")
    across, along = y // step % 2 == 0, x // step % 2 == 0
    chosen = {"striped": across | (x < -9999), "pinstriped": along | (y < -9999)}
    return top & chosen.get(person.pattern, across & along)


def _parts(person: Person, pose: Pose, size: Size) -> Bytes:
    """Draw the map of parts."""
    height, width = size
    image = Image.new("L", (width, height), GROUND)
    _Figure(person, pose, size, ImageDraw.Draw(image)).draw()
    parts = np.asarray(image)
    return parts[:, ::-1].copy() if pose.faces_left else parts.copy()


class _Figure:
    """Plain shapes, from the farthest to the nearest."""

    def __init__(self, person: Person, pose: Pose, size: Size, draw: ImageDraw.ImageDraw) -> None:
        self._person = person
        self._pose = pose
        self._pen = draw
        self._tall = size[0] * 0.9 * person.height * pose.scale
        self._x = size[1] * pose.left
        self._y = size[0] * pose.foot
        self._is_side = pose.view == "side"
        self._half = 0.125 * self._tall * person.build * (0.62 if self._is_side else 1.0)

    def draw(self) -> None:
        """Draw everything."""
        if self._person.bag.name == "backpack" and self._pose.view != "back":
            self._backpack()
        self._arm(-1)
        self._leg(-1)
        self._leg(1)
        self._trunk()
        self._head()
        self._arm(1)
        if self._person.bag.name == "backpack" and self._pose.view == "back":
            self._backpack()
        elif self._person.bag.name in ("shoulder bag", "handbag"):
            self._bag()

    def _at(self, across: float, up: float) -> Point:
        """Turn shares of half the width and of the height into a place in the picture."""
        return self._x + across * self._half, self._y - up * self._tall

    def _limb(self, points: list[Point], thick: float, part: int) -> None:
        width = max(2, round(thick * self._tall * self._person.build))
        self._pen.line(points, fill=part, width=width, joint="curve")
        x, y = points[-1]
        self._pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=part)

    def _leg(self, side: int) -> None:
        swing = side * self._pose.stride * (0.7 if self._is_side else 0.2)
        apart = 0.2 * side if self._is_side else 0.48 * side
        hip, knee = self._at(apart * 0.8, 0.5), self._at(apart + swing * 0.5, 0.28)
        foot = self._at(apart + swing, 0.03)
        covers = self._person.bottom.name
        self._limb([hip, knee, foot], 0.075, BOTTOM if covers == "trousers" else SKIN)
        if covers == "shorts":
            self._limb([hip, knee], 0.09, BOTTOM)
        long = 0.07 if self._is_side else 0.035
        x, y = foot
        size = self._tall
        self._pen.ellipse((x - 0.03 * size, y - 0.015 * size, x + long * size, self._y), fill=SHOES)

    def _trunk(self) -> None:
        low = {"coat": 0.34, "jacket": 0.46}.get(self._person.top.name, 0.48)
        if self._person.bottom.name == "skirt":
            points = [(-0.8, 0.52), (0.8, 0.52), (1.15, 0.3), (-1.15, 0.3)]
        else:
            points = [(-0.85, 0.53), (0.85, 0.53), (0.8, 0.45), (-0.8, 0.45)]
        self._pen.polygon([self._at(*point) for point in points], fill=BOTTOM)
        wide = 1.05 if self._person.top.name == "coat" else 0.86
        shape = [(-0.7, 0.83), (0.7, 0.83), (1.0, 0.79), (wide, low), (-wide, low), (-1.0, 0.79)]
        self._pen.polygon([self._at(*point) for point in shape], fill=TOP)

    def _arm(self, side: int) -> None:
        swing = side * self._pose.stride * (-0.8 if self._is_side else -0.15)
        reach = 0.1 * side if self._is_side else 1.02 * side
        shoulder = self._at(reach * 0.9, 0.79)
        elbow = self._at(reach * 1.12 + swing * 0.4, 0.64)
        hand = self._at(reach * 1.15 + swing, 0.49)
        sleeve = SKIN if self._person.top.name == "t-shirt" else TOP
        self._limb([shoulder, elbow, hand], 0.05, sleeve)
        if sleeve == SKIN:
            self._limb([shoulder, elbow], 0.058, TOP)
        x, y = hand
        size = 0.024 * self._tall
        self._pen.ellipse((x - size, y - size, x + size, y + size), fill=SKIN)

    def _head(self) -> None:
        x, y = self._at(0.0, 0.91)
        size = 0.062 * self._tall
        self._pen.rectangle((x - size * 0.4, y, x + size * 0.4, y + size * 1.5), fill=SKIN)
        style = self._person.hair.name
        if style == "long":
            around = (x - size * 1.2, y - size * 1.3, x + size * 1.2, y + size * 2.3)
            self._pen.ellipse(around, fill=HAIR)
        self._pen.ellipse((x - size, y - size * 1.25, x + size, y + size * 1.25), fill=SKIN)
        if style != "bald":
            low = {"back": 1.1, "side": 0.3, "front": -0.45}[self._pose.view]
            start, end = (90, 300) if self._is_side else (180, 360)
            if self._pose.view == "back":
                start, end = 0, 360
            box = (x - size * 1.08, y - size * 1.35, x + size * 1.08, y + size * (1.0 + low))
            self._pen.pieslice(box, start, end, fill=HAIR)
        self._hat(x, y, size)

    def _hat(self, x: float, y: float, size: float) -> None:
        kind = self._person.hat.name
        if kind == "none":
            return
        box = (x - size * 1.12, y - size * 1.6, x + size * 1.12, y + size * 0.5)
        self._pen.pieslice(box, 180, 360, fill=HAT)
        if kind == "cap" and self._pose.view != "back":
            far = 2.0 if self._is_side else 1.25
            brim = (x - size * (0 if self._is_side else 1.25), y - size * 0.62)
            self._pen.rectangle((*brim, x + size * far, y - size * 0.4), fill=HAT)

    def _backpack(self) -> None:
        if self._pose.view == "front":
            for side in (-1, 1):
                points = [self._at(side * 0.5, 0.83), self._at(side * 0.55, 0.62)]
                self._limb(points, 0.02, BAG)
            return
        left, right = (-0.62, 0.62) if self._pose.view == "back" else (-1.9, -0.3)
        (x0, y0), (x1, y1) = self._at(left, 0.8), self._at(right, 0.55)
        self._pen.rounded_rectangle((x0, y0, x1, y1), radius=max(1, (x1 - x0) / 6), fill=BAG)

    def _bag(self) -> None:
        is_handbag = self._person.bag.name == "handbag"
        x, y = self._at(1.25 if not self._is_side else 0.5, 0.45 if is_handbag else 0.52)
        wide, tall = 0.055 * self._tall, 0.045 * self._tall
        if not is_handbag:
            self._pen.line([self._at(-0.6, 0.82), (x, y)], fill=BAG, width=2)
        self._pen.rectangle((x - wide, y - tall, x + wide, y + tall), fill=BAG)


def _light(parts: Bytes, random: Random) -> Floats:
    """Shade a body from one side, with folds."""
    height, width = parts.shape
    across = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    shade = 0.95 + random.uniform(-0.22, 0.22) * across
    coarse = random.noise((height // 8 + 1, width // 8 + 1)).astype(np.float32) / 255
    folds = np.kron(coarse, np.ones((8, 8), np.float32))[:height, :width]
    return (shade + 0.09 * folds).astype(np.float32)


def _behind(camera: Camera, random: Random, size: Size) -> Floats:
    """Paint what stands behind people: a wall, a floor, and things."""
    height, width = size
    upper, lower = (np.array(colour, np.float32) for colour in camera.ground)
    mix = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    pixels = np.repeat(upper * (1 - mix) + lower * mix, width, axis=1).astype(np.float32)
    for _ in range(5):
        top, left = random.below(height), random.below(width)
        down, right = 6 + random.below(height // 3), 4 + random.below(width // 2)
        pixels[top : top + down, left : left + right] *= random.uniform(0.6, 1.35)
    return pixels


def _taken(pixels: Floats, camera: Camera, random: Random) -> Image.Image:
    """Let a sensor take it in: noise, levels, and a lens that is not quite sharp."""
    noise = random.noise(pixels.shape) * np.float32(camera.noise)
    image = Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))
    blur = camera.blur * random.uniform(0.6, 1.4)
    return image.filter(ImageFilter.BoxBlur(blur)) if blur > 0.25 else image


def _edges(parts: Bytes) -> npt.NDArray[np.bool_]:
    edges = np.zeros(parts.shape, np.bool_)
    edges[:, 1:] |= parts[:, 1:] != parts[:, :-1]
    edges[1:] |= parts[1:] != parts[:-1]
    return edges


def _wobbled(edges: npt.NDArray[np.bool_], random: Random) -> npt.NDArray[np.bool_]:
    """Shift rows to and fro by a pixel, and lift the pen at times, as a hand does."""
    height, width = edges.shape
    phase, rate = random.uniform(0, 6), random.uniform(0.05, 0.2)
    shift = np.rint(1.2 * np.sin(phase + rate * np.arange(height))).astype(int)
    columns = (np.arange(width)[None, :] + shift[:, None]) % width
    return edges[np.arange(height)[:, None], columns] & (random.noise(edges.shape) < 170)


def _hatching(random: Random, size: Size, slope: int, step: int) -> npt.NDArray[np.bool_]:
    height, width = size
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    jitter = np.rint(random.noise((height, 1)) / 200).astype(int)
    start = random.below(64) + width * math.ceil(height / width)
    return (y + slope * x + jitter + start) % step == 0
