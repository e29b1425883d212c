"""Device memory of an evaluation, as planned before it runs."""

from dataclasses import dataclass

from pitstop.records.plans.fit import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTrace:
    """One evaluation batch on a GPU that was not there."""

    batch_size: int
    tile: int | None
    """Side of the squares that frames are cut into; None for whole ones."""
    owners: dict[str, int]
    """Bytes at the peak, by what holds them."""
    peak_bytes: int
    peak_operation: str
    metrics: bool = False
    """Whether what measures quality is in it."""

    @property
    def alone_bytes(self) -> int:
        """Peak without what only training holds, as `pitstop eval` and `infer` have it."""
        training = ("optimizer state", "averaged weights", "teacher")
        return self.peak_bytes - sum(self.owners.get(owner, 0) for owner in training)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """An evaluation batch against a GPU's memory."""

    trace: EvaluationTrace
    peak_bytes: int
    """During training, beside the optimizer's state."""
    alone_bytes: int
    """As a command of its own."""
    fit: Fit
