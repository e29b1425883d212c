"""Map expansions, whole and not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.errors import DataError
from pitstop.workloads.bev.data.maps import LAYERS, read_map


def tiny() -> dict[str, Any]:
    """A walkway with a hole, a divider, and a polygon without nodes."""
    points = [(0, 0), (9, 0), (9, 9), (0, 9), (3, 3), (6, 3), (6, 6), (20, 1), (20, 8)]
    data: dict[str, Any] = {layer: [] for layer in LAYERS}
    data["node"] = [{"token": f"n{i}", "x": x, "y": y} for i, (x, y) in enumerate(points)]
    outline, hole = ["n0", "n1", "n2", "n3"], ["n4", "n5", "n6"]
    data["polygon"] = [
        {"token": "p", "exterior_node_tokens": outline, "holes": [{"node_tokens": hole}]},
        {"token": "none", "exterior_node_tokens": [], "holes": []},
    ]
    data["line"] = [{"token": "l", "node_tokens": ["n7", "n8"]}]
    data["walkway"] = [
        {"token": "w", "polygon_token": "p"},
        {"token": "e", "polygon_token": "none"},
    ]
    data["drivable_area"] = [{"token": "d", "polygon_tokens": ["p", "p"]}]
    data["lane_divider"] = [{"token": "v", "line_token": "l"}]
    return data


def written(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "boston-seaport.json"
    path.write_text(json.dumps(data))
    return path


def test_shapes_holes_and_bounds_are_read(tmp_path: Path) -> None:
    layers = read_map(written(tmp_path, tiny())).layers
    walkway = layers["walkway"]
    assert walkway.first_path.tolist() == [0, 2]
    assert walkway.paths.starts.tolist() == [0, 4, 7]
    assert walkway.bounds.tolist() == [[0, 0, 9, 9]]
    assert len(layers["drivable_area"].first_path) == 3
    assert layers["lane_divider"].paths.points.tolist() == [[20, 1], [20, 8]]
    assert len(layers["carpark_area"].bounds) == 0


def test_only_shapes_whose_bounds_meet_a_rectangle_are_near(tmp_path: Path) -> None:
    layer = read_map(written(tmp_path, tiny())).layers["lane_divider"]
    assert layer.near(np.array([19.0, 2]), np.array([21.0, 3])).tolist() == [0]
    assert layer.near(np.array([0.0, 0]), np.array([19.0, 9])).tolist() == []


def test_a_missing_or_damaged_map_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a download of its own"):
        read_map(tmp_path / "boston-seaport.json")
    data = tiny()
    del data["node"][0]
    with pytest.raises(DataError, match=r"boston-seaport\.json is no map expansion.*n0"):
        read_map(written(tmp_path, data))
    (tmp_path / "boston-seaport.json").write_text("{")
    with pytest.raises(DataError, match=r"boston-seaport\.json is damaged"):
        read_map(tmp_path / "boston-seaport.json")


def test_nodes_without_a_place_are_refused(tmp_path: Path) -> None:
    data = tiny()
    data["node"][0]["x"] = float("nan")
    with pytest.raises(DataError, match="nodes without a place"):
        read_map(written(tmp_path, data))


def test_a_map_of_lists_within_lists_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "boston-seaport.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"is damaged: .* fetch it anew"):
        read_map(path)
