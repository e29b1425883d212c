"""Batches through the ring are the batches that were sent, however long somebody keeps them."""

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.loader import ring as ring_module
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.loader.ring import Lender, Ring, has_rings, pack, take_back, unpack
from pitstop.data.sampling.samplers import ShuffledBatches

torch.set_num_threads(1)

pytestmark = pytest.mark.skipif(not has_rings(), reason="no memory without a name here")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    frames: Tensor
    names: list[str]

    def __post_init__(self) -> None:
        assert isinstance(self.frames, Tensor), "a stand-in must never be seen in here"


tensors = st.builds(
    lambda shape, dtype, turned: (
        (torch.randn(shape) * 9).to(dtype).T
        if turned and len(shape) == 2
        else (torch.randn(shape) * 9).to(dtype)
    ),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.uint8, torch.bool, torch.float32, torch.int64, torch.bfloat16]),
    st.booleans(),
)
batches = st.recursive(
    tensors | st.text(max_size=3) | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(lambda t: Clip(frames=t, names=["a"]), tensors)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Clip):
        return isinstance(other, Clip) and same(one.frames, other.frames)
    return one == other


@given(batch=batches)
def test_a_batch_of_any_make_arrives_as_it_was_sent(batch: Any) -> None:
    ring = Ring(slots=1, batch_bytes=4096)
    slot = ring.lend()
    assert slot is not None
    parcel = pack(batch, slot)
    assert parcel is not None
    assert same(unpack(parcel), batch)


def test_a_slot_is_lent_again_only_when_all_that_lies_in_it_is_gone() -> None:
    ring = Ring(slots=1, batch_bytes=1000)
    slot = ring.lend()
    assert slot is not None
    assert ring.lend() is None
    parcel = pack([torch.ones(10), torch.zeros(3)], slot)
    assert parcel is not None
    first, second = unpack(parcel)
    row = first[2:4]
    del first
    gc.collect()
    assert ring.lend() is None
    del second
    assert ring.lend() is None
    assert row.tolist() == [1, 1]
    del row
    assert ring.lend() is not None


def test_what_does_not_fit_is_not_packed_and_its_slot_is_free_again() -> None:
    ring = Ring(slots=1, batch_bytes=1000)
    slot = ring.lend()
    assert slot is not None
    assert pack(torch.zeros(100_000), slot) is None
    take_back(slot)
    take_back(slot)
    assert ring.lend() is not None
    assert ring.lend() is None, "taken back once, however often it was said"


def test_a_ring_leaves_no_open_file_behind() -> None:
    kept = torch.empty(0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        ring = Ring(slots=2, batch_bytes=1000)
        slot = ring.lend()
        assert slot is not None
        parcel = pack(torch.ones(5), slot)
        assert parcel is not None
        kept = unpack(parcel)
        del ring, parcel
        gc.collect()
        assert kept.tolist() == [1] * 5, "memory outlives the ring while a tensor lies in it"
    del kept
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_lender_without_memory_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    lender = Lender(4)
    lender.fit(1000)
    assert lender.lend() is None


@dataclass(frozen=True)
class Squares:
    """Samples that differ, larger from an epoch on."""

    grows_in: int = 99

    def __len__(self) -> int:
        return 24

    def sample(self, epoch: int, index: int) -> Tensor:
        size = 3000 if epoch < self.grows_in else 30_000
        return torch.full((size,), 100 * epoch + index)


def stack(samples: list[Tensor]) -> dict[str, Tensor]:
    return {"all": torch.stack(samples), "first": samples[0][:1].clone()}


def loader_of(samples: Squares, **settings_: object) -> Loader[dict[str, Tensor]]:
    section = LoaderSection.model_validate({"workers": 2, **settings_})
    order = ShuffledBatches(len(samples), 2, seed=0, drop_last=True, shuffle=False)
    return build_loader(samples, order, stack, section)


def epochs(
    loader: Loader[dict[str, Tensor]], count: int
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    for epoch in range(count):
        loader.set_epoch(epoch)
        for number, (batch, _) in enumerate(loader):
            yield 100 * epoch + 2 * number, batch


def right(first: int, batch: dict[str, Tensor]) -> bool:
    ok = (batch["all"] == torch.tensor([[first], [first + 1]])).all()
    return bool(ok) and batch["first"].item() == first


def test_batches_that_are_kept_are_never_written_over() -> None:
    with loader_of(Squares()) as loader:
        kept = list(epochs(loader, 4))
    assert len(kept) == 48
    assert all(right(first, batch) for first, batch in kept)


def test_a_loop_that_lets_go_uses_the_same_few_slots() -> None:
    with loader_of(Squares()) as loader:
        places = []
        for first, batch in epochs(loader, 4):
            assert right(first, batch)
            places.append(batch["all"].data_ptr())
        used = set(places[len(places) // 2 :])
    # Workers times batches ahead, and two in the hands of the loop; by now none goes torch's way.
    assert len(used) <= 2 * 2 + 2


@pytest.mark.parametrize("persistent", [True, False])
def test_batches_that_outgrow_the_slots_get_larger_ones(persistent: bool) -> None:
    with loader_of(Squares(grows_in=2), persistent=persistent) as loader:
        for first, batch in epochs(loader, 5):
            assert right(first, batch)


def test_a_loader_that_jumps_about_does_not_lose_its_slots() -> None:
    with loader_of(Squares()) as loader:
        for turn in range(12):
            loader.set_epoch(turn % 3 * 5)
            loader.rewind()
            for number, (batch, _) in enumerate(loader):
                assert right(100 * loader.epoch + 2 * number, batch)
                if number == 3:
                    break
        loader.set_epoch(50)
        places = {batch["all"].data_ptr() for batch, _ in loader}
    # One more for the batch that was kept from the last turn.
    assert len(places) <= 2 * 2 + 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_inherit_nothing_find_the_slots(method: str) -> None:
    with loader_of(Squares(), start_method=method) as loader:
        places = []
        for first, batch in epochs(loader, 3):
            assert right(first, batch)
            places.append(batch["all"].data_ptr())
    assert len(set(places[len(places) // 2 :])) <= 2 * 2 + 2


def test_where_there_are_no_rings_batches_go_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "has_rings", lambda: False)
    with loader_of(Squares()) as loader:
        for first, batch in epochs(loader, 2):
            assert right(first, batch)


def test_a_worker_that_cannot_open_the_memory_sends_batches_torchs_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        Ring,
        "lend",
        lambda self, lend=Ring.lend: (
            (slot := lend(self)) and slot._replace(path=str(tmp_path / "gone"))
        ),
    )
    with loader_of(Squares()) as loader:
        for first, batch in epochs(loader, 3):
            assert right(first, batch)
