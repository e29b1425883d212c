"""Which of two runs is faster, beyond noise; refuses to compare unequal work.

Steps that follow each other are alike, so single steps overstate how sure one can be. Each run is
cut into stretches, and how these differ says how much the run varies by itself. Two runs of the
same program differ by more than that on a busy host; a change must also exceed `LEAST_CHANGE`.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from pitstop.doctor.examine import judged_rank
from pitstop.doctor.facts import Facts, facts_of
from pitstop.errors import RecordError
from pitstop.records.comparison import Change, Comparison, PartChange, Ratio, RunPace
from pitstop.records.run import Array, RunRecord
from pitstop.records.script import Setup, Work

# Two runs of one program on one machine may differ by this without a cause in the program.
LEAST_CHANGE: Final = 0.05

_FEWEST_STEPS: Final = 20
_STRETCHES: Final = 10
_DRAWS: Final = 4_000
_SEED: Final = 20_240_501
_CONFIDENCE: Final = (0.5, 99.5)
# Parts that take less than this of a step are not told apart.
_SMALL_PART: Final = 0.005
# Counted arithmetic of the same work differs by less: a last batch, a dropped layer.
_SAME_FLOPS: Final = 0.02


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Compare two runs, the first being the measure.

    Raises:
        RecordError: They did not do the same work, so that times say nothing.
    """
    first = judged_rank([facts_of(rank) for rank in before.ranks])
    second = judged_rank([facts_of(rank) for rank in after.ranks])
    same, unknown = _require_same_work(before, first, after, second)
    ratios = _ratios(first, second)
    change = _change(ratios)
    return Comparison(
        change=change,
        sentence=_sentence(change, ratios, fewest=min(first.steps, second.steps)),
        before=_pace(before, first),
        after=_pace(after, second),
        step=None if ratios is None else ratios[0],
        run=None if ratios is None else ratios[1],
        parts=_part_changes(first, second),
        same_work=same,
        not_checked=unknown,
        notes=(*before.notes, *after.notes),
    )


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
            raise RecordError(
                f"{before.source} and {after.source} did not do the same work: {what} is "
                f"{_shown(one)} in the first and {_shown(other)} in the second; compare runs that "
                "differ in speed alone"
            )
        else:
            same.append(f"{what}: {_shown(one)}")
    return tuple(same), tuple(unknown)


_SAMPLES: Final = "samples a step over all ranks"
_FLOPS: Final = "FLOPs of a step"


def _described(facts: Facts) -> dict[str, float | str | None]:
    """What must be equal for times to be comparable; None where the record does not tell."""
    setup, work = facts.setup, facts.readings.last(Work)
    samples = _samples(facts)
    return {
        _SAMPLES: None if samples is None else samples * facts.summary.world_size,
        _FLOPS: None if work is None else float(work.flops),
        "trained parameters": None if setup is None else setup.parameters,
        "model": None if setup is None else ", ".join(setup.models) or None,
        "number format": None if setup is None else _number_format(setup),
        "device": None if setup is None else setup.device_name or setup.device,
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
    """Time of each step with what lay apart, spread evenly: an evaluation is no odd step."""
    apart_us = facts.total_us - float(facts.wall_us.sum())
    return facts.wall_us + apart_us / max(1, facts.steps)


def _stretches(times_us: Array, middle: Callable[[Array], Any]) -> Array:
    """One figure a stretch of the run."""
    pieces = np.array_split(times_us, min(_STRETCHES, max(1, len(times_us) // 2)))
    figures = [middle(piece) for piece in pieces if len(piece)]
    return np.array(figures or [np.nan])


def _ratio(before: Array, after: Array) -> Ratio:
    """Ratio of two runs' figures, with an interval from drawing their stretches anew."""
    value = float(after.mean() / before.mean())
    draws = np.random.default_rng(_SEED)
    old = draws.choice(before, (_DRAWS, len(before))).mean(axis=1)
    new = draws.choice(after, (_DRAWS, len(after))).mean(axis=1)
    low, high = np.percentile(new / old, _CONFIDENCE)
    return Ratio(value=value, low=min(value, float(low)), high=max(value, float(high)))


def _ratios(first: Facts, second: Facts) -> tuple[Ratio, Ratio] | None:
    """Give the ratio of steps and the ratio of whole runs; None where there are too few steps."""
    if min(first.steps, second.steps) < _FEWEST_STEPS:
        return None
    step = _ratio(_stretches(first.wall_us, np.median), _stretches(second.wall_us, np.median))
    run = _ratio(_stretches(_period_us(first), np.mean), _stretches(_period_us(second), np.mean))
    # One evaluation more or less may have happened to fall among the counted steps.
    doubt = sum(
        apart.total_us / apart.count / facts.total_us
        for facts in (first, second)
        for apart in facts.apart.values()
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


def _sentence(change: Change, ratios: tuple[Ratio, Ratio] | None, *, fewest: int) -> str:
    if ratios is None:
        return f"{fewest} steps after warm-up are too few to compare; {_FEWEST_STEPS} are needed"
    step, run = ratios
    decides = {"slower": _is_slower, "faster": _is_faster}.get(change)
    told = step if decides is None or decides(step) else run
    whose = "a step" if told is step else "the run, what lies between steps included,"
    interval = f"99 % within {told.low:.2f} to {told.high:.2f}"
    return f"{whose} takes {told.value:.2f} times as long ({interval})"


def _pace(record: RunRecord, facts: Facts) -> RunPace:
    samples = _samples(facts)
    run_s = facts.total_us / max(1, facts.steps) / 1e6
    return RunPace(
        source=record.source,
        rank=facts.summary.rank,
        steps=facts.steps,
        step_s=float(np.median(facts.wall_us)) / 1e6 if facts.steps else 0.0,
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
    times = [_part_us(facts, name) for facts in (first, second)]
    before, after = (None if t is None else float(t.mean()) / 1e6 for t in times)
    low = high = None
    if times[0] is not None and times[1] is not None:
        low, high = _difference(_stretches(times[0], np.mean), _stretches(times[1], np.mean))
    # The limit is that of the whole step: a part that doubles from nothing is no news.
    least_s = LEAST_CHANGE / 2 * first.step_us / 1e6
    far = before is not None and after is not None and abs(after - before) >= least_s
    sure = low is not None and high is not None and (low > 0 or high < 0)
    return PartChange(
        part=name,
        before_s=before,
        after_s=after,
        low_s=low,
        high_s=high,
        beyond_noise=far and sure,
    )


def _part_us(facts: Facts, name: str) -> Array | None:
    """Time of a part in each step; what lay apart is spread evenly over them."""
    if not facts.steps:
        return None
    if name == "unaccounted":
        return facts.unaccounted_us
    inside, apart = facts.parts_us.get(name), facts.apart.get(name)
    if inside is None and apart is None:
        return None
    even = np.full(
        facts.steps if inside is None else len(inside),
        0.0 if apart is None else apart.total_us / facts.steps,
    )
    return even if inside is None else inside + even


def _difference(before: Array, after: Array) -> tuple[float, float]:
    draws = np.random.default_rng(_SEED)
    old = draws.choice(before, (_DRAWS, len(before))).mean(axis=1)
    new = draws.choice(after, (_DRAWS, len(after))).mean(axis=1)
    low, high = np.percentile(new - old, _CONFIDENCE) / 1e6
    return float(low), float(high)
