"""An environment that speaks of a launch must say all of it; otherwise one sentence."""

import pytest

from pitstop.errors import ConfigError
from pitstop.train.ranks import Ranks, is_first_rank, join_ranks

LAUNCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)


def test_a_plain_start_is_a_run_of_one_rank() -> None:
    assert join_ranks() == Ranks()
    assert is_first_rank()


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
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="the environment has RANK='first'"):
        is_first_rank()
