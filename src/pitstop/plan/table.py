"""What other choices would cost: batch, recomputation, precision and optimizer, side by side.

Each pair of recomputation and precision has a dry run of its own. Batches are worked out from it:
what belongs to the samples grows with their number, what belongs to the weights does not, and a
second dry run at twice the batch says how true that is of this model. Optimizers differ by their
state alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pitstop.plan.memory import allowed_bytes, fit_of
from pitstop.plan.speed import ONCE_A_STEP, Ceilings, plan_speed
from pitstop.records.plans.plan import PlanRow, StepTrace

_BATCHES: Final = (1, 2, 4)
_OPTIMIZERS: Final = ("adamw", "adamw_bf16", "adamw8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaw:
    """How the memory of a step grows with its batch."""

    growth: float
    """What twice the batch adds, as a share of what belongs to samples; 1 is a straight line."""

    def peak(self, trace: StepTrace, batch_size: int) -> int:
        """Peak of a step at another batch than its dry run's."""
        of_samples = trace.peak_bytes - trace.fixed_bytes
        times = batch_size / trace.batch_size - 1
        return round(trace.peak_bytes + of_samples * times * self.growth)


def batch_law(one: StepTrace, twice: StepTrace | None) -> BatchLaw:
    """Learn it from two dry runs; a straight line where there is only one."""
    of_samples = one.peak_bytes - one.fixed_bytes
    if twice is None or of_samples <= 0:
        return BatchLaw(growth=1.0)
    return BatchLaw(growth=(twice.peak_bytes - one.peak_bytes) / of_samples)


def scaled(trace: StepTrace, batch_size: int) -> StepTrace:
    """Give the operations of a step at another batch: those on samples grow with it."""
    times = batch_size / trace.batch_size
    operations = tuple(
        one
        if one.part in ONCE_A_STEP
        else replace(one, flops=round(one.flops * times), num_bytes=round(one.num_bytes * times))
        for one in trace.operations
    )
    return replace(trace, batch_size=batch_size, operations=operations)


def plan_table(
    traces: Sequence[StepTrace],
    law: BatchLaw,
    usable_bytes: int,
    *,
    ceilings: Ceilings | None,
    accumulate: int = 1,
    own_grows: bool = True,
) -> tuple[PlanRow, ...]:
    """Lay out all choices, each with as many micro-batches; the first trace is the configured one.

    Where the configured way recomputes by a size, another batch recomputes otherwise: then it does
    not grow with the batch (`own_grows`), and stands in the table at its own batch alone.

    The best row is the one with the most samples a second among those that fit and keep the
    configured optimizer; without a GPU's ceilings no row is.
    """
    configured = traces[0]
    rows = [
        _row(
            trace,
            configured.batch_size * times,
            configured.optimizer,
            law=law,
            usable_bytes=usable_bytes,
        )
        for trace in traces
        for times in (_BATCHES if own_grows or trace is not configured else _BATCHES[:1])
    ]
    rows += [
        _row(configured, configured.batch_size, kind, law=law, usable_bytes=usable_bytes)
        for kind in _OPTIMIZERS
        if kind != configured.optimizer
    ]
    by_way = {(trace.recompute, trace.precision): trace for trace in traces}
    if ceilings is not None:
        rows = [
            _timed(row, by_way[row.recompute, row.precision], ceilings, accumulate) for row in rows
        ]
    return _marked(rows, configured)


def _row(
    trace: StepTrace, batch_size: int, optimizer: str, *, law: BatchLaw, usable_bytes: int
) -> PlanRow:
    state = trace.optimizer_bytes.get(optimizer)
    own = trace.owners.get("optimizer state", 0)
    change = 0 if state is None or optimizer == trace.optimizer else state - own
    peak = law.peak(trace, batch_size) + change + allowed_bytes(trace)
    derived = batch_size != trace.batch_size or change
    return PlanRow(
        batch_size=batch_size,
        recompute=trace.recompute,
        precision=trace.precision,
        optimizer=optimizer,
        peak_bytes=peak,
        fit=fit_of(peak, usable_bytes),
        basis="derived" if derived else "dry run",
    )


def _timed(row: PlanRow, trace: StepTrace, ceilings: Ceilings, accumulate: int) -> PlanRow:
    speed = plan_speed(scaled(trace, row.batch_size), ceilings, accumulate=accumulate)
    return replace(row, step_s=speed.step_s, samples_per_s=speed.samples_per_s)


def _marked(rows: list[PlanRow], configured: StepTrace) -> tuple[PlanRow, ...]:
    candidates = [
        row
        for row in rows
        if row.fit == "fits" and row.optimizer == configured.optimizer and row.samples_per_s
    ]
    best = max(candidates, key=lambda row: row.samples_per_s or 0.0, default=None)
    return tuple(
        replace(row, best=row is best, configured=_is_configured(row, configured)) for row in rows
    )


def _is_configured(row: PlanRow, configured: StepTrace) -> bool:
    return (row.batch_size, row.recompute, row.precision, row.optimizer) == (
        configured.batch_size,
        configured.recompute,
        configured.precision,
        configured.optimizer,
    )
