"""Stages that are cut off leave what has ended, and give each script cores of its own."""

import time
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks import gpu_figures
from benchmarks.advice_followed import TEN
from benchmarks.gpu_figures import STAGES, Command, Lane, Stage, run_lane


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_figures.os, "sched_getaffinity", lambda _: set(range(16)))


def lanes_of(stage: str, tmp_path: Path) -> list[Lane]:
    places = dict.fromkeys(("out", "public", "authors", "predicted"), tmp_path)
    return STAGES[stage](Namespace(**places, seconds=60.0, table=None, rehearse=False))


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize("stage", list(STAGES))
def test_every_command_writes_into_the_folder_that_was_named(stage: str, tmp_path: Path) -> None:
    commands = [command for lane in lanes_of(stage, tmp_path) for command in lane]
    assert len({command.name for command in commands}) == len(commands)
    for command in commands:
        is_test = "pytest" in command.words
        assert is_test or any(word.startswith(str(tmp_path)) for word in command.words)


@pytest.mark.parametrize("stage", ["plans", "shards", "attempts", "tuning"])
def test_what_is_rehearsed_is_asked_for_its_smallest_size(stage: str, tmp_path: Path) -> None:
    args = Namespace(out=tmp_path, seconds=60.0, predicted=tmp_path, rehearse=True)
    commands = [command for lane in STAGES[stage](args) for command in lane]
    assert all("--smoke" in command.words for command in commands)


def test_stages_run_in_their_order_each_for_its_own_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, float]] = []

    def run_stage(stage: Stage, args: Namespace) -> None:
        ran.append((stage.name, stage.seconds))

    monkeypatch.setattr(Stage, "run", run_stage)
    gpu_figures.main(["shards=70", "overhead", "--seconds", "30", "--out", str(tmp_path / "out")])
    assert ran == [("shards", 70.0), ("overhead", 30.0)]


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("public=1",), "public needs --public"),
        (("shards=1", "verdicts=1"), "verdicts needs --authors"),
        (("plans=1",), "plans needs --predicted"),
        (("public=1", "--public", "none"), "of something that exists"),
        (("shards",), "for how long"),
        (("shards=long",), "for how long"),
        (("sharding=1",), "no stage 'sharding'"),
    ],
)
def test_a_stage_that_lacks_something_is_refused_before_any_takes_time(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_figures.main([*words, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_command_that_takes_too_long_is_cut_off_and_what_it_printed_stays(tmp_path: Path) -> None:
    endless = "import threading; print('begun', flush=True); threading.Event().wait()"
    lane = [Command(name="endless", words=("-c", endless)), Command(name="next", words=("-c", ""))]
    # Where others take all cores, Python itself takes seconds to begin.
    for seconds in (1.0, 10.0, 60.0):
        told = run_lane(lane, tmp_path, time.monotonic() + seconds)
        assert told == ["endless: cut off, goes on next time", "next: not begun"]
        if (tmp_path / "endless.txt").read_text():
            break
    assert (tmp_path / "endless.txt").read_text() == "begun\n"


def test_a_command_that_ends_says_how(tmp_path: Path) -> None:
    lane = [Command(name="short", words=("-c", "raise SystemExit(4)"), cores=())]
    assert run_lane(lane, tmp_path, time.monotonic() + 60.0) == ["short: exit code 4"]
