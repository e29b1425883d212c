"""Which way is up in what is written and drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.data.pon import PON_CLASSES, read_labels
from pitstop.workloads.bev.data.raster import Grid
from pitstop.workloads.bev.pictures import draw_ground, paint, write_cells

torch.set_num_threads(1)
RED = (220, 38, 38)
CLASSES = ("drivable_area", "vehicle")


def batch_of(targets: Tensor, mask: Tensor, *, cameras: int = 1) -> BevBatch:
    count = len(targets)
    images = torch.zeros(count, cameras, 3, 9, 16, dtype=torch.uint8)
    images[:, 0, 0] = 255
    empty = torch.zeros(count)
    return BevBatch(
        images=images,
        intrinsics=empty,
        cam_to_ego=empty,
        image_transform=empty,
        bev_transform=empty,
        calibration=empty,
        targets=targets.byte(),
        mask=mask.byte(),
    )


def where_red(path: Path) -> tuple[float, float]:
    """Middle of what is red, from 0 to 1 downwards and rightwards."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = np.nonzero((pixels == RED).all(axis=-1))
    assert len(rows)
    return rows.mean() / pixels.shape[0], columns.mean() / pixels.shape[1]


@pytest.mark.parametrize("frame", ["ego", "camera"])
def test_a_car_ahead_on_the_left_is_drawn_up_and_left(tmp_path: Path, frame: str) -> None:
    targets = torch.zeros(1, 2, 8, 10)
    # Rows count forward; columns to the left around a car, to the right before a camera.
    targets[0, 1, 6:, 8 if frame == "ego" else 1] = 1
    logits = torch.full((1, 2, 8, 10), -5.0)
    logits[0, 1, :2, 2 if frame == "ego" else 7] = 5
    rows = draw_ground(
        logits,
        batch_of(targets, torch.ones(1, 8, 10)),
        classes=CLASSES,
        titles=["scene-1, samples/CAM_FRONT/one.jpg"],
        folder=tmp_path,
        frame="ego" if frame == "ego" else "camera",
    )
    files = {cell.caption: tmp_path / cell.file for cell in rows[0].cells}
    assert list(files) == ["camera", "found", "there"]
    down, right = where_red(files["there"])
    assert down < 0.3
    assert right < 0.3
    down, right = where_red(files["found"])
    assert down > 0.7
    assert right > 0.7


def test_the_camera_is_shown_in_its_own_colours(tmp_path: Path) -> None:
    batch = batch_of(torch.zeros(2, 2, 4, 4), torch.ones(2, 4, 4), cameras=6)
    rows = draw_ground(
        torch.zeros(2, 2, 4, 4),
        batch,
        classes=CLASSES,
        titles=["a, samples/x/one.jpg", "a, samples/x/two.jpg"],
        folder=tmp_path,
        frame="ego",
    )
    names = [cell.file for row in rows for cell in row.cells]
    assert len(set(names)) == len(names) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    pixels = np.asarray(Image.open(tmp_path / rows[1].cells[0].file))
    assert pixels[..., 0].min() == 255
    assert pixels[..., 1:].max() == 0


def test_what_stands_hides_the_ground_and_what_is_not_seen_hides_everything() -> None:
    cells = np.ones((2, 1, 2), np.bool_)
    mask = np.array([[True, False]])
    picture = paint(cells, mask, CLASSES)
    assert tuple(picture[0, 0]) == RED
    assert tuple(picture[0, 1]) != RED
    assert np.array_equal(picture, paint(cells[::-1], mask, CLASSES[::-1]))


def test_every_class_has_a_colour() -> None:
    from pitstop.workloads.bev.data.targets import SURROUND_CLASSES

    mask = np.ones((1, 1), np.bool_)
    for classes in (PON_CLASSES, SURROUND_CLASSES):
        nothing = paint(np.zeros((len(classes), 1, 1), np.bool_), mask, classes)
        for place in range(len(classes)):
            cells = np.zeros((len(classes), 1, 1), np.bool_)
            cells[place] = True
            assert not np.array_equal(paint(cells, mask, classes), nothing), classes[place]


def test_written_cells_read_as_labels_of_the_benchmark(tmp_path: Path) -> None:
    grid = Grid(forward=(0, 3, 1), across=(0, 5, 1))
    logits = torch.randn(2, len(PON_CLASSES), 3, 5, generator=torch.Generator().manual_seed(0))
    paths = write_cells(logits, ["000004", "000007"], tmp_path)
    assert [path.name for path in paths] == ["000004.png", "000007.png"]
    for path, wanted in zip(paths, logits > 0, strict=True):
        found, seen = read_labels(path, grid)
        assert np.array_equal(found, wanted.numpy())
        assert seen.all()


def test_a_threshold_cuts_the_probability(tmp_path: Path) -> None:
    logits = torch.tensor([0.2, 0.4, 0.6, 0.8]).logit().view(1, 1, 1, 4)
    (path,) = write_cells(logits, ["one"], tmp_path, threshold=0.7)
    assert np.asarray(Image.open(path)).tolist() == [[0, 0, 0, 1]]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write_cells(torch.zeros(1, 1, 1, 1), ["one"], tmp_path / "file")
