"""Labels of one camera: bits, what is seen, and which way round."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pitstop.errors import DataError
from pitstop.workloads.bev.data.index import CAMERAS
from pitstop.workloads.bev.data.pon import (
    PON_CLASSES,
    PON_GRID,
    in_view,
    make_labels,
    reached,
    read_labels,
    read_points,
    write_labels,
)
from pitstop.workloads.bev.data.poses import inverse, moved
from pitstop.workloads.bev.data.stored import open_index, open_map
from pitstop.workloads.bev.synthetic.make import PLACES
from pitstop.workloads.bev.synthetic.world import WALKWAY, City


@given(st.integers(0, 2**32 - 1))
@settings(
    max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_labels_come_back_as_they_were_written(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    classes = random.random((14, *PON_GRID.shape)) < 0.3
    seen = random.random(PON_GRID.shape) < 0.5
    write_labels(tmp_path / "a.png", (classes, seen))
    found_classes, found_seen = read_labels(tmp_path / "a.png")
    np.testing.assert_array_equal(found_classes, classes)
    np.testing.assert_array_equal(found_seen, seen)


def test_bits_mean_what_the_benchmark_says(tmp_path: Path) -> None:
    bits = np.zeros(PON_GRID.shape, np.uint16)
    bits[3, 7] = 1 << 4 | 1 << 14
    bits[5, 1] = 1 << 13
    Image.fromarray(bits).save(tmp_path / "a.png")
    classes, seen = read_labels(tmp_path / "a.png")
    assert np.argwhere(classes).tolist() == [[4, 3, 7], [13, 5, 1]]
    assert np.argwhere(~seen).tolist() == [[3, 7]]
    assert (PON_CLASSES[4], PON_CLASSES[13], len(PON_CLASSES)) == ("car", "barrier", 14)


def test_files_that_are_no_labels_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(DataError, match=r"no labels at .*a\.png"):
        read_labels(path)
    Image.fromarray(np.zeros((98, 100), np.uint16)).save(path)
    with pytest.raises(DataError, match="has 98x100 cells; labels must have 196x200"):
        read_labels(path)
    Image.fromarray(np.full(PON_GRID.shape, 1 << 15, np.uint16)).save(path)
    with pytest.raises(DataError, match="above 15 bits"):
        read_labels(path)
    path.write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"a\.png is damaged"):
        read_labels(path)


def test_the_field_of_view_is_a_wedge_between_the_images_edges() -> None:
    matrix = np.array([[100.0, 0, 50], [0, 100.0, 40], [0, 0, 1]])
    seen = in_view(matrix, 101, PON_GRID)
    forward, across = PON_GRID.centres()
    for row in (0, 90, 195):
        wide = np.abs(across / forward[row]) <= 0.505
        np.testing.assert_array_equal(seen[row], wide)


def test_cells_behind_the_deepest_point_of_their_bearing_are_not_seen() -> None:
    wall = np.array([[x, 0.0, 20.0] for x in np.arange(-12, 12, 0.05)])
    seen = reached(wall, PON_GRID)
    forward, across = PON_GRID.centres()
    assert seen[np.ix_(forward < 19.9, np.abs(across) < 0.4)].all()
    assert not seen[forward > 20.1].any()
    # Nothing was met to the far right, so nothing is known of it.
    assert not seen[np.ix_(forward < 10, across > 12)].any()


def test_points_come_in_fives(tmp_path: Path) -> None:
    path = tmp_path / "a.pcd.bin"
    with pytest.raises(DataError, match="cannot read"):
        read_points(path)
    np.arange(10, dtype="<f4").tofile(path)
    assert read_points(path).tolist() == [[0, 1, 2], [5, 6, 7]]
    np.arange(9, dtype="<f4").tofile(path)
    with pytest.raises(DataError, match="five numbers"):
        read_points(path)


def test_cars_lie_ahead_of_the_camera_on_their_own_side(world_root: Path) -> None:
    index = open_index(world_root, "v1.0-mini")
    compared = 0
    for slot in range(len(CAMERAS)):
        classes, _ = make_labels(
            index, open_map(world_root, index.location(0)), 0, slot, points=None
        )
        camera = index.sensor_to_ego[index.calibration[0, slot]]
        to_camera = inverse(index.ego_to_world(0, slot) @ camera)
        boxes = np.arange(index.first_box[0], index.first_box[1])
        cars = boxes[index.categories[index.box_category[boxes]] == "vehicle.car"]
        at = PON_GRID.cells(moved(to_camera, index.box_pose[cars, :3])[:, [2, 0]])
        inside = at[((at > 4) & (at < np.array(PON_GRID.shape) - 4)).all(axis=1)].astype(int)
        assert classes[PON_CLASSES.index("car"), inside[:, 0], inside[:, 1]].all()
        compared += len(inside)
    assert compared > 5


def test_the_map_lies_ahead_as_the_ground_looks(world_root: Path) -> None:
    """The plan's raster was painted by other code than the map's outlines were drawn by."""
    index = open_index(world_root, "v1.0-mini")
    place = index.location(0)
    city = City(9, PLACES.index(place))
    forward, across = PON_GRID.centres()
    both = truth = mask = 0
    for slot in range(len(CAMERAS)):
        classes, _ = make_labels(index, open_map(world_root, place), 0, slot, points=None)
        to_world = index.ego_to_world(0, slot) @ index.sensor_to_ego[index.calibration[0, slot]]
        right, ahead = (to_world[:2, axis] / np.linalg.norm(to_world[:2, axis]) for axis in (0, 2))
        ground = to_world[:2, 3] + forward[:, None, None] * ahead + across[:, None] * right
        x, y = ground.reshape(-1, 2).astype(np.float32).T
        is_walkway = city.look(x, y)[0].reshape(PON_GRID.shape) == WALKWAY
        labelled = classes[PON_CLASSES.index("walkway")]
        both += int((labelled & is_walkway).sum())
        truth += int(is_walkway.sum())
        mask += int(labelled.sum())
    assert both / truth > 0.93
    assert both / mask > 0.8


def test_lidar_points_only_take_cells_away(world_root: Path) -> None:
    index = open_index(world_root, "v1.0-mini")
    city = open_map(world_root, index.location(0))
    front = CAMERAS.index("CAM_FRONT")
    points = read_points(world_root / index.file(0, -1))
    _, wedge = make_labels(index, city, 0, front, points=None)
    _, seen = make_labels(index, city, 0, front, points=points)
    assert not (seen & ~wedge).any()
    assert 0.2 * wedge.sum() < seen.sum() < wedge.sum()
