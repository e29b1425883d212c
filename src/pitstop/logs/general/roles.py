"""Decides what each number of a family is, from its name, its unit and how it goes on.

Every decision carries a confidence and its evidence. Below `SURE` a number is not understood, and
is said to be so: it is never called absent.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from pitstop.logs.general.families import Array, Family
from pitstop.logs.general.tokens import Slot

Role = Literal[
    "step", "epoch", "steps in all", "epochs in all", "loss", "learning rate", "time of a step",
    "time", "time of the interval", "elapsed", "wait for data", "samples/s", "tokens/s", "steps/s",
    "batch size", "memory", "left", "metric", "rank", "percent", "not understood",
]  # fmt: skip

SURE: Final = 0.5
_STEP_WORDS = frozenset(
    [
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "it",
        "itr",
        "batch",
        "batches",
        "update",
        "updates",
        "minibatch",
        "i",
        "globalstep",
    ]
)
_COUNT_WORDS = frozenset(("count", "idx", "n"))
_EPOCH_WORDS = frozenset(("epoch", "epochs", "ep"))
_TIME_WORDS = frozenset(
    ["time", "timer", "timing", "dt", "duration", "took", "takes", "sec", "secs", "seconds", "cost"]
)
_LEFT_WORDS = frozenset(("eta", "remaining", "left"))
_ELAPSED_WORDS = frozenset(("elapsed", "total", "since", "used", "spent", "wall", "cumulative"))
_DATA_WORDS = frozenset(("data", "load", "loading", "fetch", "dataloader", "loader"))
_STEP_TIME_WORDS = _STEP_WORDS | {"per", "dt", "avg", "average"}
_MEMORY_WORDS = frozenset(("mem", "memory", "vram", "cuda", "alloc", "allocated", "reserved"))
_RANK_WORDS = frozenset(("rank", "gpu", "worker", "proc", "process"))
_FEWEST_ROWS = 3
_MOSTLY = 0.6
_NEAR = 0.2


@dataclass(slots=True)
class Decision:
    """What one number of a family is."""

    role: Role
    confidence: float
    evidence: str
    name: str = ""


@dataclass(slots=True)
class Reading:
    """A family whose numbers were decided on."""

    family: Family
    decisions: list[Decision] = field(default_factory=list)

    def place(self, role: Role) -> int:
        """Where the surest number of a role stands; -1 without one."""
        found = [
            (decision.confidence, -place)
            for place, decision in enumerate(self.decisions)
            if decision.role == role and decision.confidence >= SURE
        ]
        return -max(found)[1] if found else -1

    def column(self, role: Role) -> Array | None:
        """The numbers of a role; None without any."""
        place = self.place(role)
        return None if place < 0 else self.family.column(place)

    def settle(self, role: Role, confidence: float, evidence: str, *, place: int) -> None:
        """Change a decision in the light of other numbers."""
        name = self.decisions[place].name
        self.decisions[place] = Decision(role, confidence, evidence, name)

    @property
    def has_step(self) -> bool:
        """Whether its lines are counted in steps."""
        return self.place("step") >= 0


def decide(family: Family, *, step: str = "") -> Reading:
    """Decide on every number of a family.

    Args:
        family: All of its lines are in.
        step: Name that the user gave for the step.
    """
    reading = Reading(family)
    for place, slot in enumerate(family.slots):
        values = family.column(place)
        decision = _by_name(slot, values)
        decision.name = slot.name or "(no name)"
        reading.decisions.append(decision)
    _totals(reading)
    if step:
        _as_told(reading, step)
    else:
        _choose_step(reading)
    return reading


def _by_name(slot: Slot, values: Array) -> Decision:
    """Decide by name, unit and the values alone."""
    words = set(slot.words)
    if slot.is_mean:
        return Decision("metric", SURE, "running mean of the number before")
    if slot.is_total:
        return Decision("steps in all", SURE, "stands after a slash")
    for rule in (_timed, _counted, _measured):
        found = rule(slot, words, values)
        if found is not None:
            return found
    if slot.name:
        return Decision("metric", 0.7, "a named number")
    return Decision("not understood", 0.0, "has no name")


def _timed(  # noqa: PLR0911 - one return a kind of time
    slot: Slot, words: set[str], values: Array
) -> Decision | None:
    rates: dict[str, Role] = {
        "rate of steps": "steps/s", "rate of samples": "samples/s", "rate of tokens": "tokens/s",
        "time of a step": "time of a step",
    }  # fmt: skip
    if slot.unit in rates:
        return Decision(rates[slot.unit], 0.95, "by its unit")
    if slot.unit == "rate":
        return Decision("not understood", 0.3, "a rate of something unknown")
    if not slot.unit and (rate := _rate_by_name(slot, words)) is not None:
        return rate
    is_time = slot.unit in ("time", "duration") or bool(words & (_TIME_WORDS | _LEFT_WORDS))
    if not is_time or (words & {"loss", "step", "epoch"} and slot.unit == "" and _is_count(values)):
        return None
    if words & _LEFT_WORDS:
        return Decision("left", 0.9, "by its name")
    if words & _DATA_WORDS:
        return Decision("wait for data", 0.9, "by its name")
    if words & _ELAPSED_WORDS and _rises(values) >= _MOSTLY:
        return Decision("elapsed", 0.9, "by its name, and it rises")
    return Decision("time", 0.3, "a time: of a step, of an interval or since the start")


def _rate_by_name(slot: Slot, words: set[str]) -> Decision | None:
    name = slot.name.lower().replace(" ", "").replace("_per_", "/").replace("per", "/")
    if name.endswith(("/s", "/sec", "/second")):
        if words & {"samples", "sample", "imgs", "img", "images", "examples"}:
            return Decision("samples/s", 0.9, "by its name")
        if words & {"tokens", "tok", "words"}:
            return Decision("tokens/s", 0.9, "by its name")
        if words & _STEP_WORDS:
            return Decision("steps/s", 0.9, "by its name")
        return Decision("not understood", 0.3, "a rate of something unknown")
    return None


def _counted(  # noqa: C901, PLR0911 - one return a kind of count
    slot: Slot, words: set[str], values: Array
) -> Decision | None:
    last = slot.words[-1] if slot.words else ""
    if slot.unit == "percent":
        return Decision("percent", 0.9, "by its unit")
    if words & {"size", "bs"} and "batch" in words | {"batch" if "bs" in words else ""}:
        return Decision("batch size", 0.9, "by its name")
    if "loss" in words or "losses" in words or any(word.endswith("loss") for word in words):
        return Decision("loss", 0.9, "by its name")
    if words & _EPOCH_WORDS and last not in _STEP_WORDS:
        if _is_count(np.floor(values)):
            return Decision("epoch", 0.95, "by its name")
    elif last in _STEP_WORDS | _COUNT_WORDS and _is_count(values):
        return Decision("not understood", 0.4, "a counter by its name")
    elif slot.has_total and _is_count(values):
        return Decision("not understood", 0.35, "stands before a slash")
    elif words & _RANK_WORDS and _is_count(values) and len(np.unique(values)) > 1:
        return Decision("rank", 0.6, "by its name")
    return None


def _measured(slot: Slot, words: set[str], values: Array) -> Decision | None:
    del values
    if words and words <= _DATA_WORDS:
        return Decision("not understood", 0.4, "a wait for data, or another number")
    if words & {"lr", "learningrate"} or {"learning", "rate"} <= words:
        return Decision("learning rate", 0.95, "by its name")
    if slot.unit == "bytes" and (words & _MEMORY_WORDS or not words):
        return Decision("memory", 0.9 if words else 0.6, "by its unit")
    return None


def _totals(reading: Reading) -> None:
    """Say of what the number behind a slash is the total, and of ``[1, 200]`` which is which."""
    decisions, slots = reading.decisions, reading.family.slots
    for place, slot in enumerate(slots):
        if slot.is_total:
            before = decisions[place - 1]
            if before.role == "epoch":
                reading.settle("epochs in all", 0.9, "stands after the epoch", place=place)
            elif before.role != "not understood":
                reading.settle("metric", SURE, f"stands after {before.name}", place=place)
    named = [slot.name for slot in slots]
    if len(slots) > 2 and named[:2] == ["", ""] and slots[0].opens == "[" and not slots[1].is_total:
        columns = reading.family.column(0), reading.family.column(1)
        if all(_is_count(column) for column in columns) and slots[1].opens == ",":
            reading.settle("epoch", 0.7, "the first of two counts in brackets", place=0)
            reading.settle("not understood", 0.4, "the second of two counts", place=1)


def _choose_step(reading: Reading) -> None:
    """Choose the counter of steps: it rises by a constant, and is no epoch."""
    best, best_score = -1, 0.0
    for place, (slot, decision) in enumerate(
        zip(reading.family.slots, reading.decisions, strict=True)
    ):
        if decision.role != "not understood" or slot.is_total or slot.unit:
            continue
        if _may_be_anything(slot, reading):
            continue
        score = _step_score(slot, reading.family.column(place))
        if score > best_score:
            best, best_score = place, score
    if best < 0 or best_score < SURE:
        return
    evidence = f"a counter that rises by {_usual_rise(reading.family.column(best)):g}"
    reading.settle("step", min(best_score, 0.99), evidence, place=best)
    for place, decision in enumerate(reading.decisions):
        if place != best and decision.role == "steps in all" and place != best + 1:
            reading.settle("metric", SURE, "the total of another count", place=place)


def _may_be_anything(slot: Slot, reading: Reading) -> bool:
    """Whether a count is of images, files or solutions as well as of steps."""
    if set(slot.words) & _COUNT_WORDS:
        return reading.place("loss") < 0
    return not slot.name and not _is_of_steps(reading)


def _is_of_steps(reading: Reading) -> bool:
    """Whether something beside a count without a name says that it counts steps."""
    return reading.place("loss") >= 0 or any(
        slot.opens == "<" or slot.unit in ("rate of steps", "time of a step")
        for slot in reading.family.slots
    )


def _step_score(slot: Slot, values: Array) -> float:
    if not _is_count(values) or len(values) < _FEWEST_ROWS:
        return 0.0
    words = set(slot.words)
    rises = _rises(values)
    if rises < _MOSTLY or _usual_share(values) < 0.4:
        return 0.0
    score = 0.5 * rises
    score += 0.3 if words & (_STEP_WORDS | _COUNT_WORDS) else 0.0
    score += 0.15 if slot.has_total else 0.0
    score += 0.1 if "global" in words else 0.0
    if not slot.name and not slot.has_total:
        score = 0.5 * rises + (0.1 if slot.opens == "[" else -0.1)
    if words and not words & (_STEP_WORDS | _COUNT_WORDS):
        score = 0.0
    return score


def _as_told(reading: Reading, name: str) -> None:
    for place, slot in enumerate(reading.family.slots):
        if slot.name.lower() == name.lower() and not slot.is_total and not slot.is_mean:
            reading.settle("step", 1.0, "named by the user", place=place)
            return


def _is_count(values: Array) -> bool:
    """Whether all are whole numbers that a counter can have."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(((finite >= 0) & (finite == np.floor(finite))).all())


def _rises(values: Array) -> float:
    """Share of rises among the changes: a bar may be drawn twice at one count."""
    changes = np.diff(values)
    changes = changes[changes != 0]
    return float((changes > 0).mean()) if len(changes) else 0.0


def _usual_rise(values: Array) -> float:
    rises = np.diff(values)
    rises = rises[rises > 0]
    if not len(rises):
        return 0.0
    found, counts = np.unique(rises, return_counts=True)
    return float(found[np.argmax(counts)])


def _usual_share(values: Array) -> float:
    """Share of the rises that are the usual one; bars are drawn by time, so near ones count."""
    rises = np.diff(values)
    rises = rises[rises > 0]
    if not len(rises):
        return 0.0
    middle = float(np.median(rises))
    return float(((rises >= middle / 4) & (rises <= middle * 4)).mean())


def judge_times(reading: Reading, step: Array, *, at: Array, named_time: str) -> None:
    """Decide what the times of a family are, by the clock, by rates and by what they are called.

    Args:
        reading: Its step is known.
        step: Steps over the run.
        at: Moments of its lines; NaN without a clock.
        named_time: Name of the time of a step, as the user gave it.
    """
    for place, decision in enumerate(reading.decisions):
        slot = reading.family.slots[place]
        if named_time and slot.name.lower() == named_time.lower() and not slot.is_mean:
            reading.settle("time of a step", 1.0, "named by the user", place=place)
        elif decision.role == "time":
            _judge_time(reading, place, step, at)


def _judge_time(reading: Reading, place: int, step: Array, at: Array) -> None:
    slot, values = reading.family.slots[place], reading.family.column(place)
    words = set(slot.words)
    rises = np.diff(step)
    usual = float(np.median(rises[rises > 0])) if (rises > 0).any() else 1.0
    by = _against(values[1:], np.diff(at), rises)
    rate = reading.column("steps/s")
    if by == "" and rate is not None:
        with np.errstate(divide="ignore"):
            by = _against(values, usual / rate, np.full(len(values), usual))
    if _is_running(values, step):
        reading.settle("elapsed", 0.8, "rises from line to line", place=place)
    elif by == "step":
        reading.settle("time of a step", 0.95, "agrees with the clock, times steps", place=place)
    elif by == "interval":
        reading.settle("time of the interval", 0.95, "agrees with the clock", place=place)
    elif slot.unit == "duration":
        reading.settle("not understood", 0.3, "a duration of something", place=place)
    elif usual == 1 and not words & _ELAPSED_WORDS and np.isnan(at).all():
        reading.settle("time of a step", 0.75, "every step is printed", place=place)
    elif words & _STEP_TIME_WORDS and np.isnan(at).all():
        reading.settle("time of a step", 0.8, "by its name", place=place)
    else:
        evidence = f"a time of one step or of {usual:g}: the log does not tell"
        reading.settle("not understood", 0.4, evidence, place=place)


def _is_running(values: Array, step: Array) -> bool:
    """Whether a time only rises while steps do: then it counts from a start."""
    together = np.diff(values)[np.diff(step) > 0]
    return len(together) >= _FEWEST_ROWS and float((together > 0).mean()) > 0.95


def _against(values: Array, spent: Array, steps: Array) -> str:
    """Hold times against what went by: are they of a step, or of all steps in between?"""
    good = np.isfinite(spent) & (spent > 0) & (steps > 0) & (values > 0)
    if good.sum() < _FEWEST_ROWS:
        return ""
    whole = float(np.median(values[good] / spent[good]))
    single = float(np.median(values[good] * steps[good] / spent[good]))
    if abs(single - 1) < _NEAR:
        return "step"
    return "interval" if abs(whole - 1) < _NEAR else ""
