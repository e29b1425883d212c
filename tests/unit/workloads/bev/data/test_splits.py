"""Which scenes are in which split, and who says so."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pitstop.errors import DataError
from pitstop.workloads.bev.data.splits import MINI_TRAIN, MINI_VAL, split_scenes


def test_the_small_sets_names_are_built_in(tmp_path: Path) -> None:
    assert split_scenes(tmp_path, "v1.0-mini", "mini_val") == set(MINI_VAL)
    assert split_scenes(tmp_path, "v1.0-mini", "train") == set(MINI_TRAIN)
    assert split_scenes(tmp_path, "v1.0-trainval", "mini_train") == set(MINI_TRAIN)
    assert len(MINI_TRAIN) == 8


def test_a_file_beside_the_tables_goes_first(tmp_path: Path) -> None:
    (tmp_path / "splits.json").write_text(json.dumps({"val": ["scene-0003"]}))
    assert split_scenes(tmp_path, "v1.0-mini", "val") == {"scene-0003"}
    with pytest.raises(DataError, match=r"splits\.json has no split mini_train; it has val"):
        split_scenes(tmp_path, "v1.0-mini", "mini_train")


@pytest.mark.parametrize("text", ["[]", '{"train": "scene-0001"}', '{"train": [1]}', "{"])
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "splits.json").write_text(text)
    with pytest.raises(DataError, match=r"splits\.json"):
        split_scenes(tmp_path, "v1.0-trainval", "train")


def test_without_the_devkit_the_full_set_needs_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nuscenes", None)
    with pytest.raises(DataError, match=r"nuscenes-devkit .*splits\.json"):
        split_scenes(tmp_path, "v1.0-trainval", "val")


def test_the_devkits_lists_are_used_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("nuscenes.utils.splits")
    module.__dict__["create_splits_scenes"] = lambda: {"val": ["scene-0003"], "train": []}
    for name in ("nuscenes", "nuscenes.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert split_scenes(tmp_path, "v1.0-trainval", "val") == {"scene-0003"}
