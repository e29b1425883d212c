"""Batches come out as they went in, in order, one under way; errors come at their own batch."""

import gc
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import pitstop
from pitstop.data.loader.prefetch import DevicePrefetcher, look_ahead, on_device

torch.set_num_threads(1)

# Has shapes and types but no memory, so that "moved" differs from "left alone" on any machine.
META = torch.device("meta")


class FakeLane:
    """Notes what is sent and received, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def send(self, batch: Any) -> Any:
        self.events.append(("sent", batch))
        return batch

    def receive(self, sent: Any) -> Any:
        self.events.append(("received", sent))
        return sent


class Pair(NamedTuple):
    left: Tensor
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    image: Tensor
    name: str
    more: dict[str, Tensor] | None = None


def test_the_next_batch_is_sent_before_this_one_is_worked_on() -> None:
    lane = FakeLane()
    batches = look_ahead([10, 11, 12], lane)
    assert next(batches) == 10
    assert lane.events == [("sent", 10), ("received", 10), ("sent", 11)]
    assert next(batches) == 11
    assert lane.events[3:] == [("received", 11), ("sent", 12)]
    assert list(batches) == [12]


def test_nothing_is_taken_before_the_first_batch_is_asked_for() -> None:
    lane = FakeLane()
    look_ahead([1], lane)
    assert lane.events == []


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_batch_comes_once_and_in_order(count: int) -> None:
    assert list(look_ahead(range(count), FakeLane())) == list(range(count))


def test_an_error_of_the_source_comes_at_its_own_batch() -> None:
    def failing() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("the disk is gone")

    batches = look_ahead(failing(), FakeLane())
    assert (next(batches), next(batches)) == (0, 1)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert list(batches) == []


def test_an_error_while_copying_comes_at_its_own_batch() -> None:
    class NarrowLane(FakeLane):
        def send(self, batch: Any) -> Any:
            if batch == 1:
                raise RuntimeError("out of memory")
            return batch

    batches = look_ahead([0, 1, 2], NarrowLane())
    assert next(batches) == 0
    with pytest.raises(RuntimeError, match="out of memory"):
        next(batches)


def test_an_interrupt_is_not_put_off() -> None:
    def interrupted() -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(look_ahead(interrupted(), FakeLane()))


def test_leaving_early_closes_the_source() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    batches = look_ahead(source(), FakeLane())
    next(batches)
    assert not closed
    batches.close()
    assert closed


def test_the_caller_alone_keeps_a_batch_alive() -> None:
    batches = look_ahead([torch.zeros(1), torch.zeros(1)], FakeLaneThatForgets())
    batch = next(batches)
    alive = weakref.ref(batch)
    del batch
    gc.collect()
    assert alive() is None


class FakeLaneThatForgets:
    def send(self, batch: Tensor) -> Tensor:
        return batch.clone()

    def receive(self, sent: Tensor) -> Tensor:
        return sent


def test_a_cpu_gets_the_very_same_batches() -> None:
    source = [{"x": torch.zeros(2)}, {"x": torch.ones(2)}]
    found = list(DevicePrefetcher(source, "cpu"))
    assert all(one is other for one, other in zip(found, source, strict=True))


def test_the_length_is_that_of_the_source() -> None:
    assert len(DevicePrefetcher([1, 2, 3], "cpu")) == 3
    with pytest.raises(TypeError, match="generator does not say how long it is"):
        len(DevicePrefetcher((n for n in range(3)), "cpu"))


def test_a_source_that_starts_over_is_started_over() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    prefetcher = DevicePrefetcher(loader, "cpu")
    for _ in range(2):
        assert [numbers.tolist() for [numbers] in prefetcher] == [[0, 1], [2, 3], [4, 5]]


def test_another_kind_of_device_gets_its_batches_too() -> None:
    [batch] = DevicePrefetcher([{"x": torch.zeros(2)}], META)
    assert batch["x"].device == META


def test_tensors_are_found_however_deep_and_all_else_is_left_alone() -> None:
    marker = object()
    value = {
        "list": [torch.zeros(2), "word", 3],
        "tuple": (torch.zeros(1), None),
        "named": Pair(torch.zeros(3), "right"),
        "record": Record(image=torch.zeros(4), name="a", more={"m": torch.zeros(5)}),
        "bytes": b"xyz",
        "other": marker,
        "class": Record,
    }
    moved = on_device(value, META)
    assert moved["list"][0].device == META
    assert moved["list"][1:] == ["word", 3]
    assert moved["tuple"][0].device == META
    assert moved["tuple"][1] is None
    assert isinstance(moved["named"], Pair)
    assert (moved["named"].left.device, moved["named"].right) == (META, "right")
    assert isinstance(moved["record"], Record)
    assert moved["record"].image.device == META
    assert moved["record"].more["m"].device == META
    assert moved["record"].name == "a"
    assert moved["bytes"] == b"xyz"
    assert moved["other"] is marker
    assert moved["class"] is Record
    assert value["list"][0].device.type == "cpu"


def test_kinds_of_dictionaries_stay_what_they_are() -> None:
    counted: defaultdict[str, list[Tensor]] = defaultdict(list, a=[torch.zeros(1)])
    moved = on_device(counted, META)
    assert isinstance(moved, defaultdict)
    assert moved["new"] == []
    assert moved["a"][0].device == META
    assert counted["a"][0].device.type == "cpu"
    ordered = on_device(OrderedDict(b=torch.zeros(1), a=torch.zeros(1)), META)
    assert isinstance(ordered, OrderedDict)
    assert list(ordered) == ["b", "a"]
    assert on_device(MappingProxyType({"a": torch.zeros(1)}), META)["a"].device == META


def test_packed_sequences_stay_packed() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = on_device(packed, torch.device("cpu"))
    assert type(moved) is type(packed)
    assert torch.equal(moved.data, packed.data)


def test_it_is_offered_by_the_package() -> None:
    assert pitstop.DevicePrefetcher is DevicePrefetcher
