"""``pitstop tune`` as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pitstop.records.store import from_json
from pitstop.records.tuning.study import Tuning
from tests.unit.tune.planted import CONFIG, install, path_of


def pitstop(*arguments: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pitstop", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_script_is_answered_with_the_doctor(tmp_path: Path) -> None:
    said = pitstop("tune", "--", "python", "train.py", cwd=tmp_path)
    assert said.returncode == 2
    assert "pitstop doctor -- COMMAND" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.slow
def test_a_study_ends_with_a_file_that_trains_or_says_that_nothing_gains(tmp_path: Path) -> None:
    install(tmp_path / "site")
    (tmp_path / "line.yaml").write_text(CONFIG)
    path = path_of(tmp_path / "site")
    short = ("--trials", "3", "--steps", "20", "--exact-only", "--json", "study.json")
    done = pitstop("tune", "line.yaml", "log.every_steps=1", *short, cwd=tmp_path, path=path)
    assert done.returncode == 0, done.stderr
    study = from_json((tmp_path / "study.json").read_text(), Tuning)
    assert study.trials[0].end == "measured"
    assert all(row.claim == "exact" for row in study.rows)
    tuned = tmp_path / "line-tuned.yaml"
    assert tuned.exists() == (len(study.rows) > 1)
    if tuned.exists():
        settings = yaml.safe_load(tuned.read_text())
        assert settings["train"]["batch_size"] == 4
    again = pitstop("tune", "line.yaml", "log.every_steps=1", *short, cwd=tmp_path, path=path)
    assert again.returncode == 0
    repeated = from_json((tmp_path / "study.json").read_text(), Tuning)
    assert repeated.trials == study.trials
