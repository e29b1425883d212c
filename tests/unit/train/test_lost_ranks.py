"""A connection that breaks while training is a lost rank, whatever broke it; other errors pass."""

from pathlib import Path

import pytest

from pitstop.train.lost_ranks import LostRankError, naming_lost_ranks
from pitstop.train.ranks import Ranks

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
