"""A connection that breaks while training is a lost rank, whatever broke it; other errors pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from pitstop.train.lost_ranks import LostRankError, naming_lost_ranks
from pitstop.train.ranks import Host, Ranks

TWO = Ranks(rank=1, world_size=2)

# As torch 2.13 says it with gloo.
SAID = (
    "[../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:6826: Connection timed out",
    "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:6826",
    "[../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:6826: Connection reset by peer",
    "[../gloo/transport/tcp/pair.cc:600] writev [10.0.0.2]:6826: Broken pipe",
    "[../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:6826: No route to host",
    "[../gloo/transport/tcp/pair.cc:600] writev [10.0.0.2]:6826: Network is unreachable",
    "[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
    "Application timeout caused pair closure",
    "[../gloo/transport/tcp/pair.cc:144] Pair is not connected (2)",
    "[../gloo/transport/tcp/pair.cc:200] Read timeout [10.0.0.2]:6826",
)


@pytest.mark.parametrize("said", SAID)
def test_a_broken_connection_names_the_run_and_what_to_do(said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(LostRankError, match="rank 1 cannot go on without the others") as found,
        naming_lost_ranks(TWO, tmp_path),
    ):
        raise RuntimeError(said)
    assert "cannot be reached" in str(found.value)
    assert "--resume auto" in str(found.value)


def test_another_error_passes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), naming_lost_ranks(TWO, tmp_path):
        raise RuntimeError("shapes differ")


def test_a_run_of_one_rank_has_lost_nobody(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="timed out"), naming_lost_ranks(Ranks(), tmp_path):
        raise RuntimeError("connection timed out")


def test_hosts_are_named_where_there_are_several(tmp_path: Path) -> None:
    hosts = (Host(name="a", ranks=(0,)), Host(name="b", ranks=(1, 2)))
    ranks = Ranks(rank=0, world_size=3, hosts=hosts)
    for folder in (tmp_path, None):
        with (
            pytest.raises(LostRankError, match=r"rank 0 on a cannot go on.*b \(ranks 1, 2\)"),
            naming_lost_ranks(ranks, folder),
        ):
            raise RuntimeError(SAID[0])


def test_a_command_that_lost_ranks_ends_without_waiting_for_them_again() -> None:
    # In a process of its own: what would wait is the interpreter's end.
    program = (
        "import atexit, sys, time\n"
        "from pitstop.cli import main\n"
        "from pitstop.train.lost_ranks import LostRankError\n"
        "atexit.register(time.sleep, 600)\n"
        "def lose():\n"
        "    raise LostRankError('gone')\n"
        "main.app = lose\n"
        "main.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (2, "error: gone\n")
