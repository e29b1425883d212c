"""The time of a step, where lines that count are timed by a clock or name it themselves.

Lines give it in pairs: where their count rises from one to the next and no line of another kind
stands between, the clock's difference over the count's is the time of one. Pairs must agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Final

import numpy as np

from pitstop.logs.general.families import Array, Family, Mask
from pitstop.logs.general.hints import SAMPLES
from pitstop.logs.general.quote import Lines
from pitstop.logs.general.roles import Reading, Role
from pitstop.records.logs.windows import ColumnNote

NAN: Final = nan
_FEWEST_LINES = 5
_EVEN = 1.5
_NEAR = 0.2
_BREAK_S = 600.0
_BREAK_TIMES = 10.0
_COARSE_S = 10.0
_LONG_S = 5.0
_MANY = 1000
_MOST_RANKS = 4096


@dataclass(slots=True, eq=False)
class Timed:
    """Lines with a count, and what times them; NaN where nothing does."""

    main: Reading
    step_s: Array
    printed_s: Array
    data_s: Array
    columns: dict[str, ColumnNote] = field(default_factory=dict)


def counter_of(kinds: Sequence[Lines], *, step: str) -> Reading | None:
    """Choose the lines whose count is that of steps: named, beside what only a training prints.

    Args:
        kinds: All lines, those that say most first.
        step: Name that the user gave for the count.
    """
    found = [one for kind in kinds for one in kind.readings if _counts(one, step=step)]
    if step:
        return max(found, key=lambda one: one.family.count, default=None)
    found = [one for one in found if not _may_be_samples(one)]
    if not found and len(kinds) == 1 and kinds[0].readings[0].family.is_bar:
        found = kinds[0].readings  # the only thing in the file that counts
    return next((one for one in found if _has_clock(one)), found[0] if found else None)


def _has_clock(one: Reading) -> bool:
    at = np.array(one.family.at)
    return bool(np.isfinite(at).any()) or one.family.is_bar


def place_of_step(reading: Reading) -> int:
    """Where the count of steps stands on a line: that within another one; -1 without any.

    ``iteration: [4][13/29]`` counts to its total within the fourth, whatever that is called.
    """
    named, totals = reading.places("step"), reading.places("count")
    if named and not reading.family.slots[named[-1]].has_total and named[-1] + 1 in totals:
        return named[-1] + 1
    places = named or totals
    return places[-1] if places else -1


def _counts(one: Reading, *, step: str) -> bool:
    family = one.family
    if step:
        named = [at for at, slot in enumerate(family.slots) if slot.name.lower() == step.lower()]
        for place in named[:1]:
            one.roles = ["count" if role == "step" else role for role in one.roles]
            one.roles[place] = "step"
        return bool(named)
    place = place_of_step(one)
    if place < 0 or len(family) < _FEWEST_LINES:
        return False
    if family.is_bar:
        # A bar without a name may draw epochs, or anything.
        return family.phase == "train" or (family.phase != "eval" and bool(one.places("loss")))
    if family.phase not in ("train", ""):
        return False
    # ``[640/60000]`` may be of samples, whatever it rises by: a count of steps has a name.
    beside = ("loss", "learning rate", "wait for data", "time of a step", "samples/s")
    return bool(one.places(*beside)) if family.slots[place].name else _is_metered(one)


def _is_metered(one: Reading) -> bool:
    """Whether the wait for data of one step stands on a line, with its mean in brackets."""
    slots = one.family.slots
    return any(
        slot.is_mean for at in one.places("wait for data") for slot in slots[at + 1 : at + 2]
    )


def _may_be_samples(one: Reading) -> bool:
    """Whether a named count may be of samples: its tool says so, or it is an index of anything."""
    slots, place = one.family.slots, place_of_step(one)
    is_index = set(slots[place].words) == {"idx"} and not slots[place].has_total
    return is_index or tuple(slot.name for slot in slots[:4]) in SAMPLES


def time_steps(
    main: Reading,
    others: Sequence[Reading],
    events: Sequence[int],
    *,
    time: str,
    is_of_steps: bool = False,
) -> Timed:
    """Time the lines of a count.

    Args:
        main: The lines.
        others: What else is printed of the training: times across it are not of steps alone.
        events: Lines that speak of checkpoints, or of other work.
        time: Name that the user gave for the time of a step.
        is_of_steps: Whether the count is known to be of steps, however long they take.
    """
    family = main.family
    nothing = np.full(len(family), NAN)
    timed = Timed(main, nothing, nothing.copy(), nothing.copy())
    count = family.column(place_of_step(main))
    told = [
        at for at, slot in enumerate(family.slots) if time and slot.name.lower() == time.lower()
    ]
    if told:
        timed.printed_s = timed.step_s = family.column(told[0])
        timed.columns["step_s"] = _as_printed(family, told[0])
    else:
        clock, formula = _clock(main, count)
        rows = _pairs(main, count, clock, _between(others, events, of_bar=family.is_bar))
        timed.step_s = _times(clock, count, rows)
        if not is_of_steps and _may_draw_epochs(main, timed.step_s):
            timed.step_s = nothing
        timed.data_s = _metered_waits(main, count, timed.step_s)
        if np.isfinite(timed.step_s).any():
            timed.columns["step_s"] = ColumnNote(
                meaning="window mean", source="rebuilt", formula=formula
            )
        _set_printed(timed)
    _set_waits(timed)
    return timed


def _may_draw_epochs(main: Reading, step_s: Array) -> bool:
    """Whether a bar that names no epoch counts a few things that take long."""
    if not main.family.is_bar or main.places("epoch") or not np.isfinite(step_s).any():
        return False
    total = main.family.column(place_of_step(main) + 1)
    return bool(np.nanmedian(step_s) > _LONG_S and np.nanmax(total) < _MANY)


def _clock(main: Reading, count: Array) -> tuple[Array, str]:
    """Seconds at each line: by timestamps, else by a bar's elapsed time or a meter's mean."""
    at = np.array(main.family.at)
    name = main.family.slots[place_of_step(main)].name or "the count"
    over = f"difference of {name}, from line to line"
    if np.isfinite(at).mean() > 0.9 and np.ptp(at[np.isfinite(at)]) > 0:
        return at, f"difference of timestamps / {over}"
    if main.family.is_bar and (elapsed := main.column("elapsed")) is not None:
        return elapsed, f"difference of elapsed times / {over}"
    if (total := _metered(main, "time of a step", count)) is not None:
        return total, f"(mean in brackets x {name}), difference / {over}"
    return np.full(len(at), NAN), ""


def _metered(main: Reading, role: Role, count: Array) -> Array | None:
    """Seconds since the pass began: the running mean of a meter, ``0.52 (0.50)``, by its count."""
    slots = main.family.slots
    for place in main.places(role):
        if place + 1 < len(slots) and slots[place + 1].is_mean:
            return main.family.column(place + 1) * (count + (count.min() == 0))
    return None


def _metered_waits(main: Reading, count: Array, step_s: Array) -> Array:
    """Waits for data between lines whose steps a meter times, from the mean of the waits."""
    total = _metered(main, "wait for data", count)
    if total is None or _metered(main, "time of a step", count) is None:
        return np.full(len(count), NAN)
    with np.errstate(divide="ignore", invalid="ignore"):
        waits = np.diff(total, prepend=NAN) / np.diff(count, prepend=NAN)
    # Rounding of two large totals can make a short wait negative; then it is below its error.
    return np.where(np.isfinite(step_s), np.maximum(waits, 0.0), NAN)


def _takes_time(one: Reading) -> bool:
    """Whether lines are of an evaluation, a checkpoint or another bar, not printed beside a bar."""
    return one.family.is_bar or one.family.phase in ("eval", "checkpoint", "resume")


def _between(others: Sequence[Reading], events: Sequence[int], *, of_bar: bool) -> Array:
    """Lines of the file that are of another kind, in order."""
    kept = [one for one in others if not of_bar or _takes_time(one)]
    lines = [np.array(one.family.line) for one in kept]
    return np.sort(np.concatenate([*lines, np.array(events)])).astype(np.float64)


def _pairs(main: Reading, count: Array, clock: Array, between: Array) -> Mask:
    """Mark lines that follow the one before in the same pass, with nothing else between."""
    line = np.array(main.family.line)
    passed = np.searchsorted(between, line)
    good = (np.diff(count, prepend=NAN) > 0) & (np.diff(clock, prepend=NAN) >= 0)
    good &= np.diff(passed, prepend=-1) == 0
    epoch = main.column("epoch")
    if epoch is not None:
        good &= np.diff(np.floor(epoch), prepend=NAN) == 0
    spent = np.diff(clock, prepend=NAN)
    usual_s = float(np.median(spent[good])) if good.any() else 0.0
    return good & (spent <= max(_BREAK_TIMES * usual_s, _BREAK_S))


def _times(clock: Array, count: Array, rows: Mask) -> Array:
    """Seconds of one count at each pair; nothing where pairs are few or do not agree.

    A clock of whole seconds is read over stretches that are long beside a second.
    """
    spent = np.where(rows, np.diff(clock, prepend=NAN), NAN)
    steps = np.where(rows, np.diff(count, prepend=NAN), NAN)
    finite = clock[np.isfinite(clock)]
    if len(finite) and (finite % 1 == 0).all():
        spent, steps = _joined(spent, steps, rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(spent > 0, spent / steps, NAN)
    known = found[np.isfinite(found)]
    if len(known) < _FEWEST_LINES:
        return np.full(len(clock), NAN)
    low, high = np.quantile(known, (0.25, 0.75))
    return found if 0 < high <= _EVEN * low else np.full(len(clock), NAN)


def _joined(spent: Array, steps: Array, rows: Mask) -> tuple[Array, Array]:
    times, counts = np.full(len(spent), NAN), np.full(len(spent), NAN)
    sum_s = sum_steps = 0.0
    for row in range(len(spent)):
        if not rows[row]:
            sum_s = sum_steps = 0.0
            continue
        sum_s, sum_steps = sum_s + float(spent[row]), sum_steps + float(steps[row])
        if sum_s >= _COARSE_S:
            times[row], counts[row] = sum_s, sum_steps
            sum_s = sum_steps = 0.0
    return times, counts


def _set_printed(timed: Timed) -> None:
    """Take a time for a step's that its name or unit says, unless the clock contradicts it.

    Beside a count without a name it may be the mean since the epoch began, as in bars and in Keras;
    before a mean in brackets it is of one step out of many.
    """
    family = timed.main.family
    if family.is_bar or not family.slots[place_of_step(timed.main)].name:
        return
    by_clock = float(np.nanmedian(timed.step_s)) if np.isfinite(timed.step_s).any() else None
    for place in timed.main.places("time of a step"):
        values = family.column(place)
        if any(slot.is_mean for slot in family.slots[place + 1 : place + 2]):
            continue
        usual = float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0
        agrees = by_clock is None or abs(usual / by_clock - 1) < _NEAR
        if usual > 0 and agrees and _is_longest(timed.main, usual):
            timed.printed_s = values
            timed.columns["printed_step_s"] = _as_printed(family, place)
            if by_clock is None:
                timed.step_s = np.where(values > 0, values, NAN)
                timed.columns["step_s"] = _as_printed(family, place)
            return


def _is_longest(main: Reading, usual: float) -> bool:
    """Whether no other time on the line is longer: a part of a step is shorter than the step."""
    others = [main.family.column(at) for at in main.places("time", "time of a step")]
    return all(float(np.nanmedian(one)) <= usual for one in others if np.isfinite(one).any())


def _set_waits(timed: Timed) -> None:
    """Take a wait for data that is part of a known time of a step."""
    family, waits = timed.main.family, timed.main.places("wait for data")
    known = timed.step_s[np.isfinite(timed.step_s)]
    if np.isfinite(timed.data_s).any():
        formula = "difference of (mean in brackets x count) / difference of the count"
        timed.columns["data_s"] = ColumnNote(
            meaning="window mean", source="rebuilt", formula=formula
        )
        return
    for place in waits[:1]:
        values = family.column(place)
        is_time = family.slots[place].unit == "time" or np.isfinite(timed.printed_s).any()
        if len(known) and is_time and np.nanmedian(values) <= np.median(known):
            timed.data_s = values
            timed.columns["data_s"] = _as_printed(family, place)


def _as_printed(family: Family, place: int) -> ColumnNote:
    name = family.slots[place].name or "a number without a name"
    return ColumnNote(meaning="not known", source="printed", formula=f"printed as {name}")


def printed(main: Reading, role: Role) -> Array:
    """A column of the lines; NaN without one."""
    column = main.column(role)
    return np.full(len(main.family), NAN) if column is None else column


def only_rises(main: Reading) -> bool:
    """Whether the count is one over the whole file: it never falls, and no rank repeats it."""
    place = place_of_step(main)
    return place >= 0 and bool((np.diff(main.family.column(place)) > 0).all())
