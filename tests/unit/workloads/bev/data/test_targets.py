"""Targets against the world they are drawn from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.workloads.bev.data.augment import Chance, random_ground
from pitstop.workloads.bev.data.index import BevIndex
from pitstop.workloads.bev.data.maps import CityMap, MapLayer
from pitstop.workloads.bev.data.poses import inverse, moved
from pitstop.workloads.bev.data.raster import Grid, Paths
from pitstop.workloads.bev.data.stored import open_index, open_map
from pitstop.workloads.bev.data.targets import (
    MAP_CLASSES,
    SURROUND_CLASSES,
    SURROUND_GRID,
    GroundDrawing,
    Plane,
    surround_targets,
    visible_boxes,
)
from pitstop.workloads.bev.synthetic.make import PLACES, VERSION
from pitstop.workloads.bev.synthetic.world import ASPHALT, CARPARK, GRASS, WALKWAY, City
from tests.unit.workloads.bev.raster_oracle import filled, filled_inner, star

# Drawn at random, and with a mirror in it.
TRANSFORMS = [np.eye(4), random_ground(Chance(1)), random_ground(Chance(2))]


@pytest.fixture(scope="module")
def index(world_root: Path) -> BevIndex:
    return open_index(world_root, VERSION)


def targets(
    root: Path, index: BevIndex, sample: int, transform: np.ndarray, min_visibility: int = 1
) -> np.ndarray:
    city = open_map(root, index.location(sample))
    return surround_targets(
        index, city, sample, bev_transform=transform, min_visibility=min_visibility
    )


def test_some_transforms_mirror() -> None:
    signs = {float(np.sign(np.linalg.det(matrix[:2, :2]))) for matrix in TRANSFORMS}
    assert signs == {1.0, -1.0}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_cell_of_a_vehicles_centre_is_set(
    world_root: Path, index: BevIndex, transform: np.ndarray
) -> None:
    vehicle = targets(world_root, index, 0, transform)[SURROUND_CLASSES.index("vehicle")]
    boxes = visible_boxes(index, 0, ("vehicle.car", "vehicle.truck"), min_visibility=1)
    there = transform @ inverse(index.ego_to_world(0))
    at = SURROUND_GRID.cells(moved(there, index.box_pose[boxes, :3])[:, :2])
    inside = at[((at > 3) & (at < 197)).all(axis=1)].astype(int)
    assert len(inside) > 5
    assert vehicle[inside[:, 0], inside[:, 1]].all()
    # Far fewer cells than boxes and their rims could have.
    assert vehicle.mean() < 0.2


def ground_kinds(index: BevIndex, sample: int, transform: np.ndarray) -> np.ndarray:
    """Look up what the plan of the city has at the middle of every cell."""
    forward, across = SURROUND_GRID.centres()
    grid = np.stack(np.meshgrid(forward, across, indexing="ij"), axis=-1).reshape(-1, 2)
    # The transform without its height: only the ground matters here.
    flat = np.eye(3)
    flat[:2, :2], flat[:2, 2] = transform[:2, :2], transform[:2, 3]
    ground = np.concatenate((grid, np.ones((len(grid), 1))), axis=1) @ np.linalg.inv(flat).T
    ground[:, 2] = 0
    world = moved(index.ego_to_world(sample), ground)
    city = City(9, PLACES.index(index.location(sample)))
    return city.look(*world[:, :2].astype(np.float32).T)[0].reshape(SURROUND_GRID.shape)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_classes_lie_where_the_ground_looks_like_them(
    world_root: Path, index: BevIndex, transform: np.ndarray
) -> None:
    """The plan's raster was painted by other code than the map's outlines were drawn by."""
    samples = (0, len(index) - 1)
    masks = np.stack([targets(world_root, index, number, transform) for number in samples])
    kinds = np.stack([ground_kinds(index, number, transform) for number in samples])
    for name, kind in (("walkway", WALKWAY), ("carpark_area", CARPARK), ("drivable_area", ASPHALT)):
        mask, truth = masks[:, SURROUND_CLASSES.index(name)], kinds == kind
        assert truth.sum() > 100
        assert (mask & truth).sum() / truth.sum() > 0.9, name
        assert (mask & (kinds == GRASS)).sum() / mask.sum() < 0.2, name


def test_a_filter_leaves_hidden_vehicles_out(world_root: Path, index: BevIndex) -> None:
    areas = [
        targets(world_root, index, 0, np.eye(4), min_visibility=least)[-1] for least in (1, 2, 4)
    ]
    assert areas[0].sum() > areas[1].sum() > areas[2].sum() > 0
    assert not (areas[1] & ~areas[0]).any()
    boxes = visible_boxes(index, 0, ("vehicle",), min_visibility=4)
    assert set(index.box_visibility[boxes].tolist()) == {4}


def test_a_box_whose_visibility_nobody_stated_counts(index: BevIndex) -> None:
    changed = replace(index, box_visibility=np.zeros_like(index.box_visibility))
    every = visible_boxes(index, 0, ("vehicle",), min_visibility=1)
    np.testing.assert_array_equal(visible_boxes(changed, 0, ("vehicle",), min_visibility=4), every)


def test_a_part_of_the_grid_is_drawn_as_the_whole(world_root: Path, index: BevIndex) -> None:
    """What lies outside a grid does not change what is inside, holes at its edge apart."""
    city = open_map(world_root, index.location(0))
    part = Grid(forward=(-25.0, 25.0, 0.5), across=(-25.0, 25.0, 0.5))
    classes = [name for name in MAP_CLASSES if name != "walkway"]
    whole, small = (
        surround_targets(index, city, 0, grid=grid, classes=classes, bev_transform=np.eye(4))
        for grid in (SURROUND_GRID, part)
    )
    np.testing.assert_array_equal(whole[:, 50:150, 50:150], small)


FLAT = Grid(forward=(0.0, 14.0, 1.0), across=(0.0, 16.0, 1.0))
corners = st.tuples(st.integers(-6, 20), st.integers(-6, 22))
simple = st.lists(corners, min_size=3, max_size=6).map(star)
polygons = st.lists(st.lists(simple, min_size=1, max_size=3), max_size=4)


def layer_of(shapes: list[list[np.ndarray]]) -> MapLayer:
    """Make a layer of polygons, each an outline and its holes."""
    paths = [path for shape in shapes for path in shape]
    outlines = [shape[0] for shape in shapes]
    return MapLayer(
        paths=Paths(
            points=np.concatenate([np.zeros((0, 2)), *paths]),
            starts=np.cumsum([0, *map(len, paths)]),
        ),
        first_path=np.cumsum([0, *map(len, shapes)]),
        bounds=np.array([(*ring.min(axis=0), *ring.max(axis=0)) for ring in outlines]).reshape(
            -1, 4
        ),
    )


@given(polygons, polygons)
def test_holes_are_taken_from_their_own_polygon(
    first: list[list[np.ndarray]], second: list[list[np.ndarray]]
) -> None:
    plane = Plane(matrix=np.eye(2), shift=np.zeros(2))
    drawing = GroundDrawing.of(plane, FLAT, 2)
    expected = np.zeros((2, *FLAT.shape), np.bool_)
    for place, shapes in enumerate((first, second)):
        drawing.add_map(CityMap(layers={"walkway": layer_of(shapes)}), "walkway", place)
        for outline, *holes in shapes:
            mask = filled(FLAT.shape, outline)
            for hole in holes:
                is_whole = (hole >= 0).all() and (hole <= FLAT.shape).all()
                mask &= ~(filled if is_whole else filled_inner)(FLAT.shape, hole)
            expected[place] |= mask
    np.testing.assert_array_equal(drawing.draw(), expected)
