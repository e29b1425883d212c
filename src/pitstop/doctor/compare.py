"""Which of two runs is faster, beyond noise; refuses to compare unequal work.

Steps that follow each other are alike, so single steps overstate how sure one can be. Each run is
cut into windows, and how these differ says how much the run varies by itself. Two runs of the
same program differ by more than that on a busy host; a change must also exceed `LEAST_CHANGE`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from pitstop.doctor.examine import ranks_together
from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.machine import contention
from pitstop.doctor.thresholds import LEAST_CHANGE
from pitstop.errors import RecordError
from pitstop.records.comparison import Change, Comparison, PartChange, Ratio, RunThroughput
from pitstop.records.engine import EngineSetup
from pitstop.records.host.memory import HostLoad
from pitstop.records.run import Array, RunRecord
from pitstop.records.script import Setup, Work

# Two for each window; with fewer a window is a single step, and its median that step's whim.
_FEWEST_STEPS: Final = 20
# Steps in a row depend on each other, so windows are drawn and not steps. More windows would be
# shorter and depend on each other again; fewer make an interval that jumps.
_WINDOWS: Final = 10
# Twenty draws lie beyond each end of the interval: more would not move its last digit shown.
_DRAWS: Final = 4_000
# Fixed: the same two records are compared alike on every host and every time.
_SEED: Final = 20_240_501
# 99 %: somebody who compares many runs would at 95 % be misled by one in twenty.
_CONFIDENCE: Final = (0.5, 99.5)
# Parts that take less than this of a step are not listed.
_SMALL_PART: Final = 0.005
# Counted arithmetic of the same work differs by less: a last batch, a dropped layer.
_SAME_FLOPS: Final = 0.02


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Compare two runs, the first being the measure.

    Raises:
        RecordError: They did not do the same work, so that times say nothing.
    """
    first, second = judged(before), judged(after)
    same, unknown = _require_same_work(before, first, after, second)
    ratios = ratios_of(first, second)
    change = _change(ratios)
    message = _message(change, ratios, fewest=min(first.steps, second.steps))
    crowded = _crowded(before, first, after, second)
    if crowded and not _is_own_doing(change, _processor_ratio(first, second)):
        change = "not enough evidence"
        message += ", but other processes use the cores, and its own CPU time does not confirm it"
    return Comparison(
        change=change,
        message=message,
        before=_throughput(before, first),
        after=_throughput(after, second),
        step=None if ratios is None else ratios[0],
        run=None if ratios is None else ratios[1],
        parts=_part_changes(first, second),
        same_work=same,
        not_checked=unknown,
        notes=(*before.notes, *after.notes, *crowded),
    )


def judged(record: RunRecord) -> Facts:
    """Give the rank that the others of its run wait for."""
    return ranks_together(record).judged


def _crowded(before: RunRecord, first: Facts, after: RunRecord, second: Facts) -> list[str]:
    """Say which of the runs had to share a host that has no core to spare."""
    found = ((before.source, contention(first)), (after.source, contention(second)))
    return [f"{source}: {text}" for source, text in found if text is not None]


def _is_own_doing(change: Change, processor: float | None) -> bool:
    """Whether what others do on a full host leaves a change standing.

    Who has to wait for a core takes longer, but computes no more than before.
    """
    if change not in ("slower", "faster"):
        return True
    if processor is None:
        return False
    return processor >= 1 + LEAST_CHANGE if change == "slower" else processor <= 1 - LEAST_CHANGE


def _processor_ratio(first: Facts, second: Facts) -> float | None:
    """Processor time of a step in the second run over that in the first; None where not known."""
    before, after = _processor_us(first), _processor_us(second)
    return after / before if before and after else None


def _processor_us(facts: Facts) -> float | None:
    loads = facts.readings.all(HostLoad)
    cores = [load.tree_cpu_cores for load in loads if load.tree_cpu_cores is not None]
    if not cores or not facts.steps:
        return None
    return float(np.median(cores)) * facts.total_us / facts.steps


def _require_same_work(
    before: RunRecord, first: Facts, after: RunRecord, second: Facts
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give what is equal and what is not known.

    Raises:
        RecordError: Something is known of both, and differs.
    """
    same: list[str] = []
    unknown: list[str] = []
    there = _described(second)
    for what, one in _described(first).items():
        other = there[what]
        if one is None or other is None:
            unknown.append(what)
        elif not _is_equal(what, one, other):
            raise _unequal(before, after, what, _shown(one), _shown(other))
        else:
            same.append(f"{what}: {_shown(one)}")
    settings = _settings(second)
    for name, one in _settings(first).items():
        if name in settings and settings[name] != one:
            raise _unequal(before, after, name, str(one), str(settings[name]))
    return tuple(same), tuple(unknown)


def _settings(facts: Facts) -> Mapping[str, Any]:
    """Settings that decide the work, of a run of the engine."""
    engine = facts.readings.last(EngineSetup)
    return {} if engine is None else engine.settings


def _unequal(before: RunRecord, after: RunRecord, what: str, *shown: str) -> RecordError:
    one, other = shown
    return RecordError(
        f"{before.source} and {after.source} did not do the same work: {what} is {one} in the "
        f"first and {other} in the second; compare runs that differ in speed alone"
    )


_SAMPLES: Final = "samples a step over all ranks"
_FLOPS: Final = "FLOPs of a step"


def _described(facts: Facts) -> dict[str, float | str | None]:
    """What must be equal for times to be comparable; None where the record does not tell."""
    work, samples = facts.readings.last(Work), _samples(facts)
    return {
        _SAMPLES: None if samples is None else samples * facts.summary.world_size,
        _FLOPS: None if work is None else float(work.flops),
        **_what_trains(facts.setup or facts.readings.last(EngineSetup)),
    }


def _what_trains(setup: Setup | EngineSetup | None) -> dict[str, float | str | None]:
    parameters = model = number_format = device = None
    if isinstance(setup, EngineSetup):
        parameters, model = setup.parameters, setup.model
        number_format, device = setup.number_format, setup.device
    elif setup is not None:
        parameters, model = setup.parameters, ", ".join(setup.models) or None
        number_format, device = _number_format(setup), setup.device_name or setup.device
    return {
        "trained parameters": parameters,
        "model": model,
        "number format": number_format,
        "device": device,
    }


def _samples(facts: Facts) -> float | None:
    if facts.samples is not None or facts.setup is None:
        return facts.samples
    return facts.setup.samples_per_step


def _number_format(setup: Setup) -> str:
    if setup.autocast is not None:
        return setup.autocast
    widest = max(setup.parameter_dtypes, key=setup.parameter_dtypes.__getitem__, default="float32")
    return "tf32" if setup.tf32 and widest == "float32" else widest


def _is_equal(what: str, one: float | str, other: float | str) -> bool:
    if what != _FLOPS or isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= _SAME_FLOPS * max(one, other)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.10g}"


def _period_us(facts: Facts) -> Array:
    """Time of each step with time outside steps, spread evenly: an evaluation is no odd step."""
    outside_us = facts.total_us - float(facts.wall_us.sum())
    return facts.wall_us + outside_us / max(1, facts.steps)


def _windows(times_us: Array, middle: Callable[[Array], Any]) -> Array:
    """One figure a window of the run."""
    pieces = np.array_split(times_us, min(_WINDOWS, max(1, len(times_us) // 2)))
    figures = [middle(piece) for piece in pieces if len(piece)]
    return np.array(figures or [np.nan])


def _ratio(before: Array, after: Array) -> Ratio:
    """Ratio of two runs' figures, with an interval from drawing their windows anew."""
    value = float(after.mean() / before.mean())
    draws = np.random.default_rng(_SEED)
    old = draws.choice(before, (_DRAWS, len(before))).mean(axis=1)
    new = draws.choice(after, (_DRAWS, len(after))).mean(axis=1)
    low, high = np.percentile(new / old, _CONFIDENCE)
    return Ratio(value=value, low=min(value, float(low)), high=max(value, float(high)))


def _steps_us(facts: Facts) -> Array:
    """The usual step of each window."""
    return _windows(facts.wall_us, np.median)


def _periods_us(facts: Facts) -> Array:
    """Mean time from step to step in each window, time outside steps included."""
    return _windows(_period_us(facts), np.mean)


def ratios_of(first: Facts, second: Facts) -> tuple[Ratio, Ratio] | None:
    """Give the ratio of steps and the ratio of whole runs; None where there are too few steps."""
    if min(first.steps, second.steps) < _FEWEST_STEPS:
        return None
    step = _ratio(_steps_us(first), _steps_us(second))
    run = _ratio(_periods_us(first), _periods_us(second))
    # One evaluation more or less may have happened to fall among the counted steps.
    doubt = sum(
        outside.total_us / outside.count / facts.total_us
        for facts in (first, second)
        for outside in facts.outside.values()
    )
    low = run.low * (1 - min(1.0, doubt))
    return step, Ratio(value=run.value, low=low, high=run.high + doubt)


def _is_slower(ratio: Ratio) -> bool:
    return ratio.low > 1 and ratio.value >= 1 + LEAST_CHANGE


def _is_faster(ratio: Ratio) -> bool:
    return ratio.high < 1 and ratio.value <= 1 - LEAST_CHANGE


def _change(ratios: tuple[Ratio, Ratio] | None) -> Change:
    if ratios is None:
        return "not enough evidence"
    if any(map(_is_slower, ratios)):
        return "slower"
    return "faster" if any(map(_is_faster, ratios)) else "no difference beyond noise"


def _message(change: Change, ratios: tuple[Ratio, Ratio] | None, *, fewest: int) -> str:
    if ratios is None:
        return f"{fewest} steps after warm-up are too few to compare; {_FEWEST_STEPS} are needed"
    step, run = ratios
    decides = {"slower": _is_slower, "faster": _is_faster}.get(change)
    chosen = step if decides is None or decides(step) else run
    whose = "a step" if chosen is step else "the run, time outside steps included,"
    interval = f"99% CI {chosen.low:.2f} to {chosen.high:.2f}"
    return f"{whose} takes {chosen.value:.2f} times as long ({interval})"


def _throughput(record: RunRecord, facts: Facts) -> RunThroughput:
    samples = _samples(facts)
    run_s = float(_periods_us(facts).mean()) / 1e6 if facts.steps else 0.0
    return RunThroughput(
        source=record.source,
        rank=facts.summary.rank,
        steps=facts.steps,
        step_s=float(_steps_us(facts).mean()) / 1e6 if facts.steps else 0.0,
        run_s=run_s,
        samples_per_s=None
        if samples is None or not run_s
        else samples * facts.summary.world_size / run_s,
    )


def _part_changes(first: Facts, second: Facts) -> tuple[PartChange, ...]:
    names = dict.fromkeys((*first.shares(), *second.shares()))
    changes = [_part_change(name, first, second) for name in names]
    least_s = _SMALL_PART * first.step_us / 1e6
    shown = [c for c in changes if max(c.before_s or 0.0, c.after_s or 0.0) >= least_s]
    return tuple(
        sorted(shown, key=lambda c: abs((c.after_s or 0.0) - (c.before_s or 0.0)), reverse=True)
    )


def _part_change(name: str, first: Facts, second: Facts) -> PartChange:
    found = [_part_us(facts, name) for facts in (first, second)]
    before, after = (None if us is None else us[0] / 1e6 for us in found)
    low = high = None
    if found[0] is not None and found[1] is not None:
        low, high = _difference(found[0], found[1])
    # The limit is that of the whole step: a part that doubles from nothing is no news.
    least_s = LEAST_CHANGE / 2 * first.step_us / 1e6
    far = before is not None and after is not None and abs(after - before) >= least_s
    sure = low is not None and high is not None and (low > 0 or high < 0)
    return PartChange(
        part=name, before_s=before, after_s=after, low_s=low, high_s=high, beyond_noise=far and sure
    )


def _part_us(facts: Facts, name: str) -> tuple[float, Array] | None:
    """Mean time of a part in a step, and in each window; time outside steps spread evenly.

    The mean is that of all steps, as shares are. The windows show how it varies: each is one of
    ten equal pieces of the run, however many of its steps were sampled.
    """
    inside = facts.unaccounted_us if name == "unaccounted" else facts.parts_us.get(name)
    outside = facts.outside.get(name)
    even_us = 0.0 if outside is None else outside.total_us / facts.steps
    if inside is None or not len(inside):
        return None if outside is None else (even_us, np.array([even_us]))
    window = facts.sampled * min(_WINDOWS, max(1, facts.steps // 2)) // facts.steps
    means = [inside[window == number].mean() for number in np.unique(window)]
    return facts.mean_us(inside) + even_us, np.array(means) + even_us


def _difference(before: tuple[float, Array], after: tuple[float, Array]) -> tuple[float, float]:
    """Interval of the difference of two means: around it, as wide as windows drawn anew give."""
    draws = np.random.default_rng(_SEED)
    old, new = (
        mean_us + draws.choice(figures - figures.mean(), (_DRAWS, len(figures))).mean(axis=1)
        for mean_us, figures in (before, after)
    )
    low, high = np.percentile(new - old, _CONFIDENCE) / 1e6
    return float(low), float(high)
