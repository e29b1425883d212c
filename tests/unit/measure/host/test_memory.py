import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pitstop.measure.host.memory import (
    MemorySampler,
    device_memory,
    largest_holders,
    read_memory,
    shm_space,
)
from pitstop.records.host.memory import MemoryReading

STATS = {
    "allocated_bytes.all.current": 10,
    "allocated_bytes.all.peak": 30,
    "reserved_bytes.all.current": 20,
    "reserved_bytes.all.peak": 40,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


class FakeCuda(ModuleType):
    """A torch.cuda with two devices, of which the script has used only the second."""

    def __init__(self, *, started: bool) -> None:
        super().__init__("torch.cuda")
        self.started = started

    def is_initialized(self) -> bool:
        return self.started

    def device_count(self) -> int:
        return 2

    def memory_stats(self, index: int) -> dict[str, int]:
        return STATS if index == 1 else {}

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 << 30)

    def host_memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.current": 4096}


def use_torch(monkeypatch: pytest.MonkeyPatch, cuda: ModuleType | None) -> None:
    torch = ModuleType("torch")
    if cuda is not None:
        torch.cuda = cuda  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torch", torch)


def reading(at_s: float = 0.0, cost_s: float = 0.5) -> MemoryReading:
    empty: dict[str, Any] = dict.fromkeys(MemoryReading.__dataclass_fields__)
    return MemoryReading(
        **{**empty, "at_s": at_s, "cost_s": cost_s, "devices": (), "notes": ()},
    )


def test_a_reading_tells_its_own_cost_on_the_given_clock() -> None:
    found = read_memory(clock=FakeClock())
    assert (found.at_s, found.cost_s) == (100.25, 0.25)


def test_only_devices_the_script_has_used_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, FakeCuda(started=True))
    found = read_memory()
    [device] = found.devices
    assert device == device_memory("cuda:1", STATS, 80 << 30)
    assert (device.peak_reserved_bytes, device.alloc_retries, device.ooms) == (40, 2, 1)
    assert found.pinned_bytes == 4096


def test_reading_never_starts_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, FakeCuda(started=False))
    found = read_memory()
    assert (found.devices, found.pinned_bytes) == ((), None)
    assert any("nothing has used CUDA" in note for note in found.notes)


def test_a_torch_that_does_not_count_pinned_memory_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(FakeCuda, "host_memory_stats")
    use_torch(monkeypatch, FakeCuda(started=True))
    found = read_memory()
    assert found.pinned_bytes is None
    assert any(note.startswith("pinned memory: not measured") for note in found.notes)


def test_memory_can_be_read_without_loading_torch() -> None:
    program = (
        "import sys; from pitstop.measure.host.memory import read_memory; found = read_memory();"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules;"
        "assert found.tree.tree_bytes > 0 and 'torch is not loaded' in found.notes[0]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shared_memory_of_a_system_without_it_is_unknown(tmp_path: Path) -> None:
    assert shm_space(tmp_path / "missing") is None
    here = shm_space(tmp_path)
    assert here is not None
    assert 0 <= here.free_bytes <= here.total_bytes


def stop_after(pauses: int, seen: list[float]) -> Any:
    """A wait that returns at once and asks to stop after a number of pauses."""

    def wait(stop: threading.Event, seconds: float) -> bool:
        seen.append(seconds)
        return len(seen) >= pauses

    return wait


def join(sampler: MemorySampler) -> None:
    for thread in threading.enumerate():
        if thread.name == "pitstop-memory":
            thread.join()
    assert not sampler.running


def test_readings_are_taken_and_handed_over_outside_the_callers_thread() -> None:
    threads: set[int] = set()
    pauses: list[float] = []

    def read() -> MemoryReading:
        threads.add(threading.get_ident())
        return reading()

    def keep(_: MemoryReading) -> None:
        threads.add(threading.get_ident())

    sampler = MemorySampler(keep, interval_s=7.0, read=read, wait=stop_after(5, pauses))
    join(sampler.start())
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert pauses == [7.0] * 5
    assert sampler.readings == 5


def test_a_long_run_keeps_one_reading_and_the_sum_of_costs() -> None:
    count = iter(range(10_000))
    sampler = MemorySampler(
        lambda _: None,
        read=lambda: reading(at_s=float(next(count)), cost_s=0.5),
        wait=stop_after(1000, []),
    )
    join(sampler.start())
    assert sampler.last == reading(at_s=999.0, cost_s=0.5)
    assert sampler.cost_s == 500.0
    assert not [value for value in vars(sampler).values() if isinstance(value, list | tuple | dict)]


def test_starting_and_stopping_twice_changes_nothing() -> None:
    taken = threading.Event()
    sampler = MemorySampler(lambda _: taken.set(), read=reading)
    sampler.stop()
    with sampler as entered:
        assert entered.start() is sampler
        assert taken.wait(10)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("pitstop-memory") == 1
        assert sampler.running
        sampler.stop()
        assert not sampler.running
    assert not sampler.running


def test_a_sampler_can_be_started_again() -> None:
    sampler = MemorySampler(lambda _: None, read=reading, wait=stop_after(1, []))
    join(sampler.start())
    sampler.stop()
    join(sampler.start())
    assert sampler.readings == 2


def test_stopping_from_inside_the_callback_does_not_deadlock() -> None:
    sampler = MemorySampler(lambda _: sampler.stop(), read=reading)
    join(sampler.start())
    assert sampler.readings == 1
    assert sampler.failure is None


def test_a_callback_that_raises_ends_sampling_and_is_remembered() -> None:
    error = OSError("disk full")

    def fail(_: MemoryReading) -> None:
        raise error

    sampler = MemorySampler(fail, read=reading)
    join(sampler.start())
    assert sampler.failure is error


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_in_the_worst_moment_is_not_held_up_and_can_start_its_own() -> None:
    locked, forked = threading.Event(), threading.Event()

    def wait(stop: threading.Event, seconds: float) -> bool:
        # A fork copies the lock of the event as it is: held, and nobody there to let go of it.
        with vars(stop)["_cond"]:
            locked.set()
            forked.wait(30)
        return stop.wait(seconds)

    sampler = MemorySampler(lambda _: None, read=reading, wait=wait).start()
    assert locked.wait(10)
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        inherited = sampler.running
        sampler.stop()
        forked.set()
        own = sampler.start().running
        sampler.stop()
        os._exit(0 if (not inherited and own) else 1)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sampler.running
    sampler.stop()


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        MemorySampler(lambda _: None, interval_s=0)


def test_the_default_reader_is_the_real_one() -> None:
    handed: list[MemoryReading] = []
    sampler = MemorySampler(handed.append, wait=stop_after(1, []))
    join(sampler.start())
    [found] = handed
    assert found.tree is not None
    assert found.tree.own_bytes > 1 << 20


def test_the_holders_of_a_full_host_are_named_with_whose_they_are() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = largest_holders(child.pid, most=5)
        child.communicate(b"\n")
    [main] = [holder for holder in found if holder.role == "main process"]
    assert main.pid == child.pid
    strangers = [holder for holder in found if holder.role == "other"]
    assert 1 <= len(strangers) <= 5
    sizes = [holder.resident_bytes for holder in strangers]
    assert sizes == sorted(sizes, reverse=True)


def test_nobody_is_named_on_a_host_with_memory_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    for used, is_full in ((0.5, False), (0.97, True)):
        held = CgroupUse(used)
        monkeypatch.setattr("pitstop.measure.host.memory.read_cgroup", lambda held=held: held)
        assert (read_memory().holders is not None) == is_full


class CgroupUse:
    """A control group that is filled to a share."""

    def __init__(self, share: float) -> None:
        self.memory_limit_bytes = 1000
        self.memory_usage_bytes = self.memory_working_bytes = int(1000 * share)
