"""Generated sets: the same bytes again, and what they say agrees with what they show."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pitstop.errors import DataError
from pitstop.workloads.bev.data.index import build_index
from pitstop.workloads.bev.data.poses import inverse, moved
from pitstop.workloads.bev.data.splits import split_scenes
from pitstop.workloads.bev.data.tables import TABLES
from pitstop.workloads.bev.synthetic.actors import CAR, PEDESTRIAN
from pitstop.workloads.bev.synthetic.make import MadeWorld, make_bev
from pitstop.workloads.bev.synthetic.render import (
    Boxes,
    CameraView,
    Sensor,
    Weather,
    make_sensors,
    scan,
)
from pitstop.workloads.bev.synthetic.world import City
from pitstop.workloads.draws import Draws

TINY = (45, 80)


def make(root: Path, *, scenes: int = 2, samples: int = 1, seed: int = 0) -> MadeWorld:
    return make_bev(root, scenes=scenes, samples=samples, size=TINY, seed=seed)


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "set"
    make(folder)
    return folder


def test_a_seed_decides_every_byte(root: Path, tmp_path: Path) -> None:
    make(tmp_path / "again")
    assert digest(tmp_path / "again") == digest(root)
    make(tmp_path / "other", seed=1)
    other = digest(tmp_path / "other")
    pictures = [name for name in digest(root) if name.endswith(".jpg")]
    assert len(pictures) == 2 * 6
    assert all(other.get(name) != value for name, value in digest(root).items() if name in pictures)


@pytest.mark.slow
def test_a_scene_does_not_depend_on_how_many_others_there_are(root: Path, tmp_path: Path) -> None:
    made = make(tmp_path / "more", scenes=12)
    assert made.scenes == {"mini_train": 10, "mini_val": 2}
    few, many = digest(root), digest(tmp_path / "more")
    shared = [name for name in few if name.startswith(("samples", "maps/expansion"))]
    assert {name: many.get(name) for name in shared} == {name: few[name] for name in shared}
    assert len(split_scenes(tmp_path / "more", "v1.0-mini", "train")) == 10


def test_all_tables_and_files_are_there(root: Path) -> None:
    assert sorted(path.stem for path in (root / "v1.0-mini").iterdir()) == sorted(TABLES)
    index = build_index(root, "v1.0-mini")
    assert index.scenes.tolist() == ["scene-0061", "scene-0103"]
    assert all((root / name.decode()).is_file() for name in index.files.ravel().tolist())
    maps = json.loads((root / "v1.0-mini" / "map.json").read_text())
    logs = json.loads((root / "v1.0-mini" / "log.json").read_text())
    assert {token for row in maps for token in row["log_tokens"]} == {r["token"] for r in logs}
    for row in maps:
        assert (root / row["filename"]).is_file()
    for name in set(index.locations.tolist()):
        assert (root / "maps" / "expansion" / f"{name}.json").is_file()


def test_annotations_of_one_thing_are_chained_in_time(world_root: Path) -> None:
    rows = json.loads((world_root / "v1.0-mini" / "sample_annotation.json").read_text())
    by_token = {row["token"]: row for row in rows}
    samples = json.loads((world_root / "v1.0-mini" / "sample.json").read_text())
    at_us = {row["token"]: row["timestamp"] for row in samples}
    chained = 0
    for row in rows:
        assert "category_token" not in row
        if row["next"]:
            after = by_token[row["next"]]
            assert after["prev"] == row["token"]
            assert after["instance_token"] == row["instance_token"]
            assert at_us[after["sample_token"]] > at_us[row["sample_token"]]
            chained += 1
    assert chained > 50


def test_lidar_points_lie_on_the_ground_or_on_boxes(world_root: Path) -> None:
    index = build_index(world_root, "v1.0-mini")
    path = world_root / index.file(0, -1)
    points = np.fromfile(path, "<f4").reshape(-1, 5)[:, :3].astype(np.float64)
    world = moved(index.ego_to_world(0) @ index.sensor_to_ego[index.calibration[0, -1]], points)
    for box in index.boxes(0):
        heading = 2 * math.atan2(index.box_pose[box, 6], index.box_pose[box, 3])
        local = world - index.box_pose[box, :3]
        c, s = math.cos(heading), math.sin(heading)
        local = np.stack((c * local[:, 0] + s * local[:, 1], c * local[:, 1] - s * local[:, 0],
                          local[:, 2]), axis=1)  # fmt: skip
        half = index.box_size[box, [1, 0, 2]] / 2
        on_faces = (np.abs(local) < half + 2e-3).all(axis=1) & (world[:, 2] > 2e-3)
        assert on_faces.sum() == pytest.approx(index.box_points[box], abs=2)
    assert (np.abs(world[:, 2]) < 1e-3).mean() > 0.3


def boxes_at(*centres: tuple[float, float], kind: int = CAR, height: float = 1.6) -> Boxes:
    count = len(centres)
    return Boxes(
        centre=np.array([(x, y, height / 2) for x, y in centres]),
        heading=np.linspace(0.3, 1.2, count),
        size=np.tile([1.9, 4.4, height], (count, 1)),
        kind=np.full(count, kind),
        look=np.arange(count) * 37,
    )


WEATHER = Weather(gain=1.0, sun=1.0, fog_m=150.0)


def corners_of(boxes: Boxes, box: int) -> np.ndarray:
    width, length, height = boxes.size[box]
    c, s = math.cos(boxes.heading[box]), math.sin(boxes.heading[box])
    return boxes.centre[box] + np.array(
        [
            (c * a * length / 2 - s * b * width / 2, s * a * length / 2 + c * b * width / 2, h)
            for a in (-1, 1)
            for b in (-1, 1)
            for h in (-height / 2, height / 2)
        ]
    )


def test_a_box_is_drawn_exactly_between_its_projected_corners() -> None:
    size = (225, 400)
    sensors = make_sensors(Draws(3), size)
    drawn = 0
    for sensor in sensors[:-1]:
        assert sensor.intrinsics is not None
        ahead = sensor.to_ego[:3, 2]
        boxes = boxes_at((14 * ahead[0], 14 * ahead[1]), (30 * ahead[0] + 3, 30 * ahead[1] - 2))
        picture = CameraView(sensor, size, WEATHER).render(City(0, 0), (200.0, 200.0, 0.4), boxes)
        for box in range(len(boxes)):
            pixels = moved(inverse(sensor.to_ego), corners_of(boxes, box)) @ sensor.intrinsics.T
            u, v = (pixels[:, :2] / pixels[:, 2:]).T
            rows, columns = np.nonzero(picture.owner == box)
            if u.min() < 2 or u.max() > 397 or v.max() > 222 or len(rows) < picture.whole[box]:
                continue
            assert columns.min() == pytest.approx(u.min(), abs=1)
            assert columns.max() == pytest.approx(u.max(), abs=1)
            assert rows.min() == pytest.approx(v.min(), abs=1)
            assert rows.max() == pytest.approx(v.max(), abs=1)
            drawn += 1
    assert drawn >= 6


@pytest.mark.parametrize("order", [(25.0, 10.0), (10.0, 25.0)])
def test_the_nearer_box_hides_the_farther(order: tuple[float, float]) -> None:
    sensor = make_sensors(Draws(3), TINY)[1]
    boxes = boxes_at(*((distance, 0.0) for distance in order))
    picture = CameraView(sensor, TINY, WEATHER).render(City(0, 0), (200.0, 200.0, 0.4), boxes)
    near, far = order.index(10.0), order.index(25.0)
    shown = [(picture.owner == box).sum() for box in (0, 1)]
    assert shown[near] == picture.whole[near] > 0
    assert shown[far] < 0.3 * picture.whole[far]


def pixels_of(boxes: Boxes, box: int, sensor: Sensor) -> int:
    """Ask every pixel's ray whether it meets a box, ahead of the camera."""
    assert sensor.intrinsics is not None
    v, u = np.mgrid[: TINY[0], : TINY[1]]
    rays = np.stack((u, v, np.ones_like(u)), axis=-1) @ np.linalg.inv(sensor.intrinsics).T
    c, s = math.cos(boxes.heading[box]), math.sin(boxes.heading[box])
    turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    way = rays @ (turn @ sensor.to_ego[:3, :3]).T
    start = turn @ (sensor.to_ego[:3, 3] - boxes.centre[box])
    half = boxes.size[box, [1, 0, 2]] / 2
    ends = np.sort(np.stack(((-half - start) / way, (half - start) / way)), axis=0)
    enter, leave = ends[0].max(axis=-1), ends[1].min(axis=-1)
    return int((leave > np.maximum(enter, 0.1)).sum())


def test_boxes_that_reach_behind_the_camera_lose_no_pixel() -> None:
    """What lies behind cannot be projected, and must not hide that the rest can."""
    sensor = make_sensors(Draws(3), TINY)[1]
    boxes = boxes_at((2.6, 2.2), (2.9, -2.4), (-4.0, 0.0), (3.9, 0.4), (5.0, 4.0), (1.0, 2.6))
    picture = CameraView(sensor, TINY, WEATHER).render(City(0, 0), (200.0, 200.0, 0.4), boxes)
    expected = [pixels_of(boxes, box, sensor) for box in range(len(boxes))]
    assert sum(count > 20 for count in expected) >= 3
    assert expected[2] == 0
    np.testing.assert_allclose(picture.whole, expected, atol=2)


def test_a_lidar_counts_the_points_of_each_box() -> None:
    sensor = make_sensors(Draws(3), TINY)[-1]
    near, far = (scan(sensor, boxes_at(at, kind=PEDESTRIAN))[1][0] for at in ((8, 3), (30, 9)))
    assert near > far > 0


def test_plan_and_world_lead_to_each_other() -> None:
    city = City(4, 2)
    plan = np.random.default_rng(0).uniform(0, 480, (500, 2))
    world = city.to_world(plan).astype(np.float32)
    p, q = city.to_plan(world[:, 0], world[:, 1])
    np.testing.assert_allclose(np.stack((p, q), axis=1), plan, atol=1e-3)
    assert world.min() > 0


@pytest.mark.parametrize("size", [(100, 100), (9, 16), (1800, 3200)])
def test_sizes_that_cannot_be_had_are_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="9 high to 16 wide"):
        make_bev(tmp_path / "a", size=size)


def test_nothing_and_folders_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least two scenes"):
        make_bev(tmp_path / "a", scenes=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_text("")
    with pytest.raises(DataError, match="is there already"):
        make_bev(tmp_path / "b")
    assert not (tmp_path / "a").exists()
