"""How long a step will take: each operation against a device's ceilings, and the host's launches.

On the device an operation takes as long as its arithmetic or its bytes at the rate that kernels
reach, whichever is longer, and never less than the shortest kernel. The host starts operations one
after the other while the device works. Neither waits for the other all the time: where both take as
long, a step takes longer than either, so the two are added as the sides of a right angle. What
kernels reach, and the host's cost, were fitted to measured steps of three networks on an H200
(docs/accuracy.md); every figure here is an estimate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.plan import OperationRow, SpeedPlan, StepTrace

MATRIX_REACH: Final = {"fp32": 0.80, "tf32": 0.40, "bf16": 0.50}
"""Share of the data sheet's rate that matrix products of a training step reach."""
PRODUCTS_REACH: Final = {"fp32": 0.30, "tf32": 0.20, "bf16": 0.20}
"""The same of convolutions, attention and fused kernels."""
BYTES_REACH: Final = 0.43
"""Share of the data sheet's memory rate that element-wise kernels reach, each tensor once."""
SHORTEST_S: Final = 6e-6
"""An operation that has next to nothing to do; it is often two kernels."""
LAUNCH_S: Final = 36e-6
"""What it costs the host to start one operation: Python, modules, autograd, launch."""
FUSED_LAUNCHES: Final = 4
"""A fused operation of pitstop starts several kernels, from Python in both passes; estimated."""
TIMES_AS_LONG: Final[Mapping[str, float]] = {
    "attend_volume": 2.1,
    "attend_volume_backward": 2.9,
    "deform_conv": 3.2,
    "deform_conv_backward": 14.0,
    "feed_forward_add": 1.3,
    "feed_forward_add_backward": 1.8,
    "norm_project_backward": 1.3,
}
"""Fused kernels that reach less than others: measured time over the time of arithmetic and bytes at
the rates above, of VRT at 6x256x256 (benchmarks/results/deblur_{vrt,block}_h200.json)."""
LOW, HIGH = 0.7, 1.6
"""What measured steps were of planned ones, at the least and at the most."""

_MATRIX_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_WIDE: Final = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device can do at most."""

    gpu: str
    basis: str
    flops_per_s: dict[str, float]
    """By precision: fp32, tf32, bf16 (fp16 the same)."""
    bytes_per_s: float
    gpu_bytes: int


def plan_speed(
    trace: StepTrace,
    ceilings: Ceilings,
    *,
    accumulate: int = 1,
    samples: int | None = None,
    ranks: int = 1,
) -> SpeedPlan:
    """Estimate a step.

    Args:
        trace: Of one or two micro-batches.
        ceilings: Of the device.
        accumulate: Micro-batches of a step.
        samples: Of an epoch, where that is known.
        ranks: GPUs that share the samples; what exchanging gradients costs is not in the time.
    """
    device_s = sum(one.count * operation_s(one, trace, ceilings) for one in trace.operations)
    kernels = sum(one.count for one in trace.operations)
    launch_s = sum(one.count * host_s(one, trace) for one in trace.operations)
    factor = accumulate / trace_micro_batches(accumulate)
    step_s = math.hypot(device_s, launch_s) * factor
    per_step = trace.batch_size * accumulate * ranks
    return SpeedPlan(
        gpu=ceilings.gpu,
        basis=ceilings.basis,
        step_s=step_s,
        low_s=step_s * LOW,
        high_s=step_s * HIGH,
        device_s=device_s * factor,
        launch_s=launch_s * factor,
        kernels=round(kernels * factor),
        flops=round(sum(one.flops * one.count for one in trace.operations) * factor),
        samples_per_s=per_step / step_s,
        epoch_s=None if samples is None else samples / per_step * step_s,
    )


def trace_micro_batches(accumulate: int) -> int:
    """How many micro-batches a dry run of so many has."""
    return min(accumulate, 2)


def operation_s(one: OperationRow, trace: StepTrace, ceilings: Ceilings) -> float:
    """Time of one operation on the device."""
    kind = _WIDE.get(one.dtype, "fp32")
    if kind == "fp32" and trace.precision != "fp32":
        kind = "tf32"
    reach = MATRIX_REACH if one.name in _MATRIX_PRODUCTS else PRODUCTS_REACH
    arithmetic = one.flops / (ceilings.flops_per_s[kind] * reach[kind])
    traffic = one.num_bytes / (ceilings.bytes_per_s * BYTES_REACH)
    return max(arithmetic, traffic, SHORTEST_S) * TIMES_AS_LONG.get(one.name, 1.0)


def host_s(one: OperationRow, trace: StepTrace) -> float:
    """Time that the host takes to start one operation."""
    return LAUNCH_S * (FUSED_LAUNCHES if one.name in trace.fused_operations else 1)


def slowest(trace: StepTrace, ceilings: Ceilings, most: int = 5) -> Sequence[tuple[str, float]]:
    """Name the operations that take the most time of a step, with their shares."""
    times: dict[str, float] = {}
    for one in trace.operations:
        times[one.name] = times.get(one.name, 0.0) + one.count * operation_s(one, trace, ceilings)
    total = sum(times.values()) or 1.0
    ranked = sorted(times.items(), key=lambda item: -item[1])[:most]
    return [(name, taken / total) for name, taken in ranked]
