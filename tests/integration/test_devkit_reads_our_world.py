"""A generated set against nuscenes-devkit itself, which lives in an interpreter of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.poses import inverse
from pitstop.workloads.bev.data.stored import open_index, open_map
from pitstop.workloads.bev.data.targets import MAP_CLASSES, box_corners, surround_targets
from pitstop.workloads.bev.synthetic.make import make_bev

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def devkit_python() -> Path:
    named = os.environ.get("PITSTOP_DEVKIT_PYTHON")  # noqa: TID251 - says where the devkit is
    return Path(named) if named else REPOSITORY / ".venv-devkit" / "bin" / "python"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give the root of a set, and the folder of what the devkit made of it."""
    python = devkit_python()
    if not python.is_file():
        pytest.skip("nuscenes-devkit has no interpreter: set PITSTOP_DEVKIT_PYTHON")
    folder = tmp_path_factory.mktemp("devkit")
    make_bev(folder / "set", scenes=4, samples=3, size=(90, 160), seed=3)
    script = Path(__file__).with_name("devkit_reader.py")
    subprocess.run([python, script, folder / "set", folder], check=True, timeout=300)
    return folder / "set", folder


@pytest.fixture(scope="module")
def facts(world: tuple[Path, Path]) -> dict[str, Any]:
    return json.loads((world[1] / "facts.json").read_text())


def test_the_devkit_loads_every_scene_and_file(facts: dict[str, Any]) -> None:
    assert len(facts["scenes"]) == 4
    assert all(facts["in_splits"])
    assert facts["files"] == 4 * 3 * 7


def seen_corners(index: BevIndex, sample: int, slot: int) -> np.ndarray:
    """Give pixels (N, 4, 2) of the bottom corners of a sample's boxes."""
    boxes = np.arange(*index.first_box[[sample, sample + 1]])
    camera = index.calibration[sample, slot]
    to_world = index.ego_to_world(sample, slot) @ index.sensor_to_ego[camera]
    pixels = box_corners(index, boxes, inverse(to_world)) @ index.intrinsics[camera].T
    return pixels[..., :2] / pixels[..., 2:]


def test_boxes_project_where_the_devkit_projects_them(
    world: tuple[Path, Path], facts: dict[str, Any]
) -> None:
    index = open_index(world[0], "v1.0-mini")
    rows = json.loads((world[0] / "v1.0-mini" / "sample_annotation.json").read_text())
    tokens: dict[str, list[str]] = {}
    for row in rows:
        tokens.setdefault(row["sample_token"], []).append(row["token"])
    compared = 0
    for sample in range(len(index)):
        names = tokens[str(index.sample_tokens[sample])]
        for slot, channel in enumerate(CAMERAS):
            ours = seen_corners(index, sample, slot)
            for name, corners in zip(names, ours, strict=True):
                theirs = facts["corners"].get(f"{name}/{channel}")
                if theirs is not None:
                    distance = np.linalg.norm(corners[:, None] - np.array(theirs), axis=-1)
                    assert distance.min(axis=1).max() < 1e-6
                    compared += 1
    assert compared == len(facts["corners"]) > 50


def test_maps_agree_with_the_devkits(world: tuple[Path, Path], facts: dict[str, Any]) -> None:
    root, folder = world
    index = open_index(root, "v1.0-mini")
    both, either = np.zeros(len(MAP_CLASSES)), np.zeros(len(MAP_CLASSES))
    with np.load(folder / "masks.npz") as theirs:
        for sample in range(len(index)):
            token = str(index.sample_tokens[sample])
            ours = surround_targets(
                index,
                open_map(root, index.location(sample)),
                sample,
                classes=MAP_CLASSES,
                bev_transform=np.eye(4),
            )
            masks = list(theirs[token])
            if f"{token}.lines" in theirs:
                masks.append(theirs[f"{token}.lines"].any(axis=0))
            for place, mask in enumerate(masks):
                both[place] += (ours[place] & (mask > 0)).sum()
                either[place] += (ours[place] | (mask > 0)).sum()
    shares = dict(zip(MAP_CLASSES, both / either, strict=True))
    assert min(shares.values()) > 0.97, shares
    # Else nothing would be left to compare dividers with.
    assert facts["broken_lines"] < len(index)
