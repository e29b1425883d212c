"""Rows of divided tensors put together again, and indices that do not tell the truth."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pitstop.errors import CheckpointError
from pitstop.train.state.shards import (
    DividedTensor,
    Rows,
    fill_marks,
    join_shards,
    read_index,
    split_shards,
    write_index,
)

WHOLE = torch.arange(21.0).reshape(7, 3)
FILES: dict[str, dict[str, Any]] = {
    "shard-00000.pt": {"model.w@0": WHOLE[:4].clone()},
    "shard-00001.pt": {"model.w@4": WHOLE[4:].clone()},
}
INDEX = {
    "model.w": DividedTensor(
        dtype=torch.float32,
        shape=(7, 3),
        rows=(
            Rows(start=0, count=4, file="shard-00000.pt"),
            Rows(start=4, count=3, file="shard-00001.pt"),
        ),
    )
}


class Divided(Tensor):
    """What looks like a tensor that ranks divide."""

    def to_local(self) -> Tensor:
        return self


def read(name: str) -> dict[str, Any]:
    return FILES[name]


def test_a_state_is_taken_apart_and_put_together_again() -> None:
    own = torch.ones(2)
    state = {"model": {"w": WHOLE.as_subclass(Divided), "b": own}, "groups": [{"lr": 0.1}, (1, 2)]}
    alike, divided = split_shards(state)
    assert list(divided) == ["model.w"]
    assert alike["model"]["b"] is own
    index = read_index(write_index(INDEX), FILES)
    assert index == INDEX
    found = fill_marks(alike, join_shards(index, read))
    assert torch.equal(found["model"]["w"], WHOLE)
    assert found["groups"] == state["groups"]


def test_only_what_is_wanted_is_opened() -> None:
    opened: list[str] = []

    def noted(name: str) -> dict[str, Any]:
        opened.append(name)
        return FILES[name]

    assert join_shards(INDEX, noted, parts=("average",)) == {}
    assert opened == []


def entry(**changes: object) -> dict[str, Any]:
    return {"model.w": {**write_index(INDEX)["model.w"], **changes}}


@pytest.mark.parametrize(
    "content",
    [
        entry(shape=[8, 3]),
        entry(shape=[7, -3]),
        entry(shape=[True, 3]),
        entry(rows=[[0, 4, "shard-00000.pt"]]),
        entry(rows=[]),
        entry(rows=[[0, 4, "shard-00000.pt"], [3, 4, "shard-00001.pt"]]),
        entry(rows=[[0, 4, "shard-00000.pt"], [4, 3, "../elsewhere.pt"]]),
        entry(rows=[[0, 4, "shard-00000.pt"], [4, 3]]),
        entry(dtype="load"),
        entry(dtype=3),
        {"model.w": None},
        [],
    ],
)
def test_an_index_that_cannot_be_one_is_refused(content: Any) -> None:
    with pytest.raises(CheckpointError, match="index of divided tensors is damaged"):
        read_index(content, FILES)


@pytest.mark.parametrize(
    "content",
    [
        # Before any memory is taken for it.
        entry(shape=[7, 10**12]),
        entry(dtype="float64"),
        {"model.v": entry()["model.w"]},
    ],
)
def test_rows_are_held_against_what_the_index_says(content: Any) -> None:
    with pytest.raises(CheckpointError, match=r"shard-00000\.pt does not hold rows 0 on"):
        join_shards(read_index(content, FILES), read)


def test_a_mark_without_a_tensor_is_refused() -> None:
    alike, _ = split_shards({"model": {"w": WHOLE.as_subclass(Divided)}})
    with pytest.raises(CheckpointError, match=r"lacks 'model\.w'"):
        fill_marks(alike, {})
