"""What a camera saw beside what was found on the ground and what is there, seen from above.

In the pictures forward is up and left is left, whatever the rows and columns of the targets are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from pitstop.data.images import write_image
from pitstop.records.pictures import PictureCell, PictureRow
from pitstop.workloads.bev.data.batch import BevBatch

Bytes = npt.NDArray[np.uint8]

THRESHOLD: Final = 0.5
_CAMERA_HEIGHT: Final = 150
_GROUND_SIDE: Final = 200
_NOTHING: Final = (236, 236, 232)
_UNSEEN: Final = (200, 200, 196)
# Drawn in this order, later ones over earlier ones: the ground, what is painted on it, what stands.
_COLOURS: Final = {
    "drivable_area": (148, 163, 184),
    "carpark": (167, 139, 250),
    "carpark_area": (167, 139, 250),
    "walkway": (134, 197, 140),
    "ped_crossing": (250, 204, 21),
    "stop_line": (244, 114, 182),
    "divider": (250, 250, 249),
    "vehicle": (220, 38, 38),
    "car": (220, 38, 38),
    "truck": (234, 88, 12),
    "bus": (217, 119, 6),
    "trailer": (180, 83, 9),
    "construction_vehicle": (146, 64, 14),
    "barrier": (71, 85, 105),
    "traffic_cone": (251, 146, 60),
    "bicycle": (6, 182, 212),
    "motorcycle": (8, 145, 178),
    "pedestrian": (37, 99, 235),
}


def write_cells(
    found: Tensor, names: Sequence[str], folder: Path, *, threshold: float = THRESHOLD
) -> list[Path]:
    """Write what was found as one PNG a sample: bit k of a cell says whether class k is there.

    Args:
        found: (B, K, h, w) logits.
        names: File name of each sample, without ending.
        folder: Where the files go.
        threshold: Of a class's own probability.

    Raises:
        DataError: Where a file cannot be written.
    """
    flags = (found.float().sigmoid() > threshold).to(torch.int32)
    places = torch.arange(flags.shape[1], device=flags.device).view(-1, 1, 1)
    bits = (flags << places).sum(dim=1).to(torch.int32).cpu().numpy().astype(np.uint16)
    paths = [folder / f"{name}.png" for name in names]
    for path, cells in zip(paths, bits, strict=True):
        write_image(path, Image.fromarray(cells))
    return paths


def draw_ground(
    found: Tensor,
    batch: BevBatch,
    *,
    classes: Sequence[str],
    titles: Sequence[str],
    folder: Path,
    frame: Literal["ego", "camera"],
) -> list[PictureRow]:
    """Write pictures of a batch: the first camera, what was found, what is there.

    Args:
        found: (B, K, h, w) logits.
        batch: The inputs, on the host.
        classes: Name of each of the K classes.
        titles: Of each sample, ending in the path of an image, whose name the files have.
        folder: Where the files go.
        frame: Of the ground: columns count to the left in a car's, to the right in a camera's.

    Raises:
        DataError: Where a file cannot be written.
    """
    right = (found.float().sigmoid() > THRESHOLD).cpu().numpy()
    rows = []
    for place, title in enumerate(titles):
        mask = batch.mask[place].numpy().astype(bool)
        targets = batch.targets[place].numpy().astype(bool)
        views = {
            "camera": _camera(batch.images[place, 0]),
            "found": ground_picture(paint(right[place], mask, classes), frame),
            "there": ground_picture(paint(targets, mask, classes), frame),
        }
        cells = []
        for caption, picture in views.items():
            name = f"{title.rpartition('/')[2].partition('.')[0]}-{caption}.png"
            write_image(folder / name, picture)
            cells.append(PictureCell(caption=caption, file=name))
        rows.append(PictureRow(title=title, cells=tuple(cells)))
    return rows


def paint(
    cells: npt.NDArray[np.bool_], mask: npt.NDArray[np.bool_], classes: Sequence[str]
) -> Bytes:
    """Colour (K, h, w) cells as (h, w, 3); several classes of a cell show the topmost."""
    picture = np.empty((*mask.shape, 3), np.uint8)
    picture[...] = _NOTHING
    for name, colour in _COLOURS.items():
        if name in classes:
            picture[cells[list(classes).index(name)]] = colour
    picture[~mask] = _UNSEEN
    return picture


def ground_picture(picture: Bytes, frame: Literal["ego", "camera"]) -> Image.Image:
    """Turn painted cells so that forward is up and left is left."""
    # Rows count forward, so they are turned over; columns count to the left in the ego frame.
    picture = picture[::-1, ::-1] if frame == "ego" else picture[::-1]
    return Image.fromarray(np.ascontiguousarray(picture)).resize(
        (_GROUND_SIDE, _GROUND_SIDE * picture.shape[0] // picture.shape[1]),
        Image.Resampling.NEAREST,
    )


def _camera(image: Tensor) -> Image.Image:
    height, width = image.shape[-2:]
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    return picture.resize((_CAMERA_HEIGHT * width // height, _CAMERA_HEIGHT))
