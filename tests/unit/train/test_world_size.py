"""Going on with other ranks: whose state each takes, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pitstop.errors import CheckpointError
from pitstop.train.ranks import Ranks
from pitstop.train.state.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    WritingRanks,
    find_newest_whole,
)
from pitstop.train.state.random_state import capture_random_state
from pitstop.train.world_size import describe_change, own_state
from tests.unit.train.runs import line_config

PLACE = {"kind": "shuffled", "world_size": 2, "epoch": 1, "consumed": 3}


def saved_by_two(folder: Path, *, consumed: tuple[int, int] = (3, 3)) -> Checkpoint:
    """A checkpoint of two ranks, written by one process after the other."""
    folder.mkdir()
    states = []
    for rank in range(2):
        torch.manual_seed(rank)
        place = {**PLACE, "rank": rank, "consumed": consumed[rank]}
        states.append({"loader": place, "random": capture_random_state()})

    # The second rank's part is there when the first asks whether all are well.
    def agree(well: bool) -> bool:
        writing = folder / "checkpoints" / ".writing"
        if writing.is_dir() and not (writing / "rank-00001.pt").exists():
            torch.save(states[1], writing / "rank-00001.pt")
        return well

    ranks = WritingRanks(rank=0, world_size=2, agree=agree)
    with CheckpointWriter(folder / "checkpoints", keep_last=1, ranks=ranks) as writer:
        writer.save({"step": 7}, states[0], step=7, epoch=1)
    checkpoint, _ = find_newest_whole(folder / "checkpoints")
    assert checkpoint is not None
    return checkpoint


def test_as_many_ranks_take_each_its_own(tmp_path: Path) -> None:
    checkpoint = saved_by_two(tmp_path / "run")
    for rank in range(2):
        assert own_state(checkpoint, Ranks(rank=rank, world_size=2)).place["rank"] == rank


def test_more_ranks_take_the_common_place_and_numbers_nobody_has_drawn(tmp_path: Path) -> None:
    checkpoint = saved_by_two(tmp_path / "run")
    drawn: list[Any] = []
    for rank in range(4):
        own = own_state(checkpoint, Ranks(rank=rank, world_size=4))
        assert (own.place["epoch"], own.place["consumed"]) == (1, 3)
        own.restore_random(seed=0, rank=rank, step=7)
        drawn.append(torch.rand(1).item())
    torch.manual_seed(1)
    assert drawn[1] == torch.rand(1).item()
    assert len(set(drawn)) == 4
    own_state(checkpoint, Ranks(rank=3, world_size=4)).restore_random(seed=0, rank=3, step=8)
    assert torch.rand(1).item() not in drawn


def test_ranks_at_different_places_cannot_be_others(tmp_path: Path) -> None:
    checkpoint = saved_by_two(tmp_path / "run", consumed=(3, 2))
    with pytest.raises(CheckpointError, match=r"different places in the data.*resume with 2 ranks"):
        own_state(checkpoint, Ranks(world_size=1))


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({}, "learning rate stays 0.02 (optimizer.lr_scaling none)"),
        (
            {"optimizer__lr_scaling": "linear", "optimizer__reference_batch": 8},
            "learning rate goes from 0.02 to 0.04 (optimizer.lr_scaling linear)",
        ),
        (
            {"optimizer__lr_scaling": "sqrt", "optimizer__reference_batch": 32},
            "learning rate goes from 0.01 to 0.0141421 (optimizer.lr_scaling sqrt)",
        ),
    ],
)
def test_what_more_ranks_change_is_said(
    tmp_path: Path, scaling: dict[str, object], told: str
) -> None:
    config = line_config(tmp_path, optimizer__lr=0.02, **scaling)
    ranks = Ranks(world_size=4)
    [text] = describe_change(saved_by_two(tmp_path / "run"), config, ranks, batches_left=5)
    assert "saved by 2 ranks, going on with 4: effective batch goes from 8 to 16" in text
    assert told in text
    assert "batches of the epoch left for each rank: 5;" in text


def test_as_many_ranks_as_before_need_no_word(tmp_path: Path) -> None:
    config = line_config(tmp_path)
    checkpoint = saved_by_two(tmp_path / "run")
    assert describe_change(checkpoint, config, Ranks(world_size=2), batches_left=1) == ()
    assert describe_change(None, config, Ranks(world_size=2), batches_left=1) == ()
