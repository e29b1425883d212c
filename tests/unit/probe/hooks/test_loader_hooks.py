"""What is learnt of somebody's DataLoader, and what that must not change."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import pitstop
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from pitstop_probe.attach import current
from pitstop_probe.hooks.loader_hooks import (
    _OpenedFiles,  # pyright: ignore[reportPrivateUsage]
    describe_loader,
)

HAS_FORK = "fork" in multiprocessing.get_all_start_methods()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Stream(IterableDataset[Tensor]):
    """Gives more than it says."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.randn(40, 8)


class Unread:
    """A sampler whose index is still being read."""

    def __len__(self) -> int:
        raise OSError("the index is still being read")

    def __iter__(self) -> Iterator[int]:
        yield from range(30)


class Rows(Dataset[Tensor]):
    """Rows of a tensor, one a sample."""

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Tensor:
        return self._data[index]


def train(loader: DataLoader[Tensor], *, passes: int, evaluated: DataLoader[Tensor] | None) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(passes):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in evaluated or ():
                model(batch)


def measured(
    folder: Path,
    loader: DataLoader[Tensor],
    *,
    passes: int = 1,
    evaluated: DataLoader[Tensor] | None = None,
) -> RankRecord:
    with pitstop.attach(folder):
        train(loader, passes=passes, evaluated=evaluated)
        measurement = current()
        assert measurement is not None
        assert measurement.tracker.active
    return read_run(folder).first


def readings(rank: RankRecord, kind: str) -> list[dict[str, object]]:
    return [dict(reading.values) for reading in rank.readings if reading.kind == kind]


def test_a_stream_that_understates_its_length_is_not_held_to_it(tmp_path: Path) -> None:
    """Torch warns of samples beyond the length, once somebody has asked for it; here it raises."""
    loader = DataLoader(Stream(), batch_size=2)
    (setup,) = readings(measured(tmp_path, loader), "setup")
    (about,) = setup["loaders"]  # type: ignore[misc]
    assert (about["length"], about["batches"]) == (2, 20)
    assert describe_loader(loader)["length"] == 2
    assert sum(1 for _ in loader) == 20


def test_a_script_that_asks_for_the_length_is_warned_as_ever(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), batch_size=2)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="Length of IterableDataset"):
        measured(tmp_path, loader)


def test_a_length_that_cannot_be_told_is_not_known(tmp_path: Path) -> None:
    loader = DataLoader(Rows(torch.randn(30, 8)), batch_size=1, sampler=Unread())
    (setup,) = readings(measured(tmp_path, loader), "setup")
    (about,) = setup["loaders"]  # type: ignore[misc]
    assert (about["length"], about["batches"]) == (None, 30)


@pytest.mark.skipif(not HAS_FORK, reason="no fork here")
def test_workers_of_short_passes_tell_of_all_their_batches(tmp_path: Path) -> None:
    data = torch.randn(40, 8)
    training = DataLoader(Rows(data), 2, num_workers=1, multiprocessing_context="fork")
    evaluated = DataLoader(Rows(data), 4, num_workers=1, multiprocessing_context="fork")
    rank = measured(tmp_path, training, passes=3, evaluated=evaluated)
    (setup,) = readings(rank, "setup")
    pids = {about["trains"]: about["pids"] for about in setup["loaders"]}  # type: ignore[attr-defined]
    told = {times["pid"]: times["batches"] for times in readings(rank, "worker")}
    assert [told[pid] for pid in pids[True]] == [20] * 3
    assert [told[pid] for pid in pids[False]] == [10] * 3


def test_a_process_that_loads_by_itself_tells_of_most_batches(tmp_path: Path) -> None:
    rank = measured(tmp_path, DataLoader(Rows(torch.randn(24, 8)), 1))
    (times,) = readings(rank, "worker")
    assert (times["pid"], times["worker"]) == (os.getpid(), -1)
    assert isinstance(times["batches"], int)
    assert times["batches"] >= 12


def test_only_what_lies_inside_a_system_folder_is_no_data() -> None:
    files = _OpenedFiles("/runs/mine")
    data = ["/devdata/a.bin", "/system/b.bin", "/procedure/c", sys.prefix + "2/d", "/runs/mine2/e"]
    for name in [*data, "/dev/shm/x", "/proc/self/io", "/sys/x", sys.prefix + "/y", "/runs/mine/z"]:
        files("open", (name, "r", os.O_RDONLY))
    files("open", ("/tmp/made", "w", os.O_WRONLY | os.O_CREAT))
    files("open", ("/data/by somebody else's call",))
    assert list(files.names) == [*data, "/data/by somebody else's call"]
