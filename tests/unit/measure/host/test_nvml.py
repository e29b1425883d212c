import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pitstop.measure.host.nvml import Nvml, visible_positions

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


class FakeNvml:
    """The functions of NVML on a host with three GPUs."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, pids: tuple[int, ...] = (), reasons: int = 0) -> None:
        self.pids = pids
        self.reasons = reasons

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return UUIDS[handle].encode()

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.1"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=87, memory=10 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=3 << 30, total=80 << 30)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 650_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]


def first_load(api: FakeNvml, proc: Path, own: tuple[int, ...] = ()) -> Any:
    return Nvml(api, visible=None, proc=proc).loads(own)[0]


def test_values_arrive_in_plain_units(tmp_path: Path) -> None:
    load = first_load(FakeNvml(reasons=0x4 | 0x40), tmp_path)
    assert (load.busy_share, load.memory_busy_share) == (0.87, 0.10)
    assert (load.memory_used_bytes, load.memory_total_bytes) == (3 << 30, 80 << 30)
    assert (load.sm_clock_hz, load.memory_clock_hz) == (1.98e9, 3.201e9)
    assert (load.power_w, load.power_limit_w) == (650.5, 700.0)
    assert load.throttle_reasons == ("power cap", "thermal (hardware)")


def test_what_a_board_does_not_support_is_unknown_and_the_rest_is_read(tmp_path: Path) -> None:
    load = first_load(FakeNvml(), tmp_path)
    assert load.temperature_c is None
    assert load.power_w == 650.5
    assert load.throttle_reasons == ()


def test_strangers_on_the_gpu_are_told_from_the_job(tmp_path: Path) -> None:
    for pid in (10, 11, 77):
        (tmp_path / str(pid)).mkdir()
    load = first_load(FakeNvml(pids=(11, 77, 10)), tmp_path, own=(10, 11))
    assert (load.processes, load.other_pids) == (3, (77,))


def test_process_numbers_of_another_namespace_are_not_called_strangers(tmp_path: Path) -> None:
    (tmp_path / "10").mkdir()
    load = first_load(FakeNvml(pids=(4_000_001,)), tmp_path, own=(10,))
    assert (load.processes, load.other_pids) == (1, None)


def test_only_visible_gpus_are_read_in_their_order(tmp_path: Path) -> None:
    loads = Nvml(FakeNvml(), visible="2,0", proc=tmp_path).loads(())
    assert [load.index for load in loads] == [0, 1]
    assert [load.memory_busy_share for load in loads] == [0.12, 0.10]


@pytest.mark.parametrize(
    ("visible", "positions"),
    [
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("0,0", [0]),
        ("GPU-cc", [2]),
        ("GPU-aa", []),
        ("GPU-aab, 0", [1, 0]),
        ("MIG-1234", []),
    ],
)
def test_visible_devices_are_resolved_up_to_the_first_wrong_entry(
    visible: str, positions: list[int]
) -> None:
    assert visible_positions(visible, UUIDS) == positions


def test_the_driver_tells_its_version(tmp_path: Path) -> None:
    assert Nvml(FakeNvml(), visible=None, proc=tmp_path).driver() == "570.1"


def test_a_host_without_the_bindings_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml, reason = Nvml.open()
    assert nvml is None
    assert reason is not None
    assert "pip install nvidia-ml-py" in reason


def test_a_host_without_the_driver_is_a_normal_state(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError("library not found")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    nvml, reason = Nvml.open()
    assert nvml is None
    assert reason is not None
    assert "library not found" in reason


def test_opening_respects_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            pass

    monkeypatch.setitem(sys.modules, "pynvml", Started())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    nvml, reason = Nvml.open()
    assert reason is None
    assert nvml is not None
    assert [load.memory_busy_share for load in nvml.loads(())] == [0.11]
