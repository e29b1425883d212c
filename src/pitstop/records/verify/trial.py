"""One training run in a process of its own, as a result: however it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pitstop.records.verify.quality import QualityPoint

TrialStatus = Literal["finished", "crashed", "out of memory", "not finite", "timed out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """How a child process ended."""

    status: TrialStatus
    reason: str
    """Exit code or signal, and the last line it printed; empty where it finished."""
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What came of a trial."""

    label: str
    """Which side, and which seed, for people."""
    status: TrialStatus
    reason: str
    wall_s: float
    """Of the whole process, its start-up too."""
    effective_batch: int | None = None
    """Samples of an optimizer step over all ranks."""
    losses: Mapping[int, float | None] = field(default_factory=dict)
    """By step, as recorded or printed; None where it was not finite."""
    metrics: Mapping[str, tuple[QualityPoint, ...]] = field(default_factory=dict)
    """Every evaluation of every metric; losses too, for a command that prints nothing else."""
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)
    """By metric, where the workload says it."""
    gradient_steps: int = 0
    """Optimizer steps whose gradients lie beside the result, in ``gradients-N.npz``."""
    notes: tuple[str, ...] = ()

    def final(self, metric: str) -> float | None:
        """Give the metric at the end of the run."""
        points = self.metrics.get(metric, ())
        return points[-1].value if points else None
