"""How long a step will take: each operation against a device's ceilings, and the host's launches.

On the device an operation takes as long as its arithmetic or its bytes at the rate that kernels
reach, whichever is longer, and a little for being a kernel at all. The host starts operations one
after the other while the device works. Neither waits for the other all the time: where both take as
long, a step takes longer than either, so the two are added as the sides of a right angle. What
kernels reach, and the host's costs, were fitted to measured steps of three networks on an H200
(docs/accuracy.md); every figure here is an estimate.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.plan import OperationRow, SpeedPlan, StepTrace

MATRIX_REACH: Final = {"fp32": 0.80, "tf32": 0.40, "bf16": 0.70}
"""Share of the data sheet's rate that matrix products of a training step reach."""
PRODUCTS_REACH: Final = {"fp32": 0.28, "tf32": 0.20, "bf16": 0.20}
"""The same of convolutions, attention and fused kernels."""
POINTWISE_REACH: Final = 0.75
"""Share of the data sheet's memory rate that kernels reach which go through tensors once."""
BYTES_REACH: Final = 0.38
"""The same of all others, each tensor counted once: norms, sums, turned copies."""
KERNEL_S: Final = 7e-6
"""What an operation takes on the device beside its work; it is often two kernels."""
LAUNCH_S: Final = 35e-6
"""What it costs the host to start one operation: Python, modules, autograd, launch."""
FUSED_LAUNCH_S: Final = 0.5e-3
"""The same of a fused operation of pitstop, which starts several kernels from Python."""
RECOMPUTED_S: Final = 0.5e-3
"""What the host does for a place that is recomputed, beside the operations in it."""
TIMES_AS_LONG: Final[Mapping[str, float]] = {
    "attend_volume": 2.1,
    "attend_volume_backward": 2.9,
    "deform_conv": 3.2,
    "deform_conv_backward": 14.0,
    "feed_forward_add": 1.3,
    "feed_forward_add_backward": 1.8,
    "norm_project_backward": 1.3,
}
"""Fused kernels that reach less than others: measured time over that of their arithmetic at 0.2 of
the data sheet's rate or their bytes at 0.43 of the memory's, whichever is longer, of VRT at
6x256x256 (benchmarks/results/deblur_{vrt,block}_h200.json)."""
ONCE_A_STEP: Final = frozenset({"clip", "optimizer", "other"})
"""Parts of a step that neither batch nor accumulation change."""
LOW, HIGH = 0.7, 2.2
"""What measured steps were of steps planned beforehand, at the least and at the most, before the
constants were fitted to that run as well (docs/accuracy.md)."""

_MATRIX_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_POINTWISE: Final = frozenset(
    {"add", "sub", "mul", "div", "neg", "_to_copy", "copy_", "fill", "where", "sigmoid", "relu"}
    | {"silu", "gelu", "gelu_backward", "sigmoid_backward", "threshold_backward"}
)
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
        trace: Of one micro-batch.
        ceilings: Of the device.
        accumulate: Micro-batches of a step.
        samples: Of an epoch, where that is known.
        ranks: GPUs that share the samples; what exchanging gradients costs is not in the time.
    """
    counts = [_times(one, accumulate) for one in trace.operations]
    counted = list(zip(counts, trace.operations, strict=True))
    device_s = sum(count * operation_s(one, trace, ceilings) for count, one in counted)
    launch_s = sum(count * host_s(one, trace) for count, one in counted)
    launch_s += accumulate * trace.recomputed_places * RECOMPUTED_S
    step_s = math.hypot(device_s, launch_s)
    per_step = trace.batch_size * accumulate * ranks
    return SpeedPlan(
        gpu=ceilings.gpu,
        basis=ceilings.basis,
        step_s=step_s,
        low_s=step_s * LOW,
        high_s=step_s * HIGH,
        device_s=device_s,
        launch_s=launch_s,
        kernels=sum(counts),
        flops=sum(count * one.flops for count, one in counted),
        samples_per_s=per_step / step_s,
        epoch_s=None if samples is None else samples / per_step * step_s,
    )


def _times(one: OperationRow, accumulate: int) -> int:
    """How often an operation runs in a step of so many micro-batches."""
    return one.count * (1 if one.part in ONCE_A_STEP else accumulate)


def operation_s(one: OperationRow, trace: StepTrace, ceilings: Ceilings) -> float:
    """Time of one operation on the device."""
    kind = _WIDE.get(one.dtype, "fp32")
    if kind == "fp32" and trace.precision != "fp32":
        kind = "tf32"
    reach = MATRIX_REACH if one.name in _MATRIX_PRODUCTS else PRODUCTS_REACH
    arithmetic = one.flops / (ceilings.flops_per_s[kind] * reach[kind])
    share = POINTWISE_REACH if one.name in _POINTWISE else BYTES_REACH
    traffic = one.num_bytes / (ceilings.bytes_per_s * share)
    return max(arithmetic, traffic) * TIMES_AS_LONG.get(one.name, 1.0) + KERNEL_S


def host_s(one: OperationRow, trace: StepTrace) -> float:
    """Time that the host takes to start one operation."""
    return FUSED_LAUNCH_S if one.name in trace.fused_operations else LAUNCH_S
