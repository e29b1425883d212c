"""An environment that speaks of a launch must say all of it; otherwise one sentence."""

import os
import subprocess
import sys

import pytest

from pitstop.errors import ConfigError
from pitstop.train.ranks import Ranks, join_ranks

LAUNCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)


def test_a_plain_start_is_a_run_of_one_rank() -> None:
    assert join_ranks() == Ranks()


def test_a_world_of_two_alone_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set"):
        join_ranks()


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "1.5", "9" * 5000, "\u0661", "\x1b[2J"])
def test_a_world_that_is_no_number_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(ConfigError, match="the environment has WORLD_SIZE="):
        join_ranks()


def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCH:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="the environment has RANK='first'"):
        join_ranks()


@pytest.mark.skipif(sys.platform != "linux", reason="ranks end with their launcher on Linux")
@pytest.mark.parametrize(("is_gone", "code"), [(True, 3), (False, 0)])
def test_a_rank_whose_launcher_ended_in_its_start_does_not_begin(is_gone: bool, code: int) -> None:
    # In a process of its own: the signal at its parent's end would stay with this one.
    program = (
        "import os, sys\n"
        "from pitstop.errors import PitstopError\n"
        "from pitstop.train.stop_signals import stop_with_launcher\n"
        "try:\n"
        "    stop_with_launcher(int(sys.argv[1]))\n"
        "except PitstopError as error:\n"
        "    sys.exit(3 * ('the launcher of this run has ended' in str(error)))\n"
    )
    launcher = os.getpid() + is_gone
    ended = subprocess.run([sys.executable, "-c", program, str(launcher)], check=False)
    assert ended.returncode == code
