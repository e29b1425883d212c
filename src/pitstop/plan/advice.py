"""What to change first, from the rows of a plan's table."""

from pitstop.records.plans.plan import MemoryPlan, PlanRow
from pitstop.records.units import bytes_text


def advise(plan: MemoryPlan) -> tuple[str, ...]:
    """Say what to change, the most useful first; nothing where nothing helps."""
    here = next((row for row in plan.table if row.configured), None)
    if here is None:
        return ()
    if here.fit == "fits":
        return _faster(plan, here)
    return _smaller(plan, here)


def change_text(here: PlanRow, there: PlanRow) -> str:
    """Name the settings in which two rows differ."""
    keys = {
        "train.batch_size": (here.batch_size, there.batch_size),
        "train.recompute": (here.recompute, there.recompute),
        "train.precision": (here.precision, there.precision),
        "optimizer.kind": (here.optimizer, there.optimizer),
    }
    return " ".join(f"{key}={new}" for key, (old, new) in keys.items() if old != new)


def _faster(plan: MemoryPlan, here: PlanRow) -> tuple[str, ...]:
    best = next((row for row in plan.table if row.best), None)
    if best is None or best.configured or not (best.samples_per_s and here.samples_per_s):
        return ()
    gain = best.samples_per_s / here.samples_per_s
    if gain < 1.05:  # less than the estimate can tell apart
        return ()
    return (
        f"{change_text(here, best)}: {gain:.2f}x the samples a second (estimated), "
        f"{bytes_text(best.peak_bytes)} at the peak",
    )


def _smaller(plan: MemoryPlan, here: PlanRow) -> tuple[str, ...]:
    """List what makes it fit, the fastest first; then what was looked at and does not."""
    same_batch = [row for row in plan.table if row.batch_size == here.batch_size]
    fitting = [row for row in same_batch if row.fit == "fits"]
    fitting.sort(key=lambda row: (row.step_s or 0.0, row.peak_bytes))
    lines = [f"{change_text(here, row)}: fits, {_saved(here, row)}" for row in fitting[:3]]
    if not lines:
        lines.append("no choice of recomputation, precision and optimizer makes this batch fit")
        smallest = min(same_batch, key=lambda row: row.peak_bytes)
        lines.append(
            f"the smallest is {change_text(here, smallest) or 'as configured'}: "
            f"{bytes_text(smallest.peak_bytes)}; lower train.batch_size or the size of samples"
        )
    small = [row for row in same_batch if row.optimizer != here.optimizer and row not in fitting]
    lines += [f"{change_text(here, row)} does not help: {_saved(here, row)}" for row in small]
    return tuple(lines)


def _saved(here: PlanRow, there: PlanRow) -> str:
    saved = here.peak_bytes - there.peak_bytes
    return f"saves {bytes_text(saved)}" if saved > 0 else f"takes {bytes_text(-saved)} more"
