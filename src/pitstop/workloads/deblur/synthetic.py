"""Generated clips: textured scenes under camera shake, with objects that move and cover each other.

    scene at many instants ─┬─ mean over the exposure  -> blur/000000.png
                            ├─ instant in its middle   -> sharp/000000.png
                            └─ integrate and fire      -> spike/000000.dat

Files lie as in the published spike sets: <split>/<clip>/{blur,sharp,spike}, with the size of a
spike frame in config.yaml. Between two raw frames lie seven interpolated instants, a spike plane
at each; the last file of a clip has none after its last raw frame and so is shorter.

All but the drawing of paths is whole-number arithmetic on raw random bits, so a seed means the same
pictures everywhere.
"""

import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from pitstop.data.new_dataset import folder_bytes, new_dataset, refuse_used_root
from pitstop.errors import DataError
from pitstop.workloads.deblur.spike import Spikes, write_dat
from pitstop.workloads.draws import Draws

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

RAW_FRAMES: Final = 7
"""Raw frames that an exposure averages; the second field of a clip's name."""
PLANES: Final = 8 * RAW_FRAMES
"""Instants from the start of one frame to the start of the next; a spike plane at each."""
EXPOSED: Final = 8 * (RAW_FRAMES - 1) + 1
"""Instants from the first raw frame of an exposure to its last."""
MIDDLE: Final = EXPOSED // 2

_SPIKE_SCALE: Final = 2
_FINE: Final = 4  # texture samples a pixel and axis: a picture moves by quarters of a pixel
_ONE: Final = 1 << 16  # fixed point
_BRIGHTEST: Final = 255 * _SPIKE_SCALE**2
_THRESHOLD: Final = 2 * _BRIGHTEST  # light of two instants at full brightness fires once
_NOISE: Final = 4  # times a triangle of -15 to 15: a fortieth of full brightness
_SPURIOUS: Final = 2  # of 256 cells, the share that fires without cause
_SHAKE: Final = 0.07  # of the picture's shorter side
_TILT: Final = 0.02
_SPRITES: Final = 3
_BAND: Final = 16  # rows of a texture that are made together, and fit into a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeClips:
    """What was generated, and where."""

    root: str
    clips: Mapping[str, int]
    """Number of clips by split."""
    frames: int
    """Frames of each clip."""
    height: int
    width: int
    spike_height: int | None
    """None where no spikes were asked for."""
    spike_width: int | None
    seed: int
    size_bytes: int
    took_s: float


def make_clips(
    root: Path,
    *,
    clips: Mapping[str, int],
    frames: int,
    size: tuple[int, int],
    seed: int,
    spikes: bool = True,
) -> MadeClips:
    """Generate a dataset; the folder appears whole or not at all.

    Args:
        root: Folder of the dataset, which must not hold anything yet.
        clips: Number of clips by split, such as {"train": 4, "test": 2}.
        frames: Frames of each clip.
        size: Height and width of a frame in pixels.
        seed: Decides everything; a clip does not depend on how many others there are.
        spikes: Also write spikes, at half the size.

    Raises:
        DataError: Where the sizes cannot be had, the folder is in use or cannot be written.
    """
    started = time.perf_counter()
    _check_request(root, clips, frames, size)
    height, width = size
    with new_dataset(root, what="clips") as folder:
        for split, count in clips.items():
            for number in range(count):
                scene = _Scene(_Random(seed, zlib.crc32(split.encode()), number), size, frames)
                name = f"MADE{number:04d}_{RAW_FRAMES:02d}_00"
                _write_clip(folder / split / name, scene, spikes=spikes)
        if spikes:
            stated = f"spike_h: {height // _SPIKE_SCALE}\nspike_w: {width // _SPIKE_SCALE}\n"
            (folder / "config.yaml").write_text(stated, encoding="utf-8")
        size_bytes = folder_bytes(folder)
    return MadeClips(
        root=str(root),
        clips=dict(clips),
        frames=frames,
        height=height,
        width=width,
        spike_height=height // _SPIKE_SCALE if spikes else None,
        spike_width=width // _SPIKE_SCALE if spikes else None,
        seed=seed,
        size_bytes=size_bytes,
        took_s=time.perf_counter() - started,
    )


def _check_request(
    root: Path, clips: Mapping[str, int], frames: int, size: tuple[int, int]
) -> None:
    height, width = size
    if height < 16 or width < 16 or height % 2 or width % 16:
        raise DataError(
            f"clips of size {height}x{width} cannot be made: both sides must be at least 16, the "
            "height even and the width a multiple of 16, so that rows of spikes fill whole bytes"
        )
    if frames < 1 or not clips or min(clips.values()) < 1:
        raise DataError("there is nothing to make: ask for at least one clip of one frame")
    refuse_used_root(root)


def _write_clip(folder: Path, scene: "_Scene", *, spikes: bool) -> None:
    kinds = ("blur", "sharp", "spike") if spikes else ("blur", "sharp")
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
    height, width = scene.size
    cells = (height // _SPIKE_SCALE, width // _SPIKE_SCALE)
    charge = scene.random.integers(_THRESHOLD, cells)
    for frame in range(scene.frames):
        instants = scene.render(frame)
        light = instants[:EXPOSED].sum(axis=0, dtype=np.uint32)
        blurred = ((light + EXPOSED // 2) // EXPOSED).astype(np.uint8)
        _write_png(folder / "blur" / f"{frame:06d}.png", blurred)
        _write_png(folder / "sharp" / f"{frame:06d}.png", instants[MIDDLE])
        if spikes:
            fired, charge = _fire(_grey_cells(instants), charge, scene.random)
            is_last = frame == scene.frames - 1
            write_dat(folder / "spike" / f"{frame:06d}.dat", fired[: EXPOSED if is_last else None])


def _write_png(path: Path, pixels: Bytes) -> None:
    # Little compression: textures hardly shrink further, and it takes several times as long.
    Image.fromarray(pixels).save(path, compress_level=1)


def _grey_cells(instants: Bytes) -> Ints:
    """(T, H, W, 3) -> light that falls on each cell of two by two pixels."""
    red, green, blue = (instants[..., channel].astype(np.uint16) for channel in range(3))
    grey = (77 * red + 150 * green + 29 * blue) >> 8
    rows = grey[:, ::2] + grey[:, 1::2]
    return (rows[..., ::2] + rows[..., 1::2]).astype(np.int32)


def _fire(light: Ints, charge: Ints, random: "_Random") -> tuple[Spikes, Ints]:
    """Gather light; fire where it passes the threshold, and keep the rest for what follows."""
    noise = random.bytes(light.shape)
    triangle = (noise & 15).astype(np.int32) + (noise >> 4) - 15
    gathered = charge + np.cumsum(
        np.clip(light + _NOISE * triangle, 0, _THRESHOLD), axis=0, dtype=np.int32
    )
    crossings, rest = np.divmod(gathered, _THRESHOLD)
    fired = np.diff(crossings, axis=0, prepend=np.int32(0)) > 0
    fired |= random.bytes(light.shape) < _SPURIOUS
    return fired.astype(np.uint8), rest[-1]


class _Random(Draws):
    """What a scene is drawn from."""

    def integers(self, below: int, shape: tuple[int, ...]) -> Ints:
        raw = self._bits.random_raw(math.prod(shape)) % np.uint64(below)
        return raw.astype(np.int32).reshape(shape)

    def path(self, frames: int, reach: float) -> Floats:
        """Sway over all instants of a clip: three waves, each several frames long."""
        at = np.arange(frames * PLANES) / PLANES
        sway = np.zeros_like(at)
        for share in (0.6, 0.3, 0.1):
            period, phase = self.uniform(1.5, 6.0), self.uniform(0.0, 1.0)
            sway += share * reach * np.sin(2 * np.pi * (at / period + phase))
        return sway


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sprite:
    """An object in front of the background, and where its corner is at each instant."""

    pixels: npt.NDArray[np.uint32]
    """Colours times opacity, and opacity in the highest byte, within a transparent border."""
    top: Ints
    left: Ints
    """In texture samples from the corner of the picture."""


class _Scene:
    """A background under a shaking camera with objects in front of it."""

    def __init__(self, random: _Random, size: tuple[int, int], frames: int) -> None:
        self.random = random
        self.size = size
        self.frames = frames
        height, width = size
        self._rows = (np.arange(height, dtype=np.int32) - height // 2) * _FINE
        self._columns = (np.arange(width, dtype=np.int32) - width // 2) * _FINE
        reach = _SHAKE * min(size)
        shake_y, shake_x = random.path(frames, reach), random.path(frames, reach)
        tilt = random.path(frames, _TILT)
        self._cosine = _fixed(1 - tilt * tilt / 2)
        self._sine = _fixed(tilt)
        self._shift_y, self._shift_x = _fixed(shake_y * _FINE), _fixed(shake_x * _FINE)
        self._background = self._make_background()
        self._sprites = [self._make_sprite(shake_y, shake_x, depth) for depth in _depths(_SPRITES)]

    def render(self, frame: int) -> Bytes:
        """Give all instants of a frame as (PLANES, H, W, 3)."""
        instants = slice(frame * PLANES, (frame + 1) * PLANES)
        picture = np.empty((PLANES, *self.size), np.uint32)
        texture_width = self._background.shape[1]
        for place, instant in enumerate(range(instants.start, instants.stop)):
            # One at a time: all of them at once leave every cache of the processor.
            [y], [x] = self._texture_places(slice(instant, instant + 1), self._rows, self._columns)
            y -= self._origin[0]
            y *= texture_width
            y += x
            y -= self._origin[1]
            picture[place] = self._background.take(y)
        pixels = picture.view(np.uint8).reshape(*picture.shape, 4)
        for sprite in self._sprites:
            self._draw(sprite, pixels, instants)
        return pixels[..., :3]

    def _texture_places(self, instants: slice, rows: Ints, columns: Ints) -> tuple[Ints, Ints]:
        """Turn and shift places of the picture into those of the texture, for each instant."""
        cosine, sine, shift_y, shift_x = (
            values[instants, None]
            for values in (self._cosine, self._sine, self._shift_y, self._shift_x)
        )
        y = (cosine * rows + shift_y)[:, :, None] + (sine * columns)[:, None, :]
        x = (cosine * columns + shift_x)[:, None, :] - (sine * rows)[:, :, None]
        return y >> 16, x >> 16

    def _make_background(self) -> npt.NDArray[np.uint32]:
        """Make a texture that the picture never leaves; turned and shifted corners bound it."""
        y, x = self._texture_places(slice(None), self._rows[[0, -1]], self._columns[[0, -1]])
        self._origin = (int(y.min()), int(x.min()))
        shape = (int(y.max()) - self._origin[0] + 1, int(x.max()) - self._origin[1] + 1)
        return _packed(_smooth(_texture(self.random, shape)))

    def _make_sprite(self, shake_y: Floats, shake_x: Floats, depth: float) -> _Sprite:
        """Cut a shape out of a texture, and let it cross the picture and come back."""
        random = self.random
        side = int(min(self.size) * _FINE * random.uniform(0.2, 0.4))
        texture = _texture(random, (side, side))
        reach = np.abs(np.linspace(-1, 1, len(texture)))
        power = (1, 2, 4)[int(random.uniform(0, 3))]
        inside = reach[:, None] ** power + reach[None, :] ** power < 1
        opacity = np.where(inside, np.uint8(255), np.uint8(0))[..., None]
        cut_out = np.concatenate((np.where(inside[..., None], texture, 0), opacity), axis=-1)
        pixels = np.pad(_packed(_smooth(cut_out.astype(np.uint8))), 1)
        paths = [
            _bounce(random, length * _FINE, side, self.frames) - shake * _FINE * depth
            for length, shake in zip(self.size, (shake_y, shake_x), strict=True)
        ]
        top, left = (np.rint(path).astype(np.int32) for path in paths)
        return _Sprite(pixels=pixels, top=top, left=left)

    def _draw(self, sprite: _Sprite, pixels: Bytes, instants: slice) -> None:
        """Lay an object over the picture at each instant, where it is to be seen at all."""
        side = len(sprite.pixels)
        places, seen = [], []
        for corner, length in zip((sprite.top, sprite.left), self.size, strict=True):
            start = corner[instants]
            first = max(0, int(start.min()) // _FINE)
            end = min(length, (int(start.max()) + side) // _FINE + 1)
            if first >= end:
                return
            grid = np.arange(first, end, dtype=np.int32) * _FINE
            places.append(np.clip(grid[None, :] - start[:, None], -1, side - 2) + 1)
            seen.append(slice(first, end))
        y, x = places
        layer = sprite.pixels.take(y[:, :, None] * side + x[:, None, :])
        over = layer.view(np.uint8).reshape(*layer.shape, 4)
        under = pixels[:, seen[0], seen[1], :3]
        through = (255 - over[..., 3:]).astype(np.uint16)
        under[...] = over[..., :3] + ((under * through + 127) // 255).astype(np.uint8)


def _fixed(values: Floats) -> Ints:
    return np.rint(values * _ONE).astype(np.int32)


def _depths(count: int) -> Sequence[float]:
    """How much of the camera's shake objects show: the nearer, the more."""
    return [1 + place / count for place in range(count)]


def _bounce(random: _Random, length: int, side: int, frames: int) -> Floats:
    """Move to and fro between the edges at a steady speed, half out of the picture at the turns."""
    at = np.arange(frames * PLANES) / PLANES
    speed = random.uniform(0.02, 0.08) * length
    start = random.uniform(0, 2 * length)
    return np.abs((start + speed * at) % (2 * length) - length) - side / 2


def _texture(random: _Random, shape: tuple[int, int]) -> Bytes:
    """Draw clouds of several sizes, then patches plain and striped; larger by what smoothing takes.

    Edges and stripes of a few pixels are what blur destroys, so there must be enough of them.
    """
    height, width = (length + _FINE - 1 for length in shape)
    clouds = [
        (share, _Clouds(random, (height, width), cell))
        for cell, share in ((48, 0.5), (16, 0.3), (6, 0.2))
    ]
    pixels = np.empty((height, width, 3), np.uint8)
    for first in range(0, height, _BAND):
        band = slice(first, first + _BAND)
        pixels[band] = np.rint(sum(share * each.shades(band) for share, each in clouds))
    for _ in range(6 + height * width // 5_000):
        _add_patch(random, pixels)
    return pixels


class _Clouds:
    """Random shades on a grid, a little coloured, and straight lines between them."""

    def __init__(self, random: _Random, shape: tuple[int, int], cell: int) -> None:
        height, width = shape
        nodes = (height // cell + 2, width // cell + 2)
        self._grid = 0.8 * random.bytes((*nodes, 1)) + 0.2 * random.bytes((*nodes, 3))
        self._row, above = np.divmod(np.arange(height), cell)
        self._column, before = np.divmod(np.arange(width), cell)
        self._lower = (above / cell)[:, None, None]
        self._right = (before / cell)[None, :, None]

    def shades(self, band: slice) -> Floats:
        """Give some rows of the picture."""
        row, lower, right = self._row[band], self._lower[band], self._right
        rows = self._grid[row] * (1 - lower) + self._grid[row + 1] * lower
        return rows[:, self._column] * (1 - right) + rows[:, self._column + 1] * right


def _shades(random: _Random) -> Bytes:
    """Draw two colours that differ in brightness above all, as those of most things do."""
    grey, colour = random.bytes((2, 1)), random.bytes((2, 3))
    return ((3 * grey.astype(np.uint16) + colour) // 4).astype(np.uint8)


def _add_patch(random: _Random, pixels: Bytes) -> None:
    height, width = pixels.shape[:2]
    top = int(random.uniform(0, height))
    left = int(random.uniform(0, width))
    rows, columns = (int(random.uniform(2, 14) * _FINE) for _ in range(2))
    patch = pixels[top : top + rows, left : left + columns]
    first, second = _shades(random)
    stripe = int(random.uniform(1.5, 5) * _FINE)
    along = np.arange(max(patch.shape[:2])) // stripe % 2 == 0
    kind = int(random.uniform(0, 3))
    if kind == 0:
        patch[...] = first
    elif kind == 1:
        patch[...] = np.where(along[: patch.shape[0], None, None], first, second)
    else:
        patch[...] = np.where(along[None, : patch.shape[1], None], first, second)


def _smooth(pixels: Bytes) -> Bytes:
    """Average over the area of a pixel, as a sensor does."""
    total = pixels.astype(np.uint16)
    for axis in (0, 1):
        along = np.moveaxis(total, axis, 0)
        length = len(along) - _FINE + 1
        summed = along[:length].copy(order="K")  # laid out as it was
        for first in range(1, _FINE):
            summed += along[first : first + length]
        total = np.moveaxis(summed, 0, axis)
    return (total // _FINE**2).astype(np.uint8)


def _packed(pixels: Bytes) -> npt.NDArray[np.uint32]:
    """Put the three or four bytes of a pixel into one number: picking it is then one read."""
    four = np.zeros((*pixels.shape[:2], 4), np.uint8)
    four[..., : pixels.shape[2]] = pixels
    return four.view(np.uint32)[..., 0]
