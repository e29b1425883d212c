"""How the cameras of plain pictures see and stand: from a file, or assumed as nuScenes has them.

    {"intrinsics": [[f, 0, x], [0, f, y], [0, 0, 1]], "size": [900, 1600]}         all pictures
    {"a.jpg": {"intrinsics": ...}, ...}                                            one by one
    {"CAM_FRONT": {"intrinsics": ..., "translation": [...], "rotation": [...]}}    six cameras

`size` is the height and width that intrinsics are of; without it they are those of the picture.
Instead of `translation` and `rotation` (w, x, y, z), as nuScenes has them, a camera may have
`cam_to_ego`, a 4x4 matrix.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pitstop.errors import DataError
from pitstop.records.files import read_regular
from pitstop.workloads.bev.data.poses import Floats, pose, quaternion

Size = tuple[int, int]

FOCAL_SHARE: Final = 0.79
"""Focal length over the width of an image, of nuScenes' front camera: 1266 of 1600 pixels."""

_MOST_BYTES: Final = 1 << 26
# Where nuScenes' cameras sit, which way they look, and their focal length over the width.
_RIG: Final[Mapping[str, tuple[tuple[float, float, float], float, float]]] = {
    "CAM_FRONT_LEFT": ((1.52, 0.49, 1.51), 55.0, FOCAL_SHARE),
    "CAM_FRONT": ((1.70, 0.02, 1.52), 0.0, FOCAL_SHARE),
    "CAM_FRONT_RIGHT": ((1.55, -0.50, 1.50), -56.0, FOCAL_SHARE),
    "CAM_BACK_LEFT": ((1.03, 0.48, 1.58), 109.0, FOCAL_SHARE),
    "CAM_BACK": ((0.03, 0.01, 1.57), 180.0, 0.51),
    "CAM_BACK_RIGHT": ((1.01, -0.48, 1.56), -110.0, FOCAL_SHARE),
}
# A camera's x to the right, y down and z ahead, in the car's x ahead, y to the left and z up.
_LOOKS_AHEAD: Final = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a file says of cameras; empty where there is none."""

    path: Path | None
    entries: Mapping[str, Any]

    def intrinsics(self, names: tuple[str, ...], size: Size, *, camera: str = "") -> Floats:
        """Give the matrix of a picture.

        Args:
            names: What the picture may be called in the file, the nearest first.
            size: Its height and width.
            camera: Which of six it is, for what is assumed without a file.

        Raises:
            DataError: Where the file does not say, or says no matrix.
        """
        if self.path is None:
            focal = (_RIG[camera][2] if camera else FOCAL_SHARE) * size[1]
            centre = ((size[1] - 1) / 2, (size[0] - 1) / 2)
            return np.array([[focal, 0, centre[0]], [0, focal, centre[1]], [0, 0, 1.0]])
        entry = self._entry(names)
        matrix = self._numbers(entry, "intrinsics", (3, 3), names[0])
        if "size" not in entry:
            return matrix
        height, width = self._numbers(entry, "size", (2,), names[0])
        across, down = size[1] / width, size[0] / height
        # Centres of pixels are counted from 0, so scaling moves them by half a pixel more or less.
        scale = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1.0]])
        return scale @ matrix

    def cam_to_ego(self, camera: str) -> Floats:
        """Give where one of six cameras stands on the car.

        Raises:
            DataError: Where the file does not say.
        """
        if self.path is None:
            at, yaw_deg, _ = _RIG[camera]
            yaw = np.deg2rad(yaw_deg)
            around = np.array(
                [[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1.0]]
            )
            return pose(at, quaternion(around @ _LOOKS_AHEAD))
        entry = self._entry((camera,))
        if "cam_to_ego" in entry:
            return self._numbers(entry, "cam_to_ego", (4, 4), camera)
        at = self._numbers(entry, "translation", (3,), camera)
        turn = self._numbers(entry, "rotation", (4,), camera)
        return pose(at, turn / np.linalg.norm(turn))

    def _entry(self, names: tuple[str, ...]) -> Mapping[str, Any]:
        found = next((self.entries[name] for name in names if name in self.entries), None)
        found = self.entries if found is None and "intrinsics" in self.entries else found
        if not isinstance(found, dict):
            raise DataError(
                f"{self.path} says nothing of {names[0]}: neither under its name nor for all "
                'pictures (such as {"intrinsics": [[f, 0, x], [0, f, y], [0, 0, 1]]})'
            )
        return found

    def _numbers(
        self, entry: Mapping[str, Any], key: str, shape: tuple[int, ...], what: str
    ) -> Floats:
        try:
            numbers = np.array(entry[key], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.path}: {what} has no {key} in numbers") from error
        if numbers.shape != shape or not np.isfinite(numbers).all():
            sides = "x".join(map(str, shape))
            raise DataError(f"{self.path}: {key} of {what} must be {sides} finite numbers")
        return numbers


def read_calibration(path: Path | None) -> Calibration:
    """Read a file of cameras; without one they are assumed.

    Raises:
        DataError: Where it is no JSON object.
    """
    if path is None:
        return Calibration(path=None, entries={})
    try:
        entries = json.loads(read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise DataError(f"{path} must be a JSON object, with intrinsics or a camera a name")
    return Calibration(path=path, entries=entries)
