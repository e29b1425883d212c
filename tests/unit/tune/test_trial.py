"""Trials of the real command: what goes wrong is a result, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pitstop.tune.trial import EngineTrials
from tests.unit.tune.planted import CONFIG, ENDS, install, path_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc"),
]


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineTrials:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", path_of(tmp_path / "site"))
    config = tmp_path / "line.yaml"
    config.write_text(CONFIG)
    return EngineTrials(
        config=config, given=(), folder=tmp_path / "trials", steps=30, limit_s=120.0
    )


def test_a_trial_is_measured_and_stopped_long_before_its_end(trials: EngineTrials) -> None:
    trial = trials.run(["train.batch_size=2"])
    assert (trial.end, trial.reason) == ("measured", "")
    assert trial.overrides == ("train.batch_size=2",)
    assert trial.samples == 2
    assert trial.wall_s is not None
    assert trial.compute_s is not None
    assert trial.start_s is not None
    assert 0 < trial.compute_s <= trial.wall_s
    assert trial.start_s + 20 * 2 * trial.wall_s < trial.took_s
    assert list(trials.folder.iterdir()) == []


@pytest.mark.parametrize("size", [size for size in ENDS if ENDS[size] != "timed out"])
def test_what_goes_wrong_is_a_result(trials: EngineTrials, size: int) -> None:
    trial = trials.run([f"train.batch_size={size}"])
    assert trial.end == ENDS[size]
    assert trial.wall_s is None
    assert trial.reason


def test_a_trial_that_hangs_is_ended_with_all_its_processes(trials: EngineTrials) -> None:
    trials.limit_s = 15.0
    before = set(psutil.Process().children(recursive=True))
    trial = trials.run(["train.batch_size=3", "loader.workers=1"])
    assert trial.end == "timed out"
    assert set(psutil.Process().children(recursive=True)) <= before


def test_settings_that_do_not_go_together_are_refused(trials: EngineTrials) -> None:
    trial = trials.run(["train.precision=fp17"])
    assert trial.end == "refused"
    assert "fp17" in trial.reason


def test_a_killed_tuner_leaves_no_training_behind(trials: EngineTrials) -> None:
    program = (
        "import sys, pathlib\n"
        "from pitstop.tune.trial import EngineTrials\n"
        "EngineTrials(config=pathlib.Path(sys.argv[1]), given=(), steps=10**9, limit_s=600,\n"
        "             folder=pathlib.Path(sys.argv[2])).run(['loader.workers=1'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(trials.config), str(trials.folder)],
        env=dict(os.environ),  # noqa: TID251 - handed on
    ) as tuner:
        record = trials.folder / "trial-1" / "run" / "rank-0.jsonl"
        while not (record.exists() and b"\n[" in record.read_bytes()):
            assert tuner.poll() is None
        started = psutil.Process(tuner.pid).children(recursive=True)
        assert started
        tuner.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(started, timeout=60)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []


def test_long_steps_end_a_trial_before_it_has_all_of_them(trials: EngineTrials) -> None:
    trials.steps, trials.enough_s = 10**6, 0.5
    trial = trials.run([])
    assert (trial.end, trial.reason) == ("measured", "")
    assert trial.took_s < trials.limit_s / 2
