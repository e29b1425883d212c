import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pitstop.errors import MeasureError
from pitstop.measure.machine.describe import (
    crowded_host,
    measure_machine,
    read_cpu,
    read_gpus,
    strangers_on_gpus,
)
from pitstop.records.host.machine import Gpu
from pitstop.records.host.memory import GpuLoad


def test_a_quick_measurement_of_this_host_fills_what_it_can(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(bytes(range(256)) * 8192)
    found = measure_machine(tmp_path, quick=True)
    assert found.quick
    assert found.cpu.usable_cores
    assert found.volume is not None
    assert {read.order for read in found.volume.reads} == {"sequential", "random files"}
    assert {rate.device for rate in found.matrix_rates} >= {"cpu"}
    assert {rate.codec for rate in found.decode_rates} == {"jpeg", "png"}
    assert {advice.setting for advice in found.advice} >= {"loader.workers", "cache.budget"}
    for rate in found.matrix_rates:
        assert rate.rate.low > 0


def test_what_needs_torch_or_pillow_is_left_out_with_the_extra_named() -> None:
    program = """
import sys
for name in ("torch", "PIL", "pynvml"):
    sys.modules[name] = None
from pitstop.measure.machine.describe import measure_machine
found = measure_machine(None, quick=True)
assert found.matrix_rates == () and found.decode_rates == () and found.gpus == ()
assert [rate.route for rate in found.copy_rates] == ["host"]
assert found.software.torch is None and found.software.nvidia_driver is None
text = " ".join(found.notes)
assert "need torch; install torch 2.11 or later as pytorch.org says" in text, text
assert "need pillow; install it with `pip install pillow`" in text, text
assert "name one with --data" in text, text
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_wrong_dataset_path_is_reported_before_anything_is_measured(tmp_path: Path) -> None:
    looks = iter([0.0])
    with pytest.raises(MeasureError, match="does not exist"):
        measure_machine(tmp_path / "nowhere", clock=lambda: next(looks))


def test_a_processor_that_gives_no_name_stays_without_a_made_up_one(tmp_path: Path) -> None:
    named = tmp_path / "cpuinfo"
    named.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name : other\n")
    assert read_cpu(named).model == "Some CPU @ 2 GHz"


def fake_torch(devices: list[SimpleNamespace]) -> ModuleType:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        is_available=lambda: bool(devices),
        device_count=lambda: len(devices),
        get_device_properties=lambda index: devices[index],
    )
    return torch


def test_gpus_are_described_as_torch_sees_them() -> None:
    device = SimpleNamespace(
        name="NVIDIA H200", total_memory=150 << 30, major=9, minor=0, multi_processor_count=132
    )
    notes: list[str] = []
    assert read_gpus(fake_torch([device]), notes) == (
        Gpu(
            index=0,
            name="NVIDIA H200",
            memory_bytes=150 << 30,
            compute_capability="9.0",
            multiprocessors=132,
        ),
    )
    assert notes == []


def test_no_gpu_is_a_note_and_not_an_error() -> None:
    notes: list[str] = []
    assert read_gpus(fake_torch([]), notes) == ()
    assert notes == ["GPU ceilings: not measured, torch finds no CUDA device"]


@pytest.mark.parametrize(("busy", "reported"), [(None, 0), (0.0, 0), (0.6, 1)])
def test_a_gpu_that_was_busy_beforehand_is_reported(busy: float | None, reported: int) -> None:
    nothing = dict.fromkeys(GpuLoad.__dataclass_fields__)
    load = GpuLoad(**{**nothing, "index": 0, "busy_share": busy})
    assert len(strangers_on_gpus(lambda: ((load,), ()))) == reported


@pytest.mark.parametrize(("load", "reported"), [(0.1, 0), (3.0, 1)])
def test_a_crowded_host_is_reported(load: float, reported: int) -> None:
    assert len(crowded_host(4, lambda: (load, 9.0, 9.0))) == reported
    assert crowded_host(None, lambda: (load, 9.0, 9.0)) == ()
