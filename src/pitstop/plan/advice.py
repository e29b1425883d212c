"""What to change first, from the rows of a plan's table."""

from collections.abc import Mapping
from typing import Final

from pitstop.records.plans.plan import MemoryPlan, PlanRow
from pitstop.records.units import bytes_text

_CONFIG_KEYS: Final = {
    "batch_size": "train.batch_size",
    "recompute": "train.recompute",
    "precision": "train.precision",
    "optimizer": "optimizer.kind",
}
_SCRIPT_KEYS: Final = {name: name for name in _CONFIG_KEYS}
"""As `--what-if` of a script takes them."""


def advise(plan: MemoryPlan, *, of_script: bool = False) -> tuple[str, ...]:
    """Say what to change, the most useful first; nothing where nothing helps.

    Args:
        plan: With its table.
        of_script: Whether somebody's script is planned, which has no keys and no times.
    """
    here = next((row for row in plan.table if row.configured), None)
    if here is None:
        return ()
    keys = _SCRIPT_KEYS if of_script else _CONFIG_KEYS
    if here.fit != "fits":
        return _smaller(plan, here, keys)
    return _larger(plan, here, keys) if of_script else _faster(plan, here, keys)


def change_text(here: PlanRow, there: PlanRow, keys: Mapping[str, str] = _CONFIG_KEYS) -> str:
    """Name the settings in which two rows differ."""
    changed = [(key, getattr(here, name), getattr(there, name)) for name, key in keys.items()]
    return " ".join(f"{key}={new}" for key, old, new in changed if old != new)


def _larger(plan: MemoryPlan, here: PlanRow, keys: Mapping[str, str]) -> tuple[str, ...]:
    """Name the largest batches that fit: as it stands, and with something changed."""
    best = next((row for row in plan.table if row.best), None)
    same = [row for row in plan.table if row.fit == "fits" and _is_like(row, here)]
    largest = max(same, key=lambda row: row.batch_size)
    found = dict.fromkeys(
        row for row in (largest, best) if row is not None and row.batch_size > here.batch_size
    )
    return tuple(
        f"{change_text(here, row, keys)}: fits, {bytes_text(row.peak_bytes)} at the peak"
        for row in found
    )


def _is_like(row: PlanRow, here: PlanRow) -> bool:
    """Whether rows differ in their batch at most."""
    return (row.recompute, row.precision, row.optimizer) == (
        here.recompute,
        here.precision,
        here.optimizer,
    )


def _faster(plan: MemoryPlan, here: PlanRow, keys: Mapping[str, str]) -> tuple[str, ...]:
    best = next((row for row in plan.table if row.best), None)
    if best is None or best.configured or not (best.samples_per_s and here.samples_per_s):
        return ()
    gain = best.samples_per_s / here.samples_per_s
    if gain < 1.05:  # less than the estimate can tell apart
        return ()
    return (
        f"{change_text(here, best, keys)}: {gain:.2f}x the samples a second (estimated), "
        f"{bytes_text(best.peak_bytes)} at the peak",
    )


def _smaller(plan: MemoryPlan, here: PlanRow, keys: Mapping[str, str]) -> tuple[str, ...]:
    """List what makes it fit, the fastest first; then what was looked at and does not."""
    same_batch = [row for row in plan.table if row.batch_size == here.batch_size]
    fitting = [row for row in same_batch if row.fit == "fits"]
    fitting.sort(key=lambda row: (row.step_s or 0.0, row.peak_bytes))
    lines = [f"{change_text(here, row, keys)}: fits, {_saved(here, row)}" for row in fitting[:3]]
    if not lines:
        lines.append("no choice of recomputation, precision and optimizer makes this batch fit")
        smallest = min(same_batch, key=lambda row: row.peak_bytes)
        lines.append(
            f"the smallest is {change_text(here, smallest, keys) or 'as configured'}: "
            f"{bytes_text(smallest.peak_bytes)}; lower {keys['batch_size']} or the size of samples"
        )
    small = [row for row in same_batch if row.optimizer != here.optimizer and row not in fitting]
    lines += [f"{change_text(here, row, keys)} does not help: {_saved(here, row)}" for row in small]
    return tuple(lines)


def _saved(here: PlanRow, there: PlanRow) -> str:
    saved = here.peak_bytes - there.peak_bytes
    return f"saves {bytes_text(saved)}" if saved > 0 else f"takes {bytes_text(-saved)} more"
