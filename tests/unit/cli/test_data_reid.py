"""`pitstop data`: people made and checked; words for people, records, codes."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.data import app
from pitstop.errors import DataError, MissingPackage

SMALL = ["--people", "6", "--images", "8", "--size", "48x32"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "my people"


def test_people_are_made_and_the_next_command_is_named(root: Path) -> None:
    done = CliRunner().invoke(app, ["make", "reid", str(root), *SMALL, "--corrupt", "0"])
    assert done.exit_code == 0, done.output
    head, counts, hard, facts, closing = done.output.splitlines()
    assert head == "made 4 train and 2 test people of 48x32"
    assert " rgb, " in counts
    assert counts.endswith(" queries")
    assert hard.endswith("look nearly like another")
    assert facts.startswith(f"{root}, ")
    setting = f"'data.root={root}' data.holdout=0"
    assert closing == f"next: pitstop config check configs/reid/demo.yaml {setting}"


def test_a_broken_image_is_named_and_found(root: Path) -> None:
    done = CliRunner().invoke(app, ["make", "reid", str(root), *SMALL])
    assert done.exit_code == 0, done.output
    *_, hard, _, closing = done.output.splitlines()
    broken = hard.split("broken on purpose: ")[1]
    assert closing.endswith("loader.corrupt=skip")
    checked = CliRunner().invoke(app, ["check", str(root)])
    assert checked.exit_code == 1
    head, problem, train, test, *rest = checked.output.splitlines()
    assert head == f"{root}: 1 problem"
    assert problem.strip().startswith(f"{root / broken} is damaged")
    assert train.startswith("train: 4 people, ")
    assert test.startswith("test: 2 people, ")
    assert rest[-1].startswith("every image decoded, in ")


def test_a_whole_set_of_people_is_to_be_packed(root: Path) -> None:
    CliRunner().invoke(app, ["make", "reid", str(root), *SMALL, "--corrupt", "0"])
    checked = CliRunner().invoke(app, ["check", str(root)])
    assert checked.exit_code == 0
    assert "everything can be read" in checked.output
    assert "data pack" in checked.output


def test_a_set_of_people_with_a_broken_image_is_packed_as_it_is(root: Path, tmp_path: Path) -> None:
    CliRunner().invoke(app, ["make", "reid", str(root), *SMALL])
    pack = tmp_path / "people.pack"
    done = CliRunner().invoke(app, ["pack", str(root), "--output", str(pack)])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(app, ["check", str(pack)])
    assert checked.exit_code == 1
    assert "1 problem" in checked.output


def test_memory_is_estimated_though_samples_are_damaged(root: Path) -> None:
    made = CliRunner().invoke(app, ["make", "reid", str(root), *SMALL, "--corrupt", "0"])
    assert made.exit_code == 0, made.output
    for image in sorted((root / "vis").rglob("*.jpg"))[::2]:
        image.write_bytes(image.read_bytes()[:100])
    settings = [f"data.root={root}", "data.holdout=0"]
    done = CliRunner().invoke(app, ["stats", "configs/reid/demo.yaml", *settings])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("fits: ")
    assert "could not be read; next: pitstop data check" in done.output


def test_the_record_goes_to_stdout_alone(root: Path) -> None:
    done = CliRunner().invoke(app, ["make", "reid", str(root), *SMALL, "--json", "-"])
    record = json.loads(done.stdout)
    assert record["kind"] == "MadePeople"
    assert record["people"] == {"train": 4, "test": 2}
    assert len(record["corrupt"]) == 1


def test_a_size_that_is_none_is_refused(root: Path) -> None:
    with pytest.raises(DataError, match="such as 96x128, not 48"):
        CliRunner().invoke(app, ["make", "reid", str(root), "--size", "48"], catch_exceptions=False)
    assert not root.exists()


def test_a_missing_image_library_names_the_extra(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in ("synthetic.make", "synthetic.figures"):
        monkeypatch.delitem(sys.modules, f"pitstop.workloads.reid.{name}", raising=False)
    with pytest.raises(MissingPackage, match=r"making people needs pillow; .*pip install pillow"):
        CliRunner().invoke(app, ["make", "reid", str(root)], catch_exceptions=False)
