"""What is kept of tables and maps holds exactly as long as they do."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from pitstop.workloads.bev.data import stored
from pitstop.workloads.bev.data.index import BevIndex, build_index
from pitstop.workloads.bev.data.maps import LAYERS, expansion_path, read_map
from pitstop.workloads.bev.data.stored import open_index, open_map


class Counted:
    """Counts how often something is made anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        monkeypatch.setattr(stored, "build_index", self._build)

    def _build(self, root: Path, version: str) -> BevIndex:
        self.times += 1
        return build_index(root, version)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counted:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Counted(monkeypatch)


def age(root: Path, seconds: int = 3600) -> None:
    """Make all tables older than anything that is kept of them."""
    for path in (root / "v1.0-mini").iterdir():
        now = path.stat()
        os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns - seconds * 10**9))


def rewrite(root: Path) -> None:
    """Change a table without changing its size or its time."""
    path = root / "v1.0-mini" / "log.json"
    before = path.stat()
    text = path.read_text()
    path.write_text(text.replace("made-scene", "mode-scene"))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_is_kept_is_what_was_built(own_root: Path, counted: Counted) -> None:
    first, second = open_index(own_root, "v1.0-mini"), open_index(own_root, "v1.0-mini")
    assert counted.times == 1
    for part in dataclasses.fields(BevIndex):
        one, two = getattr(first, part.name), getattr(second, part.name)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def test_changed_tables_are_read_again(own_root: Path, counted: Counted) -> None:
    age(own_root)
    open_index(own_root, "v1.0-mini")
    path = own_root / "v1.0-mini" / "log.json"
    path.write_text(path.read_text() + "\n")
    open_index(own_root, "v1.0-mini")
    assert counted.times == 2


def test_a_table_written_about_when_it_was_kept_is_looked_into(
    own_root: Path, counted: Counted
) -> None:
    for path in (own_root / "v1.0-mini").iterdir():
        os.utime(path)
    open_index(own_root, "v1.0-mini")
    rewrite(own_root)
    open_index(own_root, "v1.0-mini")
    assert counted.times == 2


def test_a_copy_of_the_same_bytes_with_another_time_holds(own_root: Path, counted: Counted) -> None:
    age(own_root)
    open_index(own_root, "v1.0-mini")
    age(own_root, 50)
    open_index(own_root, "v1.0-mini")
    assert counted.times == 1


def test_what_is_kept_but_broken_is_made_again(own_root: Path, counted: Counted) -> None:
    open_index(own_root, "v1.0-mini")
    [kept] = (own_root / ".pitstop").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:1000])
    open_index(own_root, "v1.0-mini")
    open_index(own_root, "v1.0-mini")
    assert counted.times == 2


def test_a_set_that_cannot_be_written_to_is_kept_elsewhere(
    own_root: Path, counted: Counted, tmp_path: Path
) -> None:
    # A file in the folder's place: even root cannot make a folder there.
    (own_root / ".pitstop").write_text("")
    open_index(own_root, "v1.0-mini")
    open_index(own_root, "v1.0-mini")
    assert counted.times == 1
    assert list((tmp_path / "home").rglob("index-v1.0-mini.npz"))


def test_nothing_that_is_kept_needs_pickle(own_root: Path, counted: Counted) -> None:
    open_index(own_root, "v1.0-mini")
    for path in (own_root / ".pitstop").iterdir():
        with np.load(path, allow_pickle=False) as file:
            assert all(file[name].dtype != object for name in file.files)


def test_a_kept_map_is_the_map(own_root: Path, counted: Counted) -> None:
    place = next((own_root / "maps" / "expansion").iterdir()).stem
    direct = read_map(expansion_path(own_root, place))
    for city in (open_map(own_root, place), open_map(own_root, place)):
        for layer in LAYERS:
            one, two = direct.layers[layer], city.layers[layer]
            np.testing.assert_array_equal(one.paths.points, two.paths.points)
            np.testing.assert_array_equal(one.paths.starts, two.paths.starts)
            np.testing.assert_array_equal(one.first_path, two.first_path)
            np.testing.assert_array_equal(one.bounds, two.bounds)
