"""People in one file: the same samples as from folders, in every layout, or a sentence why not."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.data.pack import Frames
from pitstop.errors import DataError
from pitstop.workloads.reid.data.batch import ReidSample
from pitstop.workloads.reid.data.checking import check_people
from pitstop.workloads.reid.data.dataset import load_people, train_records
from pitstop.workloads.reid.data.packing import pack_people
from pitstop.workloads.reid.data.queries import eval_set
from pitstop.workloads.reid.synthetic.make import make_reid
from tests.unit.workloads.reid.people_files import FULL, jpeg, write_people
from tests.unit.workloads.reid.public_files import write_market, write_msmt, write_sysu

SIZE = (32, 16)


def data_of(root: Path, size: tuple[int, int] = SIZE) -> ReidData:
    return ReidData(root=root, holdout=0.0, image_size=size)


def samples_of(root: Path, *, with_eval: bool, size: tuple[int, int] = SIZE) -> list[ReidSample]:
    data = data_of(root, size)
    people = load_people(data)
    found = train_records(people, data, seed=1, text_len=12)
    samples = [found.sample(3, place) for place in range(len(found))]
    if with_eval:
        images = eval_set(people, data, text_len=12).images
        samples += [images.sample(0, place) for place in range(len(images))]
    return samples


def assert_same(found: list[ReidSample], wanted: list[ReidSample]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        for field in dataclasses.fields(ReidSample):
            left, right = getattr(one, field.name), getattr(other, field.name)
            same = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
            assert same, field.name


def release(root: Path) -> Path:
    make_reid(root, people=6, images=5, size=(64, 40), seed=2, corrupt=0)
    return root


@pytest.mark.parametrize("write", [release, write_market, write_msmt, write_sysu])
@pytest.mark.parametrize("frames", ["decoded", "encoded"])
def test_samples_of_a_pack_are_those_of_its_folders(
    tmp_path: Path, write: Callable[[Path], Path], frames: Frames
) -> None:
    root = write(tmp_path / "my people")
    pack = tmp_path / "people.pack"
    made = pack_people(root, pack, frames=frames, image_size=SIZE)
    assert made.workload == "reid"
    assert made.size_bytes == pack.stat().st_size
    assert_same(samples_of(pack, with_eval=True), samples_of(root, with_eval=True))
    found, wanted = check_people(pack), check_people(root)
    assert found.packed
    assert found.problems == ()
    assert [split.files for split in found.splits.values()] == [
        split.files for split in wanted.splits.values()
    ]


def test_the_challenge_s_layout_is_packed_with_what_belongs_to_it(tmp_path: Path) -> None:
    root = write_people(tmp_path / "set", {"0001": FULL, "0002": FULL})
    pack_people(root, tmp_path / "p.pack", frames="decoded", image_size=SIZE)
    assert_same(samples_of(tmp_path / "p.pack", with_eval=False), samples_of(root, with_eval=False))


def test_pixels_decoded_for_one_size_are_not_taken_for_another(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_people(root, {"0001": FULL, "0002": FULL}, layout="release")
    large = next((root / "vis").rglob("*.jpg"))
    large.write_bytes(jpeg(size=(256, 128)))  # decoded at a quarter for 32x16
    pack_people(root, tmp_path / "p.pack", frames="decoded", image_size=SIZE)
    with pytest.raises(DataError, match=r"decoded for data.image_size \[32, 16\], and it"):
        samples_of(tmp_path / "p.pack", with_eval=False, size=(64, 32))
    large.write_bytes(jpeg(size=(40, 20)))  # too small to be decoded at a half
    pack_people(root, tmp_path / "q.pack", frames="decoded", image_size=SIZE)
    assert_same(
        samples_of(tmp_path / "q.pack", with_eval=False, size=(64, 32)),
        samples_of(root, with_eval=False, size=(64, 32)),
    )
    with pytest.raises(DataError, match="pack the dataset again"):
        samples_of(tmp_path / "q.pack", with_eval=False, size=(16, 16))


def test_a_damaged_image_stops_the_packing_and_leaves_nothing(tmp_path: Path) -> None:
    root = release(tmp_path / "set")
    broken = next((root / "nir").rglob("*.jpg"))
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(DataError, match=r"is damaged.*see all with `pitstop data check`"):
        pack_people(root, tmp_path / "p.pack", frames="decoded", image_size=SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_changed_byte_of_a_pack_is_named(tmp_path: Path) -> None:
    root = release(tmp_path / "set")
    pack = tmp_path / "p.pack"
    pack_people(root, pack, frames="decoded", image_size=SIZE)
    data = np.fromfile(pack, np.uint8)
    data[100] ^= 1
    data.tofile(pack)
    [problem] = check_people(pack).problems
    assert problem.endswith("is damaged: its bytes have changed")


def test_a_pack_is_not_packed_again(tmp_path: Path) -> None:
    root = release(tmp_path / "set")
    pack_people(root, tmp_path / "p.pack", frames="encoded", image_size=SIZE)
    with pytest.raises(DataError, match="is a pack already"):
        pack_people(tmp_path / "p.pack", tmp_path / "q.pack", frames="encoded", image_size=SIZE)
