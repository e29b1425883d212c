"""Reads a log of any shape: mine its lines, decide what they are, tell the builder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.errors import RecordError
from pitstop.logs.builder import EPOCH, NAN, LogBuilder
from pitstop.logs.clock import Clock
from pitstop.logs.finish import finish
from pitstop.logs.general.evidence import is_training, unread
from pitstop.logs.general.families import Family, Miner
from pitstop.logs.general.pairs import with_next_lines
from pitstop.logs.general.plan import one_series, plan_of, total_epochs, with_unit
from pitstop.logs.general.roles import (
    COUNTS,
    FEWEST_ROWS,
    SURE,
    Reading,
    Role,
    decide,
    name_epochs,
)
from pitstop.logs.general.tell import READER, tell
from pitstop.logs.lines import stream
from pitstop.records.logs.windows import Disagreement
from pitstop.records.run import RankRecord

UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "min": 60.0}
_RARE = 10
_AMONG = 100
_MIXED = 0.2
_TWICE = 0.25
_RIGHT_ANSWERS = frozenset(("acc", "accuracy", "correct"))
_FULL = 0.9
_MANY = 2
_MOST_ELSEWHERE = 8
_MOST_LISTED = 24
_ELSEWHERE: Final[dict[Role, str]] = {
    "time": "a time on a line of its own",
    "time of a step": "a time on a line of its own",
    "wait for data": "a time on a line of its own",
    "loss": "a loss on a line of its own",
    "learning rate": "a learning rate on a line of its own",
    "memory": "memory on a line of its own",
}


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
    is_sure: bool = True
    """Whether it may be believed unasked."""
    doubt: str = ""
    """Why not, where something speaks against it."""


def read_general(path: Path, hints: FieldHints | None = None) -> tuple[RankRecord, Understanding]:
    """Read a log of any shape.

    Raises:
        RecordError: No lines count steps or epochs; the message says which came closest.
    """
    hints = hints or FieldHints()
    miner = _mined(path)
    families = miner.families
    for option, name in (("step", hints.step), ("time", hints.time)):
        _require_field(path, families, option=option, name=name)
    readings = _decided(families, hints)
    has_loss = any(one.has("loss") and len(one.family) >= FEWEST_ROWS for one in readings)
    steps = [one for one in readings if _may_count(one, has_loss=has_loss, told=bool(hints.step))]
    if not hints.step:
        steps = [one for one in steps if not _is_aside(one, miner)]
        steps = [one for one in steps if not _draws_epochs(one, readings)]
    steps = steps or [one for one in readings if _times_the_training(one)]
    if not steps:
        return _read_epochs(path, miner, readings)
    plan = plan_of(max(steps, key=_worth), readings, step=hints.step, time=hints.time)
    builder = LogBuilder(is_rebuilt=True)
    builder.clock = miner.clocks.get(plan.main.family.shape) or Clock()
    resumed = [line for line, phase in miner.events if phase == "resume" and line > plan.lines[0]]
    if resumed and plan.counting and plan.main.place("epoch") < 0:
        plan.doubt = "whose count begins anew, in a log that says that it was resumed"
    reader = tell(builder, plan, miner, readings)
    reader = replace(reader, is_count_defined=bool(hints.step))
    understood = _understanding(plan.main, miner, readings)
    if not is_training(plan.main, plan.step, plan.epoch, doubt=plan.doubt):
        understood = replace(understood, is_sure=False, doubt=plan.doubt)
    for note in (*miner.notes, *plan.notes, *_warnings(understood)):
        builder.note(note)
    confidence = plan.main.decisions[plan.main.place("step")].confidence
    return finish(builder, reader, confidence=confidence, file=str(path)), understood


def _decided(families: list[Family], hints: FieldHints) -> list[Reading]:
    """Decide on every family, first alone, then in the light of the others."""
    if hints.time and hints.unit:
        with_unit(families, hints.time, UNITS[hints.unit])
    readings = [decide(family, step=hints.step) for family in families]
    readings = with_next_lines(readings, step=hints.step)
    if not hints.step:
        name_epochs(readings)
    return readings


def _require_field(path: Path, families: list[Family], *, option: str, name: str) -> None:
    """Refuse a field that the user names and no line has.

    Raises:
        RecordError: There is none; the message lists those that repeat.
    """
    names = {slot.name: None for family in families for slot in family.slots if slot.name}
    if name and name.lower() not in {one.lower() for one in names}:
        repeated = [family for family in families if family.count >= FEWEST_ROWS]
        known = dict.fromkeys(slot.name for one in repeated for slot in one.slots if slot.name)
        listed = ", ".join(list(known)[:_MOST_LISTED]) or "none"
        raise RecordError(f"--{option} {name}: no line of {path} has that field; fields: {listed}")


def read_if_sure(path: Path) -> RankRecord:
    """Read a log of no known format where its lines leave little doubt.

    Raises:
        RecordError: They do, or nothing counts steps or epochs.
    """
    return believed(path, *read_general(path))


def believed(path: Path, rank: RankRecord, understood: Understanding) -> RankRecord:
    """Give what was read where its lines leave little doubt.

    Raises:
        RecordError: They do.
    """
    if understood.is_sure:
        return rank
    count, _, line = understood.became[0]
    doubt = understood.doubt or "which names neither its counter nor a loss"
    raise RecordError(
        f"{path} holds no training record of a known format; closest, {count} times: {line!r}, "
        f"{doubt}. `--explain` shows what the general reader makes of it; `--format general` "
        "judges by that: check it first"
    )


def _mined(path: Path) -> Miner:
    miner = Miner()
    for lines, is_whole in stream(path, miner.notes.append):
        if not is_whole and miner.lines:
            miner.feed_torn(lines[0])
            continue
        before = b""
        for line in lines:
            if line != before:
                miner.feed(line)
            before = line
    return miner


def _may_count(reading: Reading, *, has_loss: bool, told: bool) -> bool:
    """Whether the lines of a family may be the training's records.

    A bar without a name is the training's only where the log has a loss at all.
    """
    if reading.place("step") < 0 or reading.family.phase not in ("train", ""):
        return False
    if told:
        return True
    steps = reading.family.column(reading.place("step"))
    if np.count_nonzero(np.diff(steps)) < FEWEST_ROWS or len(reading.decisions) < 2:
        return False
    is_named = reading.family.phase == "train" or reading.place("epoch") >= 0
    if reading.family.is_bar and not has_loss and not is_named:
        return False
    return _is_one_count(reading)


def _is_aside(reading: Reading, miner: Miner) -> bool:
    """Whether a few lines among very many others count something: hardly the training's steps."""
    return reading.family.count < _RARE and miner.numbered > _AMONG * reading.family.count


def _draws_epochs(reading: Reading, readings: list[Reading]) -> bool:
    """Whether a bar without a name counts as far as other lines count epochs."""
    place = reading.place("step")
    slot = reading.family.slots[place]
    if not reading.family.is_bar or slot.name or not slot.has_total or reading.place("epoch") >= 0:
        return False
    totals = reading.family.column(place + 1)
    epochs = [one.column("epoch") for one in readings if len(one.family) >= FEWEST_ROWS]
    done = reading.family.column(place).max()
    return any(
        abs(float(np.nanmax(found)) - goal) <= 1
        for found in epochs
        if found is not None
        for goal in (float(np.median(totals)), float(done))
    )


def _times_the_training(reading: Reading) -> bool:
    """Whether lines of an evaluation count steps and say how long the training took so far."""
    return reading.place("step") >= 0 and any(
        decision.role == "time" and "train" in slot.words
        for decision, slot in zip(reading.decisions, reading.family.slots, strict=True)
    )


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


def _worth(reading: Reading) -> tuple[int, bool, bool, int]:
    """Prefer lines of the training by name, with a clock, with a loss, and many."""
    is_timed = reading.family.shape >= 0 or reading.has("elapsed", "steps/s", "left")
    return (
        reading.family.count >= _RARE and (is_timed or reading.has("loss")),
        reading.family.phase == "train" or reading.has("loss"),
        is_timed or reading.has("time", "time of a step"),
        reading.family.count,
    )


def _read_epochs(
    path: Path, miner: Miner, readings: list[Reading]
) -> tuple[RankRecord, Understanding]:
    """Read a log that counts epochs alone: no time of a step follows from it."""
    has_loss = any(one.has("loss") and len(one.family) >= FEWEST_ROWS for one in readings)
    epochs, note = _epochs_of(readings, has_loss=has_loss)
    if not epochs or _are_steps_unread(readings):
        raise RecordError(_refusal(path, miner, readings))
    main = max(epochs, key=_worth_of_epochs)
    alike = [one for one in readings if one in epochs or len(one.family) < FEWEST_ROWS]
    main = one_series(main, alike, role="epoch")
    builder = LogBuilder(is_rebuilt=False)
    builder.clock = miner.clocks.get(main.family.shape) or Clock()
    _tell_epochs(builder, main, [line for line, phase in miner.events if phase == "resume"])
    builder.note("lines count epochs, not steps: no time of a step follows from them")
    if note:
        builder.note(note)
    for line in _within_epochs(main, readings):
        builder.note(f"not understood: lines within epochs, e.g. {line}")
    understood = _understanding(main, miner, readings)
    if doubt := unread(main, epochs, role="epoch"):
        understood = replace(understood, is_sure=False, doubt=doubt)
    for note in (*miner.notes, *_warnings(understood)):
        builder.note(note)
    return finish(builder, READER, confidence=0.9, file=str(path)), understood


def _epochs_of(readings: list[Reading], *, has_loss: bool) -> tuple[list[Reading], str]:
    """Choose lines of which there is one an epoch, and say how where they are not printed so.

    Else the last of each epoch of such as come many times in it and count nothing else; else those
    that name the epoch where a model is saved or evaluated.
    """
    found = [one for one in readings if _is_one_an_epoch(one, has_loss=has_loss)]
    if found:
        return found, ""
    ends = [one for one in readings if one.family.phase in ("train", "") and one.has("loss")]
    ends = [last for one in ends if (last := _last_of_each(one)) is not None]
    if ends:
        return ends, "many lines an epoch without a count of their own: the last is its record"
    for phase, where in (("checkpoint", "a model is saved"), ("eval", "it is evaluated")):
        rare = [one for one in readings if one.family.phase == phase and one.has("loss")]
        rare = [last for one in rare if (last := _last_of_each(one, most=np.inf)) is not None]
        if rare:
            return rare, f"an epoch is named only where {where}"
    return [], ""


def _last_of_each(reading: Reading, *, most: float = 1.0) -> Reading | None:
    """Keep the last line of each epoch; nothing unless epochs follow each other.

    Args:
        reading: May hold several lines of an epoch.
        most: How much higher an epoch may be than the one before, unless a run begins anew.
    """
    epoch = reading.column("epoch")
    if epoch is None or not (epoch % 1 == 0).all() or reading.has("step"):
        return None
    ends = np.diff(epoch, append=np.nan) != 0
    rises = np.diff(epoch[ends])
    follow = ((rises > 0) & (rises <= most)) | (epoch[ends][1:] == epoch.min())
    # An epoch that comes twice may be another process's.
    are_many = len(epoch) >= _MANY * ends.sum() if most == 1 else bool(ends.all())
    is_enough = ends.sum() >= FEWEST_ROWS and follow.all() and are_many
    return Reading(reading.family.only(ends), reading.decisions) if is_enough else None


def _worth_of_epochs(reading: Reading) -> tuple[bool, bool, int, int]:
    """Prefer lines with a loss, with a result beside the epoch, and many: others head an epoch."""
    no_results = ("epoch", "epochs in all", "step", "learning rate")
    beside = [one for one in reading.decisions if one.role not in no_results]
    return reading.has("loss"), bool(beside), reading.family.count, len(reading.decisions)


def _tell_epochs(builder: LogBuilder, main: Reading, resumed: list[int]) -> None:
    """Hand a record for each epoch to the builder; another attempt where epochs go back.

    Args:
        builder: Takes them.
        main: Lines that count epochs.
        resumed: Lines that say that the training goes on.
    """
    epoch, rates = main.column("epoch"), main.column("learning rate")
    assert epoch is not None, "chosen for its epoch"
    builder.is_steps_known = False
    builder.total_epochs = total_epochs(main)
    backs, stays = int((np.diff(epoch) < 0).sum()), int((np.diff(epoch) == 0).sum())
    # An epoch that comes twice is another attempt or a second line of the same: not known.
    is_mixed = backs > 0 and (stays > 0 or (backs > _RARE and backs > _MIXED * len(epoch)))
    if is_mixed:
        message = "epochs go back: several runs seem to write into one file"
        builder.note(message)
        builder.found.append(Disagreement(code="steps went back", message=message, times=backs))
    elif stays:
        builder.note(
            "epochs come again: of another process, or two lines of one; they are not counted as "
            "attempts"
        )
    for row, number in enumerate(epoch.tolist()):
        is_first_again = row and number == epoch[row - 1] == epoch.min()
        begin, end = main.family.line[max(row - 1, 0)], main.family.line[row]
        is_resumed = any(begin < line < end for line in resumed)
        if not is_mixed and row and (number < epoch[row - 1] or is_first_again or is_resumed):
            builder.attempt += 1
            builder.restarts.append(f"epoch {number:g} comes after epoch {epoch[row - 1]:g}")
        lr = NAN if rates is None else float(rates[row])
        builder.summary(EPOCH, epoch=number, at=main.family.at[row], lr=lr)
        for place, decision in enumerate(main.decisions):
            if decision.role in ("loss", "metric") and main.family.prints(place, row):
                builder.scalar(decision.name, number, main.family.flat[place][row])


def _is_one_an_epoch(reading: Reading, *, has_loss: bool) -> bool:
    """Whether there is one line an epoch: several are records of a count that is not printed.

    A line with nothing but the epoch heads what follows, in a log that has a loss at all.
    """
    epoch = reading.column("epoch")
    if epoch is None or reading.family.phase not in ("train", ""):
        return False
    is_alone = len(reading.decisions) < 2 and not has_loss
    if len(epoch) < FEWEST_ROWS or is_alone or (epoch % 1 != 0).any():
        return False
    rises = np.diff(epoch)
    # One may come twice: a process that goes on from the checkpoint before.
    is_one = (rises == 0).sum() <= max(len(rises) > FEWEST_ROWS, _TWICE * len(rises))
    return bool(is_one) and float((rises > 0).mean()) > 0.5


def _within_epochs(main: Reading, readings: list[Reading]) -> list[str]:
    """Examples of lines with a loss and an epoch of which there are several in each epoch."""
    return [
        one.family.example
        for one in readings
        if one.family.count > main.family.count
        and one.family.phase in ("train", "")
        and one.has("loss")
        and one.place("epoch") >= 0
        and one.family.example != main.family.example
    ][:2]


def _are_steps_unread(readings: list[Reading]) -> bool:
    """Whether lines with counts were not understood: then epochs are not all there is."""
    return any(
        decision.evidence in COUNTS
        and slot.has_total
        and reading.has("loss", "left")
        and not _is_constant(reading, place)
        and not _is_full(reading, place)
        and not set(slot.words) & _RIGHT_ANSWERS  # Accuracy: 4435/10000
        for reading in readings
        if reading.family.count >= _RARE and reading.family.phase in ("train", "")
        for place, (decision, slot) in enumerate(
            zip(reading.decisions, reading.family.slots, strict=True)
        )
    )


def _refusal(path: Path, miner: Miner, readings: list[Reading]) -> str:
    repeated = [one.family for one in readings if one.family.count >= FEWEST_ROWS]
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
    became = [(main.family.count, "training records", main.family.example)]
    for reading in sorted(readings, key=lambda one: -one.family.count)[:24]:
        if reading.family.example != main.family.example:
            what = {"eval": "evaluation"}.get(reading.family.phase, "not used")
            became.append((reading.family.count, what, reading.family.example))
    for phase in ("checkpoint", "resume"):
        count = sum(1 for _, one in miner.events if one == phase)
        if count:
            became.append((count, phase, ""))
    decided = list(zip(main.decisions, main.family.slots, strict=True))
    return Understanding(
        lines=miner.lines,
        became=tuple(became),
        fields=tuple(
            (one.name, one.role, one.confidence, one.evidence)
            for one, _ in decided
            if one.confidence >= SURE and one.role not in ("not understood", "time")
        ),
        not_understood=tuple(
            (one.name, one.evidence, main.family.example)
            for place, (one, _) in enumerate(decided)
            if (one.confidence < SURE or one.role in ("not understood", "time"))
            and not _is_constant(main, place)
        )
        + _elsewhere(main, readings),
    )


def _is_constant(reading: Reading, place: int) -> bool:
    """Whether a count is the same in every line: a line number of the source, a setting."""
    values = reading.family.column(place)
    return reading.decisions[place].evidence in COUNTS and bool((values == values[0]).all())


def _is_full(reading: Reading, place: int) -> bool:
    """Whether a bar is drawn at its end alone: it shows no step on the way there."""
    full = reading.family.column(place) == reading.family.column(place + 1)
    return reading.family.is_bar and float(full.mean()) > _FULL


def _elsewhere(main: Reading, readings: list[Reading]) -> tuple[tuple[str, str, str], ...]:
    """Fields on lines that are no records: they are in the log, and nothing is made of them."""
    found: dict[tuple[str, str], str] = {}
    for reading in readings:
        if reading.family.example == main.family.example or reading.family.count < FEWEST_ROWS:
            continue
        for decision in reading.decisions:
            why = _ELSEWHERE.get(decision.role, "")
            is_new = decision.name != "(no name)" and not main.has(decision.role)
            if why and (is_new or decision.role in ("time", "time of a step", "wait for data")):
                found.setdefault((decision.name, why), reading.family.example)
        if main.family.shape < 0 <= reading.family.shape:
            found.setdefault(("timestamps", "a timestamp on other lines"), reading.family.example)
    return tuple((name, why, line) for (name, why), line in found.items())[:_MOST_ELSEWHERE]


def _warnings(understood: Understanding) -> list[str]:
    return [
        f"not understood: {name}, e.g. {line} ({evidence})"
        for name, evidence, line in understood.not_understood[:16]
    ]
