"""Plain pictures without a nuScenes set: found, brought to what the network sees, and the ground.

One camera: every picture of a folder, at any depth, is a sample. Six cameras: folders or file names
name the camera, and the first picture of each is the first moment, by the order of their paths.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from torch import Tensor

from pitstop.config.workloads.bev import MonoData, SurroundData
from pitstop.data.images import DAMAGED, open_image, require_sample, write_image
from pitstop.errors import DataError
from pitstop.records.store import write_text
from pitstop.train.task import FilesMade
from pitstop.workloads.bev.data.augment import fitted, reduction_of, show, stretched
from pitstop.workloads.bev.data.batch import BevBatch, BevSample, collate
from pitstop.workloads.bev.data.calibration import FOCAL_SHARE, Calibration, read_calibration
from pitstop.workloads.bev.data.dataset import joined
from pitstop.workloads.bev.data.decode import decode
from pitstop.workloads.bev.data.index import CAMERAS
from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.pictures import THRESHOLD, ground_picture, paint, write_cells

Predict = Callable[[BevBatch], Tensor]
"""Gives logits (1, K, h, w) of a batch on the host."""

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_MOST_NAMED: Final = 5
_LONGEST_FIRST: Final = sorted(CAMERAS, key=len, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture."""

    path: Path
    name: str
    """Path within its folder, with slashes."""
    size: tuple[int, int]
    camera: str
    """Which of six; empty where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPictures:
    """Samples of plain pictures, in order."""

    samples: tuple[tuple[Shot, ...], ...]
    calibration: Calibration
    left_out: tuple[str, ...]
    """What is no picture that can be read, and why."""

    def notes(self) -> Iterator[str]:
        """Say what was assumed and what was left out."""
        if self.calibration.path is None:
            rig = ", and cameras stand as nuScenes' do" if len(self.samples[0]) > 1 else ""
            yield (
                f"assumed, as data.calibration is not set: a focal length of {FOCAL_SHARE} of the "
                f"width, as nuScenes' front camera has it{rig}"
            )
        if self.left_out:
            yield f"left out: {_named(self.left_out)}"


def find_pictures(data: MonoData | SurroundData) -> PlainPictures:
    """Find the pictures of `data.pictures`; headers are read, so that trouble is said first.

    Raises:
        DataError: Where there is none, or six cameras do not have as many each.
    """
    assert data.pictures is not None
    root = data.pictures
    if not root.is_dir():
        raise DataError(f"there is no folder {root} (data.pictures)")
    shots, left_out = [], []
    for path in _pictures_in(root):
        found = _shot(path, root, one_camera=isinstance(data, MonoData))
        (left_out if isinstance(found, str) else shots).append(found)
    if not shots:
        why = f": {_named(left_out)}" if left_out else f" ({', '.join(_SUFFIXES)})"
        raise DataError(f"{root} holds no pictures that can be read{why}")
    calibration = read_calibration(data.calibration)
    samples = [(shot,) for shot in shots]
    if isinstance(data, SurroundData):
        if left_out:
            raise DataError(f"{root}: a moment needs all six pictures; {_named(left_out)}")
        samples = _moments(root, shots)
    return PlainPictures(samples=tuple(samples), calibration=calibration, left_out=tuple(left_out))


def plain_sample(
    shots: Sequence[Shot], calibration: Calibration, data: MonoData | SurroundData
) -> BevSample:
    """Read the pictures of a sample as the network sees them in an evaluation.

    Raises:
        DataError: Where one cannot be decoded, or the file of cameras does not say how it sees.
    """
    views = [_view(shot.size, data) for shot in shots]
    pictures = []
    for shot, view in zip(shots, views, strict=True):
        pixels = decode(require_sample(shot.path), shot.path, shot.size, reduction_of(view))
        pictures.append(show(pixels, shot.size, view, data.image_size, colours=None))
    intrinsics = [
        calibration.intrinsics(_names(shot), shot.size, camera=shot.camera) for shot in shots
    ]
    stands = [calibration.cam_to_ego(shot.camera) if shot.camera else np.eye(4) for shot in shots]
    nothing = np.zeros((1, 1, 1), np.bool_), np.ones((1, 1), np.bool_)
    geometry = (np.stack(intrinsics), np.stack(stands), np.stack(views), np.eye(4))
    return joined(pictures, geometry, nothing, is_random=True)


def segment_pictures(
    found: PlainPictures,
    predict: Predict,
    data: MonoData | SurroundData,
    folder: Path,
    *,
    classes: Sequence[str],
) -> FilesMade:
    """Write what was found on the ground before each picture: cells as bits, and as a picture.

    Raises:
        DataError: Where a picture cannot be read, or a file cannot be written.
    """
    frame: Literal["ego", "camera"] = "ego" if isinstance(data, SurroundData) else "camera"
    write_text(folder / "classes.json", json.dumps(list(classes), indent=1) + "\n")
    files, damaged = 1, []
    names = _output_names([shots[0].name for shots in found.samples])
    for shots, name in zip(found.samples, names, strict=True):
        try:
            sample = plain_sample(shots, found.calibration, data)
        except DataError as error:
            if len(shots) > 1:
                raise
            damaged.append(str(error))
            continue
        logits = predict(collate([sample]))
        write_cells(logits, [name], folder)
        cells = (logits[0].float().sigmoid() > THRESHOLD).cpu().numpy()
        shown = paint(cells, np.ones(cells.shape[1:], np.bool_), classes)
        write_image(folder / f"{name}-ground.png", ground_picture(shown, frame))
        files += 2
    if len(damaged) == len(found.samples):
        raise DataError(f"no picture could be read: {_named(damaged)}")
    notes = [*found.notes(), *((f"not read: {_named(damaged)}",) if damaged else ())]
    return FilesMade(samples=len(found.samples) - len(damaged), files=files, notes=tuple(notes))


def _pictures_in(root: Path) -> list[Path]:
    hidden = (
        path
        for path in root.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    return sorted(path for path in hidden if path.suffix.lower() in _SUFFIXES and not path.is_dir())


def _shot(path: Path, root: Path, *, one_camera: bool) -> Shot | str:
    name = path.relative_to(root).as_posix()
    camera = ""
    if not one_camera:
        camera = next((one for one in _LONGEST_FIRST if one in name.upper()), "")
        if not camera:
            return f"{name} names no camera in its folders or its name ({', '.join(CAMERAS)})"
    try:
        with open_image(path) as image:
            if image.mode.startswith(("I", "F")):
                return f"{name} has more than 8 bits a channel"
            return Shot(path=path, name=name, size=(image.height, image.width), camera=camera)
    except DAMAGED:
        return f"{name} is no picture"


def _moments(root: Path, shots: Sequence[Shot]) -> list[tuple[Shot, ...]]:
    by_camera = {camera: [shot for shot in shots if shot.camera == camera] for camera in CAMERAS}
    counts = {camera: len(own) for camera, own in by_camera.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{camera} {count}" for camera, count in counts.items())
        raise DataError(f"{root} must hold as many pictures of each camera; it has {listed}")
    return list(zip(*by_camera.values(), strict=True))


def _view(original: tuple[int, int], data: MonoData | SurroundData) -> Floats:
    if isinstance(data, MonoData):
        return stretched(original, data.image_size)
    scale = max(sum(data.resize) / 2, data.image_size[1] / original[1])
    return fitted(original, data.image_size, scale)


def _names(shot: Shot) -> tuple[str, ...]:
    if shot.camera:
        return shot.name, shot.camera
    return shot.name, shot.path.name


def _output_names(names: Sequence[str]) -> list[str]:
    """Leave out endings, where that does not make one name of two."""
    stems = [name.rpartition(".")[0] for name in names]
    return [
        stem if stems.count(stem) == 1 else name.replace(".", "-")
        for stem, name in zip(stems, names, strict=True)
    ]


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
