"""Stages that are cut off leave what has ended, and give each script cores of its own."""

import time
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks import gpu_figures
from benchmarks.advice_followed import TEN
from benchmarks.gpu_figures import STAGES, Command, Lane, run_lane


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_figures.os, "sched_getaffinity", lambda _: set(range(16)))


def lanes_of(stage: str, tmp_path: Path) -> list[Lane]:
    args = Namespace(out=tmp_path, seconds=60.0, public=tmp_path, table=None, authors=tmp_path)
    return STAGES[stage](args)


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("stage", list(STAGES))
def test_every_command_writes_into_the_folder_that_was_named(stage: str, tmp_path: Path) -> None:
    commands = [command for lane in lanes_of(stage, tmp_path) for command in lane]
    assert len({command.name for command in commands}) == len(commands)
    for command in commands:
        is_test = "pytest" in command.words
        assert is_test or any(word.startswith(str(tmp_path)) for word in command.words)


@pytest.mark.usefixtures("sixteen_cores")
def test_scripts_that_are_timed_side_by_side_share_no_core(tmp_path: Path) -> None:
    lanes = lanes_of("advice", tmp_path)
    beside = [lane for lane in lanes if not lane[0].env]
    cores = [core for lane in beside for core in lane[0].cores]
    assert all(command.cores == lane[0].cores for lane in beside for command in lane)
    assert len(set(cores)) == len(cores)
    on_gpu = {core for lane in lanes if lane[0].env for core in lane[0].cores}
    assert not on_gpu & set(cores)
    assert sum(len(lane) for lane in lanes) == len(TEN)


@pytest.mark.parametrize("words", [("public",), ("verdicts",), ("public", "--public", "none")])
def test_a_stage_without_its_checkouts_is_refused_before_it_takes_time(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_figures.main([*words, "--out", str(tmp_path / "out"), "--seconds", "1"])
    assert "needs a folder that exists" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_command_that_takes_too_long_is_cut_off_and_what_it_printed_stays(tmp_path: Path) -> None:
    endless = "import threading; print('begun', flush=True); threading.Event().wait()"
    lane = [Command(name="endless", words=("-c", endless)), Command(name="next", words=("-c", ""))]
    told = run_lane(lane, tmp_path, time.monotonic() + 1.0)
    assert told == ["endless: cut off, goes on next time", "next: not begun"]
    assert (tmp_path / "endless.txt").read_text() == "begun\n"


def test_a_command_that_ends_says_how(tmp_path: Path) -> None:
    lane = [Command(name="short", words=("-c", "raise SystemExit(4)"), cores=())]
    assert run_lane(lane, tmp_path, time.monotonic() + 60.0) == ["short: exit code 4"]
