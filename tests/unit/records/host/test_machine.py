import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.flops import achieved
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


@given(
    flops=st.floats(1e6, 1e16),
    step_s=st.floats(1e-4, 1e3),
    peak=st.floats(1e9, 1e16),
)
def test_the_share_of_the_peak_is_ideal_time_over_measured_time(
    flops: float, step_s: float, peak: float
) -> None:
    found = achieved(flops, step_s, machine(matrix_rate(peak)), dtype="bf16")
    ideal_s = flops / peak
    assert found.share == pytest.approx(ideal_s / step_s)
    assert found.flops_per_s * step_s == pytest.approx(flops)


def test_a_peak_that_was_not_measured_gives_a_rate_without_a_share() -> None:
    found = achieved(26e12, 1.84, machine(matrix_rate(7.9e14)), dtype="fp16")
    assert (found.peak_flops_per_s, found.share) == (None, None)
    assert found.flops_per_s == pytest.approx(26e12 / 1.84)


def test_vrt_at_1840_ms_uses_under_two_percent_of_an_h200() -> None:
    found = achieved(26e12, 1.84, machine(matrix_rate(7.9e14)), dtype="bf16")
    assert found.share == pytest.approx(0.018, abs=0.0005)


def test_a_step_without_duration_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no rate"):
        achieved(1.0, 0.0, machine(), dtype="bf16")
