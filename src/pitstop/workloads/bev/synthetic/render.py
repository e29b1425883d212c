"""What six cameras and a lidar see of a generated city, by casting a ray for each pixel.

The ground is flat and a ray meets it where it does, whatever the moment: that is worked out once
for each camera. Everything that stands is a box, met by the rays of the pixels it can cover.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.workloads.bev.data.poses import Floats, pose, quaternion
from pitstop.workloads.bev.data.raster import Ints
from pitstop.workloads.bev.synthetic.skins import paint_box, paint_ground, paint_sky
from pitstop.workloads.bev.synthetic.world import Bytes, City
from pitstop.workloads.draws import Draws

NEAREST_M: Final = 0.1
FARTHEST_M: Final = 110.0

Singles = npt.NDArray[np.float32]

# Height and width of the image that the focal lengths below belong to.
_FULL: Final = (900, 1600)
# Where a camera sits on the car, which way it looks and how far it magnifies.
_MOUNTS: Final = (
    ("CAM_FRONT_LEFT", (1.52, 0.49, 1.51), 55.0, 1260.0),
    ("CAM_FRONT", (1.70, 0.02, 1.52), 0.0, 1265.0),
    ("CAM_FRONT_RIGHT", (1.55, -0.50, 1.50), -56.0, 1260.0),
    ("CAM_BACK_LEFT", (1.03, 0.48, 1.58), 109.0, 1255.0),
    ("CAM_BACK", (0.03, 0.01, 1.57), 180.0, 810.0),
    ("CAM_BACK_RIGHT", (1.01, -0.48, 1.56), -110.0, 1255.0),
)
_LIDAR_AT: Final = (0.94, 0.0, 1.84)
_BEAMS: Final = 32
_BEARINGS: Final = 720
_LIDAR_REACH_M: Final = 200.0
_CORNERS: Final = np.array(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0])).reshape(3, 8)
_EDGES: Final = np.array(
    [
        (first, second)
        for first in range(8)
        for second in range(first)
        if (_CORNERS[:, first] != _CORNERS[:, second]).sum() == 1
    ]
)
_LOOKS_AHEAD: Final = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """A camera or the lidar, as its row in the tables has it."""

    channel: str
    translation: tuple[float, float, float]
    turn: tuple[float, float, float, float]
    intrinsics: Floats | None
    """None for the lidar."""

    @property
    def to_ego(self) -> Floats:
        """From the sensor to the car."""
        return pose(self.translation, self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """What stands around, in the frame of the car."""

    centre: Floats
    """(N, 3)."""
    heading: Floats
    """(N,)."""
    size: Floats
    """(N, 3), width, length and height."""
    kind: Ints
    """(N,), as in `KINDS`; -1 for buildings."""
    look: Ints

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Light and air of one scene."""

    gain: float
    sun: float
    """Bearing in the world."""
    fog_m: float
    """Distance after which a third of the colour is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What one camera shows."""

    colours: Singles
    """(H, W, 3), levels not yet rounded."""
    owner: npt.NDArray[np.int32]
    """(H, W), which box a pixel shows; -1 for none."""
    whole: Ints
    """(N,), pixels that each box would have if nothing stood before it."""


def make_sensors(draws: Draws, size: tuple[int, int]) -> list[Sensor]:
    """Mount six cameras and a lidar, each a little off, for images of a height and width.

    Raises:
        ValueError: Where the size is not a scaled 900x1600.
    """
    scale = size[1] / _FULL[1]
    if size[0] * _FULL[1] != size[1] * _FULL[0]:
        raise ValueError("images must be 9 high to 16 wide")
    sensors = []
    for channel, at, yaw_deg, focal in _MOUNTS:
        place = tuple(round(axis + draws.uniform(-0.02, 0.02), 4) for axis in at)
        turn = _turned(yaw_deg + draws.uniform(-1, 1), draws.uniform(-0.8, 0.8))
        f = focal * (1 + draws.uniform(-0.004, 0.004)) * scale
        centre = (800 + draws.uniform(-12, 20), 450 + draws.uniform(20, 50))
        # Centres of pixels are counted from 0, so scaling moves them by half a pixel more or less.
        cx, cy = ((axis + 0.5) * scale - 0.5 for axis in centre)
        matrix = np.array([[f, 0, cx], [0, f, cy], [0, 0, 1]])
        sensors.append(
            Sensor(
                channel=channel,
                translation=(place[0], place[1], place[2]),
                turn=_quaternion(turn @ _LOOKS_AHEAD),
                intrinsics=matrix,
            )
        )
    lidar = _quaternion(_turned(-90, 0))
    sensors.append(Sensor(channel="LIDAR_TOP", translation=_LIDAR_AT, turn=lidar, intrinsics=None))
    return sensors


class CameraView:
    """Rays of one camera that stays where it is on the car."""

    def __init__(self, sensor: Sensor, size: tuple[int, int], weather: Weather) -> None:
        assert sensor.intrinsics is not None
        self.size = size
        self._sensor = sensor
        self._weather = weather
        matrix, to_ego = sensor.intrinsics, sensor.to_ego
        self._right = (np.arange(size[1]) - matrix[0, 2]) / matrix[0, 0]
        self._down = (np.arange(size[0]) - matrix[1, 2]) / matrix[1, 1]
        rays = (
            self._right[None, :, None] * to_ego[:3, 0]
            + self._down[:, None, None] * to_ego[:3, 1]
            + to_ego[:3, 2]
        )
        with np.errstate(divide="ignore"):
            depth = -to_ego[2, 3] / rays[..., 2]
        is_ground = (depth > 0) & (depth < FARTHEST_M)
        self._ground_at = np.flatnonzero(is_ground)
        self._ground_depth = np.where(is_ground, depth, np.inf).astype(np.float32)
        ground = to_ego[:2, 3] + depth[is_ground][:, None] * rays[is_ground][:, :2]
        self._ground = ground.astype(np.float32)
        self._clear = np.exp(-self._ground_depth[is_ground] / np.float32(weather.fog_m))
        self._sky = paint_sky(rays[..., 2] / np.linalg.norm(rays, axis=2), weather.gain)

    def render(self, city: City, car: tuple[float, float, float], boxes: Boxes) -> Picture:
        """Show the city and the boxes to a car at x and y that heads somewhere."""
        x, y, heading = np.float32(car[0]), np.float32(car[1]), car[2]
        cosine, sine = np.float32(math.cos(heading)), np.float32(math.sin(heading))
        world_x = x + cosine * self._ground[:, 0] - sine * self._ground[:, 1]
        world_y = y + sine * self._ground[:, 0] + cosine * self._ground[:, 1]
        kinds, cells = city.look(world_x, world_y)
        colours = self._sky.copy()
        colours.reshape(-1, 3)[self._ground_at] = paint_ground(
            kinds, cells, self._weather.gain, self._clear
        )
        depth = self._ground_depth.copy()
        owner = np.full(self.size, -1, np.int32)
        whole = np.zeros(len(boxes), np.int64)
        sun = self._weather.sun - heading
        windows = self._covered(boxes)
        filled = (windows[:, 1] > windows[:, 0]) & (windows[:, 3] > windows[:, 2])
        for box in np.flatnonzero(filled).tolist():
            top, bottom, left, right = windows[box].tolist()
            window = (slice(top, bottom), slice(left, right))
            whole[box] = self._draw(boxes, box, window, (colours, depth, owner), sun)
        return Picture(colours=colours, owner=owner, whole=whole)

    def _draw(  # noqa: PLR0917 - a box, where it is drawn and in which light
        self,
        boxes: Boxes,
        box: int,
        window: tuple[slice, slice],
        canvas: tuple[Singles, Singles, npt.NDArray[np.int32]],
        sun: float,
    ) -> int:
        """Draw a box where it is nearer than what is there, and count the pixels it has."""
        to_box = _to_box(boxes, box, self._sensor.to_ego)
        half = boxes.size[box, [1, 0, 2]] / 2
        colours, depth, owner = (layer[window] for layer in canvas)
        rays = [
            (
                (to_box[axis, 0] * self._right[window[1]])[None, :]
                + (to_box[axis, 1] * self._down[window[0]] + to_box[axis, 2])[:, None]
            ).astype(np.float32)
            for axis in range(3)
        ]
        near, axis, is_hit = _meet(rays, to_box[:, 3], half)
        shown = is_hit & (near < depth)
        if shown.any():
            places = [(to_box[a, 3] + near[shown] * rays[a][shown]) / half[a] for a in range(3)]
            light = (self._weather.gain, sun - float(boxes.heading[box]))
            painted = paint_box(
                (int(boxes.kind[box]), int(boxes.look[box])), places, axis[shown], light
            )
            clear = np.exp(-near[shown] / np.float32(self._weather.fog_m))[:, None]
            colours[shown] = painted * clear + 178 * self._weather.gain * (1 - clear)
            depth[shown] = near[shown]
            owner[shown] = box
        return int(is_hit.sum())

    def _covered(self, boxes: Boxes) -> Ints:
        """Find the window of pixels that each box can cover: first and last row and column."""
        cosine, sine = np.cos(boxes.heading)[:, None], np.sin(boxes.heading)[:, None]
        along, aside = (boxes.size[:, axis, None] / 2 * _CORNERS[axis] for axis in (1, 0))
        corners = boxes.centre[:, None] + np.stack(
            (
                cosine * along - sine * aside,
                sine * along + cosine * aside,
                boxes.size[:, 2, None] / 2 * _CORNERS[2],
            ),
            axis=-1,
        )
        to_ego = self._sensor.to_ego
        seen = (corners - to_ego[:3, 3]) @ to_ego[:3, :3]
        # An edge that passes the camera ends where it does: behind, nothing is projected.
        begin, end = seen[:, _EDGES[:, 0]], seen[:, _EDGES[:, 1]]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (NEAREST_M - begin[..., 2]) / (end[..., 2] - begin[..., 2])
        cut = begin + share[..., None] * (end - begin)
        ends = np.concatenate(
            (
                np.where(begin[..., 2:] < NEAREST_M, cut, begin),
                np.where(end[..., 2:] < NEAREST_M, cut, end),
            ),
            axis=1,
        )
        ahead = np.maximum(begin[..., 2], end[..., 2]) > NEAREST_M
        ahead = np.concatenate((ahead, ahead), axis=1)
        windows = []
        for axis, rays in ((1, self._down), (0, self._right)):
            with np.errstate(divide="ignore", invalid="ignore"):
                at = ends[..., axis] / ends[..., 2]
            windows.append(np.searchsorted(rays, np.where(ahead, at, np.inf).min(axis=1)))
            windows.append(np.searchsorted(rays, np.where(ahead, at, -np.inf).max(axis=1)))
        return np.stack(windows, axis=1)


def finish(colours: Singles, draws: Draws) -> Bytes:
    """Add the noise of a sensor to colours and round them to levels."""
    noise = draws.bytes(colours.shape)
    grain = ((noise & 15).astype(np.float32) + (noise >> 4) - 15) * np.float32(0.9)
    return np.clip(np.rint(colours + grain), 0, 255).astype(np.uint8)


def scan(sensor: Sensor, boxes: Boxes) -> tuple[Singles, Ints]:
    """Give lidar points (P, 5) as x, y, z, intensity and ring, and how many each box has."""
    to_ego = sensor.to_ego
    local = _beams()
    rise = local @ to_ego[2, :3]
    with np.errstate(divide="ignore"):
        far = np.where(rise < 0, -to_ego[2, 3] / rise, np.inf)
    owner = np.full(far.shape, -1, np.int64)
    for box in range(len(boxes)):
        to_box = _to_box(boxes, box, to_ego)
        columns = _bearings_of(-to_box[:, :3].T @ to_box[:, 3], boxes.size[box])
        rays = local[:, columns]
        inside = [(rays @ to_box[axis, :3]).astype(np.float32) for axis in range(3)]
        near, _, is_hit = _meet(inside, to_box[:, 3], boxes.size[box, [1, 0, 2]] / 2)
        closer = is_hit & (near < far[:, columns])
        far[:, columns] = np.where(closer, near, far[:, columns])
        owner[:, columns] = np.where(closer, box, owner[:, columns])
    kept = far < _LIDAR_REACH_M
    ring = np.nonzero(kept)[0]
    points = np.concatenate(
        (local[kept] * far[kept][:, None], np.full((len(ring), 1), 20.0), ring[:, None]), axis=1
    )
    hits = np.bincount(owner[kept & (owner >= 0)], minlength=len(boxes))
    return points.astype(np.float32), hits


def _beams() -> Floats:
    """Give the directions of a lidar as (beams, bearings, 3)."""
    tilt = np.radians(np.linspace(-30, 8, _BEAMS))[:, None]
    bearing = np.radians(np.arange(_BEARINGS) * (360 / _BEARINGS))[None]
    parts = (np.cos(tilt) * np.cos(bearing), np.cos(tilt) * np.sin(bearing), np.sin(tilt))
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def _bearings_of(centre: Floats, size: Floats) -> Ints:
    """List the bearings in which a lidar can meet a box."""
    distance, radius = math.hypot(centre[0], centre[1]), math.hypot(size[0], size[1]) / 2
    if distance <= radius:
        return np.arange(_BEARINGS)
    step = 2 * math.pi / _BEARINGS
    middle = round(math.atan2(centre[1], centre[0]) / step)
    reach = math.ceil(math.asin(radius / distance) / step) + 1
    return np.arange(middle - reach, middle + reach + 1) % _BEARINGS


def count_pixels(pictures: Sequence[Picture], boxes: int) -> tuple[Ints, Ints]:
    """Count the pixels that boxes show in all cameras, and those they would show alone."""
    shown = np.zeros(boxes, np.int64)
    whole = np.zeros(boxes, np.int64)
    for picture in pictures:
        shown += np.bincount(picture.owner[picture.owner >= 0], minlength=boxes)
        whole += picture.whole
    return shown, whole


def _to_box(boxes: Boxes, box: int, to_ego: Floats) -> Floats:
    """Make the 3x4 matrix from a sensor to a box: length, width and height are x, y and z."""
    cosine, sine = math.cos(boxes.heading[box]), math.sin(boxes.heading[box])
    turn = np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]])
    shift = turn @ (to_ego[:3, 3] - boxes.centre[box])
    return np.concatenate((turn @ to_ego[:3, :3], shift[:, None]), axis=1)


def _meet(
    rays: Sequence[Singles], origin: Floats, half: Floats
) -> tuple[Singles, npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Find where rays enter a box, through which pair of faces, and whether they do."""
    near = np.full(rays[0].shape, NEAREST_M, np.float32)
    far = np.full(rays[0].shape, np.inf, np.float32)
    axis = np.zeros(rays[0].shape, np.int8)
    for number in range(3):
        # Never 0: a ray along a face would meet it nowhere and everywhere.
        safe = np.where(np.abs(rays[number]) < 1e-9, np.float32(1e-9), rays[number])
        over = np.reciprocal(safe)
        middle = np.float32(-origin[number]) * over
        reach = np.abs(over) * np.float32(half[number])
        enter = middle - reach
        later = enter > near
        axis[later] = number
        np.maximum(near, enter, out=near)
        np.minimum(far, middle + reach, out=far)
    return near, axis, far > near


def _turned(yaw_deg: float, pitch_deg: float) -> Floats:
    yaw, pitch = math.radians(yaw_deg), math.radians(pitch_deg)
    around = np.array(
        [[math.cos(yaw), -math.sin(yaw), 0], [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]]
    )
    down = np.array(
        [[math.cos(pitch), 0, math.sin(pitch)], [0, 1, 0], [-math.sin(pitch), 0, math.cos(pitch)]]
    )
    return around @ down


def _quaternion(matrix: Floats) -> tuple[float, float, float, float]:
    w, x, y, z = quaternion(matrix).tolist()
    return w, x, y, z
