"""What is known of a set, and what is wrong with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pitstop.errors import DataError
from pitstop.workloads.bev.data.index import CAMERAS, build_index
from pitstop.workloads.bev.data.poses import moved

Rows = list[dict[str, Any]]


def table(root: Path, name: str) -> Rows:
    return json.loads((root / "v1.0-mini" / f"{name}.json").read_text())


def change(root: Path, name: str, edit: Callable[[Rows], Rows | None]) -> None:
    rows = table(root, name)
    changed = edit(rows)
    path = root / "v1.0-mini" / f"{name}.json"
    path.write_text(json.dumps(rows if changed is None else changed))


def test_everything_in_the_tables_is_found_again(world_root: Path) -> None:
    index = build_index(world_root, "v1.0-mini")
    samples = {row["token"]: row for row in table(world_root, "sample")}
    scenes = {row["token"]: row["name"] for row in table(world_root, "scene")}
    assert len(index) == len(samples) == 4
    order = [samples[token] for token in index.sample_tokens.tolist()]
    keys = [(scenes[row["scene_token"]], row["timestamp"]) for row in order]
    assert keys == sorted(keys)
    data = {row["token"]: row for row in table(world_root, "sample_data")}
    mounts = {row["token"]: row for row in table(world_root, "calibrated_sensor")}
    for sample, row in enumerate(order):
        for slot, channel in enumerate((*CAMERAS, "LIDAR_TOP")):
            found = data[index.file_token(sample, slot)]
            assert found["sample_token"] == row["token"]
            assert found["filename"] == index.file(sample, slot)
            assert f"/{channel}/" in found["filename"]
            mount = mounts[found["calibrated_sensor_token"]]
            to_ego = index.sensor_to_ego[index.calibration[sample, slot]]
            np.testing.assert_allclose(to_ego[:3, 3], mount["translation"])
            if slot < 6:
                matrix = index.intrinsics[index.calibration[sample, slot]]
                np.testing.assert_array_equal(matrix, mount["camera_intrinsic"])
                assert index.image_sizes[sample, slot].tolist() == [225, 400]


def turned(turn: npt.NDArray[np.float64], point: npt.NDArray[np.float64]) -> Any:
    """Rotate a point by a unit quaternion, without matrices."""
    w, axis = turn[0], turn[1:]
    return point + 2 * w * np.cross(axis, point) + 2 * np.cross(axis, np.cross(axis, point))


def test_cameras_are_brought_to_the_moment_of_the_lidar(world_root: Path) -> None:
    """A point of a camera, through the world point by point, in float64."""
    index = build_index(world_root, "v1.0-mini")
    draw = np.random.default_rng(0)
    poses = index.poses.copy()
    # The car drives a metre and turns between sensors, far from the origin as on a real map.
    poses[..., :3] = np.array([600.0, 1600.0, 0.0]) + draw.normal(size=poses[..., :3].shape)
    turns = np.array([1.0, 0, 0, 0]) + 0.1 * draw.normal(size=poses[..., 3:].shape)
    poses[..., 3:] = turns / np.linalg.norm(turns, axis=-1, keepdims=True)
    moving = replace(index, poses=poses)
    assert moving.drives_on(1)
    slots = (4, 0, 2)
    found = moving.cameras_to_ego(1, slots)
    for slot, matrix in zip(slots, found, strict=True):
        point = draw.normal(size=3) * 20
        to_ego = index.sensor_to_ego[index.calibration[1, slot]]
        on_car = to_ego[:3, :3] @ point + to_ego[:3, 3]
        in_world = turned(poses[1, slot, 3:], on_car) + poses[1, slot, :3]
        lidar_turn = poses[1, 6, 3:] * np.array([1, -1, -1, -1])
        wanted = turned(lidar_turn, in_world - poses[1, 6, :3])
        # Rounding of coordinates of 1,600 m.
        np.testing.assert_allclose(moved(matrix, point[None])[0], wanted, rtol=0, atol=1e-11)


def test_a_car_that_stands_keeps_its_calibration_to_the_bit(world_root: Path) -> None:
    index = build_index(world_root, "v1.0-mini")
    poses = np.repeat(index.poses[:, 6:], 7, axis=1)
    standing = replace(index, poses=poses)
    assert not standing.drives_on(0)
    wanted = index.sensor_to_ego[index.calibration[0, :6]]
    np.testing.assert_array_equal(standing.cameras_to_ego(0, range(6)), wanted)


def test_boxes_go_to_their_samples(world_root: Path) -> None:
    index = build_index(world_root, "v1.0-mini")
    rows = table(world_root, "sample_annotation")
    instances = {row["token"]: row["category_token"] for row in table(world_root, "instance")}
    names = {row["token"]: row["name"] for row in table(world_root, "category")}
    assert index.first_box[-1] == len(rows) > 100
    for sample, token in enumerate(index.sample_tokens.tolist()):
        own = [row for row in rows if row["sample_token"] == token]
        boxes = index.boxes(sample)
        np.testing.assert_allclose(index.box_pose[boxes, :3], [r["translation"] for r in own])
        np.testing.assert_allclose(index.box_size[boxes], [row["size"] for row in own])
        kinds = index.categories[index.box_category[boxes]].tolist()
        assert kinds == [names[instances[row["instance_token"]]] for row in own]
        seen = index.box_visibility[boxes].tolist()
        assert seen == [int(row["visibility_token"]) for row in own]
        assert index.box_points[boxes].tolist() == [row["num_lidar_pts"] for row in own]


def test_frames_between_key_frames_and_other_sensors_are_passed_over(own_root: Path) -> None:
    before = build_index(own_root, "v1.0-mini")

    def add(rows: Rows) -> None:
        rows.append({**rows[0], "token": "between", "is_key_frame": False, "filename": "x.jpg"})
        rows.append({**rows[0], "token": "radar", "calibrated_sensor_token": "r"})

    change(own_root, "sample_data", add)
    change(own_root, "sensor", lambda r: r.append({**r[0], "token": "s", "channel": "RADAR_FRONT"}))
    change(
        own_root,
        "calibrated_sensor",
        lambda r: r.append({**r[0], "token": "r", "sensor_token": "s", "camera_intrinsic": []}),
    )
    after = build_index(own_root, "v1.0-mini")
    np.testing.assert_array_equal(after.files, before.files)
    np.testing.assert_array_equal(after.poses, before.poses)


def test_a_set_without_lidar_uses_the_front_cameras_moment(own_root: Path) -> None:
    change(own_root, "sample_data", lambda rows: [r for r in rows if "LIDAR" not in r["filename"]])
    index = build_index(own_root, "v1.0-mini")
    assert not index.has_lidar(0)
    front = CAMERAS.index("CAM_FRONT")
    np.testing.assert_array_equal(index.ego_to_world(1), index.ego_to_world(1, front))


def blank_focal(rows: Rows) -> None:
    rows[2]["camera_intrinsic"][0][0] = 0.0


def no_intrinsics(rows: Rows) -> None:
    rows[2]["camera_intrinsic"] = []


def long_rotation(rows: Rows) -> None:
    rows[3]["rotation"] = [2, 0, 0, 0]


def flat_box(rows: Rows) -> None:
    rows[0]["size"] = [1, 2, 0]


def without(channel: str) -> Callable[[Rows], Rows]:
    return lambda rows: [row for row in rows if f"/{channel}/" not in row["filename"]]


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        (
            "sample_data",
            without("CAM_BACK"),
            "no key frame of CAM_BACK for the sample .*and 3 more",
        ),
        ("calibrated_sensor", blank_focal, "CAM_FRONT_RIGHT .* focal lengths of 0 and"),
        ("calibrated_sensor", no_intrinsics, "no 3x3 camera_intrinsic"),
        ("calibrated_sensor", long_rotation, "row 4 cannot be used: .*length 2"),
        ("sample_annotation", flat_box, "row 1 cannot be used: the size"),
        ("ego_pose", lambda rows: rows[1:], r"names the ego_pose \w+, which ego_pose.json lacks"),
        ("instance", lambda rows: rows[1:], "names the instance"),
        ("category", lambda rows: rows[1:], "names the category"),
        ("log", lambda rows: rows[1:], "names the log"),
        ("scene", lambda rows: rows[1:], "names the scene"),
        ("scene", lambda _: [], "has no scenes"),
        ("sample", lambda _: [], "has no samples"),
        ("sensor", lambda rows: rows[1:], "names the sensor"),
        ("log", lambda rows: rows[0].pop("location"), "log.json: row 1 has no 'location'"),
    ],
)
def test_what_is_wrong_with_tables_is_said_with_the_file(
    own_root: Path, name: str, edit: Callable[[Rows], Any], words: str
) -> None:
    def only_rows(rows: Rows) -> Rows | None:
        changed = edit(rows)
        return changed if isinstance(changed, list) else None

    change(own_root, name, only_rows)
    with pytest.raises(DataError, match=words) as caught:
        build_index(own_root, "v1.0-mini")
    assert "\n" not in str(caught.value)
    assert str(own_root / "v1.0-mini") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "new", "said"),
    [
        ("ego_pose", {"rotation": [0, 0, 0, 0]}, "ego_pose.json: row 1 cannot be used: .* length"),
        ("ego_pose", {"translation": None}, "ego_pose.json: row 1 cannot be used"),
        ("ego_pose", {"token": [1]}, "names the ego_pose .* which ego_pose.json lacks"),
        ("sample_annotation", {"size": [float("inf"), 1, 1]}, "not three lengths above 0"),
    ],
)
def test_rows_that_make_no_sense_are_named(
    own_root: Path, name: str, new: dict[str, Any], said: str
) -> None:
    change(own_root, name, lambda rows: [rows[0] | new, *rows[1:]])
    with pytest.raises(DataError, match=said):
        build_index(own_root, "v1.0-mini")


def test_an_image_without_height_and_width_is_named(own_root: Path) -> None:
    change(own_root, "sample_data", lambda rows: [row | {"height": None} for row in rows])
    with pytest.raises(DataError, match=r"the image samples/CAM.* has no height and width"):
        build_index(own_root, "v1.0-mini")


def test_a_principal_point_that_is_no_number_is_not_called_a_focal_length(own_root: Path) -> None:
    def spoil(rows: Rows) -> None:
        for row in rows:
            if row["camera_intrinsic"]:
                row["camera_intrinsic"][0][2] = float("nan")

    change(own_root, "calibrated_sensor", spoil)
    with pytest.raises(DataError, match="camera_intrinsic with numbers that are not finite"):
        build_index(own_root, "v1.0-mini")
