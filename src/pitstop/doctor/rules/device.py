"""Rules on a GPU: what keeps it waiting, and what it does with its time.

All of them need one profiled step (`Kernels`): its kernel times, set against the wall clock of the
steps that were not profiled. With w the wall clock of a step and b the time the device is busy,
taking t away from the host leaves a step of at least max(w - t, b).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.numbers import place_text
from pitstop.doctor.rules.bounded import bounded_finding
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import BUSY_ENOUGH, DEVICE_DECIDES, WORTH_A_WARNING, severity_of
from pitstop.records.host.machine import Machine
from pitstop.records.script import Kernels, Owners, Rates, Setup, Syncs, Work
from pitstop.records.units import bytes_text, count_text, share_text, us_text
from pitstop.records.verdict import Bound, Finding, Severity

# Longer kernels hide the launch of the next one, which takes the host some microseconds.
_SHORT_KERNEL_US: Final = 50.0
# More host time than this between two launches is no launching but something else.
_LONGEST_LAUNCH_US: Final = 100.0
# Fewer launches take less than a millisecond of host time, however slow each is.
_MANY_LAUNCHES: Final = 100

# Products on the tensor cores; below half, most of the arithmetic runs beside them.
_TENSOR_SHARE: Final = 0.5
# Share of the arithmetic in shapes that tensor cores are slow at.
_ODD_SHAPES: Final = 0.25

# A batch may double at least once where less than this share of the memory is used.
_MEMORY_TO_SPARE: Final = 0.5

# GPUs without tensor cores, by the beginning of their names' last words.
_WITHOUT_TENSOR_CORES: Final = ("K80", "M40", "M60", "P4", "P40", "P100", "GTX", "TITAN X")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """One step as the device saw it: medians over all profiled steps. Microseconds."""

    step_us: float
    """Wall clock of the steps that were not profiled."""
    busy_us: float
    launches: float
    matmul_us: float
    tensor_core_us: float
    other_us: float
    copy_us: float
    sync_us: float

    def saved(self, host_us: float) -> float:
        """Share of the step that goes when the host no longer spends some of its time."""
        return 1 - max(self.step_us - host_us, self.busy_us) / self.step_us


def device_step(facts: Facts) -> DeviceStep | None:
    """Give the step as the device saw it; None on a CPU and where no step was profiled."""
    found = facts.readings.all(Kernels)
    if not found or not facts.step_us:
        return None

    def middle(name: str) -> float:
        return float(np.median([getattr(kernels, name) for kernels in found]))

    return DeviceStep(
        step_us=facts.step_us,
        busy_us=min(middle("busy_us"), facts.step_us),
        launches=middle("launches"),
        matmul_us=middle("matmul_us"),
        tensor_core_us=middle("tensor_core_us"),
        other_us=middle("other_us"),
        copy_us=middle("copy_to_device_us"),
        sync_us=middle("sync_us"),
    )


def copy_bound(facts: Facts) -> Finding | None:
    """Report a step that waits for its batch to reach the device."""
    step = device_step(facts)
    host_us = facts.mean_part_us("copy")
    if step is not None:
        copy_us = max(host_us, step.copy_us)
        bound = facts.of_idle("copy", step.saved(copy_us) * facts.steps_share)
    else:
        shown = facts.device_share("copy") if facts.on_gpu else None
        if shown is None:
            return None
        copy_us = max(host_us, shown * facts.total_us / max(1, facts.steps))
        bound = facts.of_idle("copy", shown)
    if bound.share < WORTH_A_WARNING:
        return None
    evidence = [
        f"copies to the device take {us_text(copy_us)} of a step of {us_text(facts.step_us)}"
    ]
    if step is not None:
        evidence.append(f"the device computes for {us_text(step.busy_us)} of it")
    setup = facts.setup
    pinned = [loader.pinned for loader in setup.loaders if loader.trains] if setup else []
    if pinned:
        evidence.append(f"batches are {'' if all(pinned) else 'not '}in pinned memory")
    summary = "the step waits for copies to the device"
    return bounded_finding(facts, "COPY001", summary, bound=bound, evidence=evidence)


def launch_gaps(facts: Facts) -> tuple[DeviceStep, float] | None:
    """Find a device that waits for launches; give the share of the step it waits.

    What the host spends waiting (data, copies, syncs) or in other Python is left out first: that
    time has rules of its own.
    """
    step = device_step(facts)
    if step is None or step.launches < _MANY_LAUNCHES:
        return None
    sync_us = max(_sync_us(facts, step), facts.mean_part_us("host"))
    launching_us = step.step_us - facts.mean_part_us("data") - facts.mean_part_us("copy") - sync_us
    if launching_us <= 0 or step.busy_us / launching_us >= BUSY_ENOUGH:
        return None
    gaps_us = launching_us - step.busy_us
    short = step.busy_us / step.launches < _SHORT_KERNEL_US
    if not short or gaps_us / step.launches > _LONGEST_LAUNCH_US:
        return None
    return step, gaps_us / step.step_us


def launch_bound(facts: Facts) -> Finding | None:
    """Report a device that waits for the host to launch its kernels."""
    found = launch_gaps(facts)
    if found is None:
        return None
    step, gap_share = found
    bound = facts.of_idle("launch gaps", gap_share * facts.steps_share)
    if bound.share < WORTH_A_WARNING:
        return None
    evidence = [
        f"{count_text(int(step.launches), 'kernel')} per step, "
        f"{us_text(step.busy_us / step.launches)} each",
        f"the device computes for {us_text(step.busy_us)} of a step of {us_text(step.step_us)}",
    ]
    setup = facts.setup
    if setup is not None and setup.anomaly_detection:
        evidence.append("anomaly detection is on: it keeps a stack for every operation")
    summary = "the device waits for the host to launch kernels"
    return bounded_finding(facts, "LAUNCH001", summary, bound=bound, evidence=evidence)


def small_batch(facts: Facts) -> Finding | None:
    """Report launches that could each carry more samples, where memory is left."""
    found, owners = launch_gaps(facts), facts.readings.last(Owners)
    if found is None or owners is None or not owners.total_bytes or owners.peak_bytes is None:
        return None
    samples = facts.samples or (facts.setup.samples_per_step if facts.setup else None)
    used = owners.peak_bytes / owners.total_bytes
    if samples is None or used >= _MEMORY_TO_SPARE:
        return None
    bound = facts.of_idle("launch gaps", found[1] * facts.steps_share)
    if bound.share < WORTH_A_WARNING:
        return None
    micro = facts.micro_steps or 1
    return Finding(
        code="BATCH001",
        severity="warning",
        summary="the batch is too small to keep the device busy",
        evidence=(
            _samples_text(samples / micro, micro),
            f"{share_text(used)} of {bytes_text(owners.total_bytes)} of device memory used at "
            "the peak",
        ),
        bound=bound,
        remedy=remedy_for(facts, "BATCH001"),
    )


def _samples_text(samples: float, times: float) -> str:
    at_a_time = f"{samples:g} {'sample' if samples == 1 else 'samples'}"
    return f"{at_a_time} a step" if times == 1 else f"{at_a_time} at a time, {times:g} times a step"


def sync_bound(facts: Facts) -> Finding | None:
    """Report a host that waits for the device and so cannot keep it fed."""
    step = device_step(facts)
    if step is None:
        return None
    sync_us = _sync_us(facts, step)
    bound = facts.of_idle("sync", step.saved(sync_us) * facts.steps_share)
    if bound.share < WORTH_A_WARNING:
        return None
    syncs = facts.readings.last(Syncs)
    evidence = [
        f"the host waits {us_text(sync_us)} for the device in a step of {us_text(step.step_us)}; "
        f"then the device waits for the host: it is busy {us_text(step.busy_us)}"
    ]
    if syncs is not None and syncs.steps:
        evidence.append(f"{syncs.calls / syncs.steps:.1f} synchronizing calls per step")
        evidence += [
            f"{us_text(line.total_us / syncs.steps)} per step at "
            f"{place_text(line.file)}:{line.line} `{line.text.strip()}` ({line.operation})"
            for line in syncs.lines[:3]
        ]
    summary = "the host synchronizes with the device in the step"
    return bounded_finding(facts, "SYNC001", summary, bound=bound, evidence=evidence)


def memory_traffic(facts: Facts) -> Finding | None:
    """Report a device that mostly moves bytes between operations that could be one."""
    step, work = _deciding(facts), facts.readings.last(Work)
    if step is None or work is None or not work.pointwise_bytes:
        return None
    kernels_us = step.other_us + step.matmul_us
    if not kernels_us or step.other_us < kernels_us / 2:
        return None
    saved = max(0.0, 1 - work.pointwise_bytes_fused / work.pointwise_bytes)
    bound = facts.of_busy(
        "memory traffic", step.other_us / step.step_us * saved * facts.steps_share
    )
    if bound.share < WORTH_A_WARNING:
        return None
    evidence = (
        f"{share_text(step.other_us / kernels_us)} of the kernel time is not matrix products",
        f"element-wise kernels move {bytes_text(work.pointwise_bytes)} per step; "
        f"fused they would move {bytes_text(work.pointwise_bytes_fused)}",
    )
    summary = "memory traffic limits the device"
    return bounded_finding(facts, "TRAFFIC001", summary, bound=bound, evidence=evidence)


def precision(facts: Facts) -> Finding | None:
    """Report products in 64 bits; in 32 on a device that is much faster at 16."""
    step, setup = _deciding(facts), facts.setup
    if _is_mostly(facts, "float64", "complex128"):
        return _in_float64(facts)
    if step is None or setup is None or not _has_tensor_cores(setup):
        return None
    if setup.autocast is not None or _is_half(facts):
        return None
    now = "tf32" if setup.tf32 else "fp32"
    share = step.matmul_us / step.step_us * facts.steps_share
    saved, measured = _saved_by_bf16(facts, setup, now)
    bound = facts.of_busy("products", share * saved)
    if bound.share < WORTH_A_WARNING:
        return None
    # TF32 is the tensor cores' own format: bf16 is faster still, but nothing lies idle.
    severity: Severity = "info" if now == "tf32" else severity_of(bound.share)
    return Finding(
        code="PREC001",
        severity=severity,
        summary=f"matrix products are computed in {now}",
        evidence=(
            f"matrix products take {us_text(step.matmul_us)} of a step of {us_text(step.step_us)}; "
            f"autocast is off, TF32 is {'on' if setup.tf32 else 'off'}",
            measured,
        ),
        bound=bound,
        remedy=remedy_for(facts, "PREC001"),
    )


def _in_float64(facts: Facts) -> Finding:
    """Say so and blame nobody: some models need 64 bits, others have them from NumPy."""
    costs = [cost.share for part in ("forward", "loss", "backward") if (cost := facts.cost(part))]
    # Half the bytes, and twice the numbers an instruction. What a GPU gains depends on its kind.
    bound = None if facts.on_gpu else Bound(part="products", share=sum(costs) / 2)
    return Finding(
        code="PREC001",
        severity="info",
        summary="matrix products are computed in fp64",
        evidence=("float32 has half the bytes; a GPU computes it 2 to 64 times as fast",),
        bound=bound,
        remedy=(
            "float32, if it is precise enough: x.float(), model.float(); NumPy makes float64 "
            "unless dtype=np.float32 is given",
        ),
    )


def _saved_by_bf16(facts: Facts, setup: Setup, now: str) -> tuple[float, str]:
    slow, fast = _rate(facts, setup, now), _rate(facts, setup, "bf16")
    if slow is None or fast is None:
        return 1.0, "the speed of bf16 was not measured here: the bound is all of that time"
    text = f"bf16 was measured {fast / slow:.1f}x as fast as {now} here"
    return max(0.0, 1 - slow / fast), text


def _rate(facts: Facts, setup: Setup, dtype: str) -> float | None:
    """FLOP/s of large products on this device, from the run itself or from its machine."""
    rates, machine = facts.readings.last(Rates), facts.readings.last(Machine)
    if rates is not None and dtype in rates.flops_per_s:
        return rates.flops_per_s[dtype]
    found = None if machine is None else machine.matrix_rate(setup.device or "cuda:0", dtype)
    return None if found is None else found.rate.value


def tensor_cores(facts: Facts) -> Finding | None:
    """Report products that the tensor cores cannot take, because of their shapes."""
    step, work, setup = _deciding(facts), facts.readings.last(Work), facts.setup
    if step is None or work is None or setup is None or not work.flops:
        return None
    uses = setup.autocast is not None or bool(setup.tf32) or _is_half(facts)
    odd = min(1.0, (work.unaligned_flops + work.small_flops) / work.flops)
    beside_us = step.matmul_us - step.tensor_core_us
    if not uses or not step.matmul_us or not _has_tensor_cores(setup) or odd < _ODD_SHAPES:
        return None
    bound = facts.of_busy("products", max(0.0, beside_us) / step.step_us * facts.steps_share)
    if beside_us / step.matmul_us < 1 - _TENSOR_SHARE or bound.share < WORTH_A_WARNING:
        return None
    evidence = (
        f"{share_text(step.tensor_core_us / step.matmul_us)} of the products' time is in kernels "
        "that name tensor cores",
        f"{share_text(work.unaligned_flops / work.flops)} of the FLOPs have a dimension that "
        f"is not a multiple of 8, {share_text(work.small_flops / work.flops)} one below 64",
        "their speed on tensor cores was not measured: the bound is all of their time",
    )
    summary = "most matrix products do not run on tensor cores"
    return bounded_finding(facts, "TENSOR001", summary, bound=bound, evidence=evidence)


def _deciding(facts: Facts) -> DeviceStep | None:
    """Give the device's step where shorter kernels make a shorter step."""
    step = device_step(facts)
    if step is None or step.busy_us / step.step_us < DEVICE_DECIDES:
        return None
    return step


def hidden_sync_share(facts: Facts) -> float | None:
    """Share of the wall clock in which the host waits for the device outside the part for waits.

    Operations that wait without being asked to lie in whatever part calls them. None where nobody
    looked: only a profiled step shows them.
    """
    if not facts.on_gpu:
        return 0.0
    step = device_step(facts)
    if step is None or not facts.total_us:
        return None
    hidden_us = max(0.0, step.sync_us - facts.mean_part_us("wait"))
    return min(1.0, hidden_us * facts.steps / facts.total_us)


def _sync_us(facts: Facts, step: DeviceStep) -> float:
    syncs = facts.readings.last(Syncs)
    if syncs is not None and syncs.steps:
        stalled_us = sum(stall.us for stall in facts.stalls if stall.part == "wait")
        return max(0.0, syncs.total_us - stalled_us) / syncs.steps
    return step.sync_us


def _is_half(facts: Facts) -> bool:
    """Whether most products have 16 bits or fewer without autocast's help."""
    return _is_mostly(facts, "16", "8")


def _is_mostly(facts: Facts, *bits: str) -> bool:
    """Whether most products, or else parameters, are in formats whose names have such bits."""
    work, setup = facts.readings.last(Work), facts.setup
    parameters = {} if setup is None else setup.parameter_dtypes
    counts = parameters if work is None else work.flops_by_dtype
    such = sum(count for name, count in counts.items() if any(each in name for each in bits))
    return such > sum(counts.values()) / 2


def _has_tensor_cores(setup: Setup) -> bool:
    if not (setup.device or "").startswith("cuda"):
        return False
    name = setup.device_name or ""
    return not any(f" {old}" in f" {name}" for old in _WITHOUT_TENSOR_CORES)
