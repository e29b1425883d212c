"""A nuScenes set read through: what is there is counted, what is damaged is named."""

from pathlib import Path

import pytest

from pitstop.errors import DataError
from pitstop.workloads.bev.data.checking import check_world, is_world
from pitstop.workloads.bev.data.index import CAMERAS
from pitstop.workloads.bev.synthetic.make import make_bev


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "set"
    make_bev(folder, scenes=2, samples=2, size=(90, 160), seed=0)
    return folder


def test_a_whole_set_has_no_problems_and_is_counted(root: Path) -> None:
    assert is_world(root)
    found = check_world(root)
    assert found.problems == ()
    assert found.workload == "bev"
    [split] = found.splits.values()
    assert split.sequences == 2
    assert split.files == dict.fromkeys(CAMERAS, 4)
    files = (root / "samples").glob("CAM_*/*.jpg")
    assert split.size_bytes == sum(path.stat().st_size for path in files)


def test_a_damaged_image_and_a_missing_map_are_named(root: Path) -> None:
    image = next((root / "samples" / "CAM_BACK").glob("*.jpg"))
    city = next((root / "maps" / "expansion").glob("*.json"))
    whole, map_text = image.read_bytes(), city.read_text(encoding="utf-8")
    try:
        image.write_bytes(whole[: len(whole) // 2])
        city.unlink()
        problems = check_world(root).problems
    finally:
        image.write_bytes(whole)
        city.write_text(map_text, encoding="utf-8")
    assert len(problems) == 2
    assert any(image.name in problem and "damaged" in problem for problem in problems)
    assert any(city.name in problem for problem in problems)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    assert not is_world(tmp_path)
    with pytest.raises(DataError, match="holds no nuScenes tables"):
        check_world(tmp_path)
