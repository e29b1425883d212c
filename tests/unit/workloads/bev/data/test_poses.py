"""Rotations against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pitstop.workloads.bev.data.poses import inverse, moved, pose, quaternion, rotation

parts = st.floats(-1, 1).filter(lambda part: abs(part) > 1e-3)
quaternions = st.tuples(parts, parts, parts, parts).map(lambda q: np.array(q) / np.linalg.norm(q))


def turned(turn: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Turn a vector by q v q*, written out."""
    w, axis = turn[0], turn[1:]
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + w * vector)


@given(quaternions)
def test_a_matrix_turns_vectors_as_its_quaternion_does(turn: np.ndarray) -> None:
    for vector in np.eye(3):
        np.testing.assert_allclose(rotation(turn) @ vector, turned(turn, vector), atol=1e-12)


@given(quaternions)
def test_a_matrix_gives_its_quaternion_back(turn: np.ndarray) -> None:
    found = quaternion(rotation(turn))
    np.testing.assert_allclose(found, turn if turn[0] >= 0 else -turn, atol=1e-9)


def test_half_turns_have_quaternions_too() -> None:
    for axis in np.eye(3):
        turn = np.concatenate(([0.0], axis))
        np.testing.assert_allclose(np.abs(quaternion(rotation(turn))), turn, atol=1e-12)


@given(quaternions, st.tuples(parts, parts, parts))
def test_an_inverse_brings_points_back(turn: np.ndarray, at: tuple[float, float, float]) -> None:
    there = pose(np.array(at), turn)
    points = np.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(moved(inverse(there), moved(there, points)), points, atol=1e-9)
