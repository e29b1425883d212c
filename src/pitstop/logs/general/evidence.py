"""What must hold in a file before a number of it is stated. What does not hold is left out.

A count, a total or a time is believed for its relation to another number of the same file: lines
that count the same must all be read, a run's total must fit the epochs that have passed, a time of
a step must be the longest on its line. Where there is no such relation, less is said.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pitstop.logs.general.families import Array, Family, Index
from pitstop.logs.general.hints import SAMPLES
from pitstop.logs.general.roles import FEWEST_ROWS, Reading, Role
from pitstop.logs.general.tokens import Slot

_FEW = 0.05
"""Share of the lines read: so many may be of something else."""
_ROUND = frozenset(("1", "15", "2", "25", "3", "4", "5", "75"))
"""How intervals begin that people choose to print at; batches of 64 or 128 do not."""
_BATCHES = frozenset(("4", "8", "16"))
"""Rises that are a batch of samples as likely as an interval of steps."""
_NEAR = 0.05
"""Two lengths of an epoch that are this near are one: printed epochs have two decimals."""
_MORE_THAN_ONE_EPOCH = 1.5
_FAR = 10
_LONG = 2000
"""A count that rises by ten on each of ten lines, to thousands, is of no epochs."""


def key_of(slot: Slot) -> tuple[object, ...]:
    """What makes two numbers of different lines the same one."""
    return slot.name, slot.unit, slot.is_total, slot.is_mean


def unread(main: Reading, readings: list[Reading], *, role: Role) -> str:
    """Say of lines that count the same as those read and are not among them; empty without any.

    A few may be of something else. More than were read, or such that go on where those end, show
    that the lines read are not the training's whole record.
    """
    place = main.place(role)
    counts = main.family.column(place)
    others = [
        (one.family, there)
        for one in readings
        if one.family.phase == main.family.phase and one.family.example != main.family.example
        if not (main.has("loss") and _heads(one))
        for there in _places(one.family, main.family, place)
    ]
    missing = sum(family.count for family, _ in others)
    beyond = [
        family.count
        for family, there in others
        if len(family) >= FEWEST_ROWS and family.column(there).max() > counts.max()
    ]
    if missing > main.family.count or sum(beyond) > _FEW * main.family.count:
        return f"and {missing} lines that count the same do not fit in"
    return ""


def _heads(reading: Reading) -> bool:
    """Whether lines only say what follows, ``[Epoch 3 / Rank 0] training``: they have no result.

    A learning rate is none: it is what the epoch begins with.
    """
    return not any(
        one.role in ("loss", "metric") and one.name not in ("rank", "Rank")
        for one in reading.decisions
    )


def _places(family: Family, main: Family, place: int) -> list[int]:
    """Where the same counter stands in other lines: by its name, else by what it counts to."""
    slot = main.slots[place]
    if slot.name:
        found = [at for at, one in enumerate(family.slots) if key_of(one) == key_of(slot)]
        return found[:1]
    if not slot.has_total:
        return []
    totals = main.column(place + 1)
    return [
        at
        for at, one in enumerate(family.slots)
        if one.has_total and not one.name and np.isin(family.column(at + 1), totals).any()
    ][:1]


def total_of(
    main: Reading, rows: Index, total: Array, readings: list[Reading]
) -> Literal["run", "epoch", "not known"]:
    """Say of what the total of a count is that never begins anew: of the run or of the epoch.

    Args:
        main: Lines with the count.
        rows: Which of them are records.
        total: Their totals.
        readings: All lines: one of its own may name the epoch.
    """
    step, epoch = main.column("step"), main.column("epoch")
    assert step is not None, "chosen for its step"
    if not (total == total[0]).all() or total[0] <= 0:
        return "not known"
    if epoch is None:
        return "not known" if _has_epochs(main, readings) else "run"
    if len(np.unique(np.floor(epoch[rows]))) > 1:
        return "run"  # epochs passed, and the count went on
    return _of_first_epoch(main, step[rows], epoch[rows], total)


def _of_first_epoch(
    main: Reading, step: Array, epoch: Array, total: Array
) -> Literal["run", "epoch", "not known"]:
    """Say of what a total is while no epoch has passed: by decimals, by how far the count is."""
    announced = main.column("epochs in all")
    if np.ptp(epoch) > 0 and np.ptp(step) > 0:
        return _by_fractions(step, epoch, total[0], announced)
    if announced is None:
        # ``step 950/8880 | epoch 1``: what stands first is the larger unit.
        is_first = main.place("step") < main.place("epoch")
        return "run" if is_first and main.family.slots[main.place("step")].name else "epoch"
    if announced.max() == 1:
        return "run"
    return "not known" if _fits_run(step, epoch, total, announced) else "epoch"


def _has_epochs(main: Reading, readings: list[Reading]) -> bool:
    """Whether lines of their own name epochs, beside a count that began only once."""
    return any(
        one.place("epoch") >= 0
        and one.family.phase in ("train", "")
        and (
            one.family.slots[one.place("epoch")].has_total
            or one.family.line[-1] > main.family.line[0]
        )
        for one in readings
        if one.family.example != main.family.example
    )


def _by_fractions(
    step: Array, epoch: Array, total: float, announced: Array | None
) -> Literal["run", "epoch", "not known"]:
    """Hold a total against an epoch with decimals: steps over epochs are the epoch's length."""
    length = float(np.ptp(step) / np.ptp(epoch))
    if announced is not None and abs(length * announced[0] / total - 1) < _NEAR:
        return "run"
    if abs(length / total - 1) < _NEAR:
        return "epoch"
    is_exact = len(np.unique(epoch)) >= _FAR
    return "run" if is_exact and total > _MORE_THAN_ONE_EPOCH * length else "not known"


def _fits_run(step: Array, epoch: Array, total: Array, announced: Array) -> bool:
    """Whether a count may be the run's: in its third epoch of ten it is past a fifth of all."""
    length = total / announced
    return any(
        bool((step >= (epoch - first) * length - 1).all())
        and bool((step <= (epoch - first + 1) * length + 1).all())
        for first in (0, 1)
    )


def as_samples(main: Reading) -> str:
    """Say of a count that it may be of samples: ``[640/60000 (1%)]``, ``[64/60000]``; else nothing.

    Its tool says so, or it has no name: nobody prints every 640th step, and a count of steps begins
    with none, one, or one interval. An index without a total may be of anything.
    """
    place = main.place("step")
    slots, count = main.family.slots, main.family.column(place)
    if tool := SAMPLES.get(tuple(slot.name for slot in slots[:4])):
        return f"{slots[place].name}, a count of samples where {tool} prints it"
    if set(slots[place].words) == {"idx"} and not slots[place].has_total:
        return "idx, which may be the number of the row"
    is_drawn = main.family.is_bar or not _rises_as_samples(slots, count, place)
    return "" if is_drawn else "a count without a name"


def _rises_as_samples(slots: Sequence[Slot], count: Array, place: int) -> bool:
    rises = np.diff(count)
    if slots[place].name or not slots[place].has_total:
        return False
    usual = float(np.median(rises[rises > 0])) if (rises > 0).any() else 1.0
    if usual == 1:
        return False  # a sample each step is a step each line
    behind = slots[place + 2 : place + 3]
    is_share = any(slot.unit == "percent" and not slot.name for slot in behind)
    is_odd = bool(np.median(count % usual) not in (0, 1, usual - 1))
    return is_share or is_odd or f"{usual:g}" in _BATCHES or f"{usual:g}".rstrip("0") not in _ROUND


def is_training(main: Reading, steps: Array, epochs: Array, *, doubt: str) -> bool:
    """Whether a count may be believed unasked to be the training's steps.

    It has a name or an epoch, or rises too far from line to line for an epoch; and beside it stands
    what only a training prints.
    """
    place = main.place("step")
    slot = main.family.slots[place]
    has_epoch = bool(np.isfinite(epochs).any())
    is_named = bool(slot.name) or has_epoch
    is_named |= main.family.is_bar and (
        main.family.phase == "train" or main.has("loss", "learning rate")
    )
    if not is_named and slot.has_total:
        rises = np.diff(steps)
        is_far = float(np.median(rises)) >= _FAR and main.family.column(place + 1).max() >= _LONG
        is_named = is_far and len(rises) >= _FAR
    is_trained = main.family.phase == "train" or main.place("time of a step") >= 0
    is_trained |= main.has("loss", "learning rate", "elapsed", "left", "memory")
    is_trained |= bool(slot.name) and (has_epoch or "loss" in slot.words)
    return is_named and is_trained and not doubt
