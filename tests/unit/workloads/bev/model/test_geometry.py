import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.kernels.splat import splat_reference
from pitstop.workloads.bev.model.geometry import (
    Cameras,
    Conventions,
    Frame,
    Lift,
    SplatGrid,
    cells_of,
    ground_points,
    lifted_points,
)

torch.set_num_threads(1)

YAWS = (0.0, -55.0, 55.0, 180.0, 110.0, -110.0)
EGO_GRID = SplatGrid(
    forward=(-51.2, 51.2, 0.4), across=(-51.2, 51.2, 0.4), height=(-10.0, 10.0, 20.0), frame="ego"
)
CAMERA_GRID = SplatGrid(
    forward=(1.0, 50.0, 0.5), across=(-25.0, 25.0, 0.5), height=(-10.0, 10.0, 20.0), frame="camera"
)
FORWARD_CAMERA = torch.tensor([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Axes of a camera that looks along the ego's x, in the ego frame."""


def camera_to_ego(yaw_deg: float, x: float = 0.0, y: float = 0.0, z: float = 1.5) -> Tensor:
    yaw = math.radians(yaw_deg)
    turn = torch.tensor(
        [[math.cos(yaw), -math.sin(yaw), 0.0], [math.sin(yaw), math.cos(yaw), 0.0], [0.0, 0.0, 1.0]]
    )
    matrix = torch.eye(4)
    matrix[:3, :3] = turn @ FORWARD_CAMERA
    matrix[:3, 3] = torch.tensor([x, y, z])
    return matrix


def six_cameras(
    image_transform: Tensor | None = None, bev_transform: Tensor | None = None
) -> Cameras:
    intrinsics = torch.tensor([[1266.0, 0.0, 816.0], [0.0, 1266.0, 491.0], [0.0, 0.0, 1.0]])
    transform = torch.eye(3) if image_transform is None else image_transform
    bev = torch.eye(4) if bev_transform is None else bev_transform
    ego = torch.stack([camera_to_ego(yaw, x=1.0 + 0.1 * i) for i, yaw in enumerate(YAWS)])
    return Cameras(
        intrinsics.expand(1, 6, 3, 3), ego[None], transform.expand(1, 6, 3, 3), bev[None]
    )


def scaled_and_turned(scale: float, angle_deg: float, shift: tuple[float, float]) -> Tensor:
    angle = math.radians(angle_deg)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return torch.tensor([[cos, -sin, shift[0]], [sin, cos, shift[1]], [0.0, 0.0, 1.0]])


def by_loop(cameras: Cameras, lift: Lift, grid: SplatGrid) -> tuple[np.ndarray, np.ndarray]:
    """Cells of all points in float64, one at a time, and how near an edge each point is."""
    mats = [np.asarray(matrix, dtype=np.float64) for matrix in cameras]
    axes = {"ego": (0, 1, 2), "camera": (2, 0, 1)}[grid.frame]
    cells, margins = [], []
    for b in range(mats[0].shape[0]):
        for n in range(mats[0].shape[1]):
            intrinsics, ego, image, bev = mats[0][b, n], mats[1][b, n], mats[2][b, n], mats[3][b]
            for row in range(lift.image_size[0] // lift.stride):
                for column in range(lift.image_size[1] // lift.stride):
                    seen = [(i + 0.5) * lift.stride - 0.5 for i in (column, row)]
                    original = np.linalg.solve(image, [*seen, 1.0])
                    ray = np.linalg.solve(intrinsics, original)
                    for k in range(lift.num_bins):
                        depth = lift.depth[0] + k * lift.depth[2]
                        point = bev @ ego @ np.array([*(ray * depth), 1.0])
                        cell, margin = cell_by_hand(point, grid, axes)
                        cells.append(cell if cell < 0 else b * grid.num_cells + cell)
                        margins.append(margin)
    return np.array(cells), np.array(margins)


def cell_by_hand(
    point: np.ndarray, grid: SplatGrid, axes: tuple[int, int, int]
) -> tuple[int, float]:
    places = []
    for axis, (start, _, step) in zip(axes, (grid.forward, grid.across, grid.height), strict=True):
        places.append((point[axis] - start) / step)
    margin = min(abs(place - round(place)) for place in places)
    up, rows, columns = grid.shape
    forward, across, height = (math.floor(place) for place in places)
    inside = 0 <= forward < rows and 0 <= across < columns and 0 <= height < up
    return (height * rows + forward) * columns + across if inside else -1, margin


@given(
    scale=st.floats(0.3, 1.1),
    angle_deg=st.floats(-6, 6),
    shift=st.tuples(st.floats(-200, 50), st.floats(-200, 50)),
    turn_deg=st.floats(-45, 45),
)
@settings(max_examples=10, deadline=None)
def test_every_point_lands_in_the_cell_of_a_slow_float64_loop(
    scale: float, angle_deg: float, shift: tuple[float, float], turn_deg: float
) -> None:
    bev = torch.eye(4)
    bev[:2, :2] = scaled_and_turned(1.05, turn_deg, (0, 0))[:2, :2]
    cameras = six_cameras(scaled_and_turned(scale, angle_deg, shift), bev)
    lift = Lift(image_size=(64, 96), stride=32, depth=(1.0, 60.0, 6.0))
    got = lifted_points(cameras, lift, EGO_GRID, with_plan=False).ranks_bev.numpy()
    want, margins = by_loop(cameras, lift, EGO_GRID)
    sure = margins > 1e-3
    assert sure.mean() > 0.9
    assert np.array_equal(got[sure], np.where(want < 0, EGO_GRID.num_cells, want)[sure])


@pytest.mark.parametrize("camera", range(6))
def test_a_known_place_in_the_world_is_found_by_the_camera_that_sees_it(camera: int) -> None:
    cameras = six_cameras()
    lift = Lift(image_size=(900, 1600), stride=4, depth=(1.0, 60.0, 0.5))
    place = np.array([12.0, 0.3, 0.0])
    yaw = math.radians(YAWS[camera])
    spin = np.array([[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]])
    place[:2] = spin @ place[:2] + np.array([1.0 + 0.1 * camera, 0.0])
    to_camera = np.linalg.inv(np.asarray(cameras.cam_to_ego[0, camera], dtype=np.float64))
    seen = to_camera @ np.array([*place, 1.0])
    u, v, depth = *(seen[:2] / seen[2] * 1266 + (816, 491)), seen[2]
    row, column = (round((pixel - 1.5) / 4) for pixel in (v, u))
    k = round((depth - 1) * 2)
    intrinsics, ego, image, bev = cameras
    chosen = slice(camera, camera + 1)
    alone = Cameras(intrinsics[:, chosen], ego[:, chosen], image[:, chosen], bev)
    points = ground_points(alone, lift)
    got = points[0, 0, row, column, k]
    assert torch.allclose(got, torch.from_numpy(place).float(), atol=0.05)
    cell = int(cells_of(got[None], EGO_GRID))
    ahead, left = (math.floor((float(got[axis]) + 51.2) / 0.4) for axis in (0, 1))
    assert cell == ahead * 256 + left


def test_a_camera_alone_counts_rows_ahead_and_columns_to_the_right() -> None:
    intrinsics = torch.tensor([[100.0, 0.0, 50.0], [0.0, 100.0, 50.0], [0.0, 0.0, 1.0]])
    here, image = torch.eye(4)[None], torch.eye(3)[None, None]
    cameras = Cameras(intrinsics[None, None], here[None], image, here)
    points = torch.tensor([[3.2, 0.0, 10.1]])
    assert int(cells_of(points, CAMERA_GRID)) == 18 * 100 + 56
    lift = Lift(image_size=(100, 100), stride=20, depth=(1.0, 50.0, 1.0))
    found = ground_points(cameras, lift)[0, 0, 2, 4, 9]
    # Column 4 looks from pixel 89.5, at depth 10.
    assert torch.allclose(found, torch.tensor([3.95, -0.05, 10.0]), atol=1e-5)


def test_the_even_spread_of_published_code_is_up_to_a_feature_off() -> None:
    cameras = six_cameras()
    lift = Lift(image_size=(600, 800), stride=32, depth=(1.0, 2.0, 1.0))
    right, spread = (
        ground_points(cameras, lift, Conventions(pixels=pixels))[0, 0, -1, 0, 0, 2]
        for pixels in ("centre", "linspace")
    )
    # The last of 18 rows: 599 instead of 559.5, through a focal length of 1266 pixels.
    assert float(right - spread) == pytest.approx(39.5 / 1266, abs=1e-6)


@pytest.mark.parametrize(("rounding", "cell"), [("floor", 65536), ("trunc", 128 * 256)])
def test_only_truncation_lets_a_point_below_the_edge_in(rounding: str, cell: int) -> None:
    conventions = Conventions(rounding="floor" if rounding == "floor" else "trunc")
    point = torch.tensor([[0.1, -51.4, 0.0]])
    assert int(cells_of(point, EGO_GRID, conventions)) == cell


def test_the_other_order_of_axes_is_the_transpose() -> None:
    points = torch.rand(1, 50, 3) * 80 - 40
    frame: Frame = "ego"
    grid = SplatGrid(
        forward=(-30, 30, 1.0), across=(-20, 20, 0.5), height=(-40, 40, 40), frame=frame
    )
    pictures = []
    for rows, shape in (("forward", (2, 60, 80)), ("across", (2, 80, 60))):
        conventions = Conventions(rows="forward" if rows == "forward" else "across")
        counts = torch.zeros(grid.num_cells + 1)
        counts.index_add_(0, cells_of(points, grid, conventions)[0].long(), torch.ones(50))
        pictures.append(counts[:-1].view(shape))
    assert torch.equal(pictures[0], pictures[1].transpose(1, 2))


def test_what_is_no_number_lies_outside() -> None:
    points = torch.tensor([[float("nan"), 0.0, 0.0], [float("inf"), 0.0, 0.0], [1e30, 0.0, 0.0]])
    assert cells_of(points[None], EGO_GRID).tolist() == [[65536] * 3]


def test_samples_of_a_batch_never_meet() -> None:
    one = six_cameras()
    two = Cameras(*(torch.cat([matrix, matrix]) for matrix in one))
    lift = Lift(image_size=(64, 96), stride=16, depth=(1.0, 60.0, 2.0))
    single = lifted_points(one, lift, EGO_GRID, with_plan=False).ranks_bev
    batch = lifted_points(two, lift, EGO_GRID, with_plan=False)
    first, second = batch.ranks_bev.view(2, -1)
    inside = single < EGO_GRID.num_cells
    assert torch.equal(first[inside], single[inside])
    assert torch.equal(second[inside], single[inside] + EGO_GRID.num_cells)
    assert bool((batch.ranks_bev.view(2, -1)[:, ~inside] == 2 * EGO_GRID.num_cells).all())
    feat = torch.ones(int(batch.ranks_feat.max()) + 1, 1)
    depth = torch.ones(batch.ranks_depth.numel())
    sums = splat_reference(depth, feat, *batch[:3], 2 * EGO_GRID.num_cells)
    assert float(sums.sum()) == 2 * int(inside.sum())


def test_places_keep_float32_under_autocast() -> None:
    cameras = six_cameras()
    lift = Lift(image_size=(64, 96), stride=32, depth=(1.0, 60.0, 6.0))
    plain = ground_points(cameras, lift)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ground_points(cameras, lift), plain)


def test_where_points_go_is_found_in_one_graph() -> None:
    cameras = six_cameras()
    lift = Lift(image_size=(64, 96), stride=32, depth=(1.0, 60.0, 6.0))

    def locate(cameras: Cameras) -> tuple[Tensor, Tensor]:
        points = lifted_points(cameras, lift, EGO_GRID, with_plan=True)
        assert points.plan is not None
        return points.ranks_bev, points.plan.pairs.points

    compiled = torch.compile(locate, fullgraph=True, backend="aot_eager")
    for mine, plain in zip(compiled(cameras), locate(cameras), strict=True):
        assert torch.equal(mine, plain)
