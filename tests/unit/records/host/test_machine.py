import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.host.machine import Cpu, Machine, MatrixRate, Ram, Software
from pitstop.records.quantity import Measured
from pitstop.records.store import from_json, to_json

GIB = 1 << 30


def ram(**changes: int | None) -> Ram:
    none = dict.fromkeys(field.name for field in dataclasses.fields(Ram))
    return Ram(**{**none, **changes})


def machine(*rates: MatrixRate) -> Machine:
    return Machine(
        system="Linux",
        kernel="6.1",
        architecture="x86_64",
        cpu=Cpu(
            model=None,
            physical_cores=4,
            logical_cores=8,
            affinity_cores=8,
            quota_cores=1.5,
            usable_cores=1.5,
        ),
        ram=ram(total_bytes=16 * GIB),
        gpus=(),
        software=Software(
            python="3.11.7",
            torch=None,
            cuda=None,
            cudnn=None,
            triton=None,
            pillow=None,
            nvidia_driver=None,
        ),
        matrix_rates=rates,
        copy_rates=(),
        decode_rates=(),
        volume=None,
        advice=(),
        quick=True,
        took_s=1.25,
        notes=("matrix rates: not measured",),
    )


def matrix_rate(flops_per_s: float) -> MatrixRate:
    rate = Measured(value=flops_per_s, unit="FLOP/s", low=flops_per_s, high=flops_per_s, samples=1)
    return MatrixRate(device="cuda:0", dtype="bf16", size=8192, threads=None, rate=rate)


def test_a_machine_comes_back_from_json_as_it_went() -> None:
    before = machine(matrix_rate(7.9e14))
    assert from_json(to_json(before), Machine) == before


def test_the_record_has_no_place_for_a_host_name() -> None:
    assert not {f.name for f in dataclasses.fields(Machine)} & {"host", "host_name", "node"}


@given(
    available=st.integers(0, 1 << 40),
    limit=st.integers(0, 1 << 40),
    working=st.integers(0, 1 << 40),
)
def test_free_memory_is_never_more_than_host_or_group_can_give(
    available: int, limit: int, working: int
) -> None:
    found = ram(
        available_bytes=available, cgroup_limit_bytes=limit, cgroup_working_bytes=working
    ).free_bytes
    assert found == (available if available + working < limit else max(limit - working, 0))


def test_free_memory_is_unknown_when_nothing_is_known() -> None:
    assert ram().free_bytes is None
    assert ram(cgroup_limit_bytes=GIB).free_bytes is None
