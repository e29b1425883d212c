"""Does a step fit: the pieces of its dry run, what comes on top of them, and a GPU's size."""

from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.evaluation import EvaluationPlan, EvaluationTrace
from pitstop.records.plans.fit import Fit
from pitstop.records.plans.plan import (
    BUCKETS,
    GATHERED,
    UNDIVIDED,
    LedgerRow,
    MemoryPlan,
    StepTrace,
)
from pitstop.records.units import bytes_text

_MIB: Final = 2**20

WORKSPACE_BYTES: Final = 128 * _MIB
"""What cuBLAS, cuDNN and others take from torch's own memory: eleven runs on an H200 held 72 to
173 MiB more than their dry runs (docs/accuracy.md)."""
CONTEXT_BYTES: Final = 620 * _MIB
"""Driver, kernels and libraries of one process, outside torch's memory, as measured on an H200."""
RANKS_BYTES: Final = 400 * _MIB
"""Buffers of NCCL where several GPUs exchange gradients; estimated."""
CLOSE: Final = 0.05
"""Within this share of the GPU's memory no verdict is given."""
LOW, HIGH = 0.95, 1.03
"""What measured peaks were of planned ones, at the least and at the most, with two percent to spare
above: blind plans were at most 0.5 % below what was measured (docs/accuracy.md)."""

_ORDER: Final = (
    "parameters",
    "gradients",
    BUCKETS,
    GATHERED,
    UNDIVIDED,
    "optimizer state",
    "averaged weights",
    "teacher",
    "buffers",
    "batch",
    "activations",
    "temporary",
    "other",
    "shards",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What is planned for."""

    name: str
    num_bytes: int


def plan_memory(source: str, trace: StepTrace, gpu: Gpu) -> MemoryPlan:
    """Hold a step against a GPU."""
    ledger = ledger_rows(trace)
    peak = sum(row.num_bytes for row in ledger)
    usable = gpu.num_bytes - CONTEXT_BYTES
    return MemoryPlan(
        source=source,
        gpu=gpu.name,
        gpu_bytes=gpu.num_bytes,
        usable_bytes=usable,
        fit=fit_of(peak, usable),
        peak_bytes=peak,
        low_bytes=round(peak * LOW),
        high_bytes=max(round(peak * HIGH), peak + trace.fourier_bytes),
        ledger=ledger,
        trace=trace,
        notes=(*trace.notes, *_fourier_notes(trace)),
    )


def _fourier_notes(trace: StepTrace) -> tuple[str, ...]:
    if trace.fourier_bytes <= (HIGH - 1) * trace.peak_bytes:
        return ()
    return (
        "in fp32 cuDNN may choose Fourier transforms for convolutions; the largest would take "
        f"{bytes_text(trace.fourier_bytes)} of workspace, which is in the upper bound only; "
        "precision tf32 or bf16 avoids it",
    )


def plan_evaluation(trace: EvaluationTrace, usable_bytes: int) -> EvaluationPlan:
    """Hold an evaluation batch against what a GPU has for tensors."""
    peak = trace.peak_bytes + WORKSPACE_BYTES
    return EvaluationPlan(
        trace=trace,
        peak_bytes=peak,
        alone_bytes=trace.alone_bytes + WORKSPACE_BYTES,
        fit=fit_of(peak, usable_bytes),
    )


def fit_of(peak_bytes: int, usable_bytes: int) -> Fit:
    """Judge a peak; close to the border nobody can say."""
    if peak_bytes <= (1 - CLOSE) * usable_bytes:
        return "fits"
    return "does not fit" if peak_bytes > (1 + CLOSE) * usable_bytes else "too close"


def allowed_bytes(trace: StepTrace) -> int:
    """Give what is allowed for beside the pieces of a dry run."""
    return WORKSPACE_BYTES + (RANKS_BYTES if trace.ranks > 1 else 0)


def ledger_rows(trace: StepTrace) -> tuple[LedgerRow, ...]:
    """List what holds memory at the peak of a step, allowances last."""
    rows = [
        LedgerRow(owner=owner, num_bytes=trace.owners[owner], basis="dry run")
        for owner in _ORDER
        if trace.owners.get(owner)
    ]
    rows.append(LedgerRow(owner="workspaces", num_bytes=WORKSPACE_BYTES, basis="allowance"))
    if trace.ranks > 1:
        rows.append(LedgerRow(owner="exchange", num_bytes=RANKS_BYTES, basis="estimated"))
    return tuple(rows)
