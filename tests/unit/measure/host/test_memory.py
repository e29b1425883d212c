import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pitstop.measure.host.memory import (
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
