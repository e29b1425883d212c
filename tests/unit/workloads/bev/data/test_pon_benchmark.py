"""Labels by the rules of the benchmark: rounded corners, convex fill, rays, what hides cells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.workloads.bev.data.convex_fill import (
    begun_as_published,
    cut_to_rectangle,
    fill_convex,
    signed_area,
)
from pitstop.workloads.bev.data.pon import PON_CLASSES, PON_GRID, make_labels, read_points
from pitstop.workloads.bev.data.pon_benchmark import (
    DETECTED,
    benchmark_labels,
    beyond_rays,
    corner_in_view,
)
from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Mask
from pitstop.workloads.bev.data.stored import open_index, open_map


def inside(points: Floats, rings: list[Floats]) -> Mask:
    """Whether points (N, 2) are inside an odd number of rings, by a ray to the right."""
    found = np.zeros(len(points), np.bool_)
    x, y = points[:, 0], points[:, 1]
    for ring in rings:
        for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            if y0 == y1:
                continue
            crosses = (y0 > y) != (y1 > y)
            found ^= crosses & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return found


def hull(points: Floats) -> Floats:
    """The corners of the smallest convex polygon around points, by turning."""
    start = min(range(len(points)), key=lambda place: tuple(points[place]))
    order = [start]
    while True:
        here, best = points[order[-1]], (order[-1] + 1) % len(points)
        for place in range(len(points)):
            one, other = points[best] - here, points[place] - here
            turn = one[0] * other[1] - one[1] * other[0]
            if turn < 0 or (turn == 0 and (other**2).sum() > (one**2).sum()):
                best = place
        if best == start:
            return points[order]
        order.append(best)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_convex_polygon_is_filled_to_within_a_cell(seed: int) -> None:
    random = np.random.default_rng(seed)
    points = np.unique(random.integers(-15, 45, (6, 2)), axis=0)
    corners = hull(points.astype(np.float64))
    if len(corners) < 3:
        return
    mask = np.zeros((30, 34), np.bool_)
    fill_convex(mask, corners.astype(np.int64))
    rows, columns = np.indices(mask.shape)
    cells = np.stack((columns.ravel(), rows.ravel()), axis=1).astype(np.float64)
    shrunk = inside(cells, [corners]).reshape(mask.shape)
    assert not (shrunk & ~mask).any()
    filled = cells[mask.ravel()]
    assert signed_area(corners) > 0
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        edge = (end - start) / np.linalg.norm(end - start)
        away = edge[0] * (filled - start)[:, 1] - edge[1] * (filled - start)[:, 0]
        # A line that is cut at the mask's edge starts anew at a whole cell.
        assert (away >= -1.5).all()


def test_a_dent_is_filled_as_if_it_were_not_there() -> None:
    """Rows between the two chains are filled whole, which a true fill would not do."""
    valley = np.array([[0, 0], [10, 0], [10, 10], [5, 2], [0, 10]])
    mask = np.zeros((11, 11), np.bool_)
    fill_convex(mask, valley)
    assert mask[1].all()
    assert mask[:, 0].all()
    true = inside(np.array([[5.0, 6.0]]), [valley.astype(np.float64)])
    assert not true[0]
    assert mask[6, 5]


def test_holes_are_taken_out_and_single_cells_are_drawn() -> None:
    mask = np.zeros((8, 8), np.bool_)
    fill_convex(mask, np.array([[0, 0], [7, 0], [7, 7], [0, 7]]))
    assert mask.all()
    fill_convex(mask, np.array([[2, 2], [5, 2], [5, 5], [2, 5]]), value=False)
    assert mask.sum() == 64 - 16
    point = np.zeros((8, 8), np.bool_)
    fill_convex(point, np.array([[3, 4]]))
    assert np.argwhere(point).tolist() == [[4, 3]]


def star(random: np.random.Generator, centre: Floats, least: float, most: float) -> Floats:
    angles = np.sort(random.uniform(0, 2 * np.pi, 9))
    radii = random.uniform(least, most, 9)
    return centre + radii[:, None] * np.stack((np.cos(angles), np.sin(angles)), axis=1)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_polygon_with_holes_is_cut_to_a_rectangle(seed: int) -> None:
    random = np.random.default_rng(seed)
    centre = random.uniform(-3, 13, 2)
    rings = [star(random, centre, 4, 12), star(random, centre, 0.5, 2)]
    low, high = np.array([0.0, 0.0]), np.array([10.0, 8.0])
    pieces = cut_to_rectangle(rings, low, high)
    points = random.uniform(-5, 15, (400, 2))
    within = ((points > low) & (points < high)).all(axis=1)
    np.testing.assert_array_equal(inside(points, pieces), inside(points, rings) & within)
    for piece in pieces:
        assert (piece >= low - 1e-9).all()
        assert (piece <= high + 1e-9).all()


def test_a_comb_falls_into_pieces() -> None:
    comb = np.array([[0, 4], [0, 0], [1, 0], [1, 3], [2, 3], [2, 0], [3, 0], [3, 4]], np.float64)
    pieces = cut_to_rectangle([comb], np.array([-1.0, 0.5]), np.array([9.0, 2.0]))
    assert sorted(round(signed_area(piece), 6) for piece in pieces) == [1.5, 1.5]


def test_a_fill_ends_where_both_chains_have_used_up_the_edges() -> None:
    """As OpenCV 5.0 fills these corners, the last of which occurs twice."""
    mask = np.zeros((8, 8), np.bool_)
    fill_convex(mask, np.array([[2, 7], [4, 1], [7, 7], [6, 1], [6, 5], [6, 5]]))
    rows = ["".join(".#"[cell] for cell in row) for row in mask.astype(int)]
    assert rows == [
        "........",
        "....#.#.",
        "....###.",
        "...####.",
        "...####.",
        "...#####",
        "..######",
        "..##...#",
    ]


@pytest.mark.parametrize(
    ("rightward", "first_corner", "expected"),
    [
        (False, 0, [0, 8]),
        (True, 0, [3, 4]),
        (False, 3, [0, 8]),
        (True, 2, [7, 3]),
    ],
)
def test_a_cut_outline_begins_where_geos_begins_it(
    *, rightward: bool, first_corner: int, expected: list[int]
) -> None:
    """Expected is what Shapely 1.8 and 2.2 gave for the outline cut to the rectangle."""
    outline = np.array([[0, 0], [12, 1], [12, 8], [7, 3], [5, 9], [3, 4], [0, 8]], np.float64)
    outline = np.roll(outline[::-1] if rightward else outline, -first_corner, axis=0)
    [cut] = cut_to_rectangle([outline], np.array([-1.0, 2.0]), np.array([10.0, 20.0]))
    begun = begun_as_published(cut, [outline])
    going_round = [[0, 8], [3, 4], [5, 9], [7, 3], [10, 6], [10, 2], [0, 2]]
    place = going_round.index(expected)
    np.testing.assert_allclose(begun, [*going_round[place:], *going_round[: place + 1]])


def test_a_hole_that_is_not_cut_begins_at_the_corner_before_its_first() -> None:
    outline = np.array([[0, 0], [12, 0], [12, 8], [0, 8]], np.float64)
    hole = np.array([[4, 1], [4, 2.5], [5, 2.5], [5, 1]])
    rings = [outline, hole]
    cut = cut_to_rectangle(rings, np.array([-1.0, -1.0]), np.array([20.0, 20.0]))
    [inner] = [ring for ring in cut if signed_area(ring) < 0]
    expected = [[5, 1], [5, 2.5], [4, 2.5], [4, 1], [5, 1]]
    np.testing.assert_allclose(begun_as_published(inner, rings), expected)


def test_rays_are_as_wide_as_a_cell_at_the_far_end() -> None:
    hidden = beyond_rays(np.array([[0.0, 1.5, 20.0]]), PON_GRID)
    row, column = 40, 100  # 11 m ahead, in the middle
    assert not hidden[row, column]
    assert hidden[:, :95].all()
    assert hidden[77:, column].all()  # beyond 20 m
    assert not hidden[76, column]


def test_a_cell_is_seen_by_its_near_left_corner() -> None:
    matrix = np.array([[100.0, 0, 50], [0, 100.0, 40], [0, 0, 1]])
    seen = corner_in_view(matrix, 100, PON_GRID)
    forward, across = 1 + 0.25 * np.arange(196), -25 + 0.25 * np.arange(200)
    column = 100 * across[None] / forward[:, None] + 50
    np.testing.assert_array_equal(seen, (column >= 0) & (column < 100))


@pytest.mark.parametrize("slot", [0, 3])
def test_labels_of_a_world_are_near_those_of_geometry(world_root: Path, slot: int) -> None:
    index = open_index(world_root, "v1.0-mini")
    city = open_map(world_root, index.location(0))
    points = read_points(world_root / index.file(0, -1))
    mine, seen = benchmark_labels(index, city, 0, slot, points=points)
    true, _ = make_labels(index, city, 0, slot, points=points)
    assert mine.shape == (14, 196, 200)
    drivable = PON_CLASSES.index("drivable_area")
    assert (mine[drivable] & true[drivable]).sum() > 0.98 * (mine[drivable] | true[drivable]).sum()
    assert 0 < seen.sum() < seen.size


def test_only_categories_of_the_detection_task_are_classes() -> None:
    assert set(DETECTED.values()) == set(PON_CLASSES[4:])
    assert "human.pedestrian.stroller" not in DETECTED
    assert "vehicle.emergency.police" not in DETECTED


def test_a_box_of_another_category_hides_what_lies_under_it(world_root: Path) -> None:
    index = open_index(world_root, "v1.0-mini")
    city = open_map(world_root, index.location(0))
    unknown = replace(index, categories=np.array(["animal"] * len(index.categories)))
    classes, seen = benchmark_labels(unknown, city, 0, 0, points=None)
    plain, before = benchmark_labels(index, city, 0, 0, points=None)
    assert not classes[4:].any()
    standing = plain[4:].any(axis=0) & before
    assert standing.any()
    np.testing.assert_array_equal(seen, before & ~plain[4:].any(axis=0))
