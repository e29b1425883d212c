"""Reads a log of no known format: mine its lines, decide what they are, tell the builder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.errors import RecordError
from pitstop.logs.builder import EPOCH, NAN, LogBuilder
from pitstop.logs.finish import finish
from pitstop.logs.general.families import Array, Family, Miner
from pitstop.logs.general.roles import SURE, Reading, decide, judge_times
from pitstop.logs.lines import stream
from pitstop.logs.reader import Feed, Reader
from pitstop.records.run import RankRecord

NAME: Final = "general"
_FEWEST_ROWS = 3
_GAP_TIMES = 10.0
_GAP_S = 600.0
_UNIT_S = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "min": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldHints:
    """What the user says of a log's fields; empty where nothing."""

    step: str = ""
    time: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """Which lines of a log became what."""

    lines: int
    became: tuple[tuple[int, str, str], ...] = ()
    """Number of lines, what they were taken for, and the first of them."""
    fields: tuple[tuple[str, str, float, str], ...] = ()
    """Name, role, confidence and evidence of each number in the training's lines."""
    not_understood: tuple[tuple[str, str, str], ...] = ()
    """Name, evidence and line."""


@dataclass(slots=True)
class _Plan:
    """What will be handed to the builder."""

    main: Reading
    step: Array
    inside: Array
    epoch: Array
    keep: Array
    notes: list[str] = field(default_factory=list)
    total_steps: int | None = None
    total_epochs: int | None = None
    steps_per_epoch: int | None = None
    world_size: int | None = None


def read_general(path: Path, hints: FieldHints | None = None) -> tuple[RankRecord, Understanding]:
    """Read a log of any shape.

    Raises:
        RecordError: No lines count steps or epochs; the message says which came closest.
    """
    hints = hints or FieldHints()
    miner = Miner()
    for lines, is_whole in stream(path):
        if not is_whole and miner.lines:
            continue
        before = b""
        for line in lines:
            if line != before:
                miner.feed(line)
            before = line
    families = miner.families
    if hints.time and hints.unit:
        _set_unit(families, hints)
    readings = [decide(family, step=hints.step) for family in families]
    steps = [one for one in readings if _is_training(one) and one.has_step and _is_one_count(one)]
    if not steps:
        return _read_epochs(path, miner, readings)
    plan = _plan(max(steps, key=_worth), hints, readings)
    builder = LogBuilder(is_rebuilt=_clock_of(plan.main) is not None)
    builder.clock = miner.clock
    reader = _tell(builder, plan, miner, readings)
    understood = _understanding(plan.main, miner, readings)
    for note in (*plan.notes, *_warnings(understood)):
        builder.note(note)
    confidence = plan.main.decisions[plan.main.place("step")].confidence
    return finish(builder, reader, confidence=confidence, file=str(path)), understood


def _set_unit(families: list[Family], hints: FieldHints) -> None:
    """Put the user's unit in place of the printed one."""
    for family in families:
        family.slots = tuple(
            replace(slot, unit="time", scale=_UNIT_S[hints.unit])
            if slot.name.lower() == hints.time.lower()
            else slot
            for slot in family.slots
        )


def _is_training(reading: Reading) -> bool:
    return reading.family.phase in ("train", "") and len(reading.family) >= _FEWEST_ROWS


def _worth(reading: Reading) -> tuple[int, bool, bool, int]:
    """Prefer lines of the training by name, with a clock, with a loss, and many."""
    has_clock = _clock_of(reading) is not None or reading.column("steps/s") is not None
    roles = {decision.role for decision in reading.decisions}
    is_rare = reading.family.count < 10
    return (
        not is_rare and (has_clock or "loss" in roles),
        reading.family.phase == "train" or "loss" in roles,
        has_clock or bool(roles & {"time", "time of a step"}),
        reading.family.count,
    )


def _clock_of(reading: Reading) -> Array | None:
    """Moments of the lines, by timestamp or by elapsed time; None without either."""
    at = np.array(reading.family.at)
    if np.isfinite(at).mean() > 0.9 and np.ptp(at[np.isfinite(at)]) > 0:
        return at
    return _elapsed(reading)


def _elapsed(reading: Reading) -> Array | None:
    """Elapsed time: by name, or the duration before the ``<`` of a bar."""
    if (named := reading.column("elapsed")) is not None:
        return named
    step = reading.place("step")
    for place in range(max(step, 0), len(reading.decisions) - 1):
        slots = reading.family.slots
        is_bar = slots[place].unit == "duration" and slots[place + 1].opens == "<"
        if is_bar:
            reading.settle("elapsed", 0.95, "stands before < in a bar", place=place)
            reading.settle("left", 0.95, "stands behind < in a bar", place=place + 1)
            return reading.family.column(place)
    return None


def _plan(main: Reading, hints: FieldHints, readings: list[Reading]) -> _Plan:
    """Count steps over the whole run."""
    step = main.column("step")
    assert step is not None, "chosen for its step"
    keep = np.ones(len(step), dtype=bool)
    plan = _Plan(main, step, np.full(len(step), NAN), np.full(len(step), NAN), keep)
    _one_rank(plan)
    plan.keep &= np.diff(step, prepend=NAN) != 0  # a bar may be drawn twice at one count
    if (epoch := main.column("epoch")) is not None:
        plan.epoch = epoch
    else:
        _epoch_before(plan, readings)
    _over_the_run(plan)
    at = np.array(main.family.at)
    judge_times(main, plan.step, at=at, named_time=hints.time)
    return plan


def _one_rank(plan: _Plan) -> None:
    ranks = plan.main.column("rank")
    if ranks is None or len(np.unique(ranks)) > 4096:
        return
    first, several = ranks == ranks.min(), len(np.unique(ranks))
    steps = plan.step[first]
    if len(np.unique(steps)) < 0.9 * len(steps) or len(np.unique(plan.step)) > 1.2 * len(steps):
        return
    plan.keep = first
    plan.world_size = several
    plan.notes.append(f"{several} ranks write into the log: the first one's lines are read")


def _is_one_count(reading: Reading) -> bool:
    """Whether a count without a name goes to one total: several cannot be distinguished."""
    place = reading.place("step")
    slot = reading.family.slots[place]
    if slot.name or not slot.has_total or reading.family.phase == "train":
        return True
    found, counts = np.unique(reading.family.column(place + 1), return_counts=True)
    common = found[counts >= 0.05 * counts.sum()]
    if len(common) < 2:
        return True
    totals = " and ".join(f"{one:g}" for one in common[:4])
    evidence = f"bars count to {totals}: which is the training is not known"
    reading.settle("not understood", 0.4, evidence, place=place)
    return False


def _epoch_before(plan: _Plan, readings: list[Reading]) -> None:
    """Take the epoch from lines of its own, where the count begins anew with them."""
    lines = np.array(plan.main.family.line)
    back = np.flatnonzero(np.diff(plan.step) < 0) + 1
    for reading in readings:
        epoch = reading.column("epoch")
        if epoch is None or reading.family.phase == "eval" or not len(back):
            continue
        place = np.searchsorted(np.array(reading.family.line), lines) - 1
        found = np.where(place >= 0, epoch[np.maximum(place, 0)], epoch[0] - 1)
        if (np.diff(found)[back - 1] > 0).mean() > 0.8:
            plan.epoch = found
            return


def _over_the_run(plan: _Plan) -> None:  # noqa: PLR0915 - one table of cases
    """Turn a count that begins anew in each epoch into one over the run."""
    place = plan.main.place("step")
    rows = np.flatnonzero(plan.keep)
    step, epoch = plan.step[rows], plan.epoch[rows]
    back = np.flatnonzero(np.diff(step) < 0) + 1
    has_total = plan.main.family.slots[place].has_total
    total = plan.main.family.column(place + 1)[rows] if has_total else np.full(len(rows), NAN)
    if has_total and (step > total).any():
        has_total = False
        plan.notes.append("counts go beyond the total behind the slash: it is left out")
    by_epoch = np.diff(epoch, prepend=epoch[:1]) > 0
    inner = len(back) and by_epoch[back].mean() > 0.8
    ended = len(back) and has_total and (step[back - 1] >= 0.9 * total[back - 1]).mean() > 0.8
    _epochs_in_all(plan)
    # One epoch of several alone: its count is of that epoch.
    inner = inner or (
        not len(back) and has_total and (plan.total_epochs or 1) > 1 and len(np.unique(epoch)) == 1
    )
    if not inner and not ended:
        if has_total:
            _set_total(plan, total, epoch)
        return
    per = float(np.median(total)) if has_total else NAN
    zero = 1.0 if step.min() == 0 else 0.0
    plan.inside[rows] = step + zero
    if inner and has_total and (total == per).all():
        plan.step[rows] = (epoch - (0.0 if (epoch == 0).any() else 1.0)) * per + step + zero
        formula = "epochs before x steps of an epoch + step of the epoch"
    else:
        base = np.zeros(len(rows))
        base[back] = total[back - 1] if has_total else step[back - 1] + zero
        plan.step[rows] = np.cumsum(base) + step + zero
        last = "steps" if has_total else "last printed step"
        formula = f"printed step + {last} of each epoch before"
        if np.isnan(epoch).all():
            number = np.zeros(len(rows))
            number[back] = 1
            plan.epoch[rows] = np.cumsum(number)
    plan.steps_per_epoch = int(per) if has_total and per > 0 else None
    plan.notes.append(f"steps are counted anew in each epoch: step = {formula}")


def _epochs_in_all(plan: _Plan) -> None:
    plan.total_epochs = _total_epochs(plan.main)


def _total_epochs(reading: Reading) -> int | None:
    """How many epochs there will be; ``0/69`` to ``69/69`` are seventy."""
    totals, epoch = reading.column("epochs in all"), reading.column("epoch")
    if totals is None or epoch is None or not (totals == totals[0]).all():
        return None
    return int(totals[0]) + bool((epoch == 0).any() and (epoch == totals[0]).any())


def _set_total(plan: _Plan, total: Array, epoch: Array) -> None:
    if not (total == total[0]).all() or not total[0] > 0:
        return
    turns = len(np.unique(epoch[np.isfinite(epoch)]))
    if turns <= 1 and plan.total_epochs not in (None, 1):
        plan.steps_per_epoch = int(total[0])
    else:
        plan.total_steps = int(total[0])


def _tell(builder: LogBuilder, plan: _Plan, miner: Miner, readings: list[Reading]) -> Reader:
    """Tell the builder everything in the order of the file."""
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
    reader, columns = _columns(plan)
    names = [
        (decision.name, main.family.column(place))
        for place, decision in enumerate(main.decisions)
        if decision.role in ("loss", "metric") and not main.family.slots[place].is_mean
    ]
    gaps = _gaps(plan, columns)
    for line, what, row in _in_order(plan, miner, readings):
        if what != "record":
            _tell_event(builder, what, row)
            continue
        number = int(row)
        if (gap := gaps.get(line)) is not None:
            builder.restart(gap)
        values = {name: float(column[number]) for name, column in columns.items()}
        builder.train(float(plan.step[number]), epoch=float(plan.epoch[number]), **values)
        for name, column in names:
            builder.scalar(name, float(plan.step[number]), float(column[number]))
    return reader


def _tell_event(builder: LogBuilder, what: str, at: float) -> None:
    if what == "checkpoint":
        builder.checkpoint(at=at)
    elif what == "resume":
        builder.restart("the log says that training is resumed")
    else:
        builder.evaluation(at=at)


def _in_order(
    plan: _Plan, miner: Miner, readings: list[Reading]
) -> Iterator[tuple[int, str, "int | float"]]:
    found: list[tuple[int, str, int | float]] = [
        (line, "record", row) for row, line in enumerate(plan.main.family.line) if plan.keep[row]
    ]
    for reading in readings:
        if reading.family.phase == "eval":
            ats = reading.family.at
            found += [(line, "eval", ats[row]) for row, line in enumerate(reading.family.line)]
    found += [(line, str(phase), at) for line, at, phase in miner.events]
    found.sort(key=lambda one: one[0])
    yield from found


def _gaps(plan: _Plan, columns: dict[str, Array]) -> dict[int, str]:
    """Find long times without a record: another process where much was printed, else not known.

    Returns:
        Lines before which another process began, and why that is thought.
    """
    rows = np.flatnonzero(plan.keep & np.isfinite(columns["at"]))
    if len(rows) < _FEWEST_ROWS:
        return {}
    lines = np.array(plan.main.family.line)[rows]
    spent, between = np.diff(columns["at"][rows]), np.diff(lines)
    usual_s, usual = float(np.median(spent)), float(np.median(between))
    found: dict[int, str] = {}
    for place in np.flatnonzero(spent > max(_GAP_TIMES * usual_s, _GAP_S)).tolist():
        if between[place] > 10 * usual + 10:
            found[int(lines[place + 1])] = f"{spent[place]:.0f} s without a record: a new process"
        else:
            columns["total"] = columns["total"].copy()
            columns["total"][rows[place + 1]] = NAN
            plan.notes.append(
                f"{spent[place]:.0f} s without a record, at line {lines[place + 1]}: a break or "
                "other work, not counted as steps"
            )
    return found


def _columns(plan: _Plan) -> tuple[Reader, dict[str, Array]]:
    """Choose where the time of a step comes from, and give the builder's columns."""
    main = plan.main
    nothing = np.full(len(plan.step), NAN)
    at = np.array(main.family.at)
    columns = {
        "at": at, "inside": plan.inside, "total": nothing, "error": nothing * 0,
        "since": nothing, "printed": nothing, "data": _or(main.column("wait for data"), nothing),
        "rate": _or(main.column("samples/s"), nothing),
        "lr": _or(main.column("learning rate"), nothing),
        "memory": _or(main.column("memory"), nothing),
    }  # fmt: skip
    columns["error"] = np.zeros(len(plan.step))
    printed, formula = _printed(plan)
    columns["printed"] = _or(printed, nothing)
    reader = replace(_READER, step_formula=formula)
    if np.isfinite(at).mean() > 0.9:
        columns["total"] = at
        columns["error"][:] = 0.0005 if (at % 1 != 0).any() else 0.5
        rebuild = "difference of timestamps / steps between the records"
        return replace(reader, rebuild=rebuild), columns
    elapsed = _elapsed(main)
    if elapsed is not None:
        columns["total"] = elapsed
        columns["error"][:] = 0.0005 if (elapsed % 1 != 0).any() else 0.5
        if np.isfinite(plan.inside).any():
            columns["since"] = np.where(np.diff(plan.inside, prepend=np.inf) < 0, 0.0, NAN)
        rebuild = "difference of elapsed times / steps between the records"
        return replace(reader, rebuild=rebuild, step="EMA"), columns
    return reader, columns


def _or(values: Array | None, otherwise: Array) -> Array:
    return otherwise if values is None else values


def _printed(plan: _Plan) -> tuple[Array | None, str]:
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


def _read_epochs(
    path: Path, miner: Miner, readings: list[Reading]
) -> tuple[RankRecord, Understanding]:
    """Read a log that counts epochs alone: no time of a step follows from it."""
    epochs = [
        one
        for one in readings
        if _is_training(one) and len(one.decisions) > 1 and _is_one_an_epoch(one)
    ]
    if not epochs:
        raise RecordError(_refusal(path, miner, readings))
    main = max(epochs, key=lambda one: len({decision.role for decision in one.decisions}))
    epoch = main.column("epoch")
    assert epoch is not None, "chosen for its epoch"
    builder = LogBuilder(is_rebuilt=False)
    builder.clock = miner.clock
    builder.is_steps_known = False
    builder.total_epochs = _total_epochs(main)
    for row, number in enumerate(epoch.tolist()):
        if row and number < epoch[row - 1]:
            builder.attempt += 1
            builder.restarts.append(f"the epoch went back from {epoch[row - 1]:g} to {number:g}")
        builder.summary(EPOCH, epoch=number, at=main.family.at[row])
        for place, decision in enumerate(main.decisions):
            if decision.role in ("loss", "metric"):
                builder.scalar(decision.name, number, main.family.flat[place][row])
    builder.note("lines count epochs, not steps: no time of a step follows from them")
    understood = _understanding(main, miner, readings)
    for note in _warnings(understood):
        builder.note(note)
    return finish(builder, _READER, confidence=0.9, file=str(path)), understood


def _is_one_an_epoch(reading: Reading) -> bool:
    """Whether there is one line an epoch: several are records of a count that is not printed."""
    epoch = reading.column("epoch")
    return epoch is not None and float((np.diff(epoch) == 0).mean()) < 0.1


def _refusal(path: Path, miner: Miner, readings: list[Reading]) -> str:
    repeated = [one.family for one in readings if one.family.count >= _FEWEST_ROWS]
    seen = (
        f"{path} holds no training record of a known format: no lines that count training steps or "
        f"epochs in {miner.lines} lines"
    )
    if not repeated:
        return f"{seen}; none repeats with other numbers. Try `pitstop doctor -- COMMAND`"
    closest: Family = max(
        repeated, key=lambda one: (any("loss" in s.words for s in one.slots), one.count)
    )
    names = ", ".join(dict.fromkeys(slot.name for slot in closest.slots if slot.name)) or "none"
    return (
        f"{seen}; closest, {closest.count} times: {closest.example!r} (fields: {names}). "
        f"Name its counter: `pitstop doctor {path} --step FIELD`"
    )


def _understanding(main: Reading, miner: Miner, readings: list[Reading]) -> Understanding:
    became = []
    for reading in sorted(readings, key=lambda one: -one.family.count)[:24]:
        what = {"eval": "evaluation"}.get(reading.family.phase, "not used")
        if reading is main:
            what = "training records"
        became.append((reading.family.count, what, reading.family.example))
    for phase in ("checkpoint", "resume"):
        count = sum(1 for *_, one in miner.events if one == phase)
        if count:
            became.append((count, phase, ""))
    decisions = main.decisions
    return Understanding(
        lines=miner.lines,
        became=tuple(became),
        fields=tuple(
            (one.name, one.role, one.confidence, one.evidence)
            for one in decisions
            if one.confidence >= SURE and one.role not in ("not understood", "time")
        ),
        not_understood=tuple(
            (one.name, one.evidence, main.family.example)
            for one in decisions
            if one.confidence < SURE or one.role in ("not understood", "time")
        )
        + _times_elsewhere(main, readings),
    )


def _times_elsewhere(main: Reading, readings: list[Reading]) -> tuple[tuple[str, str, str], ...]:
    """Times on lines that are no records: they are in the log, and nothing is made of them."""
    return tuple(
        (decision.name, "a time on a line of its own", reading.family.example)
        for reading in readings
        if reading is not main and reading.family.count >= _FEWEST_ROWS
        for decision in reading.decisions
        if decision.role in ("time", "time of a step", "wait for data")
    )[:4]


def _warnings(understood: Understanding) -> list[str]:
    return [
        f"not understood: {name}, e.g. {line} ({evidence})"
        for name, evidence, line in understood.not_understood[:8]
    ]


def _no_feed(builder: LogBuilder) -> Feed:
    """Take no lines: families are mined before anything is handed to a builder."""

    def feed(line: bytes) -> None:
        builder.damaged += bool(line)

    return feed


_READER = Reader(
    name=NAME,
    defined_by="lines that repeat with other numbers; no source defines them",
    start=_no_feed,
    mark=re.compile(rb"(?!)"),
    weight=0.0,
    step="not known",
    data="not known",
    rate="not known",
    scalars="not known",
)
