import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.loader.fetch import (
    BatchFetcher,
    Fetched,
    Place,
    Request,
    WorkerBoard,
    lower_priority,
)
from pitstop.data.loader.stages import stage
from pitstop.data.loader.worker_settings import resolve_start_method, resolve_workers
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pitstop.measure.script.loader import BatchFlow


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
            pids = []
            for epoch in range(2):
                loader.set_epoch(epoch)
                batches = iter(loader)
                next(batches)
                pids.append({child.pid for child in multiprocessing.active_children()})
                list(batches)
            assert len(pids[0]) == len(pids[1]) == 2
            assert (pids[0] == pids[1]) == persistent


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


class ReportsPolicy(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        return torch.tensor(os.sched_getscheduler(0))


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no such policy here")
def test_workers_do_not_take_the_core_of_who_wakes_them() -> None:
    with loader_of(ReportsPolicy(), workers=1) as loader:
        policies = {policy for batch, _ in loader for policy in batch.tolist()}
    assert policies == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no such policy here")
@pytest.mark.parametrize("policy", ["SCHED_IDLE", "SCHED_FIFO"])
def test_a_policy_somebody_chose_is_kept(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: getattr(os, policy))
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("changed"))
    lower_priority()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no such policy here")
def test_where_policies_may_not_be_changed_workers_go_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def refuse(pid: int, policy: int, param: object) -> None:
        del pid, param
        asked.append(policy)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    lower_priority()
    assert asked == [os.SCHED_BATCH]


@pytest.mark.skipif(sys.platform != "linux", reason="queues are the standard ones elsewhere")
def test_asking_for_batches_starts_no_thread_in_the_training_process() -> None:
    before = set(threading.enumerate())
    with loader_of(Numbers(), workers=2) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for _ in loader:
                assert set(threading.enumerate()) <= before


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
    # So many that the second worker does not come by the same sample in the next epoch.
    samples = NamedNumbers(40, fatal=7)
    loader = loader_of(samples, workers=2, persistent=persistent, start_method="fork")
    with pytest.raises(DataError) as caught:
        list(loader)
    message = str(caught.value)
    assert "killed by SIGKILL while reading sample 7 (clip_7) in epoch 0" in message
    assert "loader.workers" in message
    # Without close: the others end with the one that died.
    assert multiprocessing.active_children() == []


def test_the_end_of_a_worker_is_news_only_where_a_batch_is_asked_for() -> None:
    loader = loader_of(Numbers(), workers=3, start_method="fork")
    batches = iter(loader)
    next(batches)
    pid = max(child.pid or 0 for child in multiprocessing.active_children())
    os.kill(pid, signal.SIGKILL)
    # The news is here: the training thread may be in the middle of an update, and goes on.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(DataError, match="a data worker was killed by SIGKILL"):
        next(batches)


def test_closing_is_quiet_after_a_worker_died() -> None:
    loader = loader_of(Numbers(), workers=3, start_method="fork")
    next(iter(loader))
    pid = max(child.pid or 0 for child in multiprocessing.active_children())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    loader.close()


def end_group(loader: Loader[Tensor]) -> list[int]:
    """Send to workers what the whole process group may receive; give what is still read."""
    batches = iter(loader)
    first, _ = next(batches)
    # The fork server, where there is one, is a child too. One that others started may end by this.
    ending = [child.pid for child in psutil.Process().children() if is_ending_server(child)]
    for child in psutil.Process().children(recursive=True):
        # One that an earlier test left may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGINT)
    read = [int(first[0, 1]), *(int(batch[0, 1]) for batch, _ in batches)]
    # A server that is asked for workers while it ends gives none; not reaped, for others ask too.
    for pid in ending:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return read


def is_ending_server(process: psutil.Process) -> bool:
    """Whether this is a fork server that nothing keeps from ending by SIGTERM."""
    try:
        if "forkserver" not in str(process.cmdline()):
            return False
    except psutil.NoSuchProcess:  # one that an earlier test left has ended, or is not reaped yet
        return False
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    masks = dict(line.split(":\t") for line in lines if line.startswith("Sig") and "/" not in line)
    kept = (int(masks[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt"))
    return not any(mask >> (signal.SIGTERM - 1) & 1 for mask in kept)


def test_workers_leave_signals_to_stop_to_the_trainer() -> None:
    with loader_of(Numbers(40), workers=2, start_method="fork") as loader:
        assert end_group(loader) == list(range(0, 40, 4))


@pytest.mark.slow
def test_workers_of_a_fork_server_leave_signals_to_stop_to_the_trainer() -> None:
    with loader_of(Numbers(40), workers=2, start_method="forkserver") as loader:
        assert end_group(loader) == list(range(0, 40, 4))


class Stuck(Numbers):
    """Its later samples are never read to their end, as from a file system that is gone."""

    def sample(self, epoch: int, index: int) -> Tensor:
        while index >= 8:
            signal.pause()
        return super().sample(epoch, index)


def read_and_wait(to: Any) -> None:
    loader = loader_of(Stuck(400), workers=2, start_method="fork")
    next(iter(loader))
    to.send([child.pid for child in multiprocessing.active_children()])
    signal.pause()


def test_workers_end_with_their_trainer_however_it_ends() -> None:
    ours, theirs = multiprocessing.Pipe()
    trainer = multiprocessing.get_context("fork").Process(target=read_and_wait, args=(theirs,))
    trainer.start()
    pids: list[int] = ours.recv()
    ends = [os.pidfd_open(pid) for pid in pids]
    trainer.kill()
    trainer.join()
    try:
        assert all(connection.wait([end], timeout=60) for end in ends)
    finally:
        for end in ends:
            os.close(end)


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
        loader_of(Numbers(40, fatal=7), workers=2, start_method="forkserver") as loader,
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


class Blocks(Numbers):
    """Samples of 1,000 bytes, larger from epoch 2 on; counts those that were read anywhere."""

    def __init__(self, count: int = 60, grown: int = 1000) -> None:
        super().__init__(count)
        object.__setattr__(self, "grown", grown)
        object.__setattr__(self, "read", torch.zeros(1, dtype=torch.int64).share_memory_())

    def sample(self, epoch: int, index: int) -> Tensor:
        self.__dict__["read"] += 1
        return torch.zeros(1000 if epoch < 2 else self.__dict__["grown"], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("budget", "ranks", "workers", "expected"),
    [
        ("16kB", 1, 2, (2, 2)),  # four batches of 4,000 bytes
        ("16kB", 2, 4, (2, 1)),  # two for each rank
        (15_999, 1, 2, (2, 1)),
        ("4kB", 1, 2, (1, 1)),  # space for one batch, so for one worker
        ("1GB", 1, 2, (2, 8)),  # as many as the epoch has
    ],
)
def test_bytes_of_the_host_become_batches_ahead(
    budget: str | int, ranks: int, workers: int, expected: tuple[int, int]
) -> None:
    section = LoaderSection.model_validate({"workers": workers, "prefetch_bytes": budget})
    batches = ShuffledBatches(60, 4, seed=0, drop_last=True)
    with build_loader(Blocks(), batches, stack, section, world_size_on_host=ranks) as loader:
        assert (loader.applied.workers, loader.applied.prefetch) == expected


def until(claim: Callable[[], bool]) -> None:
    """Give other processes time to get somewhere; whether they did is for the test to say."""
    for _ in range(6_000):
        if claim():
            return
        connection.wait([], timeout=0.01)


def test_no_more_is_read_ahead_than_the_bytes_allow() -> None:
    samples = Blocks()
    with loader_of(samples, workers=1, prefetch_bytes=12_000) as loader:
        read = samples.__dict__["read"]
        estimated = int(read)
        for _, consumed in loader:
            # Three batches may be ahead of those that were taken, and they are; never a fourth.
            allowed = estimated + 4 * (consumed + 3)
            until(lambda allowed=allowed: int(read) >= allowed)
            assert int(read) == allowed


def test_room_for_less_than_a_batch_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"leaves 2.93 KiB for each rank.*one batch of 3.91 KiB"):
        loader_of(Blocks(), workers=2, prefetch_bytes=3_000)


class Opens(Numbers):
    """Notes in which process it was read first, as a dataset does that opens a file then."""

    def sample(self, epoch: int, index: int) -> Tensor:
        object.__setattr__(self, "opened_by", os.getpid())
        return super().sample(epoch, index)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is inherited here")
def test_estimating_leaves_nothing_open_that_workers_would_inherit() -> None:
    samples = Opens()
    with loader_of(samples, workers=1, prefetch_bytes="1MB", start_method="fork") as loader:
        assert loader.applied.prefetch == 3
        assert "opened_by" not in samples.__dict__


def test_a_sample_whose_size_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match=r"sample 0 \(clip_0\) cannot be read"):
        loader_of(NamedNumbers(broken=frozenset({0})), workers=1, prefetch_bytes="1MB")


def test_batches_that_grow_from_an_epoch_on_have_fewer_ahead_in_time() -> None:
    with loader_of(Blocks(grown=4000), workers=1, prefetch_bytes=64_000) as loader:
        ahead = []
        for epoch in range(4):
            loader.set_epoch(epoch)
            next(iter(loader))
            ahead.append(loader.applied.prefetch)
        # Workers read on into the next epoch, so that epoch 1 reckons with the batches of epoch 2.
        assert ahead == [15, 4, 4, 4]


def test_evaluation_estimates_its_own_batches_unless_it_has_a_count() -> None:
    settings: dict[str, Any] = {"workers": 1, "prefetch_bytes": 8_000}
    with loader_of(Blocks(), for_eval=True, batch_size=2, **settings) as loader:
        assert loader.applied.prefetch == 4
    with loader_of(Blocks(), for_eval=True, batch_size=2, eval_prefetch=3, **settings) as loader:
        assert loader.applied.prefetch == 3


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_resized_on_the_way_gives_the_same_batches(persistent: bool) -> None:
    def taken(changes: dict[int, tuple[int, int]]) -> list[list[list[int]]]:
        with loader_of(Numbers(46), workers=1, persistent=persistent) as loader:
            found = []
            for epoch in range(2):
                loader.set_epoch(epoch)
                for batch, consumed in loader:
                    found.append(batch.tolist())
                    if consumed in changes:
                        workers, prefetch = changes[consumed]
                        loader.resize(workers=workers, prefetch=prefetch)
            return found

    assert taken({2: (3, 1), 3: (2, 4), 12: (1, 1)}) == taken({})


def test_a_resized_loader_has_as_many_workers_as_it_says() -> None:
    with loader_of(Numbers(40), workers=1) as loader:
        batches = iter(loader)
        next(batches)
        loader.resize(workers=3, prefetch=1)
        next(batches)
        assert (loader.applied.workers, loader.applied.prefetch) == (3, 1)
        assert len(multiprocessing.active_children()) == 3


def test_workers_that_stay_read_on_into_the_next_epoch() -> None:
    samples = Blocks(8)
    with loader_of(samples, workers=1, prefetch=2) as loader:
        list(loader)
        read = samples.__dict__["read"]
        until(lambda: int(read) >= 16)
        assert int(read) == 16  # two batches of epoch 0, and two of epoch 1 that nobody asked for
        loader.set_epoch(1)
        _, consumed = next(iter(loader))
        assert consumed == 1
        loader.set_epoch(4)
        assert [consumed for _, consumed in loader] == [1, 2]


def test_workers_that_end_with_the_epoch_read_nothing_beyond_it() -> None:
    samples = Blocks(8)
    with loader_of(samples, workers=1, persistent=False) as loader:
        list(loader)
        assert int(samples.__dict__["read"]) == 8


class Staged(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        with stage("read"):
            return super().sample(epoch, index)


@pytest.mark.parametrize("workers", [0, 2])
def test_time_inside_workers_adds_up_batch_by_batch(workers: int) -> None:
    flows: list[BatchFlow] = []
    with loader_of(Staged(), workers=workers) as loader:
        loader.on_batch = flows.append
        list(loader)
        reading = loader.meter.take(workers=workers, prefetch=2)
        assert loader.meter.take(workers=workers, prefetch=2) is None
    assert reading is not None
    assert (reading.batches, reading.workers, len(flows)) == (3, workers, 3)
    assert set(reading.stages_us) == {"read", "sample", "collate", "send"}
    for flow in flows:
        times = flow.times
        # What lies between begin and end is in some stage, but for starting and ending the stages.
        assert 0 < sum(times.stages_ns.values()) <= times.busy_ns
        assert times.batch_bytes == 4 * 2 * 8
        assert times.finished_ns - times.begun_ns > 0
        assert times.finished_ns <= flow.taken_ns, "one clock for all processes"
        assert flow.queue_ns == flow.taken_ns - times.finished_ns
        assert flow.wait_ns >= 0
    assert flows[0].own_ns is None
    assert all(flow.own_ns is not None and flow.own_ns >= 0 for flow in flows[1:])
    assert reading.queue_us == sum(flow.queue_ns for flow in flows) // 1000


class CutOff(Numbers):
    def sample(self, epoch: int, index: int) -> Tensor:
        if index in self.broken:
            raise DataError("spike/000004.dat has 0 bytes")
        return super().sample(epoch, index)


def test_what_the_dataset_itself_finds_damaged_is_skipped_too() -> None:
    damaged = CutOff(broken=frozenset({5}))
    with loader_of(damaged, corrupt="skip") as loader:
        assert [batch[:, 1].tolist() for batch, _ in loader][1] == [4, 6, 6, 7]
        assert list(loader.skipped) == ["sample 5 cannot be read: spike/000004.dat has 0 bytes"]


def test_an_evaluation_does_not_advise_what_it_would_not_do() -> None:
    for for_eval in (False, True):
        with loader_of(Numbers(broken=frozenset({3})), for_eval=for_eval) as loader:
            with pytest.raises(DataError, match="fix or remove it") as caught:
                list(loader)
            assert ("loader.corrupt" in str(caught.value)) == (not for_eval)


def refuse(samples: list[Tensor]) -> Tensor:
    raise DataError("frames of 8x8 and 16x16 do not go into one batch")


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_go_together_are_told_in_one_line(workers: int) -> None:
    section = LoaderSection.model_validate({"workers": workers})
    batches = ShuffledBatches(8, 4, seed=0, drop_last=True)
    with build_loader(Numbers(8), batches, refuse, section) as loader:
        with pytest.raises(DataError) as caught:
            list(loader)
        assert str(caught.value) == "frames of 8x8 and 16x16 do not go into one batch"


def test_tuning_begins_with_one_worker_and_leaves_evaluation_alone() -> None:
    with loader_of(Numbers(), workers="auto", tune="auto") as loader:
        assert loader.applied.workers == 1
    with loader_of(Numbers(), workers="auto", eval_workers=3, tune="auto", for_eval=True) as loader:
        assert loader.applied.workers == 3


def test_tuning_within_bytes_reads_no_further_ahead_than_it_must() -> None:
    settings: dict[str, Any] = {"workers": "auto", "tune": "auto", "prefetch": 2}
    with loader_of(Blocks(), prefetch_bytes=1_000_000, **settings) as loader:
        assert loader.applied.prefetch == 2
    with loader_of(Blocks(), prefetch_bytes=5_000, **settings) as loader:
        assert loader.applied.prefetch == 1


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
    board = WorkerBoard(2)
    seen: list[Place | None] = []

    class Watched(Numbers):
        def sample(self, epoch: int, index: int) -> Tensor:
            seen.append(board.reading(os.getpid()))
            return super().sample(epoch, index)

    monkeypatch.setattr("pitstop.data.loader.fetch.get_worker_info", lambda: SimpleNamespace(id=1))
    BatchFetcher(Watched(), stack, corrupt="raise", board=board)[Request(2, [3, 1])]
    assert seen == [Place(2, 3), Place(2, 1)]
    assert board.reading(os.getpid()) is None


def test_a_fetcher_without_workers_notes_nothing() -> None:
    board = WorkerBoard(0)
    fetcher = BatchFetcher(Numbers(), stack, corrupt="raise", board=board)
    fetched = fetcher[Request(2, [3, 1])]
    assert fetched.batch is not None
    assert fetched.batch.tolist() == [[2, 3], [2, 1]]
    assert board.reading(os.getpid()) is None
