"""Host memory of a job, as planned before it runs: everything its processes hold, once."""

from dataclasses import dataclass

from pitstop.records.plans.fit import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One holder of host memory."""

    owner: str
    num_bytes: int
    basis: str
    """Measured in a trial, counted, or an allowance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """Proportional set size (PSS) of a job's processes against what they may use."""

    ranks: int
    """Training processes on the host."""
    workers: int
    """Of each rank."""
    prefetch: int | None
    """Batches each worker prepares ahead; None where there are no workers."""
    start_method: str | None
    batch_bytes: int
    rows: tuple[HostRow, ...]
    total_bytes: int
    low_bytes: int
    high_bytes: int
    """Between which the total is estimated to lie."""
    limit_bytes: int
    """Memory of the host, or the limit of its control group where that is lower."""
    limit_of: str
    """Whose limit that is: this machine's, or as given."""
    fit: Fit
    notes: tuple[str, ...] = ()
