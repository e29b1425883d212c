import dataclasses

import pytest

from pitstop.records.host.memory import DeviceMemory, GpuLoad, HostLoad, MemoryReading, TreeMemory
from pitstop.records.store import from_json, to_json


def load(**changes: float | None) -> HostLoad:
    none = dict.fromkeys(field.name for field in dataclasses.fields(HostLoad))
    return HostLoad(**{**none, "at_s": 1.0, "gpus": (), "cost_s": 0.001, "notes": (), **changes})


def test_a_reading_comes_back_from_json_as_it_went() -> None:
    reading = MemoryReading(
        at_s=12.5,
        devices=(
            DeviceMemory(
                device="cuda:0",
                total_bytes=150 << 30,
                allocated_bytes=1,
                reserved_bytes=2,
                peak_allocated_bytes=3,
                peak_reserved_bytes=4,
                alloc_retries=5,
                ooms=6,
            ),
        ),
        tree=TreeMemory(basis="pss", tree_bytes=300, own_bytes=100, processes=3, unreadable=0),
        host_total_bytes=1000,
        host_available_bytes=600,
        cgroup_limit_bytes=None,
        cgroup_usage_bytes=400,
        cgroup_working_bytes=350,
        pinned_bytes=None,
        shm_used_bytes=0,
        shm_total_bytes=64,
        cost_s=0.007,
        notes=("pinned memory: not measured",),
    )
    assert from_json(to_json(reading), MemoryReading) == reading


def test_a_load_without_rates_stays_without_rates_through_json() -> None:
    gpu = dict.fromkeys(field.name for field in dataclasses.fields(GpuLoad))
    first = dataclasses.replace(load(), gpus=(GpuLoad(**{**gpu, "index": 0}),))
    again = from_json(to_json(first), HostLoad)
    assert again == first
    assert again.tree_cpu_cores is None
    assert again.gpus[0].throttle_reasons is None


@pytest.mark.parametrize(
    ("cores", "usable", "share"), [(3.0, 4.0, 0.75), (None, 4.0, None), (3.0, None, None)]
)
def test_the_share_of_the_cores_needs_both_numbers(
    cores: float | None, usable: float | None, share: float | None
) -> None:
    assert load(tree_cpu_cores=cores, usable_cores=usable).tree_cpu_share == share
