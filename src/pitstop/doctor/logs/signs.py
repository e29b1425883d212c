"""Rules about the values in a log: losses, learning rate, memory, and what the prints mean."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from pitstop.doctor.logs.bar import bar_disagrees
from pitstop.doctor.logs.case import LogCase
from pitstop.doctor.logs.facts import LogFacts, is_loss, origin
from pitstop.doctor.logs.numbers import repeated
from pitstop.doctor.logs.rules import LogRule
from pitstop.doctor.logs.statistics import change_point, slope
from pitstop.doctor.rules.remedies import REMEDIES
from pitstop.logs.memory_lines import HOST, HOST_TOTAL
from pitstop.records.logs.windows import DisagreementCode
from pitstop.records.run import Array, ScalarSeries
from pitstop.records.units import bytes_text, logged_text, share_text
from pitstop.records.verdict import Finding

_FEWEST_LOSSES = 20
_FEWEST_RATES = 10
_FEWEST_MEMORY = 12
_FLAT = 0.01
_FEWEST_STEPS = 100
_MANY_STEPS = 1000
_ENOUGH_OF_THE_RUN = 0.2
_CLIMBS = 0.05
_NEARLY_FULL = 0.9
_CHANCE = 0.01

_SCHEDULE = re.compile(
    r"sched|warm_?up|lr_config|lr_policy|milestones|lr_decay|step_size", re.IGNORECASE
)
_NO_TREND = re.compile(
    r"actor|policy|surrogate|advers|gan\b|gener|discr|entropy|\bkl|(?:^|[\W_])(?:rl|pg|[gd])(?:$|[\W_])",
    re.IGNORECASE,
)
"""Losses that do not fall while all is well: of a policy, or of two networks against each other."""
_MAIN_LOSSES = ("loss", "total_loss", "train_loss", "Loss", "train/loss", "loss_total")

_UNITS: Final[frozenset[DisagreementCode]] = frozenset(
    {
        "start-up in the mean",
        "epoch named batch",
        "mean hides spikes",
        "printed differs from clock",
    }
)


def losses_not_finite(case: LogCase) -> Finding | None:
    """Report losses that were printed as NaN or infinite."""
    found = [
        (name, series, int((~np.isfinite(series.value)).sum()))
        for name, series in _losses(case.facts).items()
    ]
    found = [item for item in found if item[2]]
    if not found:
        return None
    evidence = tuple(_not_finite_text(case, *one) for one in found[:3])
    more = (f"and {len(found) - 3} more values",) if len(found) > 3 else ()
    return Finding(
        code="NAN001",
        severity="critical"
        if any(not np.isfinite(s.value[-1]) for _, s, _ in found)
        else "warning",
        summary="the loss is not a finite number",
        evidence=(*evidence, *more),
        bound=None,
        remedy=(
            *REMEDIES["NAN001"].code,
            "with a fixed loss scale: lower it, overflow comes from a scale that is too high",
        ),
    )


def loss_is_flat(case: LogCase) -> Finding | None:
    """Report a loss that is at the end of the log where it was at its beginning."""
    found = main_loss(case.facts)
    if found is None or not case.facts.is_one_run:
        return None  # of several runs in turn, first and last are of different ones
    name, series = found
    if _NO_TREND.search(name) is not None:
        return None
    good = np.isfinite(series.value)
    value, step = series.value[good], series.step[good]
    third = len(value) // 3
    if len(value) < _FEWEST_LOSSES or step[-1] - step[0] < _FEWEST_STEPS:
        return None
    first, last = float(np.median(value[:third])), float(np.median(value[-third:]))
    if abs(last - first) > _FLAT * abs(first) or (first == 0 and value.any()):
        return None  # of values that rounding leaves at nothing, medians show no change
    low, high = np.quantile(value, (0.25, 0.75))
    total = case.log.total_steps or case.facts.announced
    begins = step[0] <= max(_FEWEST_STEPS, 0.05 * total)
    is_long = step[-1] - step[0] >= max(_MANY_STEPS, _ENOUGH_OF_THE_RUN * total)
    return Finding(
        code="LOSS002",
        severity="warning" if begins and is_long else "info",
        summary="the loss does not change",
        evidence=(
            f"{name}: {logged_text(first)} in the first third of the log, {logged_text(last)} in "
            f"the last (medians of {third} of {len(value)} values as printed"
            f"{_span_text(case, step)})",
            f"IQR of all {logged_text(low)} to {logged_text(high)}",
        ),
        # Speed is not what this run lacks.
        bound=None,
        remedy=(
            "check that gradients arrive: parameters in the optimizer, requires_grad, no detach",
            "try to overfit a single batch; check labels, learning rate and loss scale",
        ),
    )


def rate_never_moves(case: LogCase) -> Finding | None:
    """Report a learning rate that is the same in every record, as a forgotten schedule leaves it.

    Early in a run only a schedule that the log's own settings name makes this worth saying.
    """
    steps, rates = case.facts.learning_rates
    if len(rates) < _FEWEST_RATES or np.ptp(rates) > 0:
        return None
    spanned = float(np.nanmax(steps) - np.nanmin(steps)) if np.isfinite(steps).any() else 0.0
    named = _schedule_settings(case.facts.windows.log.settings)
    total = case.log.total_steps
    goal = total or case.facts.announced
    early = spanned < _ENOUGH_OF_THE_RUN * goal
    if spanned < (_FEWEST_STEPS if named else _MANY_STEPS) or (early and not named):
        return None
    of = "" if total is None else f" of {total:,}"
    asked = tuple(f"the log's settings name a schedule: {text}" for text in named[:3])
    return Finding(
        code="LR001",
        severity="warning" if named else "info",
        summary="the learning rate never changes",
        evidence=(
            f"lr {rates[0]:g} in all {len(rates)} records, over {int(spanned):,} steps{of} "
            f"(as printed)",
            *asked,
        ),
        bound=None,
        remedy=(
            "if a schedule was intended: check that scheduler.step() is called",
            "if a constant rate was intended: nothing is wrong",
        ),
    )


def memory_climbs(case: LogCase) -> Finding | None:
    """Report memory that still grows when the run has long settled."""
    table = case.facts.windows
    rows = np.flatnonzero(case.facts.training & np.isfinite(table.memory_bytes))
    held = table.memory_bytes[rows]
    steps = table.last_step[rows]
    if len(held) < _FEWEST_MEMORY or not np.isfinite(steps).all():
        return None
    split = change_point(held)
    per_step = slope(steps, held) or 0.0
    grown = per_step * float(steps[-1] - steps[0])
    rises = np.flatnonzero(np.diff(held) > 0)
    if split is None or split.chance >= _CHANCE or grown < _CLIMBS * held[0] or len(rises) < 3:
        return None
    if rises[-1] < 0.75 * len(held):
        return None
    return Finding(
        code="MEM001",
        severity="warning",
        summary="memory grows as the run goes on",
        evidence=(
            f"{bytes_text(held[0])} at step {int(steps[0]):,}, {bytes_text(held[-1])} at "
            f"step {int(steps[-1]):,}, {len(rises)} rises in {len(held)} records "
            f"({origin(table.note('memory_bytes'))})",
            f"{bytes_text(per_step * 1000)} more every 1,000 steps (median slope of all pairs)",
        ),
        bound=None,
        remedy=(
            "keep numbers, not tensors: total += loss.item() or loss.detach(), never loss itself",
            "empty lists of outputs and losses at the end of an epoch; give caches a limit",
        ),
    )


def host_memory_fills(case: LogCase) -> Finding | None:
    """Report host memory, as lines between the records print it, that grows towards its end."""
    used, total = (case.facts.rank.scalars.get(name) for name in (HOST, HOST_TOTAL))
    if used is None or total is None or len(used.value) < _FEWEST_MEMORY:
        return None
    late = used.step >= 0.25 * used.step[-1]  # caches fill up at first
    per_step = slope(used.step[late], used.value[late]) or 0.0
    held, end, last = float(used.value[-1]), float(total.value[-1]), float(used.step[-1])
    grown = per_step * float(last - used.step[late][0])
    is_nearly_full = held > _NEARLY_FULL * end
    if not is_nearly_full and grown < _CLIMBS * held:
        return None
    evidence = [
        f"{bytes_text(used.value[0])} at step {int(used.step[0]):,}, {bytes_text(held)} of "
        f"{bytes_text(end)} ({share_text(held / end)}) at step {int(last):,}, as printed"
    ]
    goal = case.log.total_steps
    if grown > 0:
        full = last + (end - held) / per_step
        halves = np.array_split(np.flatnonzero(late), 2)
        each = [slope(used.step[half], used.value[half]) or per_step for half in halves]
        error = max(abs((end - held) / max(one, 1.0) - (full - last)) for one in each)
        evidence.append(
            f"{bytes_text(per_step * 1000)} more every 1,000 steps: full at step {full:,.0f} "
            f"± {error:,.0f}, estimated from its growth in two halves"
        )
        is_nearly_full |= goal is not None and full < goal
    return Finding(
        code="MEM001",
        severity="critical" if is_nearly_full else "warning",
        summary="host memory grows" if grown > 0 else "host memory is nearly full",
        evidence=tuple(evidence),
        bound=None,
        remedy=(
            "lower the cache's limit (CACHE_SIZE_GB) or the number of workers (NUM_WORKERS): a "
            "cache of its own in each worker counts as often as there are workers",
            "pitstop.SharedCache is one cache for all workers, with one budget",
        ),
    )


def units_mislabelled(case: LogCase) -> Finding | None:
    """Report printed times and rates that are not what their names say."""
    found = [one for one in case.facts.windows.log.disagreements if one.code in _UNITS]
    if not found:
        return None
    return Finding(
        code="UNIT001",
        severity="info",
        summary="a printed time or rate is not what its name says",
        evidence=tuple(repeated(one.message, one.times) for one in found),
        bound=None,
        remedy=("use the steady step time below: it excludes what these numbers include",),
    )


SIGN_RULES: Final[tuple[LogRule, ...]] = (
    losses_not_finite,
    loss_is_flat,
    rate_never_moves,
    memory_climbs,
    host_memory_fills,
    units_mislabelled,
    bar_disagrees,
)


def main_loss(facts: LogFacts) -> tuple[str, ScalarSeries] | None:
    """Find the loss that sums up the others, by its name; else the first one."""
    losses = _losses(facts)
    for name in _MAIN_LOSSES:
        if name in losses:
            return name, losses[name]
    return next(iter(losses.items()), None)


def _losses(facts: LogFacts) -> dict[str, ScalarSeries]:
    return {name: series for name, series in facts.rank.scalars.items() if is_loss(name)}


def _span_text(case: LogCase, step: Array) -> str:
    """Say which steps values are of, where the log's count is known to be of steps."""
    if case.facts.last_step is None:
        return ""
    return f", steps {int(step[0]):,} to {int(step[-1]):,}"


def _not_finite_text(case: LogCase, name: str, series: ScalarSeries, count: int) -> str:
    bad = ~np.isfinite(series.value)
    first = int(np.argmax(bad))
    before = series.value[:first]
    good = f", after {logged_text(float(before[-1]))} in the record before" if len(before) else ""
    is_counted = case.facts.last_step is not None
    where = f"at step {int(series.step[first]):,}" if is_counted else f"value {first + 1:,}"
    return f"{name}: {count} of {len(bad)} values are not finite, first {where}{good}"


def _schedule_settings(settings: Mapping[str, str]) -> list[str]:
    return [f"{name} = {value}" for name, value in settings.items() if _SCHEDULE.search(name)]
