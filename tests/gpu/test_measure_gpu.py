"""Checks on a real CUDA device: physics and bookkeeping, never seconds."""

from collections.abc import Iterator

import pytest
import torch
from benchmarks.flops import count_flops

from pitstop.measure.host.load import LoadMeter
from pitstop.measure.host.memory import read_memory
from pitstop.measure.machine.ceilings import (
    QUICK,
    cuda_copy_rates,
    cuda_matrix_rates,
    release_cuda_memory,
)
from pitstop.measure.machine.describe import measure_machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def started() -> Iterator[None]:
    torch.ones(1, device="cuda").sum().item()
    yield
    release_cuda_memory()


def test_lower_precision_multiplies_faster_and_agrees_with_the_long_way() -> None:
    notes: list[str] = []
    rates = {rate.dtype: rate for rate in cuda_matrix_rates(0, QUICK, notes)}
    assert notes == []
    assert rates.keys() >= {"fp32", "fp16"}
    assert rates["fp16"].rate.value > 2 * rates["fp32"].rate.value
    if "tf32" in rates:
        assert rates["tf32"].rate.value > 1.5 * rates["fp32"].rate.value
        assert rates["bf16"].rate.value > 1.3 * rates["tf32"].rate.value
    for rate in rates.values():
        assert rate.rate.spread is not None
        assert rate.rate.spread < 0.5


def test_calibration_leaves_the_precision_of_float32_as_it_was() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    cuda_matrix_rates(0, QUICK, [])
    assert matmul.fp32_precision == before


def test_memory_is_faster_than_the_bus_and_pinned_faster_than_pageable() -> None:
    notes: list[str] = []
    rates = {rate.route: rate.rate.value for rate in cuda_copy_rates(0, QUICK, notes)}
    assert notes == []
    assert rates["device"] > 3 * rates["pinned to device"]
    assert rates["pinned to device"] > rates["pageable to device"]


def test_a_block_on_the_device_is_seen_in_allocated_reserved_and_peak() -> None:
    before = read_memory()
    held = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    during = read_memory()
    del held
    after = read_memory()
    sizes = [
        next(device for device in reading.devices if device.device == "cuda:0")
        for reading in (before, during, after)
    ]
    assert sizes[1].allocated_bytes - sizes[0].allocated_bytes == 256 << 20
    assert sizes[2].allocated_bytes == sizes[0].allocated_bytes
    assert sizes[2].peak_allocated_bytes >= sizes[1].allocated_bytes
    assert sizes[1].peak_reserved_bytes >= sizes[1].reserved_bytes >= sizes[1].allocated_bytes
    assert sizes[1].total_bytes is not None


def test_pinned_memory_is_seen() -> None:
    held = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
    seen = read_memory().pinned_bytes
    assert held.is_pinned()
    if seen is None:
        pytest.skip("this torch does not count pinned memory")
    # What earlier tests gave back stays in the allocator's cache and is counted, so no difference.
    assert seen >= 64 << 20


def test_reading_memory_never_synchronises_the_device() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        readings = [read_memory() for _ in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert readings[-1].devices


def test_a_working_gpu_reports_load_clocks_and_power() -> None:
    pytest.importorskip("pynvml")
    meter = LoadMeter()
    meter.read()
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    for _ in range(400):
        torch.mm(left, left)
    [load, *_] = meter.read().gpus
    torch.cuda.synchronize()  # noqa: TID251 - nothing is being trained
    assert load.memory_used_bytes is not None
    assert load.memory_total_bytes is not None
    assert 0 < load.memory_used_bytes <= load.memory_total_bytes
    assert load.sm_clock_hz is None or 1e8 < load.sm_clock_hz < 1e10
    assert load.power_w is None or 1 < load.power_w < 5000
    assert load.busy_share is None or 0 <= load.busy_share <= 1


def test_the_counter_counts_the_same_on_the_device_as_on_the_host() -> None:
    host = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3))
    picture = torch.randn(2, 3, 16, 16)
    before = count_flops(lambda: host(picture).sum().backward())
    device = host.cuda()
    after = count_flops(lambda: device(picture.cuda()).sum().backward())
    assert (after.forward, after.backward) == (before.forward, before.backward)


def test_the_whole_measurement_describes_the_device() -> None:
    found = measure_machine(None, quick=True)
    assert found.gpus[0].name
    assert found.software.cuda is not None
    assert found.matrix_rate("cuda:0", "fp16") is not None
    assert {rate.route for rate in found.copy_rates} == {
        "host",
        "device",
        "pinned to device",
        "pageable to device",
    }
