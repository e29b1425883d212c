"""`pitstop data make bev`: words for people, records, codes."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.data import app
from pitstop.errors import MissingPackage

SMALL = ["--scenes", "2", "--samples", "1", "--size", "36x64"]


def test_a_city_is_made_and_the_next_command_is_named(tmp_path: Path) -> None:
    root = tmp_path / "my city"
    done = CliRunner().invoke(app, ["make", "bev", str(root), *SMALL])
    assert done.exit_code == 0, done.output
    head, facts, closing = done.output.splitlines()
    assert head == "made 1 mini_train and 1 mini_val scenes, 2 samples of six 36x64 images"
    assert facts.startswith(f"{root}, v1.0-mini, ")
    assert closing == (
        f"next: pitstop config check configs/bev/demo.yaml 'data.root={root}' "
        "data.version=v1.0-mini"
    )


def test_scenes_are_checked_by_name_packed_and_checked_again(tmp_path: Path) -> None:
    root = tmp_path / "city"
    CliRunner().invoke(app, ["make", "bev", str(root), *SMALL])
    checked = CliRunner().invoke(app, ["check", str(root)])
    assert checked.exit_code == 0, checked.output
    assert "v1.0-mini: 2 scenes, " in checked.output
    pack = tmp_path / "city.pack"
    packed = CliRunner().invoke(app, ["pack", str(root), "--output", str(pack)])
    assert packed.exit_code == 0, packed.output
    again = CliRunner().invoke(app, ["check", str(pack)])
    assert again.exit_code == 0, again.output
    assert "v1.0-mini: 2 scenes, " in again.output


def test_the_record_says_what_was_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["make", "bev", str(tmp_path / "c"), *SMALL, "--json", "-"])
    record = json.loads(done.stdout)
    assert record["scenes"] == {"mini_train": 1, "mini_val": 1}
    assert (record["samples"], record["height"], record["width"]) == (2, 36, 64)
    assert record["boxes"] > 0


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "pitstop.workloads.bev.synthetic.make", raising=False)
    with pytest.raises(MissingPackage, match="making a city needs pillow"):
        CliRunner().invoke(app, ["make", "bev", str(tmp_path / "c")], catch_exceptions=False)
