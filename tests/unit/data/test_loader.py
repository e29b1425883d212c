import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.fetch import BatchFetcher, Desk, Fetched, Place, Request
from pitstop.data.loader import Loader, build_loader, resolve_start_method, resolve_workers
from pitstop.data.samplers import ShuffledBatches
from pitstop.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    assert multiprocessing.active_children() == []


@dataclass(frozen=True)
class Numbers:
    """Samples that are their own epoch and index; some cannot be read, one ends its reader."""

    count: int = 12
    broken: frozenset[int] = frozenset()
    fatal: int | None = None

    def __len__(self) -> int:
        return self.count

    def sample(self, epoch: int, index: int) -> Tensor:
        if index in self.broken:
            raise OSError(5, "Input/output error", f"clip_{index}.png")
        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([epoch, index])


class NamedNumbers(Numbers):
    def name_of(self, index: int) -> str:
        return f"clip_{index}"


def stack(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples)


def loader_of(
    samples: Numbers, *, batch_size: int = 4, for_eval: bool = False, **settings: object
) -> Loader[Tensor]:
    section = LoaderSection.model_validate({"tune": "off", "workers": 0, **settings})
    batches = ShuffledBatches(len(samples), batch_size, seed=0, drop_last=False, shuffle=False)
    return build_loader(samples, batches, stack, section, for_eval=for_eval)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_carry_their_epoch_also_through_workers_that_stay(workers: int) -> None:
    with loader_of(Numbers(), workers=workers) as loader:
        assert loader.applied.persistent == (workers > 0)
        for epoch in (0, 5, 1):
            loader.set_epoch(epoch)
            taken = [(batch.tolist(), consumed) for batch, consumed in loader]
            assert taken == [
                ([[epoch, first + i] for i in range(4)], n)
                for n, first in enumerate((0, 4, 8), start=1)
            ]


def test_workers_stay_the_same_between_epochs_or_not() -> None:
    for persistent in (True, False):
        with loader_of(Numbers(), workers=2, persistent=persistent) as loader:
            crews = []
            for epoch in range(2):
                loader.set_epoch(epoch)
                batches = iter(loader)
                next(batches)
                crews.append({child.pid for child in multiprocessing.active_children()})
                list(batches)
            assert len(crews[0]) == len(crews[1]) == 2
            assert (crews[0] == crews[1]) == persistent


def test_position_counts_what_was_handed_out_not_what_was_read_ahead() -> None:
    with loader_of(Numbers(40), workers=2, prefetch=4) as loader:
        batches = iter(loader)
        assert loader.position == 0
        for count in (1, 2, 3):
            _, consumed = next(batches)
            assert loader.position == consumed == count
        assert loader.state_dict()["consumed"] == 3
        assert loader.state_dict(consumed=2)["consumed"] == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_left_in_the_middle_goes_on_there_and_can_be_rewound(workers: int) -> None:
    with loader_of(Numbers(), workers=workers) as loader:
        for _, consumed in loader:
            if consumed == 1:
                break
        assert [batch[0, 1].item() for batch, _ in loader] == [4, 8]
        assert list(loader) == []
        loader.rewind()
        assert [batch[0, 1].item() for batch, _ in loader] == [0, 4, 8]


def test_an_iteration_overtaken_by_another_does_not_go_on() -> None:
    with loader_of(Numbers()) as loader:
        old = iter(loader)
        next(old)
        next(iter(loader))
        with pytest.raises(AssertionError, match="moved on"):
            next(old)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_draws_from_no_global_generator(workers: int) -> None:
    def state() -> tuple[object, ...]:
        numpy_state = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one it is about
        return random.getstate(), str(numpy_state), torch.get_rng_state().tolist()

    before = state()
    with loader_of(Numbers(), workers=workers) as loader:
        list(loader)
    assert state() == before


class Reports(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        quiet = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return torch.tensor([torch.get_num_threads(), quiet])


def test_workers_have_one_thread_and_leave_interrupts_to_the_trainer() -> None:
    with loader_of(Reports(), workers=1) as loader:
        for batch, _ in loader:
            assert batch.unique(dim=0).tolist() == [[1, 1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_sample_stops_with_its_name(workers: int) -> None:
    damaged = NamedNumbers(broken=frozenset({6}))
    with loader_of(damaged, workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(DataError, match=r"sample 6 \(clip_6\) cannot be read.*clip_6.png") as e:
            next(batches)
        assert "Traceback" in e.value.__notes__[0]
        assert loader.position == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_sample_is_replaced_by_its_neighbour_and_counted(workers: int) -> None:
    with loader_of(
        Numbers(broken=frozenset({5, 6, 11})), workers=workers, corrupt="skip"
    ) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            taken = [batch[:, 1].tolist() for batch, _ in loader]
            assert taken == [[0, 1, 2, 3], [4, 7, 7, 7], [8, 9, 10, 0]]
        # 6 was met twice an epoch: as itself, and in place of 5.
        assert {text.split(" cannot")[0]: n for text, n in loader.skipped.items()} == {
            "sample 5": 2,
            "sample 6": 4,
            "sample 11": 2,
        }


def test_skipping_ends_where_nothing_can_be_read() -> None:
    with (
        loader_of(Numbers(40, broken=frozenset(range(40))), corrupt="skip") as loader,
        pytest.raises(DataError, match="16 samples in a row"),
    ):
        list(loader)


def test_an_evaluation_never_skips() -> None:
    with (
        loader_of(Numbers(broken=frozenset({3})), corrupt="skip", for_eval=True) as loader,
        pytest.raises(DataError, match="sample 3"),
    ):
        list(loader)


class Buggy(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        raise KeyError(f"no column {index}")


@pytest.mark.parametrize("corrupt", ["raise", "skip"])
def test_a_bug_in_a_dataset_is_not_taken_for_a_damaged_sample(corrupt: str) -> None:
    with loader_of(Buggy(), corrupt=corrupt) as loader, pytest.raises(KeyError, match="no column"):
        list(loader)


class Refuses(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        raise RuntimeError("size mismatch")


def test_an_error_a_worker_reports_is_not_taken_for_its_death() -> None:
    with (
        loader_of(Refuses(), workers=1) as loader,
        pytest.raises(RuntimeError, match="size mismatch"),
    ):
        list(loader)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_killed_worker_is_told_with_what_it_was_reading(persistent: bool) -> None:
    samples = NamedNumbers(fatal=7)
    loader = loader_of(samples, workers=2, persistent=persistent, start_method="fork")
    with pytest.raises(DataError) as caught:
        list(loader)
    message = str(caught.value)
    assert "killed by SIGKILL while reading sample 7 (clip_7) in epoch 0" in message
    assert "loader.workers" in message
    # Without close: the others end with the one that died.
    assert multiprocessing.active_children() == []


def test_closing_is_quiet_after_a_worker_died_elsewhere() -> None:
    loader = loader_of(Numbers(), workers=3, start_method="fork")
    next(iter(loader))
    pid = max(child.pid or 0 for child in multiprocessing.active_children())
    os.kill(pid, signal.SIGKILL)
    # Torch raises as soon as the news comes, wherever the trainer is then.
    with pytest.raises(RuntimeError, match="killed by signal"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_started_from_nothing_give_the_same_batches(method: str) -> None:
    with loader_of(Numbers(), workers=2, start_method=method) as loader:
        assert loader.applied.start_method == method
        assert [batch[0, 1].item() for batch, _ in loader] == [0, 4, 8]
        loader.set_epoch(1)
        assert [batch[0].tolist() for batch, _ in loader] == [[1, 0], [1, 4], [1, 8]]


@pytest.mark.slow
def test_a_killed_worker_of_a_forkserver_is_told_too() -> None:
    with (
        loader_of(Numbers(fatal=7), workers=2, start_method="forkserver") as loader,
        pytest.raises(DataError, match="killed by SIGKILL while reading sample 7"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("setting", "ranks", "cores", "expected"),
    [
        ("auto", 1, 16, 15),
        ("auto", 8, 64, 7),
        ("auto", 4, 4, 1),
        (0.5, 1, 16, 8),
        (0.5, 4, 16, 2),
        (0.1, 4, 16, 1),
        (1.0, 1, 16, 16),
        (12, 1, 4, 12),
        (12, 8, 64, 1),
        (12, 4, 4, 3),
        (0, 8, 64, 0),
    ],
)
def test_workers_are_a_total_that_ranks_share(
    setting: str | float, ranks: int, cores: int, expected: int
) -> None:
    section = LoaderSection.model_validate({"workers": setting})
    workers = resolve_workers(section.workers, world_size_on_host=ranks, cores=cores)
    assert workers == expected


def test_a_count_too_small_for_the_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers=3 cannot be shared by the 4 ranks"):
        resolve_workers(3, world_size_on_host=4, cores=64)


def test_auto_forks_until_cuda_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert resolve_start_method("auto") == "fork"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolve_start_method("auto") == "forkserver"
    monkeypatch.setattr("sys.platform", "darwin")
    assert resolve_start_method("auto") == "spawn"


def test_a_start_method_this_platform_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(
        ConfigError, match="start_method=fork does not exist here; use one of spawn"
    ):
        resolve_start_method("fork")


def test_evaluation_has_its_own_workers_which_do_not_stay() -> None:
    settings: dict[str, Any] = {"workers": 2, "prefetch": 3, "eval_workers": 1, "eval_prefetch": 5}
    with loader_of(Numbers(), for_eval=True, **settings) as loader:
        applied = loader.applied
        assert (applied.workers, applied.prefetch, applied.persistent) == (1, 5, False)
        list(loader)
        assert multiprocessing.active_children() == []
    with loader_of(Numbers(), **settings) as loader:
        assert (loader.applied.workers, loader.applied.prefetch) == (2, 3)


def test_a_limit_in_bytes_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ConfigError, match="prefetch_bytes"):
        loader_of(Numbers(), prefetch_bytes="1GiB")


def test_pinning_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not loader_of(Numbers(), pin=True).applied.pinned
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loader_of(Numbers(), pin=True).applied.pinned
    assert not loader_of(Numbers(), pin=False).applied.pinned


class Lockable:
    """Stands for a tensor where there is no page-locked memory to be had."""

    def __init__(self, *, locked: bool = False) -> None:
        self.locked = locked

    def pin_memory(self) -> "Lockable":
        return Lockable(locked=True)


@dataclass(frozen=True)
class Batch:
    frames: Lockable
    names: list[str]
    more: dict[str, tuple[Lockable, int]]


def test_pinning_reaches_into_batches_of_any_shape() -> None:
    batch = Batch(Lockable(), ["a"], {"x": (Lockable(), 3)})
    pinned = Fetched(batch=batch, skipped=("b",)).pin_memory()
    assert pinned.batch is not None
    assert pinned.batch.frames.locked
    assert pinned.batch.more["x"][0].locked
    assert (pinned.batch.names, pinned.batch.more["x"][1], pinned.skipped) == (["a"], 3, ("b",))


def test_a_worker_notes_what_it_reads_while_it_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(2)
    seen: list[Place | None] = []

    class Watched(Numbers):
        def sample(self, epoch: int, index: int) -> Tensor:
            seen.append(desk.reading(os.getpid()))
            return super().sample(epoch, index)

    monkeypatch.setattr("pitstop.data.fetch.get_worker_info", lambda: SimpleNamespace(id=1))
    BatchFetcher(Watched(), stack, corrupt="raise", desk=desk)[Request(2, [3, 1])]
    assert seen == [Place(2, 3), Place(2, 1)]
    assert desk.reading(os.getpid()) is None


def test_a_fetcher_without_workers_notes_nothing() -> None:
    desk = Desk(0)
    fetcher = BatchFetcher(Numbers(), stack, corrupt="raise", desk=desk)
    fetched = fetcher[Request(2, [3, 1])]
    assert fetched.batch is not None
    assert fetched.batch.tolist() == [[2, 3], [2, 1]]
    assert desk.reading(os.getpid()) is None
