"""`pitstop data make`: clips on disk, words for people, a record for machines."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.data import app
from pitstop.errors import DataError, MissingExtra

SMALL = ["--train-clips", "1", "--test-clips", "1", "--frames", "2", "--size", "16x32"]


def test_clips_are_made_and_the_next_command_is_named(tmp_path: Path) -> None:
    root = tmp_path / "my clips"
    done = CliRunner().invoke(app, ["make", "deblur", str(root), *SMALL])
    assert done.exit_code == 0, done.output
    head, facts, closing = done.output.splitlines()
    assert head == "made 1 train and 1 test clips of 2 frames of 16x32"
    assert facts.startswith(f"{root}, spikes of 8x16, ")
    assert closing == f"next: pitstop config check configs/deblur/small.yaml 'data.root={root}'"
    assert sorted(path.name for path in root.iterdir()) == ["config.yaml", "test", "train"]


def test_the_record_goes_to_stdout_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["make", "deblur", str(tmp_path / "c"), *SMALL, "--json", "-"])
    record = json.loads(done.stdout)
    assert record["kind"] == "MadeClips"
    assert (record["height"], record["width"], record["seed"]) == (16, 32, 0)
    assert record["clips"] == {"train": 1, "test": 1}


@pytest.mark.parametrize("size", ["16", "16x", "axb", "16x32x3"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, size: str) -> None:
    line = ["make", "deblur", str(tmp_path / "c"), "--size", size]
    with pytest.raises(DataError, match=f"such as 96x128, not {size}"):
        CliRunner().invoke(app, line, catch_exceptions=False)
    assert not (tmp_path / "c").exists()


def test_a_missing_image_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "pitstop.workloads.deblur.synthetic", raising=False)
    with pytest.raises(MissingExtra, match=r"making clips needs pillow; .*pitstop\[train\]"):
        CliRunner().invoke(app, ["make", "deblur", str(tmp_path / "c")], catch_exceptions=False)
