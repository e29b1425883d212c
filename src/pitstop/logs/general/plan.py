"""Counts a family's records over the whole run: epochs, totals, ranks, lines of other shapes."""

from array import array
from dataclasses import dataclass, field, replace
from math import nan
from typing import Final

import numpy as np

from pitstop.logs.general.evidence import as_samples, key_of, total_of, unread
from pitstop.logs.general.families import Array, Family, Index, Mask
from pitstop.logs.general.roles import FEWEST_ROWS, WITHIN, Pace, Reading, Role, decide, judge_times
from pitstop.logs.general.tokens import Slot

NAN: Final = nan
_MOST_RANKS = 4096
_MOST_STEP = float(1 << 52)
_MOSTLY = 0.8
_SOME = 0.2
_NEARLY_ALL = 0.9
_FAR = 10
_LONE = 20
_FEW = 8
_ANEW = "steps are counted anew in each epoch"
_COME_AGAIN = "whose epochs stand on lines of their own and come again"


@dataclass(slots=True)
class Plan:
    """What will be handed to the builder."""

    main: Reading
    step: Array
    inside: Array
    epoch: Array
    keep: Mask
    notes: list[str] = field(default_factory=list)
    total_steps: int | None = None
    total_epochs: int | None = None
    steps_per_epoch: int | None = None
    world_size: int | None = None
    counting: str = ""
    """Formula of the step over the run, where each epoch counts anew."""
    restarts: dict[int, str] = field(default_factory=dict)
    """Lines at which another run begins, and why."""
    doubt: str = ""
    """Why the count cannot be believed; empty where nothing speaks against it."""
    no_steps: str = ""
    """What it counts where that may not be steps; empty where nothing speaks against them."""

    @property
    def lines(self) -> Array:
        """Lines of the records."""
        return np.array(self.main.family.line)


def one_series(main: Reading, readings: list[Reading], *, role: Role, step: str = "") -> Reading:
    """Join lines that print the same counter with some fields more or less.

    They are one series only if their counts fit in between each other.
    """
    slot = main.family.slots[main.place(role)]
    variants = [one for one in readings if one is not main and _is_variant(one, main, slot, role)]
    for one in sorted(variants, key=lambda one: -one.family.count):
        place = one.place(role)
        if place < 0 and not slot.name:
            place = main.place(role)  # too few lines to see that it counts
        there = one.family.slots[place] if place >= 0 else slot
        joined = decide(_joined(main.family, one.family, (slot, there)), step=step)
        is_aside = role == "epoch" and len(one.family) < FEWEST_ROWS  # "best epoch: 7"
        allowed = 1.5 * (_backs(main, role) + _backs(one, role)) + (0 if is_aside else 2)
        if joined.place(role) >= 0 and _backs(joined, role) <= allowed:
            main = joined
    return main


def _is_variant(one: Reading, main: Reading, slot: Slot, role: Role) -> bool:
    first, second = one.family, main.family
    return (
        (bool(slot.name) or _prints_more(one, main) or _is_same_place(one, main, slot))
        and not second.is_bar
        and (first.phase, first.shape) == (second.phase, second.shape)
        and (first.stride, first.is_bar) == (second.stride, second.is_bar)
        and (
            (
                any(key_of(other) == key_of(slot) for other in first.slots)
                and _may_join(one, main, role)
            )
            or _is_same_place(one, main, slot)
            or (role == "step" and _prints_the_same(one, main))
            or (role == "epoch" and one.place(role) >= 0 and one.has("loss") and main.has("loss"))
        )
    )


def _is_same_place(one: Reading, main: Reading, slot: Slot) -> bool:
    """Whether a count without a name stands behind the same epoch: ``Epoch 3 [20/445] Loss``.

    Without an epoch it goes to the same total beside the same values, ``37/37 - 6s - loss: 0.3``.
    """
    place, epoch = main.place("step"), main.place("epoch")
    if slot.name or not epoch < place < len(one.family.slots):
        return False
    if key_of(one.family.slots[place]) != key_of(slot):
        return False
    if epoch < 0:
        totals = [_totals_at(reading, place) for reading in (one, main)]
        return len(totals[0]) == 1 and totals[0] == totals[1] and _values(main) <= _values(one)
    return key_of(one.family.slots[epoch]) == key_of(main.family.slots[epoch])


def _may_join(one: Reading, main: Reading, role: Role) -> bool:
    """Whether lines with the same epoch are of one training: they share a result, or are few."""
    is_few = len(one.family) < FEWEST_ROWS
    return role != "epoch" or is_few or bool(_values(one) & _values(main)) or not _values(one)


def _prints_the_same(one: Reading, main: Reading) -> bool:
    """Whether lines count to the same total beside the same values, under a name of their own."""
    total = _one_total_of(one)
    values = _values(main)
    return total is not None and total == _one_total_of(main) and values <= _values(one)


def _one_total_of(reading: Reading) -> float | None:
    """Total behind the count of steps; None without one, or of several."""
    place = reading.place("step")
    found = set() if place < 0 else _totals_at(reading, place)
    return found.pop() if len(found) == 1 else None


def _totals_at(reading: Reading, place: int) -> set[float]:
    """Totals behind a count; empty without any."""
    if not reading.family.slots[place].has_total:
        return set()
    return set(reading.family.column(place + 1).tolist())


def _values(reading: Reading) -> set[str]:
    return {one.name for one in reading.decisions if one.role in ("loss", "metric")}


def _prints_more(one: Reading, main: Reading) -> bool:
    """Whether lines have all names of the others and more, to the same total: ends of epochs."""
    place = main.place("step")
    if place < 0 or not main.family.slots[place].has_total or len(one.family.slots) <= place + 1:
        return False
    names = {slot.name for slot in main.family.slots}
    total = main.family.column(place + 1)
    return (
        names < {slot.name for slot in one.family.slots}
        and one.family.slots[place].has_total
        and bool((one.family.column(place + 1) == np.median(total)).all())
    )


def plan_of(main: Reading, readings: list[Reading], *, step: str, time: str) -> Plan:
    """Count the steps of a family over the run, and decide on its times.

    Args:
        main: The family whose lines are the records.
        readings: All families.
        step: Name that the user gave for the step.
        time: Name that the user gave for the time of a step.
    """
    main = one_series(main, readings, role="step", step=step)
    doubt = unread(main, readings, role="step")
    main, ranks = _one_rank(main)
    column = main.column("step")
    assert column is not None, "chosen for its step"
    nothing = np.full(len(column), NAN)
    counts = np.abs(column) < _MOST_STEP
    plan = Plan(main, column.copy(), nothing, nothing.copy(), counts, doubt=doubt)
    if (epoch := main.column("epoch")) is not None:
        plan.epoch = np.floor(epoch)
    plan.world_size = ranks
    if ranks is not None:
        plan.notes.append(f"{ranks} ranks write into the log: the first one's lines are read")
    _drop_lone(plan)
    _drop_repeats(plan, column)
    _one_total(plan)
    if epoch is None:
        _epoch_before(plan, readings)
    (_in_both if _is_within(main) else _over_the_run)(plan, readings)
    _note_undrawn(plan, readings)
    # What the steps were counted from may be damage too: an epoch or a total that is no number.
    plan.keep &= np.abs(plan.step) < _MOST_STEP
    if not step and (counted := as_samples(main)):
        plan.no_steps, plan.notes = counted, []
    else:
        judge_times(main, _pace(plan), named_time=time)
    return plan


def _drop_repeats(plan: Plan, column: Array) -> None:
    """Leave out what stands at the count of the line before: a bar may be drawn twice at one."""
    is_bar = plan.main.family.is_bar
    if not is_bar and plan.main.family.shape >= 0:
        return
    is_next = (np.diff(column, prepend=NAN) != 0) | (np.diff(plan.epoch, prepend=NAN) > 0)
    if not (is_bar or is_next.all()):
        plan.notes.append(f"{(~is_next).sum()} lines print a count again and are left out")
    plan.keep &= is_next


def _note_undrawn(plan: Plan, readings: list[Reading]) -> None:
    """Say that counts are the least there can be where a run's last bar stops before its total.

    The last drawing is often wiped: by another run that begins, or by an evaluation that follows.
    """
    place, lines = plan.main.place("step"), plan.lines
    if not plan.main.family.is_bar or not plan.main.family.slots[place].has_total:
        return
    rows = np.flatnonzero(plan.keep)
    ends = rows[:-1][np.diff(plan.step[rows]) < 0].tolist()
    is_over = any(
        one.family.phase == "eval" and one.family.line[-1] > lines[rows[-1]] for one in readings
    )
    ends += [rows[-1]] if is_over else []
    count, total = (plan.main.family.column(at)[ends] for at in (place, place + 1))
    if (count < total).any():
        plan.notes.append(
            "the last drawing of a bar is missing: the count of steps is the least it can be"
        )


def _is_within(main: Reading) -> bool:
    """Whether lines are further apart than epochs, each with its epoch and its step in it."""
    place = main.place("epoch")
    return place >= 0 and main.decisions[place].evidence == WITHIN


def _in_both(plan: Plan, readings: list[Reading]) -> None:
    """Order records by epoch and step; from which epoch on the run counts is not known."""
    del readings
    place = plan.main.place("step")
    plan.step = plan.epoch * plan.main.family.column(place + 1) + plan.step
    plan.no_steps = "steps within epochs of an unknown first number"


def _backs(reading: Reading, role: Role) -> int:
    """How often the count goes back or stands still."""
    column = reading.column(role)
    return 0 if column is None else int((np.diff(column) <= 0).sum())


def _joined(main: Family, other: Family, counters: tuple[Slot, Slot]) -> Family:
    """Put two families' lines in order; what one does not print is NaN."""
    lines = np.concatenate((np.array(main.line), np.array(other.line)))
    order = np.argsort(lines, kind="stable")
    places: dict[tuple[object, ...], int] = {}
    for place, slot in enumerate(other.slots):
        places.setdefault(key_of(slot), place)
    for place, slot in enumerate(other.slots):
        if slot is counters[1]:
            places[key_of(counters[0])] = place  # others without a name must not stand for it
    joined = Family(
        main.slots, main.phase, main.example, number=main.number, is_bar=main.is_bar,
        shape=main.shape, count=main.count + other.count, stride=main.stride,
    )  # fmt: skip
    joined.line = array("q", lines[order].tolist())
    joined.at = array("d", np.concatenate((np.array(main.at), np.array(other.at)))[order].tolist())
    for place, slot in enumerate(main.slots):
        there = places.get(key_of(slot))
        rest = np.full(len(other), NAN) if there is None else np.array(other.flat[there])
        lacks = (_lacks(main, place), _lacks(other, there))
        joined.absent[place] = np.concatenate(lacks)[order]
        values = np.concatenate((np.array(main.flat[place]), rest))
        joined.flat.append(array("d", values[order].tolist()))
    return joined


def _lacks(family: Family, place: int | None) -> Mask:
    """Rows whose lines do not have a number."""
    none = np.zeros(len(family), dtype=bool)
    return ~none if place is None else family.absent.get(place, none)


def _drop_lone(plan: Plan) -> None:
    """Leave out a count far beyond all others: two lines written into one another."""
    steps = plan.step[plan.keep]
    if len(steps) <= _FAR:
        return
    far = plan.step > _LONE * max(float(np.partition(steps, -2)[-2]), 1.0)
    if far.sum() == 1:
        plan.keep &= ~far
        plan.notes.append(f"a count of {plan.step[far][0]:.0f} stands alone and is left out")


def _one_rank(main: Reading) -> tuple[Reading, int | None]:
    """Leave the lines of one rank of several that print the same steps, and say how many write."""
    ranks, step = main.column("rank"), main.column("step")
    assert step is not None, "chosen for its step"
    if ranks is None or len(np.unique(ranks)) > _MOST_RANKS:
        return main, None
    found = [step[ranks == rank] for rank in np.unique(ranks)]
    common = min(map(len, found))
    are_same = common >= _NEARLY_ALL * max(map(len, found)) and all(
        float((one[:common] == found[0][:common]).mean()) >= _NEARLY_ALL for one in found[1:]
    )
    if len(found) < 2 or not are_same:
        return main, None
    return Reading(main.family.only(ranks == ranks.min()), main.decisions), len(found)


def _one_total(plan: Plan) -> None:
    """Keep counts to the usual total: others, which take turns with them, are of an evaluation."""
    place = plan.main.place("step")
    slot = plan.main.family.slots[place]
    if not slot.has_total:
        return
    total = plan.main.family.column(place + 1)
    known = total[np.isfinite(total)]
    found, counts = np.unique(known, return_counts=True)
    is_in_turn = len(found) == 2 and np.count_nonzero(np.diff(known)) > 2 * len(found)
    is_in_turn = is_in_turn and counts.max() > 2 * counts.min()
    is_nearly_all = not slot.name and counts.max() >= _NEARLY_ALL * counts.sum()
    if is_in_turn or is_nearly_all:
        plan.keep &= (total == found[np.argmax(counts)]) | np.isnan(total)


def _epoch_before(plan: Plan, readings: list[Reading]) -> None:
    """Take the epoch from lines of its own, where the count begins anew with them.

    Where such lines go back and cannot be used, it is not known which steps come again.
    """
    back = np.flatnonzero(np.diff(plan.step) < 0) + 1
    for reading in readings:
        epoch = reading.column("epoch")
        if epoch is None or reading.family.phase in ("eval", "checkpoint") or not len(back):
            continue
        place = np.searchsorted(np.array(reading.family.line), plan.lines) - 1
        found = np.where(place >= 0, epoch[np.maximum(place, 0)], epoch[0] - 1)
        rises = np.diff(found)[back - 1]
        if (rises > 0).mean() >= _MOSTLY:
            plan.epoch = found
            if place[0] < 0 and (rises <= 0).any():
                plan.doubt = _COME_AGAIN
            return
        if len(epoch) >= FEWEST_ROWS and (np.diff(epoch) < 0).any():
            plan.doubt = _COME_AGAIN


def _over_the_run(plan: Plan, readings: list[Reading]) -> None:
    """Turn a count that begins anew in each epoch into one over the run."""
    rows = np.flatnonzero(plan.keep)
    step, epoch = plan.step[rows], plan.epoch[rows]
    total = _totals(plan, rows, step)
    back = _begins_anew(step, epoch)
    plan.total_epochs = total_epochs(plan.main)
    turns = np.diff(epoch, prepend=epoch[:1]) > 0
    # With each new epoch; a process that goes on from an earlier one begins anew as well.
    inner = bool(turns.any()) and bool(np.isin(np.flatnonzero(turns), back).mean() > _MOSTLY)
    has_total = bool(np.isfinite(total).all())
    is_full = step[back - 1] >= 0.9 * total[back - 1]
    ended = bool(len(back)) and has_total and bool(is_full.mean() > _MOSTLY)
    if ended and _may_be_runs(plan.main, readings):
        # Each count as printed: their sum would be of runs that have nothing in common.
        plan.restarts = dict.fromkeys(plan.lines[rows[back]].tolist(), "its total was reached")
        return
    if inner or ended:
        _count_on(plan, rows, total, inner=inner)
    elif has_total and not len(back):
        _set_total(plan, rows, total, of=total_of(plan.main, rows, total, readings))
    within = int((~turns[back]).sum())
    if within > max(_FEW, _SOME * len(back)) and not ended:
        plan.doubt = f"whose count begins anew {within} times where no epoch does"


def _may_be_runs(main: Reading, readings: list[Reading]) -> bool:
    """Whether a named count that begins anew may be of another run: no line names an epoch.

    Several seeds or folds print the same lines in turn. A bar is drawn anew in each epoch.
    """
    is_named = bool(main.family.slots[main.place("step")].name)
    found = [one.column("epoch") for one in (main, *readings)]
    # An epoch that is the same in each run, ``Epoch: 0``, tells them no more apart.
    has_epochs = any(one is not None and (len(one) < 2 or np.ptp(one) > 0) for one in found)
    return is_named and not main.family.is_bar and not has_epochs


def _set_total(plan: Plan, rows: Index, total: Array, *, of: str) -> None:
    """Use the total of a count that never begins anew as far as it is known of what it is."""
    if of == "run":
        plan.total_steps = int(total[0])
    elif plan.main.column("epochs in all") is None and of == "epoch":
        plan.steps_per_epoch = int(total[0])
    else:
        if np.isfinite(plan.epoch[rows]).all():
            _count_on(plan, rows, total, inner=True)  # a count from zero is one more, either way
        if of == "not known":
            plan.total_epochs = plan.steps_per_epoch = None
            plan.notes = [note for note in plan.notes if not note.startswith(_ANEW)]
            plan.notes.append(f"the total {total[0]:g} is the epoch's or the run's: not used")


def _begins_anew(step: Array, epoch: Array) -> Index:
    """Rows at which the count begins anew: lower than before, or the same in the next epoch."""
    rises = np.diff(step)
    return np.flatnonzero((rises < 0) | ((rises == 0) & (np.diff(epoch) > 0))) + 1


def _totals(plan: Plan, rows: Index, step: Array) -> Array:
    """Numbers behind the slash; NaN where there are none, or where counts go beyond them."""
    place = plan.main.place("step")
    named = plan.main.column("steps in all")
    if plan.main.family.slots[place].has_total:
        named = plan.main.family.column(place + 1)
    if named is None:
        return np.full(len(rows), NAN)
    total = named[rows]
    if (step > total).any():
        plan.notes.append("counts go beyond the total behind the slash: it is left out")
        return np.full(len(rows), NAN)
    return total


_LEAST = (
    "printed step + last printed step of each epoch before; the steps of an epoch are not "
    "printed, so this is the least it can be"
)


def _count_on(plan: Plan, rows: Index, total: Array, *, inner: bool) -> None:
    step, epoch = plan.step[rows], plan.epoch[rows]
    back = _begins_anew(step, epoch)
    has_total = bool(np.isfinite(total).all())
    zero = 1.0 if step.min() == 0 and not (has_total and (step == total).any()) else 0.0
    per = float(np.median(total)) if has_total else NAN
    plan.inside[rows] = step + zero
    first = _first_epoch(plan, epoch)
    if inner and has_total and (total == per).all() and first is not None:
        plan.step[rows] = (epoch - first) * per + step + zero
        formula = "epochs before x steps of an epoch + step of the epoch"
    else:
        plan.total_epochs = None  # epochs before this log are not counted
        base = np.zeros(len(rows))
        base[back] = total[back - 1] if has_total else step[back - 1] + zero
        turns = np.diff(epoch, prepend=epoch[:1])
        new = turns < 0
        if inner:
            new[back] |= turns[back] == 0  # begun anew in the same epoch: another process
        plan.step[rows] = _since_each(np.cumsum(base), new) + step + zero
        formula = "printed step + steps of each epoch before" if has_total else _LEAST
        if np.isnan(epoch).all():
            number = np.zeros(len(rows))
            number[back] = 1
            plan.epoch[rows] = np.cumsum(number)
    plan.steps_per_epoch = int(per) if has_total and per > 0 and (total == per).all() else None
    plan.counting = formula
    unseen = _unseen(step[back - 1], per) if plan.steps_per_epoch else ""
    plan.notes.append(f"{_ANEW}: step = {formula}{unseen}")
    if inner and first is None and np.nanmin(epoch) > 1:
        plan.notes.append(
            f"the log begins in epoch {np.nanmin(epoch):g}: steps are counted from there on, so "
            "the last one is the least it can be"
        )


def _unseen(last: Array, per: float) -> str:
    """Say where no epoch's last line reaches its total; of a count from zero it is one less."""
    if not len(last) or (last + 1 >= per).any():
        return ""
    return f"; the last one printed in an epoch is {last.max():g} of {per:g}"


def _first_epoch(plan: Plan, epoch: Array) -> float | None:
    """Number of the run's first epoch: 0, 1, or not known of a log that begins later."""
    known = epoch[np.isfinite(epoch)]
    if not len(known):
        return None
    if known.min() in (0, 1):
        return float(known.min())
    return 1.0 if known.max() == plan.total_epochs else None


def _since_each(sums: Array, new: Mask) -> Array:
    """Let sums begin anew where another run begins."""
    begin = np.maximum.accumulate(np.where(new, np.arange(len(sums)), 0))
    return sums - np.where(begin > 0, sums[begin], 0)


def total_epochs(reading: Reading) -> int | None:
    """How many epochs there will be; ``0/69`` to ``69/69`` are seventy.

    Of a count from zero that stops before its total, one more or less is not known.
    """
    totals, epoch = reading.column("epochs in all"), reading.column("epoch")
    if totals is None or epoch is None or not (totals == totals[0]).all():
        return None
    is_from_zero, last = bool((epoch == 0).any()), epoch.max()
    if is_from_zero and last < totals[0] - 1:
        return None
    return int(totals[0]) + bool(is_from_zero and last == totals[0])


def _pace(plan: Plan) -> Pace:
    end = plan.total_steps
    if end is None and plan.steps_per_epoch and plan.total_epochs:
        end = plan.steps_per_epoch * plan.total_epochs
    left = np.full(len(plan.step), NAN) if end is None else end - plan.step
    in_epoch = (plan.steps_per_epoch or NAN) - plan.inside
    step = np.where(plan.keep, plan.step, NAN)
    return Pace(
        step=step,
        at=np.array(plan.main.family.at),
        left=left,
        left_in_epoch=in_epoch,
        within=~(np.diff(plan.inside, prepend=NAN) < 0),
    )


def with_unit(families: list[Family], name: str, scale: float) -> None:
    """Put the user's unit in place of the printed one."""
    for family in families:
        family.slots = tuple(
            replace(slot, unit="time", scale=scale) if slot.name.lower() == name.lower() else slot
            for slot in family.slots
        )
