"""Rules on a GPU, each with its formula worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.catalogue import RULES
from pitstop.doctor.rules.device import (
    copy_bound,
    launch_bound,
    memory_traffic,
    precision,
    small_batch,
    sync_bound,
    tensor_cores,
)
from pitstop.records.host.machine import Cpu, Machine, MatrixRate, Ram, Software
from pitstop.records.quantity import Measured
from pitstop.records.script import Rates
from tests.unit.doctor.records import (
    GIB,
    KERNELS,
    LOADER,
    ON_CPU,
    OWNERS,
    SETUP,
    WORK,
    facts,
    host_line,
    raw,
    syncs,
)

# A sound step: 10 ms, of which the device computes 9.5.
STEP = {"data": 100, "copy": 100, "forward": 3_000, "loss": 300, "backward": 5_500}
STEP = STEP | {"optimizer": 1_000}


def gpu(*readings: object, parts: dict[str, int] | None = None, **kernels: Any) -> Facts:
    profiled = replace(KERNELS, **kernels)
    return facts(parts or STEP, readings=[SETUP, profiled, WORK, OWNERS, *readings])


def test_no_rule_speaks_of_a_sound_step_on_a_gpu() -> None:
    sound = gpu()
    assert [rule(sound) for rule in RULES] == [None] * len(RULES)


def test_no_rule_on_devices_speaks_of_a_cpu() -> None:
    alone = facts(STEP, readings=[ON_CPU, WORK])
    rules = (copy_bound, launch_bound, sync_bound, memory_traffic, precision, tensor_cores)
    assert [rule(alone) for rule in rules] == [None] * len(rules)


@pytest.mark.parametrize(
    ("busy_us", "share"),
    [(5_000.0, 0.4), (7_000.0, 0.3), (9_500.0, None)],
    ids=["host decides", "device decides", "hidden"],
)
def test_a_copy_costs_what_neither_host_nor_device_can_hide(
    busy_us: float, share: float | None
) -> None:
    parts = STEP | {"copy": 4_000, "backward": 1_600}
    found = copy_bound(gpu(parts=parts, busy_us=busy_us))
    bound = None if found is None else found.bound
    assert (None if bound is None else bound.share) == (
        None if share is None else pytest.approx(share)
    )


def test_a_copy_that_only_the_device_waits_for_counts_as_well() -> None:
    found = copy_bound(gpu(busy_us=6_000.0, copy_to_device_us=3_000.0))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.3)
    assert "batches are in pinned memory" in found.evidence
    marked = facts(STEP, device={"copy": 2_500, "forward": 2_000, "backward": 5_500})
    found = copy_bound(marked)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.25)


def test_a_device_that_waits_for_launches_is_launch_bound() -> None:
    found = launch_bound(gpu(busy_us=4_000.0, launches=1_000))
    assert found is not None
    assert found.bound is not None
    # 10 ms less 0.1 of data and 0.1 of copies, less 4 of computing.
    assert found.bound.share == pytest.approx(0.58)
    assert found.evidence[0] == "1,000 kernels per step, 4.00 us each"


@pytest.mark.parametrize(
    ("kernels", "parts"),
    [
        ({"busy_us": 4_000.0, "launches": 1_000}, STEP | {"data": 5_900}),
        ({"busy_us": 4_000.0, "launches": 1_000}, STEP | {"host": 5_900}),
        ({"busy_us": 4_000.0, "launches": 1_000, "sync_us": 6_000.0}, STEP),
        ({"busy_us": 4_000.0, "launches": 90}, STEP),
        ({"busy_us": 8_000.0, "launches": 1_000}, STEP),
    ],
    ids=["waits for data", "busy in Python", "waits for the device", "few launches", "busy"],
)
def test_idle_time_with_another_cause_is_not_blamed_on_launches(
    kernels: dict[str, float], parts: dict[str, int]
) -> None:
    grown = {name: us for name, us in parts.items() if name != "backward"}
    grown["backward"] = max(100, 10_000 - sum(grown.values()))
    assert launch_bound(gpu(parts=grown, **kernels)) is None


def test_a_small_batch_is_named_where_memory_is_left() -> None:
    free = replace(OWNERS, peak_bytes=8 * GIB)
    found = small_batch(gpu(free, busy_us=4_000.0, launches=1_000))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.58)
    assert "10.0% of 80.0 GiB" in found.evidence[1]
    assert small_batch(gpu(busy_us=4_000.0, launches=1_000)) is None, "memory is full"
    assert small_batch(gpu(free)) is None, "the device is busy"


@pytest.mark.parametrize(
    ("sync_us", "busy_us", "share"),
    [(5_000, 6_000.0, 0.4), (3_000, 6_000.0, 0.3), (8_000, 9_500.0, None)],
    ids=["device decides", "host decides", "device is busy anyway"],
)
def test_waiting_for_the_device_costs_what_the_device_then_lacks(
    sync_us: int, busy_us: float, share: float | None
) -> None:
    line = host_line("total += loss.item()", 50)
    found = sync_bound(gpu(syncs(line, sync_us * 90), busy_us=busy_us))
    if share is None:
        assert found is None
        return
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(share)
    assert any("loss.item()" in text for text in found.evidence)


def test_traffic_that_fusing_saves_bounds_the_gain() -> None:
    heavy = gpu(matmul_us=2_000.0, other_us=7_000.0)
    found = memory_traffic(heavy)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.7 * 0.5)
    assert memory_traffic(gpu()) is None, "products take most"
    assert memory_traffic(gpu(busy_us=4_000.0, matmul_us=1_000.0, other_us=3_000.0)) is None
    without_count = facts(STEP, readings=[SETUP, replace(KERNELS, matmul_us=0.0, other_us=9_000.0)])
    assert memory_traffic(without_count) is None


WIDE = replace(SETUP, autocast=None, tf32=False)
IN_FP32 = replace(WORK, flops_by_dtype={"float32": 10**12})


def machine(**rates: float) -> object:
    gone = dict.fromkeys(
        ("affinity_cores", "quota_cores", "usable_cores", "logical_cores", "physical_cores")
    )
    ram = dict.fromkeys(
        (
            "total_bytes",
            "available_bytes",
            "cgroup_limit_bytes",
            "cgroup_working_bytes",
            "shm_bytes",
            "shm_free_bytes",
        )
    )
    software = dict.fromkeys(("torch", "cuda", "cudnn", "triton", "pillow", "nvidia_driver"))
    made = Machine(
        system="Linux",
        kernel="6",
        architecture="x86_64",
        cpu=Cpu(model=None, **gone),
        ram=Ram(**ram),
        gpus=(),
        software=Software(python="3.11", **software),
        matrix_rates=tuple(
            MatrixRate(
                device="cuda:0",
                dtype=dtype,
                size=8192,
                threads=None,
                rate=Measured(value=rate, unit="FLOP/s", low=rate, high=rate, samples=3),
            )
            for dtype, rate in rates.items()
        ),
        copy_rates=(),
        decode_rates=(),
        volume=None,
        advice=(),
        quick=True,
        took_s=1.0,
        notes=(),
    )
    from pitstop.records.store import to_dict

    values = to_dict(made)
    return raw("machine", **{k: v for k, v in values.items() if k not in ("kind", "schema")})


def test_products_in_fp32_are_bounded_by_measured_rates() -> None:
    found = precision(gpu(WIDE, IN_FP32, machine(fp32=50e12, bf16=800e12)))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.7 * (1 - 50 / 800))
    assert "16.0x as fast as fp32" in found.evidence[1]
    assert found.severity == "critical"


def test_rates_measured_in_the_run_itself_come_first() -> None:
    rates = Rates(device="cuda:0", flops_per_s={"fp32": 40e12, "bf16": 400e12})
    found = precision(gpu(WIDE, IN_FP32, rates, machine(fp32=50e12, bf16=800e12)))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.7 * 0.9)


@pytest.mark.parametrize("bf16", [2e12, 8e12], ids=["slower", "no faster"])
def test_a_format_that_was_measured_to_be_no_faster_is_not_advised(bf16: float) -> None:
    rates = Rates(device="cuda:0", flops_per_s={"fp32": 8e12, "bf16": bf16})
    assert precision(gpu(WIDE, IN_FP32, rates)) is None


def test_without_measured_rates_the_bound_is_all_of_the_products_and_says_so() -> None:
    found = precision(gpu(WIDE, IN_FP32))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.7)
    assert "was not measured" in found.evidence[1]


@pytest.mark.parametrize(
    ("setup", "work", "kernels"),
    [
        (SETUP, WORK, {}),
        (WIDE, WORK, {}),
        (replace(WIDE, device_name="Tesla P100-PCIE-16GB"), IN_FP32, {}),
        (WIDE, IN_FP32, {"matmul_us": 500.0}),
        (WIDE, IN_FP32, {"busy_us": 3_000.0, "matmul_us": 2_500.0}),
    ],
    ids=["autocast", "half by hand", "no tensor cores", "few products", "device idles"],
)
def test_precision_is_not_blamed_where_it_is_used_or_does_not_decide(
    setup: object, work: object, kernels: dict[str, Any]
) -> None:
    assert precision(gpu(setup, work, **kernels)) is None


def test_tf32_is_mentioned_and_not_blamed() -> None:
    found = precision(gpu(replace(WIDE, tf32=True), IN_FP32))
    assert found is not None
    assert found.severity == "info"


@pytest.mark.parametrize(("count", "named"), [(9, True), (4, False)])
def test_a_model_in_float64_is_named_also_without_a_gpu(count: int, named: bool) -> None:
    work = replace(WORK, flops_by_dtype={"float64": count * 10**11, "float32": 5 * 10**11})
    parts = {"data": 1_000, "forward": 3_000, "backward": 5_000, "optimizer": 1_000}
    found = precision(facts(parts, readings=[ON_CPU, work]))
    assert (found is not None) is named
    if found is not None:
        assert (found.severity, found.summary) == ("info", "matrix products are computed in fp64")
        assert found.bound is not None
        assert found.bound.share == pytest.approx(0.4), "half of forward and backward"
        assert "dtype=np.float32" in found.remedy[0]


def test_odd_shapes_keep_products_off_the_tensor_cores() -> None:
    odd = replace(WORK, unaligned_flops=6 * 10**11)
    found = tensor_cores(gpu(odd, tensor_core_us=1_000.0))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.6)
    assert "60.0% of the FLOPs" in found.evidence[1]
    assert tensor_cores(gpu(odd)) is None, "they run there nevertheless"
    assert tensor_cores(gpu(tensor_core_us=0.0)) is None, "names alone accuse nobody"
    assert tensor_cores(gpu(odd, WIDE, IN_FP32, tensor_core_us=0.0)) is None


def test_the_reading_of_a_loader_that_does_not_pin_is_reported() -> None:
    setup = replace(SETUP, loaders=(replace(LOADER, pinned=False),))
    found = copy_bound(gpu(setup, busy_us=6_000.0, copy_to_device_us=3_000.0))
    assert found is not None
    assert "batches are not in pinned memory" in found.evidence
