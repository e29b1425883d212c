# ruff: noqa: N802
"""A driver that says of its one GPU what no test can bring about: heat holds its clocks back."""

from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
_clocks_mhz = iter([1980] + [990] * 10_000)


class NVMLError(Exception):
    pass


def nvmlInit() -> Any:
    pass


def nvmlShutdown() -> Any:
    pass


def nvmlSystemGetDriverVersion() -> Any:
    return "0"


def nvmlDeviceGetCount() -> Any:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    return index


def nvmlDeviceGetUUID(handle: int) -> Any:
    return "GPU-0"


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=100, memory=10)


def nvmlDeviceGetMemoryInfo(handle: int) -> Any:
    return SimpleNamespace(used=1 << 30, total=80 << 30)


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> Any:
    return []


def nvmlDeviceGetClockInfo(handle: int, kind: int) -> Any:
    return next(_clocks_mhz) if kind == NVML_CLOCK_SM else 2600


def nvmlDeviceGetPowerUsage(handle: int) -> Any:
    return 300_000


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> Any:
    return 700_000


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> Any:
    return 91


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> Any:
    return 0x40
