"""Everything a run needs to know of a nuScenes set, as arrays.

Key frames alone, six cameras each, in the order of scene names and time. Small enough to travel to
workers, and without anything of nuscenes-devkit in it. It is made once, from the tables, and kept
beside them by `stored.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError
from pitstop.workloads.bev.data.poses import Floats, inverse, pose
from pitstop.workloads.bev.data.raster import Ints
from pitstop.workloads.bev.data.tables import Row, check_tables, each, table_path

CAMERAS: Final = (
    "CAM_FRONT_LEFT",
    "CAM_FRONT",
    "CAM_FRONT_RIGHT",
    "CAM_BACK_LEFT",
    "CAM_BACK",
    "CAM_BACK_RIGHT",
)
LIDAR: Final = "LIDAR_TOP"

Names: TypeAlias = npt.NDArray[np.str_]
Letters: TypeAlias = npt.NDArray[np.bytes_]

_CHANNELS: Final = (*CAMERAS, LIDAR)
_SLOT: Final = {channel: slot for slot, channel in enumerate(_CHANNELS)}
_LIDAR_SLOT: Final = len(CAMERAS)
_FRONT: Final = CAMERAS.index("CAM_FRONT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BevIndex:
    """The key frames of a set: S samples, C calibrations, B boxes."""

    scenes: Names
    """Name of each scene."""
    locations: Names
    """Map of each scene."""
    categories: Names
    sample_scene: Ints
    """(S,)."""
    sample_tokens: Names
    """(S,)."""
    files: Letters
    """(S, 7), images of the cameras and the lidar's points, relative to the root; empty where
    there is no lidar. In UTF-8: as text they would take four times the memory."""
    file_tokens: Letters
    """(S, 7), of the rows in sample_data."""
    image_sizes: Ints
    """(S, 6, 2), height and width."""
    calibration: Ints
    """(S, 7), which calibration a sensor has; -1 where there is no lidar."""
    intrinsics: Floats
    """(C, 3, 3)."""
    sensor_to_ego: Floats
    """(C, 4, 4)."""
    poses: Floats
    """(S, 7, 7), translation and quaternion of the car at the moment of each sensor; a lidar that
    is not there has those of the front camera."""
    first_box: Ints
    """(S + 1,), place of each sample's first box, and the end of the last sample's."""
    box_category: Ints
    """(B,)."""
    box_visibility: Ints
    """(B,), 1 to 4, of which 1 is least visible; 0 where it is not stated."""
    box_size: Floats
    """(B, 3), width, length and height."""
    box_pose: Floats
    """(B, 7), translation and quaternion in the world."""
    box_points: Ints
    """(B,), lidar points inside."""

    def __len__(self) -> int:
        return len(self.sample_scene)

    def file(self, sample: int, slot: int) -> str:
        """Name the file of a sensor, relative to the root."""
        return self.files[sample, slot].decode()

    def file_token(self, sample: int, slot: int) -> str:
        """Name the row of a sensor's file in sample_data."""
        return self.file_tokens[sample, slot].decode()

    def ego_to_world(self, sample: int, slot: int = _LIDAR_SLOT) -> Floats:
        """Say where the car is when a sensor looks; the lidar unless said."""
        return pose(self.poses[sample, slot, :3], self.poses[sample, slot, 3:])

    def sensor_to_world(self, sample: int, slot: int = _LIDAR_SLOT) -> Floats:
        """Say how a sensor stands in the world when it looks; the lidar unless said."""
        return self.ego_to_world(sample, slot) @ self.sensor_to_ego[self.calibration[sample, slot]]

    def intrinsics_of(self, sample: int, slot: int) -> Floats:
        """Give the (3, 3) matrix of a camera."""
        return self.intrinsics[self.calibration[sample, slot]]

    def cameras_to_ego(self, sample: int, slots: Sequence[int]) -> Floats:
        """Say how cameras stand to the car at the moment of the lidar, which targets are of.

        A camera looks some hundredths of a second earlier or later, and the car drives on: through
        the world, both moments are brought together.
        """
        rig = self.sensor_to_ego[self.calibration[sample, list(slots)]]
        if not self.drives_on(sample):
            return rig
        to_lidar_moment = inverse(self.ego_to_world(sample))
        return np.stack(
            [
                to_lidar_moment @ self.ego_to_world(sample, slot) @ to_ego
                for slot, to_ego in zip(slots, rig, strict=True)
            ]
        )

    def drives_on(self, sample: int) -> bool:
        """Tell whether the car stood elsewhere for a camera than for the lidar."""
        return bool((self.poses[sample] != self.poses[sample, _LIDAR_SLOT]).any())

    def boxes(self, sample: int) -> Ints:
        """List the boxes that belong to a sample."""
        return np.arange(self.first_box[sample], self.first_box[sample + 1])

    def location(self, sample: int) -> str:
        """Name the map that a sample lies on."""
        return str(self.locations[self.sample_scene[sample]])

    def has_lidar(self, sample: int) -> bool:
        """Tell whether there are lidar points."""
        return bool(self.calibration[sample, _LIDAR_SLOT] >= 0)

    def samples_of(self, scenes: Iterable[str]) -> Ints:
        """List the samples of some scenes."""
        wanted = np.isin(self.scenes, list(scenes))
        return np.flatnonzero(wanted[self.sample_scene])


def build_index(root: Path, version: str) -> BevIndex:
    """Read the tables of a version.

    Raises:
        DataError: Where a table is missing or damaged, or a key frame lacks a camera.
    """
    check_tables(root, version)
    tables = _Tables(root, version)
    scenes = _read_scenes(tables)
    samples = _read_samples(tables, scenes)
    sensors = _read_sensors(tables)
    seen = _read_sample_data(tables, samples, sensors)
    boxes = _read_boxes(tables, samples)
    return BevIndex(
        scenes=np.array(scenes.names, np.str_),
        locations=np.array(scenes.locations, np.str_),
        categories=np.array(boxes.categories, np.str_),
        sample_scene=samples.scene,
        sample_tokens=np.array(samples.tokens, np.str_),
        files=seen.files,
        file_tokens=seen.tokens,
        image_sizes=seen.sizes,
        calibration=seen.calibration,
        intrinsics=sensors.intrinsics,
        sensor_to_ego=sensors.to_ego,
        poses=_read_poses(tables, seen, samples),
        first_box=boxes.first,
        box_category=boxes.category,
        box_visibility=boxes.visibility,
        box_size=boxes.size,
        box_pose=boxes.pose,
        box_points=boxes.points,
    )


@dataclass(frozen=True, slots=True)
class _Tables:
    root: Path
    version: str

    def path(self, table: str) -> Path:
        return table_path(self.root, self.version, table)

    def known(self, known: Mapping[str, Any], token: str, table: str, by: str) -> Any:
        """Look a token up that another table names."""
        if token not in known:
            raise DataError(
                f"{self.path(by)} names the {table} {token}, which {self.path(table).name} lacks"
            )
        return known[token]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scenes:
    number: Mapping[str, int]
    """By token."""
    names: Sequence[str]
    locations: Sequence[str]


def _read_scenes(tables: _Tables) -> _Scenes:
    logs = dict(each(tables.path("log"), lambda row: (str(row["token"]), str(row["location"]))))
    found = sorted(
        each(
            tables.path("scene"),
            lambda row: (str(row["name"]), str(row["token"]), str(row["log_token"])),
        )
    )
    if not found:
        raise DataError(f"{tables.path('scene')} has no scenes")
    return _Scenes(
        number={token: number for number, (_, token, _) in enumerate(found)},
        names=[name for name, _, _ in found],
        locations=[tables.known(logs, log, "log", "scene") for _, _, log in found],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    number: Mapping[str, int]
    """By token."""
    tokens: Sequence[str]
    scene: Ints


def _read_samples(tables: _Tables, scenes: _Scenes) -> _Samples:
    rows = each(
        tables.path("sample"),
        lambda row: (str(row["scene_token"]), int(row["timestamp"]), str(row["token"])),
    )
    found = sorted(
        (tables.known(scenes.number, scene, "scene", "sample"), at_us, token)
        for scene, at_us, token in rows
    )
    if not found:
        raise DataError(f"{tables.path('sample')} has no samples")
    return _Samples(
        number={token: number for number, (_, _, token) in enumerate(found)},
        tokens=[token for _, _, token in found],
        scene=np.array([scene for scene, _, _ in found], np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sensors:
    place: Mapping[str, tuple[int, int]]
    """Slot and number of each calibration of a camera or the lidar, by token."""
    others: frozenset[str]
    """Tokens of all other calibrations."""
    intrinsics: Floats
    to_ego: Floats


def _read_sensors(tables: _Tables) -> _Sensors:
    channels = dict(
        each(tables.path("sensor"), lambda row: (str(row["token"]), str(row["channel"])))
    )
    place: dict[str, tuple[int, int]] = {}
    others: set[str] = set()
    matrices: list[Floats] = []
    mounts: list[Floats] = []
    for token, sensor, mount, matrix in each(tables.path("calibrated_sensor"), _calibration):
        channel = tables.known(channels, sensor, "sensor", "calibrated_sensor")
        if channel not in _SLOT:
            others.add(token)
            continue
        if channel != LIDAR:
            _check_intrinsics(matrix, f"{tables.path('calibrated_sensor')}: {channel} {token}")
        place[token] = (_SLOT[channel], len(mounts))
        mounts.append(mount)
        matrices.append(matrix if matrix.shape == (3, 3) else np.eye(3))
    return _Sensors(
        place=place,
        others=frozenset(others),
        intrinsics=np.array(matrices).reshape(-1, 3, 3),
        to_ego=pose(np.array(mounts).reshape(-1, 7)[:, :3], np.array(mounts).reshape(-1, 7)[:, 3:]),
    )


def _calibration(row: Row) -> tuple[str, str, Floats, Floats]:
    matrix = np.array(row["camera_intrinsic"], np.float64)
    return str(row["token"]), str(row["sensor_token"]), _stand(row), matrix


def _check_intrinsics(matrix: Floats, name: str) -> None:
    if matrix.shape != (3, 3):
        raise DataError(f"{name} has no 3x3 camera_intrinsic")
    if not np.isfinite(matrix).all():
        raise DataError(f"{name} has a camera_intrinsic with numbers that are not finite")
    if not (matrix[0, 0] > 0 and matrix[1, 1] > 0):
        focal = f"{matrix[0, 0]:g} and {matrix[1, 1]:g}"
        raise DataError(f"{name} has focal lengths of {focal} pixels; both must be above 0")


def _stand(row: Row) -> Floats:
    """Read a translation and a rotation, which must be one."""
    stand = np.array([*row["translation"], *row["rotation"]], np.float64)
    if stand.shape != (7,) or not np.isfinite(stand).all():
        raise ValueError("translation and rotation must be 3 and 4 finite numbers")
    length = np.linalg.norm(stand[3:])
    if abs(length - 1) > 1e-3:
        raise ValueError(f"the rotation is a quaternion of length {length:.3g}, not 1")
    stand[3:] /= length
    return stand


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    files: Letters
    tokens: Letters
    sizes: Ints
    calibration: Ints
    poses: Mapping[str, list[tuple[int, int]]]
    """Samples and slots by the token of their ego_pose."""


def _read_sample_data(tables: _Tables, samples: _Samples, sensors: _Sensors) -> _Seen:
    count = len(samples.tokens)
    files = [[b""] * len(_CHANNELS) for _ in range(count)]
    tokens = [[b""] * len(_CHANNELS) for _ in range(count)]
    sizes = np.zeros((count, len(CAMERAS), 2), np.int64)
    calibration = np.full((count, len(_CHANNELS)), -1, np.int64)
    poses: dict[str, list[tuple[int, int]]] = {}
    for token, sample_token, sensor, file, stand, size in each(
        tables.path("sample_data"), _key_frame
    ):
        if not sample_token or sensor in sensors.others:
            continue
        sample = tables.known(samples.number, sample_token, "sample", "sample_data")
        slot, number = tables.known(sensors.place, sensor, "calibrated_sensor", "sample_data")
        files[sample][slot], tokens[sample][slot] = file.encode(), token.encode()
        calibration[sample, slot] = number
        poses.setdefault(stand, []).append((sample, slot))
        if slot < len(CAMERAS):
            if min(size) < 1:
                raise DataError(
                    f"{tables.path('sample_data')}: the image {file} has no height and width"
                )
            sizes[sample, slot] = size
    _refuse_absent(tables, samples, calibration)
    return _Seen(
        files=np.array(files, np.bytes_),
        tokens=np.array(tokens, np.bytes_),
        sizes=sizes,
        calibration=calibration,
        poses=poses,
    )


def _key_frame(row: Row) -> tuple[str, str, str, str, str, tuple[int, int]]:
    """Read a row; without a sample where it is between key frames."""
    sample = str(row["sample_token"]) if row["is_key_frame"] else ""
    size = (int(row.get("height") or 0), int(row.get("width") or 0))
    return (
        str(row["token"]),
        sample,
        str(row["calibrated_sensor_token"]),
        str(row["filename"]),
        str(row["ego_pose_token"]),
        size,
    )


def _refuse_absent(tables: _Tables, samples: _Samples, calibration: Ints) -> None:
    absent = np.argwhere(calibration[:, : len(CAMERAS)] < 0)
    if len(absent):
        sample, slot = absent[0].tolist()
        more = f" (and {len(absent) - 1:,} more)" if len(absent) > 1 else ""
        raise DataError(
            f"{tables.path('sample_data')} has no key frame of {CAMERAS[slot]} for the sample "
            f"{samples.tokens[sample]}{more}; every sample needs all six cameras"
        )


def _read_poses(tables: _Tables, seen: _Seen, samples: _Samples) -> Floats:
    poses = np.full((len(samples.tokens), len(_CHANNELS), 7), np.nan)
    wanted = dict(seen.poses)

    def wanted_stand(row: Row) -> tuple[str, Floats | None]:
        # Most rows are of sweeps, and are not worth a check.
        token = str(row["token"])
        return token, _stand(row) if token in wanted else None

    for token, stand in each(tables.path("ego_pose"), wanted_stand):
        for sample, slot in wanted.pop(token, ()):
            poses[sample, slot] = stand
    if wanted:
        tables.known({}, next(iter(wanted)), "ego_pose", "sample_data")
    without = np.isnan(poses[:, _LIDAR_SLOT, 0])
    poses[without, _LIDAR_SLOT] = poses[without, _FRONT]
    return poses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boxes:
    categories: Sequence[str]
    first: Ints
    category: Ints
    visibility: Ints
    size: Floats
    pose: Floats
    points: Ints


def _read_boxes(tables: _Tables, samples: _Samples) -> _Boxes:
    named = dict(each(tables.path("category"), lambda row: (str(row["token"]), str(row["name"]))))
    number = {token: place for place, token in enumerate(named)}
    instances = {
        token: tables.known(number, category, "category", "instance")
        for token, category in each(
            tables.path("instance"), lambda row: (str(row["token"]), str(row["category_token"]))
        )
    }
    facts: list[tuple[int, int, int, int]] = []
    bodies: list[Floats] = []
    for sample, instance, visibility, points, body in each(
        tables.path("sample_annotation"), _annotation
    ):
        place = tables.known(samples.number, sample, "sample", "sample_annotation")
        category = tables.known(instances, instance, "instance", "sample_annotation")
        facts.append((place, category, visibility, points))
        bodies.append(body)
    whole = np.array(facts, np.int64).reshape(-1, 4)
    body = np.array(bodies).reshape(-1, 10)
    order = np.argsort(whole[:, 0], kind="stable")
    whole, body = whole[order], body[order]
    return _Boxes(
        categories=list(named.values()),
        first=np.searchsorted(whole[:, 0], np.arange(len(samples.tokens) + 1)),
        category=whole[:, 1],
        visibility=whole[:, 2],
        points=whole[:, 3],
        pose=body[:, :7],
        size=body[:, 7:],
    )


def _annotation(row: Row) -> tuple[str, str, int, int, Floats]:
    size = np.array(row["size"], np.float64)
    if size.shape != (3,) or not ((size > 0) & np.isfinite(size)).all():
        raise ValueError(f"the size {row['size']} is not three lengths above 0")
    return (
        str(row["sample_token"]),
        str(row["instance_token"]),
        int(row.get("visibility_token") or 0),
        int(row.get("num_lidar_pts") or 0),
        np.concatenate((_stand(row), size)),
    )
