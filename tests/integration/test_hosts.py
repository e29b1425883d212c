"""Two processes that take each other for hosts: what they find out before the first step."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pitstop.errors import PitstopError
from pitstop.records.store import read_run
from pitstop.train.hosts import (
    compare_clocks,
    decided_by_first,
    done_by_all,
    require_same,
    require_shared_folder,
)
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.state.checkpoint import find_newest_whole
from tests.integration.ranks import Doom, exit_codes, launch, train_larger_line

pytestmark = pytest.mark.slow

AHEAD_S = 3.0
"""By how much the clock of the second host is ahead."""


def meet(folder: Path) -> None:
    """Go through everything that hosts do together; write what each came to."""
    # Its own launcher's only rank, as on a host of its own.
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # noqa: TID251 - torchrun's contract
    ranks = join_ranks(timeout_s=60.0)
    own = folder / f"host-{ranks.rank}"
    own.mkdir()
    clock = compare_clocks(ranks, lambda: time.time() + AHEAD_S * ranks.rank)  # noqa: TID251
    assert clock is not None
    found: dict[str, Any] = {
        "hosts": [list(host.ranks) for host in ranks.hosts],
        "decided": decided_by_first(ranks, lambda: f"by {ranks.rank}"),
        "undecided": said(lambda: decided_by_first(ranks, lambda: refuse(ranks, 0))),
        "shared": said(lambda: require_shared_folder(ranks, folder)),
        "apart": said(lambda: require_shared_folder(ranks, own)),
        "one fails": said(lambda: done_by_all(ranks, lambda: refuse(ranks, 1))),
        "same": said(lambda: require_same(ranks, "settings", {"a": 1, "b": 2})),
        "other": said(lambda: require_same(ranks, "settings", {"a": 1, "b": ranks.rank})),
        "offset_s": clock.offset_s,
        "error_s": clock.error_s,
    }
    (folder / f"found-{ranks.rank}.json").write_text(json.dumps(found))
    leave_ranks()


def refuse(ranks: Ranks, rank: int) -> None:
    if ranks.rank == rank:
        raise PitstopError("it does not go")


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except PitstopError as error:
        return str(error)
    return ""


def test_hosts_find_out_what_would_stop_them_and_all_say_the_same(tmp_path: Path) -> None:
    assert exit_codes(launch(meet, tmp_path, world_size=2, logs=tmp_path / "logs")) == [0, 0], (
        tmp_path / "logs" / "stderr-0"
    ).read_text()
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        assert found["hosts"] == [[0], [1]]
        assert found["decided"] == "by 0"
        assert found["undecided"] == "it does not go"
        assert (found["shared"], found["same"]) == ("", "")
        assert "(rank 1) cannot see what" in found["apart"]
        assert "set checkpoint.dir" in found["apart"]
        assert found["one fails"].endswith("it does not go")
        assert "differ in settings: b is 1 on" in found["other"]
    assert (first["offset_s"], first["error_s"]) == (0.0, 0.0)
    assert second["error_s"] > 0
    assert abs(second["offset_s"] + AHEAD_S) <= second["error_s"]
    assert list(tmp_path.rglob(".probe*")) == []


@pytest.mark.parametrize("shard", ["none", "full"])
def test_epochs_that_two_ranks_began_are_ended_by_one(tmp_path: Path, shard: str) -> None:
    settings = {
        "train__shard": shard,
        "train__steps": None,
        "train__epochs": 3,
        "checkpoint__every_steps": 4,
        "checkpoint__dir": str(tmp_path / "saves"),
    }
    doom = Doom(rank=1, how="killed in a step", count=10)
    lost = launch(
        train_larger_line, tmp_path, settings, doom, world_size=2, logs=tmp_path / "logs-2"
    )
    assert exit_codes(lost)[1] == -signal.SIGKILL
    saves = tmp_path / "saves" / "run" / "checkpoints"
    begun, _ = find_newest_whole(saves)
    assert begun is not None, "the save of step 4 was whole before that of step 8 began"
    alone = launch(
        train_larger_line, tmp_path, settings, None, world_size=1, logs=tmp_path / "logs-1"
    )
    assert exit_codes(alone) == [0], (tmp_path / "logs-1" / "stderr-0").read_text()
    # Of 45 samples two ranks take 8 in a round, 5 rounds in an epoch; one rank 4, 11 batches.
    epoch, rounds = divmod(begun.manifest.step, 5)
    left = (45 - 8 * rounds) // 4
    checkpoint, _ = find_newest_whole(saves)
    assert checkpoint is not None
    assert checkpoint.manifest.step == begun.manifest.step + left + (2 - epoch) * 11
    record = read_run(tmp_path / "run")
    assert [rank.rank for rank in record.ranks] == [0]
    [said] = [r.values["text"] for r in record.first.readings if r.values.get("about") == "ranks"]
    assert "saved by 2 ranks, going on with 1: effective batch goes from 8 to 4" in said
    assert f"batches of the epoch left for each rank: {left};" in said
