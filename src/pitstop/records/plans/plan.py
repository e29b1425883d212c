"""What a run will need of a device and how long it will take, as planned before it runs."""

from dataclasses import dataclass
from typing import Final

from pitstop.records.plans.evaluation import EvaluationPlan
from pitstop.records.plans.fit import ORDER, Fit
from pitstop.records.plans.host import HostPlan

RECOMPUTE: Final = "recompute"
"""The part of a step that runs forward again inside backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """Operations of one kind and size in a step."""

    part: str
    """Of the step: forward, loss, backward, recompute, clip, optimizer, ..."""
    name: str
    flops: int
    """Of one of them."""
    num_bytes: int
    """That one of them reads and writes."""
    dtype: str
    count: int


GATHERED: Final = "gathered weights"
UNDIVIDED: Final = "gradients not divided yet"
"""Holders of memory where ranks divide a model: only while its blocks run."""
BUCKETS: Final = "gradient buckets"
"""Holds the gradients of ranks that each have the whole model, all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step on a GPU that was not there: its memory byte by byte, its operations one by one."""

    model: str
    parameters: int
    """Numbers that are trained."""
    batch_size: int
    precision: str
    recompute: str
    kernels: str
    optimizer: str
    owners: dict[str, int]
    """Bytes at the peak, by what holds them."""
    peak_bytes: int
    """Most that tensors hold at one time."""
    peak_place: tuple[str, ...]
    """Part of the step, and what is inside it."""
    peak_operation: str
    saved_bytes: int
    """Kept from forward for backward."""
    gradient_bytes: int
    reserved_bytes: int
    """Most that torch's allocator holds for them, as replayed piece by piece."""
    optimizer_bytes: dict[str, int]
    """What the state would take by kind of optimizer."""
    operations: tuple[OperationRow, ...]
    fused_operations: tuple[str, ...] = ()
    """Fused kernels that the step would launch."""
    fourier_bytes: int = 0
    """Workspace of the largest convolution if cuDNN takes Fourier transforms for it, which it may
    in fp32; not in the peak."""
    recomputed_places: int = 0
    """Parts of the model whose activations are computed again, each by itself."""
    epoch_samples: int | None = None
    """Of an epoch; None where the dataset is not here."""
    shard: str = "none"
    """Between whom the model is divided, as in the configuration."""
    ranks: int = 1
    """Of the run; more than one where the step is that of one of them."""
    notes: tuple[str, ...] = ()

    @property
    def recomputed_operations(self) -> int:
        """How many operations run again in backward."""
        return sum(one.count for one in self.operations if one.part == RECOMPUTE)

    @property
    def fixed_bytes(self) -> int:
        """What does not grow with the batch: weights, averages, and the optimizer's state."""
        fixed = ("parameters", "buffers", "optimizer state", "averaged weights", "teacher")
        fixed += (GATHERED, UNDIVIDED, BUCKETS)
        return sum(self.owners.get(owner, 0) for owner in fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One holder of device memory at the peak."""

    owner: str
    num_bytes: int
    basis: str
    """Counted, or where the figure comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPlan:
    """How long a step will take; always an estimate."""

    gpu: str
    basis: str
    """Measured ceilings of this machine, or those of a data sheet."""
    step_s: float
    low_s: float
    high_s: float
    """Between which the step's time lies, by the record of past errors."""
    device_s: float
    """Kernels one after the other."""
    launch_s: float
    """What starting them takes the host."""
    kernels: int
    flops: int
    samples_per_s: float
    epoch_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One choice of settings in the table of a plan."""

    batch_size: int
    recompute: str
    precision: str
    optimizer: str
    peak_bytes: int
    fit: Fit
    basis: str
    """Dry run, or what it was derived from."""
    step_s: float | None = None
    samples_per_s: float | None = None
    configured: bool = False
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A setting changed, and what that would do."""

    change: str
    peak_bytes: int | None = None
    fit: Fit | None = None
    more_bytes: int | None = None
    """Than as configured; negative where it is less."""
    step_s: float | None = None
    samples_per_s: float | None = None
    problem: str | None = None
    """Why it cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a short real run said about the plan of the same settings."""

    run: str
    measured_bytes: int
    """Peak of its training steps."""
    planned_bytes: int
    """What the plan says for the run's own settings."""
    factor: float
    """What belongs to samples, measured over planned; the plan's share of it is multiplied."""
    workspace_bytes: int | None = None
    """What libraries took, as far as one peak tells; None in records of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Device memory of a step against a GPU's."""

    source: str
    gpu: str
    gpu_bytes: int
    """What the GPU has in all."""
    usable_bytes: int
    """What is left of it for tensors once the driver and libraries have theirs."""
    fit: Fit
    peak_bytes: int
    """Most that the device has to hold: pieces, the allocator's rounding, libraries."""
    low_bytes: int
    high_bytes: int
    """Between which that lies, by `interval_basis`."""
    ledger: tuple[LedgerRow, ...]
    trace: StepTrace
    interval_basis: str = "by the errors of earlier plans"
    table: tuple[PlanRow, ...] = ()
    batch_growth: float | None = None
    """What twice the batch adds, as a share of what belongs to the samples; 1 is a straight line,
    and None was not looked at."""
    speed: SpeedPlan | None = None
    evaluation: EvaluationPlan | None = None
    """None where it was not asked for or cannot be planned; notes then say why."""
    host: HostPlan | None = None
    """The same of the host's memory."""
    calibration: Calibration | None = None
    what_if: tuple[WhatIf, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Fit:
        """Whether the whole run fits: its steps, its evaluations, and its host's memory."""
        others = (self.evaluation, self.host)
        parts = (self.fit, *(other.fit for other in others if other is not None))
        return ORDER[max(ORDER.index(part) for part in parts)]
