"""A nuScenes set in one file: the same samples as from its folders, or a sentence why not."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pitstop.config.load import config_from
from pitstop.data.pack import Frames
from pitstop.errors import DataError
from pitstop.workloads.bev.data.batch import BevSample
from pitstop.workloads.bev.data.checking import check_world, is_world
from pitstop.workloads.bev.data.packing import pack_world
from pitstop.workloads.bev.task import BevTask, build_bev
from tests.unit.workloads.bev.test_task import SMALL


def task_of(kind: str, root: Path, *changes: str) -> BevTask:
    return build_bev(config_from(SMALL[kind], [f"data.root={root}", *changes]).config)


def samples_of(task: BevTask) -> list[BevSample]:
    both = (task.train_samples(), task.eval_samples())
    return [each.sample(2, place) for each in both for place in range(len(each))]


def assert_same(found: list[BevSample], wanted: list[BevSample]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        for field in dataclasses.fields(BevSample):
            assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("kind", ["mono", "surround"])
@pytest.mark.parametrize("frames", ["decoded", "encoded"])
def test_samples_of_a_pack_are_those_of_its_folders(
    world_root: Path, tmp_path: Path, kind: str, frames: Frames
) -> None:
    pack = tmp_path / "my set.pack"
    plain = task_of(kind, world_root)
    made = plain.pack_data(pack, frames=frames)
    assert made.workload == "bev"
    assert ("lidar" in made.field_bytes) == (kind == "mono")
    assert_same(samples_of(task_of(kind, pack)), samples_of(plain))
    checked = check_world(pack)
    assert (checked.packed, checked.problems) == (True, ())
    assert checked.splits["v1.0-mini"].files == check_world(world_root).splits["v1.0-mini"].files


def test_a_folder_is_packed_whole_and_serves_every_configuration(
    world_root: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "set.pack"
    pack_world(world_root, pack)
    assert is_world(pack)
    for kind in ("mono", "surround"):
        assert_same(samples_of(task_of(kind, pack)), samples_of(task_of(kind, world_root)))
    with pytest.raises(DataError, match="is a pack already"):
        pack_world(pack, tmp_path / "again.pack")


def test_pixels_of_one_size_are_not_taken_for_another(world_root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "set.pack"
    task_of("surround", world_root, "data.resize=[0.3,0.3]").pack_data(pack, frames="decoded")
    larger = task_of("surround", pack, "data.resize=[0.9,0.9]").train_samples()
    with pytest.raises(DataError, match="decoded at another size than 1/1, which"):
        larger.sample(0, 0)


def test_what_is_missing_in_a_pack_is_said_before_training(
    world_root: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "set.pack"
    task_of("surround", world_root, "data.split=mini_val").pack_data(pack, frames="encoded")
    with pytest.raises(DataError, match=r"lacks \d+ images that sample_data.json names"):
        task_of("surround", pack).train_samples()


def test_a_changed_byte_of_a_pack_is_named(world_root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "set.pack"
    pack_world(world_root, pack)
    data = np.fromfile(pack, np.uint8)
    where = len(data) - len(data) // 3
    data[where] ^= 255
    data.tofile(pack)
    assert any("its bytes have changed" in problem for problem in check_world(pack).problems)
