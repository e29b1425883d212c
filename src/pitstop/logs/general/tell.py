"""Hands the records of a family to the builder, and where the time of a step comes from."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from pitstop.logs.builder import LogBuilder
from pitstop.logs.general.families import Array, Index, Miner
from pitstop.logs.general.plan import NAN, Plan
from pitstop.logs.general.roles import FEWEST_ROWS, Reading, Role
from pitstop.logs.reader import Feed, Reader

NAME: Final = "general"
_GAP_TIMES = 10.0
_GAP_S = 600.0
_MOST_DIGITS = 6
_STILL = 0.95
_ENOUGH_AGAIN = 5


def tell(builder: LogBuilder, plan: Plan, miner: Miner, readings: list[Reading]) -> Reader:
    """Tell the builder everything in the order of the file."""
    _tell_run(builder, plan)
    reader, columns = _columns(plan)
    if plan.no_steps:
        _leave_out_steps(builder, plan, columns)
    gaps = plan.restarts | _gaps(plan, columns, miner, readings)
    if _begins_again(plan, miner, gaps):
        builder.note(
            "lines of the start come again between records: if of another process, they are not "
            "counted as attempts"
        )
    records = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    for line, what, number in _in_order(plan, miner, readings):
        if what == "record":
            if (gap := gaps.get(line)) is not None:
                builder.restart(gap)
            row = int(number)
            values = dict(zip(columns, records[row], strict=True))
            builder.train(float(plan.step[row]), epoch=float(plan.epoch[row]), **values)
        elif what == "evaluated":
            builder.evaluation(wall_s=number, formula="elapsed at the end of its bar", is_part=True)
        elif what == "resume":
            builder.restart("the log says that training is resumed")
        else:
            builder.other_work()
    _tell_curves(builder, plan)
    return reader


def _tell_curves(builder: LogBuilder, plan: Plan) -> None:
    """Hand over losses and other values, each where its line prints it; of one name the first."""
    family = plan.main.family
    told: set[str] = set()
    for place, decision in enumerate(plan.main.decisions):
        is_curve = decision.role in ("loss", "metric") and not family.slots[place].is_mean
        if not is_curve or decision.name in told:
            continue
        told.add(decision.name)
        absent = family.absent.get(place)
        rows = plan.keep if absent is None else plan.keep & ~absent
        builder.curve(decision.name, plan.step[rows], family.column(place)[rows])


def _tell_run(builder: LogBuilder, plan: Plan) -> None:
    """Tell what is known of the run as a whole."""
    main = plan.main
    builder.total_steps, builder.total_epochs = plan.total_steps, plan.total_epochs
    builder.steps_per_epoch = plan.steps_per_epoch
    builder.world_size = plan.world_size
    if plan.world_size:
        builder.world_size_from = "ranks that write into the log"
    sizes = main.column("batch size")
    if sizes is not None and (sizes == sizes[0]).all() and sizes[0] >= 1:
        builder.batch_size, builder.batch_size_from = int(sizes[0]), "printed with each record"
    if main.family.stride > 1:
        builder.note(f"very many records: one of {main.family.stride} is kept")


def _leave_out_steps(builder: LogBuilder, plan: Plan, columns: dict[str, Array]) -> None:
    """Give no steps and no times of one where the count may be of samples."""
    builder.is_steps_known = False
    builder.total_steps = builder.steps_per_epoch = None
    columns |= dict.fromkeys(("total", "printed", "data", "inside"), np.full(len(plan.step), NAN))
    builder.note(
        f"not understood: {plan.no_steps}, e.g. {plan.main.family.example} (how many steps that is)"
    )


def _in_order(
    plan: Plan, miner: Miner, readings: list[Reading]
) -> Iterator[tuple[int, str, float]]:
    found: list[tuple[int, str, float]] = [
        (line, "record", row) for row, line in enumerate(plan.main.family.line) if plan.keep[row]
    ]
    timed = [one for one in readings if _is_timed_evaluation(one)]
    rest = [one for one in readings if one not in timed]
    found += [(line, "eval", 0) for line in _evaluated(plan, rest)]
    found += [(line, "evaluated", s) for one in timed for line, s in _ends(plan, one)]
    found += [(line, str(phase), 0) for line, phase in miner.events]
    found.sort(key=lambda one: one[0])
    yield from found


def _evaluated(plan: Plan, readings: list[Reading]) -> list[int]:
    """Lines of evaluations; what stands only before the first record is a setting."""
    first = int(plan.lines[0])
    return [
        line
        for one in readings
        if one.family.phase == "eval"
        and one.family.line[-1] > first
        and one.family.example != plan.main.family.example
        for line in one.family.line
    ]


def _is_timed_evaluation(one: Reading) -> bool:
    """Whether lines are a bar of an evaluation, which has a clock and an end of its own."""
    place = one.place("step")
    is_counted = place >= 0 and one.family.slots[place].has_total and one.family.stride == 1
    return one.family.phase == "eval" and is_counted and one.place("elapsed") >= 0


def _ends(plan: Plan, one: Reading) -> list[tuple[int, float]]:
    """Lines at which an evaluation's bar was full, and how long it took by its own clock."""
    elapsed, place = one.column("elapsed"), one.place("step")
    assert elapsed is not None, "chosen for it"
    full = one.family.column(place) == one.family.column(place + 1)
    last = np.flatnonzero(full & ~np.append(full[1:], False))  # a full bar is drawn again
    lines = np.array(one.family.line)[last]
    kept = lines > plan.lines[0]
    return list(zip(lines[kept].tolist(), elapsed[last][kept].tolist(), strict=True))


def _gaps(
    plan: Plan, columns: dict[str, Array], miner: Miner, readings: list[Reading]
) -> dict[int, str]:
    """Find lines before which another process began, and why that is thought.

    It takes long to the next record, and lines with which the log begins come again.
    """
    found = _elapsed_again(plan)
    rows = np.flatnonzero(plan.keep & np.isfinite(columns["at"]))
    if len(rows) < FEWEST_ROWS:
        return found
    lines = plan.lines[rows]
    spent = np.diff(columns["at"][rows])
    usual_s = float(np.median(spent))
    found |= _printed_again(plan, rows, spent, usual_s)
    starts = [at for one in miner.families if one.line[0] < plan.lines[0] for at in one.line]
    evals = np.array(sorted(_evaluated(plan, readings)), dtype=np.int64)
    for place in np.flatnonzero(spent > max(_GAP_TIMES * usual_s, _GAP_S)).tolist():
        begin, end = int(lines[place]), int(lines[place + 1])
        is_evaluated = bool(((evals > begin) & (evals < end)).any())
        again = {line for line in starts if begin < line < end}
        if len(again) >= FEWEST_ROWS and not is_evaluated:
            found[end] = f"{spent[place]:.0f} s without a record, and lines of the start come again"
    return found


def _elapsed_again(plan: Plan) -> dict[int, str]:
    """Find bars that go on while their time since the start begins anew: another process."""
    elapsed, rows = plan.main.column("elapsed"), np.flatnonzero(plan.keep)
    is_one = plan.main.family.is_bar and not np.isfinite(plan.inside).any()
    if elapsed is None or not is_one or np.isfinite(plan.epoch).any():
        return {}
    falls = (np.diff(elapsed[rows]) < 0) & (np.diff(plan.step[rows]) > 0)
    return {
        int(plan.lines[rows[place + 1]]): "the time since the start begins anew"
        for place in np.flatnonzero(falls).tolist()
    }


def _printed_again(plan: Plan, rows: Index, spent: Array, usual_s: float) -> dict[int, str]:
    """Find counts that come again after as long as a record takes: another process began there."""
    again = (np.diff(plan.step[rows]) == 0) & (spent > max(usual_s / 2, 2.0))
    for absent in plan.main.family.absent.values():
        again &= np.diff(absent[rows].astype(int)) == 0  # a line with other fields is no record
    return {
        int(plan.lines[rows[place + 1]]): f"the step comes again {spent[place]:.0f} s later"
        for place in np.flatnonzero(again).tolist()
    }


def _begins_again(plan: Plan, miner: Miner, gaps: dict[int, str]) -> bool:
    """Whether lines of the start come again, number for number, and the count goes on untold."""
    lines = plan.lines[plan.keep]
    times = np.zeros(len(lines) + 1, dtype=np.int64)
    for family in miner.families:
        if len(family) > 1 and family.line[0] < lines[0]:
            same = np.all([np.array(one) == one[0] for one in family.flat], axis=0)
            times[np.unique(np.searchsorted(lines, np.array(family.line)[same]))] += 1
    told = [*gaps, *(line for line, phase in miner.events if phase == "resume")]
    times[np.searchsorted(lines, told)] = 0
    goes_on = np.diff(plan.step[plan.keep]) > 0
    return bool((times[1:-1][goes_on] >= _ENOUGH_AGAIN).any())


def _columns(plan: Plan) -> tuple[Reader, dict[str, Array]]:
    """Choose where the time of a step comes from, and give the builder's columns."""
    main = plan.main
    nothing = np.full(len(plan.step), NAN)
    at = np.array(main.family.at)
    columns = {
        "at": at, "inside": plan.inside, "total": nothing, "error": np.zeros(len(at)),
        "since": nothing, "data_total": nothing, "data": _or(main.column("wait for data"), nothing),
        "rate": _or(main.column("samples/s"), nothing),
        "lr": _or(main.column("learning rate"), nothing),
        "memory": _or(main.column("memory"), nothing),
    }  # fmt: skip
    printed, formula = _printed(plan)
    columns["printed"] = _or(printed, nothing)
    reader = replace(
        READER,
        step_formula=formula,
        count_name=_count_name(plan),
        counting=plan.counting,
        data_name=_name_of(plan, "wait for data"),
        memory_formula=_name_of(plan, "memory"),
    )
    good = np.isfinite(at)
    if good.mean() > 0.9 and np.ptp(at[good]) > 0:
        columns["total"] = at
        columns["error"][:] = 0.0005 if (at[good] % 1 != 0).any() else 0.5
        rebuild = "difference of timestamps / steps between the records"
        return replace(reader, rebuild=rebuild), columns
    if (elapsed := main.column("elapsed")) is not None:
        columns["total"] = elapsed
        columns["error"][:] = 0.0005 if (elapsed % 1 != 0).any() else 0.5
        begins = np.diff(elapsed, prepend=np.inf) < 0
        columns["since"] = np.where(begins & np.isfinite(plan.inside), 0.0, NAN)
        rebuild = "difference of elapsed times / steps between the records"
        smoothed = replace(reader, step="EMA") if main.family.is_bar else reader
        return replace(smoothed, rebuild=rebuild), columns
    if _rebuilt_from_means(plan, columns):
        rebuild = "(mean x steps of the epoch - the same of the record before) / steps between them"
        return replace(reader, rebuild=rebuild, step="last step"), columns
    return reader, columns


def _count_name(plan: Plan) -> str:
    """Say under which name the count is printed; the epoch names one that begins anew with it."""
    name = plan.main.family.slots[plan.main.place("step")].name
    is_within = bool(plan.counting) and plan.main.place("epoch") >= 0
    return name or ("count within the epoch" if is_within else "")


def _or(values: Array | None, otherwise: Array) -> Array:
    return otherwise if values is None else values


def _rebuilt_from_means(plan: Plan, columns: dict[str, Array]) -> bool:
    """Take totals from running means of an epoch, ``time 0.24 (0.57)``; they must only rise."""
    place = plan.main.place("time of a step")
    slots, family = plan.main.family.slots, plan.main.family
    if place < 0 or place + 1 >= len(slots) or not slots[place + 1].is_mean:
        return False
    if np.isnan(plan.inside[plan.keep]).any():
        return False
    total = family.column(place + 1) * plan.inside
    together = np.diff(total[plan.keep])[np.diff(plan.inside[plan.keep]) > 0]
    if len(together) < FEWEST_ROWS or (together > 0).mean() < _STILL:
        return False
    columns["total"] = total
    columns["error"] = _half_a_digit(family.column(place + 1)) * plan.inside
    columns["since"] = np.where(np.diff(plan.inside, prepend=np.inf) <= 0, 0.0, NAN)
    waits = plan.main.place("wait for data")
    if waits >= 0 and waits + 1 < len(slots) and slots[waits + 1].is_mean:
        columns["data_total"] = family.column(waits + 1) * plan.inside
    return True


def _half_a_digit(values: Array) -> float:
    """Give the rounding error of printed numbers."""
    finite = values[np.isfinite(values)]
    for digits in range(_MOST_DIGITS):
        if (np.abs(np.round(finite, digits) - finite) < 1e-9).all():
            return 0.5 * 10.0**-digits
    return 0.5 * 10.0**-_MOST_DIGITS


def _name_of(plan: Plan, role: Role) -> str:
    """Say under which name a column was printed: its unit need not be ours."""
    place = plan.main.place(role)
    return f"printed as {plan.main.decisions[place].name}" if place >= 0 else ""


def _printed(plan: Plan) -> tuple[Array | None, str]:
    """Time of a step as printed, and by which formula."""
    main = plan.main
    if (place := main.place("time of a step")) >= 0:
        return main.family.column(place), f"printed as {main.decisions[place].name}"
    if (place := main.place("time of the interval")) >= 0:
        steps = np.diff(plan.step, prepend=NAN) / main.family.stride
        steps[steps <= 0] = NAN
        formula = f"{main.decisions[place].name} / steps between the records"
        return main.family.column(place) / steps, formula
    if (place := main.place("steps/s")) >= 0:
        rate = main.family.column(place)
        return 1 / np.where(rate > 0, rate, NAN), f"1 / {main.decisions[place].name}"
    return None, ""


def _no_feed(builder: LogBuilder) -> Feed:
    """Take no lines: families are mined before anything is handed to a builder."""

    def feed(line: bytes) -> None:
        builder.damaged += bool(line)

    return feed


READER: Final = Reader(
    name=NAME,
    defined_by="lines that repeat with other numbers; no source defines them",
    start=_no_feed,
    mark=re.compile(rb"(?!)"),
    weight=0.0,
    step="not known",
    data="not known",
    rate="not known",
    scalars="not known",
    times_events=False,
    is_count_defined=False,
)
