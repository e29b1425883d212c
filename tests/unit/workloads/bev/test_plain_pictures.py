"""Plain pictures as people have them: at any depth, seen as a set's own, or a sentence why not."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pitstop.config.load import config_from
from pitstop.errors import DataError
from pitstop.workloads.bev.data.batch import collate
from pitstop.workloads.bev.data.calibration import read_calibration
from pitstop.workloads.bev.data.index import CAMERAS
from pitstop.workloads.bev.plain_pictures import find_pictures, plain_sample, segment_pictures
from pitstop.workloads.bev.task import BevTask, build_bev
from tests.unit.workloads.bev.test_task import SMALL

torch.set_num_threads(1)


def task_of(kind: str, *changes: str) -> BevTask:
    return build_bev(config_from(SMALL[kind], list(changes)).config)


def data_of(kind: str, *changes: str) -> Any:
    return config_from(SMALL[kind], list(changes)).config.data


@pytest.fixture
def plain(tmp_path: Path, world_root: Path) -> Path:
    root = tmp_path / "my pictures"
    (root / "trip to town").mkdir(parents=True)
    source = sorted((world_root / "samples" / "CAM_FRONT").glob("*.jpg"))
    shutil.copy(source[0], root / "trip to town" / "IMG 0001.JPG")
    Image.open(source[0]).save(root / "a.png")
    Image.open(source[0]).convert("L").save(root / "a.jpg")
    (root / "broken.jpeg").write_bytes(source[0].read_bytes()[:20])
    (root / "cut off.jpg").write_bytes(source[0].read_bytes()[:2000])
    (root / "empty.png").write_bytes(b"")
    (root / "notes.txt").write_text("no picture")
    (root / ".hidden.jpg").write_bytes(source[0].read_bytes())
    return root


def test_every_picture_gets_its_ground_and_the_rest_is_named(plain: Path, tmp_path: Path) -> None:
    task = task_of("mono", f"data.pictures={plain}", "data.root=null")
    assert task.names_files()
    task.take_sizes({})
    model = task.build_model().eval()
    out = tmp_path / "out"
    out.mkdir()
    with torch.inference_mode():
        made = task.infer_files(model, out, torch.device("cpu"))
    written = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")
    )
    assert written == [
        "a-jpg-ground.png",
        "a-jpg.png",
        "a-png-ground.png",
        "a-png.png",
        "classes.json",
        "trip to town/IMG 0001-ground.png",
        "trip to town/IMG 0001.png",
    ]
    assert (made.samples, made.files) == (3, len(written))
    assumed, left_out, not_read = made.notes
    assert "focal length of 0.79 of the width" in assumed
    assert "broken.jpeg is no picture" in left_out
    assert "empty.png is no picture" in left_out
    assert "cut off.jpg" in not_read


def test_a_set_s_own_picture_with_its_matrix_is_the_set_s_own_sample(
    world_root: Path, tmp_path: Path
) -> None:
    task = task_of("mono", f"data.root={world_root}")
    wanted = task.eval_samples()
    sample = wanted.sample(0, 1)
    name = wanted.name_of(1).rpartition(", ")[2]
    (tmp_path / "one").mkdir()
    shutil.copy(world_root / name, tmp_path / "one")
    file = tmp_path / "cameras.json"
    file.write_text(json.dumps({Path(name).name: {"intrinsics": sample.intrinsics[0].tolist()}}))
    data = data_of("mono", f"data.pictures={tmp_path / 'one'}", f"data.calibration={file}")
    found = find_pictures(data)
    seen = plain_sample(found.samples[0], found.calibration, data)
    for part in ("images", "intrinsics", "cam_to_ego", "image_transform", "bev_transform"):
        torch.testing.assert_close(getattr(seen, part), getattr(sample, part), rtol=0, atol=0)


def test_six_cameras_of_a_moment_are_brought_together(world_root: Path, tmp_path: Path) -> None:
    for camera in CAMERAS:
        shutil.copytree(world_root / "samples" / camera, tmp_path / "six" / camera.lower())
    data = data_of("surround", f"data.pictures={tmp_path / 'six'}")
    found = find_pictures(data)
    assert all([shot.camera for shot in shots] == list(CAMERAS) for shots in found.samples)
    batch = collate([plain_sample(found.samples[0], found.calibration, data)])
    assert batch.images.shape[:2] == (1, 6)
    # What is assumed: the front camera looks ahead, the back one behind.
    ahead = batch.cam_to_ego[0, :, :3, 2]
    torch.testing.assert_close(ahead[CAMERAS.index("CAM_FRONT")], torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(
        ahead[CAMERAS.index("CAM_BACK")], torch.tensor([-1.0, 0, 0]), atol=1e-6, rtol=0
    )
    next((tmp_path / "six" / "cam_back").glob("*.jpg")).unlink()
    with pytest.raises(DataError, match=r"as many pictures of each camera; it has .*CAM_BACK \d"):
        find_pictures(data)


def test_a_matrix_of_another_size_is_scaled(tmp_path: Path) -> None:
    file = tmp_path / "cameras.json"
    matrix = [[1266.0, 0, 799.5], [0, 1266.0, 449.5], [0, 0, 1]]
    file.write_text(json.dumps({"intrinsics": matrix, "size": [900, 1600]}))
    found = read_calibration(file).intrinsics(("a.jpg",), (450, 800))
    np.testing.assert_allclose(found, [[633, 0, 399.5], [0, 633, 224.5], [0, 0, 1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a JSON object"),
        ("{", "is not JSON"),
        ('{"b.jpg": {}}', "says nothing of a.jpg"),
        ('{"a.jpg": {}}', "has no intrinsics in numbers"),
        ('{"intrinsics": [[1, 2], [3, 4]]}', "must be 3x3 finite numbers"),
        ('{"intrinsics": "wide"}', "has no intrinsics in numbers"),
    ],
)
def test_a_file_of_cameras_that_says_nothing_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "cameras.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_calibration(file).intrinsics(("a.jpg",), (9, 16))


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no pictures that can be read"):
        find_pictures(data_of("mono", f"data.pictures={tmp_path}"))
    with pytest.raises(DataError, match="there is no folder"):
        find_pictures(data_of("mono", f"data.pictures={tmp_path / 'no'}"))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="names no camera"):
        find_pictures(data_of("surround", f"data.pictures={tmp_path}"))


def test_nothing_readable_at_all_is_an_error(plain: Path, tmp_path: Path) -> None:
    for path in plain.rglob("*"):
        if path.is_file() and path.name != "cut off.jpg":
            path.unlink()
    data = data_of("mono", f"data.pictures={plain}")
    with pytest.raises(DataError, match="no picture could be read"):
        segment_pictures(
            find_pictures(data), lambda _: torch.zeros(1, 1, 4, 4), data, tmp_path, classes=("car",)
        )
