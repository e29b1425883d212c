"""Where things stand: rotations as quaternions (w, x, y, z), poses as 4x4 matrices, in float64."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def rotation(quaternion: npt.ArrayLike) -> Floats:
    """Turn unit quaternions (..., 4) into matrices (..., 3, 3)."""
    w, x, y, z = np.moveaxis(np.asarray(quaternion, np.float64), -1, 0)
    matrix = np.empty((*w.shape, 3, 3))
    matrix[..., 0, 0] = 1 - 2 * (y * y + z * z)
    matrix[..., 0, 1] = 2 * (x * y - w * z)
    matrix[..., 0, 2] = 2 * (x * z + w * y)
    matrix[..., 1, 0] = 2 * (x * y + w * z)
    matrix[..., 1, 1] = 1 - 2 * (x * x + z * z)
    matrix[..., 1, 2] = 2 * (y * z - w * x)
    matrix[..., 2, 0] = 2 * (x * z - w * y)
    matrix[..., 2, 1] = 2 * (y * z + w * x)
    matrix[..., 2, 2] = 1 - 2 * (x * x + y * y)
    return matrix


def quaternion(matrix: Floats) -> Floats:
    """Turn one rotation matrix (3, 3) into a unit quaternion whose first part is not negative."""
    squares = np.array(
        [
            1 + matrix[0, 0] + matrix[1, 1] + matrix[2, 2],
            1 + matrix[0, 0] - matrix[1, 1] - matrix[2, 2],
            1 - matrix[0, 0] + matrix[1, 1] - matrix[2, 2],
            1 - matrix[0, 0] - matrix[1, 1] + matrix[2, 2],
        ]
    )
    parts = np.sqrt(np.maximum(squares, 0)) / 2
    # The largest part is divided by: the others may be too small to tell a sign from.
    largest = int(parts.argmax())
    skew = np.array(
        [matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]
    )
    if largest == 0:
        found = np.concatenate(([parts[0]], skew / (4 * parts[0])))
    else:
        axis = largest - 1
        row = (matrix[axis] + matrix[:, axis]) / (4 * parts[largest])
        row[axis] = parts[largest]
        found = np.concatenate(([skew[axis] / (4 * parts[largest])], row))
    found /= np.linalg.norm(found)
    return found if found[0] >= 0 else -found


def pose(translation: npt.ArrayLike, turn: npt.ArrayLike) -> Floats:
    """Join translations (..., 3) and unit quaternions (..., 4) to matrices (..., 4, 4)."""
    at = np.asarray(translation, np.float64)
    matrix = np.zeros((*at.shape[:-1], 4, 4))
    matrix[..., :3, :3] = rotation(turn)
    matrix[..., :3, 3] = at
    matrix[..., 3, 3] = 1
    return matrix


def inverse(matrix: Floats) -> Floats:
    """Undo poses (..., 4, 4) of rigid bodies."""
    undone = np.zeros_like(matrix)
    back = np.swapaxes(matrix[..., :3, :3], -1, -2)
    undone[..., :3, :3] = back
    undone[..., :3, 3] = -(back @ matrix[..., :3, 3, None])[..., 0]
    undone[..., 3, 3] = 1
    return undone


def moved(matrix: Floats, points: Floats) -> Floats:
    """Bring points (N, 3) through one pose."""
    return points @ matrix[:3, :3].T + matrix[:3, 3]
