"""How long a step will take: each operation against a device's ceilings, and the host's launches.

An operation takes as long as its arithmetic or its bytes at the rate that kernels reach, whichever
is longer, and never less than the shortest kernel; on top of that comes what it costs the host to
start it. What kernels reach of the ceilings, and the host's cost, were fitted to twelve measured
steps of three networks on an H200 (docs/accuracy.md); every figure here is an estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.plan import OperationRow, SpeedPlan, StepTrace

PRODUCTS_REACH: Final = {"fp32": 0.65, "tf32": 0.20, "bf16": 0.20}
"""Share of the data sheet's rate that products of a training step reach."""
BYTES_REACH: Final = 0.45
"""Share of the data sheet's memory rate that element-wise kernels reach, each tensor once."""
SHORTEST_S: Final = 3e-6
LAUNCH_S: Final = 20e-6
"""What one operation adds that the device does not hide: Python, modules, autograd, launch."""
LOW, HIGH = 0.7, 1.6
"""What measured steps were of planned ones, at the least and at the most."""

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
    launch_s = kernels * LAUNCH_S
    factor = accumulate / trace_micro_batches(accumulate)
    step_s = (device_s + launch_s) * factor
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
    arithmetic = one.flops / (ceilings.flops_per_s[kind] * PRODUCTS_REACH[kind])
    traffic = one.num_bytes / (ceilings.bytes_per_s * BYTES_REACH)
    return max(arithmetic, traffic, SHORTEST_S)


def slowest(trace: StepTrace, ceilings: Ceilings, most: int = 5) -> Sequence[tuple[str, float]]:
    """Name the operations that take the most time of a step, with their shares."""
    times: dict[str, float] = {}
    for one in trace.operations:
        times[one.name] = times.get(one.name, 0.0) + one.count * operation_s(one, trace, ceilings)
    total = sum(times.values()) or 1.0
    ranked = sorted(times.items(), key=lambda item: -item[1])[:most]
    return [(name, taken / total) for name, taken in ranked]
