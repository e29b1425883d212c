"""How long a step will take: kernels against a device's ceilings, beside the host's launches.

On the device an operation takes as long as its arithmetic or its bytes at the rate that kernels
reach, whichever is longer, and a little for being a kernel at all. The host starts operations while
the device still computes earlier ones, so a step takes the longer of the two sums, not both.
Measured steps say so: VRT with fused kernels takes 316, 537 and 774 ms at batches 1, 2 and 3, where
its kernels take 262 ms a sample; recomputed it takes 785 ms at batch 1 and 801 at batch 2. What
kernels reach, and the host's costs, were fitted to measured steps on an H200
(benchmarks/plan_steps.py, docs/accuracy.md); every figure here is an estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.plan import OperationRow, SpeedPlan, StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What kernels reach of a data sheet's rates, and what operations cost beside their work."""

    matrix_reach: Mapping[str, float]
    """Share of the data sheet's rate that matrix products of a training step reach."""
    products_reach: Mapping[str, float]
    """The same of convolutions and attention."""
    pointwise_reach: float
    """Share of the data sheet's memory rate that kernels reach which go through tensors once."""
    bytes_reach: float
    """The same of all others, each tensor counted once: norms, sums, turned copies."""
    kernel_s: float
    """What an operation takes on the device beside its work; it is often two kernels."""
    launch_s: float
    """What starting one operation takes the host: Python, modules, autograd, launch."""
    fused_launch_s: float
    """The same of a fused operation of pitstop, which starts several kernels from Python."""
    recomputed_s: float
    """What the host does for a place that is recomputed, beside the operations in it."""


FITTED: Final = Costs(
    matrix_reach={"fp32": 0.81, "tf32": 0.40, "bf16": 0.76},
    products_reach={"fp32": 0.275, "tf32": 0.207, "bf16": 0.21},
    pointwise_reach=0.73,
    bytes_reach=0.37,
    kernel_s=12e-6,
    launch_s=49e-6,
    fused_launch_s=0.52e-3,
    recomputed_s=1.4e-3,
)
"""To all steps of benchmarks/plan_steps.py."""
FUSED_REACH: Final = {"fp32": 0.28, "tf32": 0.20, "bf16": 0.20}
FUSED_BYTES_REACH: Final = 0.38
"""Rates of fused kernels, of which `TIMES_AS_LONG` are multiples; not fitted."""
TIMES_AS_LONG: Final[Mapping[str, float]] = {
    "attend_volume": 1.8,
    "attend_volume_backward": 2.3,
    "deform_conv": 3.2,
    "deform_conv_backward": 9.3,
    "feed_forward_add": 1.1,
    "feed_forward_add_backward": 1.35,
}
"""Fused kernels that reach less than others: time in a profile over that of their arithmetic or
their bytes at the rates above, of VRT at 6x256x256 (benchmarks/results/deblur_vrt_h200.json).
Backward passes of token-wise kernels share products and norms: one group, divided as planned."""
ONCE_A_STEP: Final = frozenset({"clip", "optimizer", "other"})
"""Parts of a step that neither batch nor accumulation change."""
LOW, HIGH = 0.6, 1.3
"""What measured steps were, at the least and at the most, of steps planned by constants that had
not seen them, as benchmarks/plan_errors.py reads it off the results (docs/accuracy.md)."""

_MATRIX_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_POINTWISE: Final = frozenset(
    {"add", "sub", "mul", "div", "neg", "_to_copy", "copy_", "fill", "where", "sigmoid", "relu"}
    | {"silu", "gelu", "gelu_backward", "sigmoid_backward", "threshold_backward"}
)
_WIDE: Final = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many times as long as planned the two sides of a step take, and how sure that is."""

    host: float = 1.0
    device: float = 1.0
    idle_s: float = 0.0
    """Of each step, in which the device was seen to wait though it had the longer side."""
    low: float = LOW
    high: float = HIGH
    """Measured steps of planned ones, at the least and at the most."""
    run: str | None = None
    """Where it was measured; None for as planned."""

    @property
    def basis(self) -> str:
        """Say what corrects a plan."""
        if self.run is None:
            return ""
        times = f"launches x {self.host:.2f}, kernels x {self.device:.2f}"
        idle = f", {self.idle_s * 1e3:.0f} ms idle" if self.idle_s else ""
        return f", corrected by {self.run} ({times}{idle})"


AS_PLANNED: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device can do at most."""

    gpu: str
    basis: str
    flops_per_s: dict[str, float]
    """By precision: fp32, tf32, bf16 (fp16 the same)."""
    bytes_per_s: float
    gpu_bytes: int
    pace: Pace = AS_PLANNED
    """Of a run that was measured on the device, where there is one."""


def plan_speed(
    trace: StepTrace,
    ceilings: Ceilings,
    *,
    accumulate: int = 1,
    samples: int | None = None,
    costs: Costs = FITTED,
) -> SpeedPlan:
    """Estimate a step.

    Args:
        trace: Of one micro-batch.
        ceilings: Of the device.
        accumulate: Micro-batches of a step.
        samples: Of an epoch, where that is known; all ranks share them. What exchanging gradients
            costs is not in the time.
        costs: Of operations, on the device and on the host.
    """
    counts = [_times(one, accumulate) for one in trace.operations]
    counted = list(zip(counts, trace.operations, strict=True))
    device_s = sum(count * operation_s(one, trace, ceilings, costs) for count, one in counted)
    launch_s = sum(count * _host_s(one, trace, costs) for count, one in counted)
    launch_s += accumulate * trace.recomputed_places * costs.recomputed_s
    pace = ceilings.pace
    device_s, launch_s = pace.device * device_s, pace.host * launch_s
    # Launches of one step run beside kernels of the step before, too: no part waits for another.
    step_s = max(device_s, launch_s) + pace.idle_s
    per_step = trace.batch_size * accumulate * trace.ranks
    return SpeedPlan(
        gpu=ceilings.gpu,
        basis=ceilings.basis + pace.basis,
        step_s=step_s,
        low_s=step_s * pace.low,
        high_s=step_s * pace.high,
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


def operation_s(one: OperationRow, trace: StepTrace, ceilings: Ceilings, costs: Costs) -> float:
    """Time of one operation on the device."""
    kind = _WIDE.get(one.dtype, "fp32")
    if kind == "fp32" and trace.precision != "fp32":
        kind = "tf32"
    if one.name in trace.fused_operations:
        reach, share = FUSED_REACH, FUSED_BYTES_REACH
    else:
        is_matrix = one.name in _MATRIX_PRODUCTS
        reach = costs.matrix_reach if is_matrix else costs.products_reach
        share = costs.pointwise_reach if one.name in _POINTWISE else costs.bytes_reach
    arithmetic = one.flops / (ceilings.flops_per_s[kind] * reach[kind])
    traffic = one.num_bytes / (ceilings.bytes_per_s * share)
    return max(arithmetic, traffic) * TIMES_AS_LONG.get(one.name, 1.0) + costs.kernel_s


def _host_s(one: OperationRow, trace: StepTrace, costs: Costs) -> float:
    """Time that the host takes to start one operation."""
    return costs.fused_launch_s if one.name in trace.fused_operations else costs.launch_s
