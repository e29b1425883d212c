"""``pitstop tune`` as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.records.store import from_json
from pitstop.records.tuning.study import Tuning
from pitstop.tune.configured import TuningRequest
from tests.fork_server.client import run_python
from tests.unit.tune.planted import CONFIG, install, path_of


def pitstop(*arguments: str, cwd: Path, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pitstop", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py",), "did you mean: pitstop tune -- python train.py"),
        (("--steps", "20", "train.py"), "did you mean: pitstop tune --steps 20 -- python train.py"),
        (("--", "train.py"), "did you mean: pitstop tune -- python train.py"),
        (("--", "LR=1", "python", "a.py"), "did you mean: pitstop tune -- env LR=1 python a.py"),
        (("--", "no-such-program", "a.py"), "there is no command 'no-such-program' to run"),
        (("--page", "no/such/place.html", "--", sys.executable, "a.py"), "no/such"),
        (("run.yaml", "--", sys.executable, "a.py"), "either a configuration, or a command"),
        (("--",), "either a configuration, or a command"),
        ((), "name a configuration, or a command after --"),
        (("--json", "no/such/place.json", "--", sys.executable, "a.py"), "no/such"),
        (("-o", "no/such/place.txt", "--", sys.executable, "a.py"), "no/such"),
        (("--", sys.executable, "a.py"), "cannot be measured as it is (crashed): exit code 2"),
    ],
)
def test_what_was_meant_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    answer = run_python("-m", "pitstop", "tune", *words, folder=tmp_path)
    assert answer.returncode == 2
    # What is too long for a terminal is wrapped, some of it in a frame.
    assert said in " ".join(answer.stderr.replace("\u2502", " ").split())


def test_who_interrupts_a_study_is_told_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pitstop.tune.script.study.run_script_study", interrupted)
    words = ["tune", "--work-dir", str(tmp_path), "--", sys.executable, "train.py"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 130
    said = f"kept in {tmp_path / 'train'}; the same command goes on from there"
    assert said in " ".join(answer.stderr.split())


def studied(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[TuningRequest]:
    """Give the studies that a command line asks for."""
    found: list[TuningRequest] = []

    def stop(study: TuningRequest, _: object) -> None:
        found.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr("pitstop.tune.configured.run_study", stop)
    CliRunner().invoke(app, ["tune", *words])
    return found


def test_configurations_of_one_name_have_studies_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bev", "reid"):
        (tmp_path / name).mkdir()
    asked = ("bev/demo.yaml", "reid/demo.yaml", "demo.yaml")
    folders = [str(each.folder) for name in asked for each in studied(monkeypatch, name)]
    assert folders == ["runs/tune/bev-demo", "runs/tune/reid-demo", "runs/tune/demo"]


def test_a_tuned_file_that_cannot_be_written_is_refused_before_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run-tuned.yaml").mkdir()
    assert studied(monkeypatch, str(tmp_path / "run.yaml")) == []


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
