"""A step is held against what its device was measured to do, with numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from pitstop.doctor.estimate.headroom import headroom_of
from pitstop.doctor.examine import examine
from pitstop.records.headroom import Headroom
from pitstop.records.script import KernelTotal, NotSampled, OperationSource, Rates
from tests.unit.doctor.records import KERNELS, ON_CPU, SETUP, WORK, facts, rank, run_of

STEP = {"forward": 4_000, "backward": 6_000}
RATES = Rates(
    device="cuda:0", flops_per_s={"fp32": 5e13, "tf32": 3e14, "bf16": 8e14}, bytes_per_s=4e12
)


def headroom(*readings: object, **rest: Any) -> Headroom | None:
    return headroom_of(facts(STEP, readings=[SETUP, *readings], **rest))


def test_a_step_is_held_against_arithmetic_and_bytes() -> None:
    found = headroom(KERNELS, replace(WORK, flops=8 * 10**10), RATES)
    assert found is not None
    assert found.number_format == "bf16"
    assert found.flops_per_s == pytest.approx(8e12), "in 10 ms"
    assert found.flops_share == pytest.approx(0.01)
    assert found.arithmetic_us == pytest.approx(100)
    # 10 GB less 1 GB of element-wise work, which fused moves half a GB.
    assert found.least_bytes == 95 * 10**8
    assert found.traffic_us == pytest.approx(2_375)
    assert found.least_us == pytest.approx(2_375), "the longer of the two"
    assert found.bytes_share == pytest.approx(0.25)


def test_classes_are_shares_of_the_devices_time_and_kernels_know_their_lines() -> None:
    source = OperationSource(
        operation="aten::_to_copy", file="/x/net.py", line=7, module="a.*", calls=3, share=1.0
    )
    copy = KernelTotal(
        name="copy", count=3, total_us=600, class_name="copies and layout", operation="aten::copy_"
    )
    kernels = replace(
        KERNELS, classes={"element-wise": 2_000.0, "matrix products": 6_000.0}, top=(copy,)
    )
    found = headroom(kernels, replace(WORK, sources=(source,)), RATES)
    assert found is not None
    assert [(each.name, each.share) for each in found.classes] == [
        ("matrix products", 0.75),
        ("element-wise", 0.25),
    ]
    assert found.device_us == 8_000
    assert (found.kernels[0].module, found.kernels[0].line) == ("a.*", 7)


def test_what_was_not_measured_is_not_shown() -> None:
    assert headroom(RATES) is None
    assert headroom(KERNELS, WORK) is None
    without_rates = headroom(replace(KERNELS, classes={"softmax": 1.0}), WORK)
    assert without_rates is not None
    assert (without_rates.flops_share, without_rates.least_us) == (None, None)
    on_cpu = facts(STEP, readings=[ON_CPU, WORK])
    assert headroom_of(on_cpu) is None


def test_what_is_missing_is_told_before_a_bottleneck_is_named() -> None:
    loading = {"data": 6_000, "forward": 2_000, "backward": 2_000}
    on_device = {"data": 5_500.0, "forward": 2_000.0, "backward": 2_000.0}
    why = NotSampled(what="kernels", why="the script profiles itself")
    verdict = examine(run_of(rank(loading, device=on_device, readings=[SETUP, why])))
    assert verdict.outcome == "bottleneck"
    assert verdict.message.startswith("kernels and arithmetic were not sampled;")
    assert "kernels (the script profiles itself)" in verdict.not_sampled
    whole = examine(run_of(rank(loading, device=on_device, readings=[SETUP, KERNELS, WORK])))
    assert "not sampled" not in whole.message
    idle = replace(KERNELS, busy_us=1_000.0)
    counted = examine(run_of(rank(loading, device=on_device, readings=[SETUP, idle])))
    assert counted.message.startswith("arithmetic was not sampled;")
