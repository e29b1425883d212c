"""Cells of shapes against a test of every cell by itself."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.workloads.bev.data.raster import (
    Drawing,
    Grid,
    Mask,
    Paths,
    Shape,
    line_strips,
    mark_around,
    rings,
)
from tests.unit.workloads.bev.raster_oracle import filled as filled_alone
from tests.unit.workloads.bev.raster_oracle import filled_inner as inner_alone
from tests.unit.workloads.bev.raster_oracle import star

SHAPE = (12, 14)


def fill(shape: Shape, outlines: Paths) -> Mask:
    drawing = Drawing(shape)
    drawing.add(outlines, drawing.layer())
    return drawing.draw()[0]


FEW = settings(max_examples=60, deadline=None)

nodes = st.tuples(st.integers(-10, 22), st.integers(-10, 24))
triangles = st.lists(nodes, min_size=3, max_size=3, unique=True)


def fill_inner(shape: Shape, outlines: Paths) -> np.ndarray:
    """Mark the cells inside rings, without those that a ring passes."""
    drawing = Drawing(shape)
    drawing.add(outlines, drawing.layer(inner=True))
    return drawing.draw()[0]


def draw_lines(shape: Shape, lines: Paths, *, thickness: float) -> np.ndarray:
    """Mark the cells of lines that are so many cells wide."""
    drawing = Drawing(shape)
    strips, ends = line_strips(lines, thickness=thickness)
    drawing.add(strips, drawing.layer())
    mask = drawing.draw()[0]
    mark_around(mask, ends, radius=thickness / 2)
    return mask


def is_inside(ring: np.ndarray, point: tuple[float, float]) -> bool:
    """Count the edges that a ray to the right crosses."""
    crossed = False
    for (r0, c0), (r1, c1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if (r0 > point[0]) != (r1 > point[0]):
            crossed ^= point[1] < c0 + (point[0] - r0) * (c1 - c0) / (r1 - r0)
    return crossed


def distance(start: np.ndarray, end: np.ndarray, point: tuple[float, float]) -> float:
    way = end - start
    square = float(way @ way)
    share = 0.0 if square == 0 else float(np.clip((point - start) @ way / square, 0, 1))
    return float(np.linalg.norm(point - start - share * way))


def nearest_edge(ring: np.ndarray, point: tuple[float, float]) -> float:
    edges = zip(ring, np.roll(ring, -1, axis=0), strict=True)
    return min(distance(start, end, point) for start, end in edges)


def cells() -> list[tuple[int, int]]:
    return [(row, column) for row in range(SHAPE[0]) for column in range(SHAPE[1])]


@FEW
@given(st.lists(nodes, min_size=3, max_size=9, unique=True))
def test_cells_are_filled_as_a_test_of_each_says(points: list[tuple[int, int]]) -> None:
    ring = star(points)
    filled, inner = fill(SHAPE, rings(ring[None])), fill_inner(SHAPE, rings(ring[None]))
    assert not (inner & ~filled).any()
    for cell in cells():
        if nearest_edge(ring, cell) > 1:
            assert filled[cell] == inner[cell] == is_inside(ring, cell)


@FEW
@given(st.lists(triangles, max_size=5), st.booleans())
def test_rings_are_filled_together_as_one_by_one(
    shapes: list[list[tuple[int, int]]], mirrored: bool
) -> None:
    corners = np.array([star(shape) for shape in shapes], float).reshape(-1, 3, 2)
    if mirrored:
        corners[::2] = corners[::2, ::-1]
    alone = np.zeros(SHAPE, np.bool_)
    for corner in corners:
        alone |= fill(SHAPE, rings(corner[None]))
    np.testing.assert_array_equal(fill(SHAPE, rings(corners)), alone)


halves = st.tuples(st.integers(-20, 44), st.integers(-20, 48)).map(
    lambda node: (node[0] / 2, node[1] / 2)
)


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.lists(halves, max_size=6)), max_size=6),
)
def test_layers_drawn_at_once_are_those_of_each_ring_by_itself(
    inner: list[bool], shapes: list[tuple[int, list[tuple[float, float]]]]
) -> None:
    drawing = Drawing(SHAPE)
    layers = [drawing.layer(inner=is_inner) for is_inner in inner]
    expected = np.zeros((len(inner), *SHAPE), np.bool_)
    taken = set()
    for number, points in shapes:
        layer = layers[number % len(layers)]
        # What a ring leaves out for passing, another one of its layer may have inside.
        if inner[layer] and layer in taken:
            continue
        taken.add(layer)
        ring = star(points)[:: 1 - 2 * (number % 2)]
        drawing.add(Paths(points=ring, starts=np.array([0, len(ring)])), layer)
        expected[layer] |= (inner_alone if inner[layer] else filled_alone)(SHAPE, ring)
    np.testing.assert_array_equal(drawing.draw(), expected)


def test_a_rectangle_has_the_cells_of_its_edges() -> None:
    box = np.array([[(3, 4), (3, 9), (7, 9), (7, 4)]], float)
    filled = fill(SHAPE, rings(box))
    expected = np.zeros(SHAPE, np.bool_)
    expected[3:8, 4:10] = True
    np.testing.assert_array_equal(filled, expected)
    expected[...] = False
    expected[4:7, 5:9] = True
    np.testing.assert_array_equal(fill_inner(SHAPE, rings(box)), expected)


def test_what_lies_outside_leaves_no_cells() -> None:
    beyond = np.array([[(-9, 20), (-9, 30), (-2, 30), (-2, 20)]], float)
    assert not fill(SHAPE, rings(beyond)).any()
    around = np.array([[(-9, -9), (-9, 99), (99, 99), (99, -9)]], float)
    assert fill(SHAPE, rings(around)).all()
    assert not fill(SHAPE, rings(np.zeros((0, 4, 2)))).any()


@FEW
@given(st.lists(nodes, min_size=2, max_size=5), st.sampled_from([2.0, 3.0]))
def test_lines_have_the_cells_near_them(points: list[tuple[int, int]], thickness: float) -> None:
    line = np.array(points, float)
    paths = Paths(points=line, starts=np.array([0, len(line)]))
    drawn = draw_lines(SHAPE, paths, thickness=thickness)
    for cell in cells():
        near = min(distance(start, end, cell) for start, end in pairwise(line))
        if len(set(points)) > 1 and near < thickness / 2 - 1e-9:
            assert drawn[cell]
        if near > thickness / 2 + 1:
            assert not drawn[cell]


def test_a_line_of_two_cells_is_drawn_as_the_benchmarks_draw_it() -> None:
    """Cells that OpenCV draws for thickness 2, written down."""
    expected = """
    ...#.....
    ..###....
    ..###....
    ..###....
    ..###....
    ...##....
    ...###...
    ...###...
    ...###...
    ...###...
    ....#....
    """
    paths = Paths(points=np.array([[1.0, 3.0], [9.0, 4.0]]), starts=np.array([0, 2]))
    drawn = draw_lines((11, 9), paths, thickness=2)
    assert ["".join(".#"[cell] for cell in row.astype(int)) for row in drawn] == expected.split()


def test_lines_do_not_join_and_paths_are_taken_in_order() -> None:
    paths = Paths(
        points=np.array([[1, 1], [1, 5], [5, 5], [10, 8], [10, 12]], float),
        starts=np.array([0, 2, 3, 5]),
    )
    assert not draw_lines(SHAPE, paths, thickness=2)[4:8].any()
    taken = paths.take(np.array([2, 0]))
    assert taken.starts.tolist() == [0, 2, 4]
    assert taken.points.tolist() == [[10, 8], [10, 12], [1, 1], [1, 5]]


def test_a_grid_counts_cells_from_its_lower_edges() -> None:
    grid = Grid(forward=(1.0, 50.0, 0.25), across=(-25.0, 25.0, 0.25))
    assert grid.shape == (196, 200)
    np.testing.assert_allclose(grid.cells(np.array([1.0, -25.0])), [0, 0])
    np.testing.assert_allclose(grid.cells(np.array([2.0, 0.0])), [4, 100])
    forward, across = grid.centres()
    assert forward[0] == pytest.approx(1.125)
    assert across[-1] == pytest.approx(24.875)
