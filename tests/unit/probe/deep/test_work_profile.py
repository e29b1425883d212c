"""Profiled events of older torch count in microseconds."""

from types import SimpleNamespace
from typing import Any

import pytest

from pitstop_probe.deep.kernel_profile import KernelProfile

NEW = {"start_ns": lambda: 4_000, "duration_ns": lambda: 6_000}
OLD = {"start_us": lambda: 4, "duration_us": lambda: 6}


@pytest.mark.parametrize("times", [NEW, OLD])
def test_kernels_take_as_long_in_any_torch(times: dict[str, Any]) -> None:
    event = SimpleNamespace(name=lambda: "gemm", device_type=lambda: "DeviceType.CUDA", **times)
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    tracker: Any = SimpleNamespace(now=lambda: 0)
    profile = KernelProfile(tracker, torch, 2)
    results = SimpleNamespace(events=lambda: [event, event])
    profile._profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))  # pyright: ignore[reportPrivateUsage]
    found = profile.values(7)
    assert (found["launches"], found["busy_us"], found["matmul_us"]) == (1, 3.0, 6.0)
