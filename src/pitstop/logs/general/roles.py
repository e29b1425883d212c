"""Decides what each number of a family is, from its name, its unit and how it goes on.

Every decision carries a confidence and its evidence. Below `SURE` a number is not understood, and
is said to be so: it is never called absent. A counter must rise steadily; a time needs a second
source that agrees (timestamps, time left, a rate), or a name and a unit that leave no doubt.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from pitstop.logs.general.families import Array, Family, Mask
from pitstop.logs.general.hints import HINTS, STEPS, Hint
from pitstop.logs.general.tokens import Slot

Role = Literal[
    "step", "epoch", "steps in all", "epochs in all", "loss", "learning rate", "time of a step",
    "time", "time of the interval", "elapsed", "wait for data", "samples/s", "tokens/s", "steps/s",
    "batch size", "memory", "left", "metric", "rank", "percent", "not understood",
]  # fmt: skip

SURE: Final = 0.5
FEWEST_ROWS: Final = 3
_STEP_WORDS = frozenset([
    "step", "steps", "iter", "iters", "iteration", "iterations", "it", "itr", "batch",
    "batches", "update", "updates", "minibatch", "globalstep", "niter",
])  # fmt: skip
_LAST_STEP_WORDS = frozenset(("step", "iter", "iteration"))
_PHASE_WORDS = frozenset(("train", "training"))
"""Before a count with a total, as good as none: ``[Train 10/1882]``."""
_WEAK_STEP_WORDS = frozenset(("count", "idx", "n", "i"))
_AROUND_STEP = frozenset(("id", "idx", "index", "no", "number", "current", "global", "train"))
_BATCH_WORDS = frozenset(("batch", "size", "bs", "train", "training"))
"""A name of these alone is the batch of one step on one rank; a global or micro one is another."""
_NO_STEP = frozenset([
    "val", "valid", "validation", "test", "eval", "best", "warmup", "max", "num", "per",
    "every", "interval", "patience", "total", "size", "remaining", "left", "saved", "resume",
    "resumed", "from",
])  # fmt: skip
_EPOCH_WORDS = frozenset(("epoch", "epochs", "ep", "epo"))
_TIME_WORDS = frozenset([
    "time", "timer", "timing", "dt", "duration", "took", "takes", "sec", "secs", "seconds",
    "cost", "elapsed", "batchtime", "datatime", "itertime", "steptime", "traintime",
])  # fmt: skip
_LEFT_WORDS = frozenset(("eta", "remaining", "left", "remain"))
_ELAPSED_WORDS = frozenset(("elapsed", "total", "since", "used", "spent", "wall", "cumulative"))
_DATA_WORDS = frozenset(("data", "load", "loading", "fetch", "dataloader", "loader", "reader"))
_MEMORY_WORDS = frozenset(
    ["mem", "memory", "vram", "cuda", "alloc", "allocated", "reserved", "maxmem", "peak", "gpumem"]
)
_RANK_WORDS = frozenset(("rank", "gpu", "worker", "proc", "process"))
_RATE_WORDS: Final[dict[str, tuple[Role, frozenset[str]]]] = {
    "samples": (
        "samples/s",
        frozenset(("samples", "sample", "imgs", "img", "images", "image", "examples", "seqs")),
    ),
    "tokens": ("tokens/s", frozenset(["tokens", "token", "tok", "toks", "words"])),
    "steps": ("steps/s", _STEP_WORDS),
}  # fmt: skip
_BY_NAME, _BEFORE_SLASH, _NAMELESS = "a counter by its name", "stands before a slash", "has no name"
COUNTS: Final = (_BY_NAME, _BEFORE_SLASH, _NAMELESS)
"""Evidence of counts that were not chosen as the step."""
WITHIN: Final = "another count runs to its total within it"
_AGREES, _PLAIN = "agrees with a second source", "by its name and unit"
_AGREED: Final[dict[str, Role]] = {
    "step": "time of a step",
    "interval": "time of the interval",
}
_MOSTLY = 0.6
_NEARLY = 0.9
_SOME = 0.3
_NEAR = 0.2
_LOST = 0.02
_FEWEST_LEFT = 10
_FEWEST_UNITS = 5.0


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

    def has(self, *roles: Role) -> bool:
        """Whether a number of one of these roles is in it, sure or not."""
        return any(decision.role in roles for decision in self.decisions)


def decide(family: Family, *, step: str = "") -> Reading:
    """Decide on every number of a family.

    Args:
        family: All of its lines are in.
        step: Name that the user gave for the step.
    """
    reading = Reading(family)
    for place, slot in enumerate(family.slots):
        decision = _by_name(slot, family.column(place))
        decision.name = slot.name or "(no name)"
        reading.decisions.append(decision)
    _totals(reading)
    _bar_times(reading)
    if step:
        _as_told(reading, step)
    else:
        _choose_step(reading)
    _epoch_by_nesting(reading)
    return reading


def _by_name(slot: Slot, values: Array) -> Decision:
    """Decide by name, unit and the values alone."""
    words = set(slot.words)
    if slot.is_mean:
        return Decision("metric", SURE, "running mean of the number before")
    if slot.is_total:
        return Decision("steps in all", SURE, "stands after a slash")
    for rule in (_rated, _timed, _counted, _measured):
        found = rule(slot, words, values)
        if found is not None:
            return found
    if slot.name:
        return Decision("metric", 0.7, "a named number")
    return Decision("not understood", 0.0, _NAMELESS)


def _rated(slot: Slot, words: set[str], values: Array) -> Decision | None:
    """Rates: by unit, or by a name such as ``tokens_per_sec``."""
    del values
    by_unit: dict[str, Role] = {
        "rate of steps": "steps/s", "rate of samples": "samples/s", "rate of tokens": "tokens/s",
        "time of a step": "time of a step",
    }  # fmt: skip
    if slot.unit in by_unit:
        return Decision(by_unit[slot.unit], 0.95, "by its unit")
    hint = HINTS.get(slot.name.lower().replace(" ", "_"))
    if hint is not None and hint.role in ("samples/s", "tokens/s", "steps/s") and not slot.unit:
        return Decision(hint.role, 0.9, f"as {hint.of} names it")
    name = slot.name.lower().replace(" ", "").replace("_per_", "/").replace("per", "/")
    if slot.unit == "rate" or (not slot.unit and name.endswith(("/s", "/sec", "/second"))):
        for role, known in _RATE_WORDS.values():
            if words & known and not slot.unit:
                return Decision(role, 0.9, "by its name")
        return Decision("not understood", 0.3, "a rate of something unknown")
    return None


def _timed(slot: Slot, words: set[str], values: Array) -> Decision | None:
    is_time = slot.unit in ("time", "duration") or bool(words & (_TIME_WORDS | _LEFT_WORDS))
    is_time |= slot.name in ("t", "T")
    if not is_time or (words & {"loss", "step", "epoch"} and not slot.unit and _is_count(values)):
        return None
    if words & _LEFT_WORDS:
        return Decision("left", 0.9, "by its name")
    if words & _DATA_WORDS:
        return Decision("time", 0.35, "a wait for data by its name")
    return Decision("time", 0.3, "a time: of a step, of an interval or since the start")


def _counted(slot: Slot, words: set[str], values: Array) -> Decision | None:
    if slot.unit == "percent":
        return Decision("percent", 0.9, "by its unit")
    if words & {"size", "bs"} and words & {"batch", "batchsize", "bs"}:
        if words <= _BATCH_WORDS:
            return Decision("batch size", 0.9, "by its name")
        return Decision("not understood", 0.3, "a batch size of something else than a step's rank")
    # "Loss at step 12: 3.4": the last word says what is counted.
    ends = slot.words[-1:] and slot.words[-1] in _EPOCH_WORDS | _LAST_STEP_WORDS
    if not (ends and _is_count(values)) and _names_a_loss(slot, words):
        return Decision("loss", 0.9, "by its name")
    is_count = not slot.unit and _is_count(np.floor(values))
    return _count_of(slot, words, values) if is_count else None


def _names_a_loss(slot: Slot, words: set[str]) -> bool:
    """Whether a name is a loss's; BasicSR and its children call theirs ``l_pix``, ``l_g_gan``."""
    is_short = slot.name.startswith("l_") and len(slot.words) > 1
    return is_short or any(word.endswith(("loss", "losses", "损失")) for word in words)


def _count_of(slot: Slot, words: set[str], values: Array) -> Decision | None:
    """Say what whole numbers count, by their names."""
    several = len(np.unique(values[np.isfinite(values)])) > 1
    found = None
    if words & {"total", "max"} and words & _STEP_WORDS and not several:
        found = Decision("steps in all", 0.9, "by its name")
    elif words & _EPOCH_WORDS and not words & (_STEP_WORDS | _NO_STEP):
        found = Decision("epoch", 0.95, "by its name")
    elif not _is_count(values):
        return None
    elif _names_a_step(slot):
        found = Decision("not understood", 0.4, _BY_NAME)
    elif slot.has_total:
        found = Decision("not understood", 0.35, _BEFORE_SLASH)
    elif words & _RANK_WORDS and several:
        found = Decision("rank", 0.6, "by its name")
    return found


def _names_a_step(slot: Slot) -> bool:
    words = slot.words
    if slot.name in STEPS or (slot.has_total and words and set(words) <= _PHASE_WORDS):
        return True
    while len(words) > 1 and words[-1] in _AROUND_STEP:
        words = words[:-1]
    if not words or set(words) & _NO_STEP:
        return False
    return words[-1] in _STEP_WORDS or (len(words) == 1 and words[0] in _WEAK_STEP_WORDS)


def _measured(slot: Slot, words: set[str], values: Array) -> Decision | None:
    del values
    if words and words <= _DATA_WORDS:
        return Decision("time", 0.35, "a wait for data, or another number")
    if words & {"lr", "learningrate"} or {"learning", "rate"} <= words:
        return Decision("learning rate", 0.95, "by its name")
    if slot.unit == "bytes" and words & _MEMORY_WORDS:
        return Decision("memory", 0.9, "by its unit")
    if words & _MEMORY_WORDS:
        return Decision("not understood", 0.4, "memory without a unit")
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


def _bar_times(reading: Reading) -> None:
    """Know the two durations of a bar: ``[01:13<02:16``."""
    slots = reading.family.slots
    for place in range(len(slots) - 1):
        if slots[place].unit == "duration" and slots[place + 1].opens == "<":
            reading.settle("elapsed", 0.95, "stands before < in a bar", place=place)
            reading.settle("left", 0.95, "stands behind < in a bar", place=place + 1)


def _choose_step(reading: Reading) -> None:
    """Choose the counter of steps: it rises by a constant, and is no epoch."""
    best, best_score = -1, 0.0
    for place, (slot, decision) in enumerate(
        zip(reading.family.slots, reading.decisions, strict=True)
    ):
        if decision.role != "not understood" or slot.is_total or slot.unit:
            continue
        if reading.family.is_bar and not _is_drawn(reading, place):
            continue
        score = _step_score(slot, reading, place)
        if score > best_score:
            best, best_score = place, score
    if best < 0 or best_score < SURE:
        return
    best = _inner_of(reading, best)
    evidence = f"a counter that rises by {_usual_rise(reading.family.column(best)):g}"
    reading.settle("step", min(best_score, 0.99), evidence, place=best)
    for place, decision in enumerate(reading.decisions):
        is_other = reading.family.slots[place].is_total and place != best + 1
        if decision.role == "steps in all" and is_other:
            reading.settle("metric", SURE, "the total of another count", place=place)


def _inner_of(reading: Reading, step: int) -> int:
    """Give the count within the one chosen, ``iteration:4 step:13/29``: that one is the epoch.

    Both together rise evenly, and the one chosen does not. In ``Iter: [4][13/29]`` the brackets say
    so, however often lines come.
    """
    outer, slots = reading.family.column(step), reading.family.slots
    for place, slot in enumerate(slots):
        is_behind = place == step + 1 and slots[step].opens == slot.opens == "[" and not slot.name
        is_named = is_behind or _names_a_step(slot)
        if slots[step].has_total or not slot.has_total or not is_named:
            continue
        inner, total = reading.family.column(place), reading.family.column(place + 1)
        share = _usual_share(outer * total + inner)
        is_even = share > max(_NEARLY, _usual_share(outer))
        if (inner <= total).all() and (is_even or is_behind):
            reading.settle("epoch", 0.8, WITHIN, place=step)
            return place
    return step


def _is_drawn(reading: Reading, place: int) -> bool:
    """Whether a count is what a bar draws: right before its elapsed time, ``20/390 [00:12<``."""
    behind = reading.decisions[place + 1 : place + 3]
    return [one.role for one in behind][-1:] == ["elapsed"]


def _step_score(slot: Slot, reading: Reading, place: int) -> float:
    """Say how sure it is that a count is the step's; a share of its rises must be the same."""
    values = reading.family.column(place)
    is_named = _names_a_step(slot)
    is_strong = is_named and not set(slot.words) <= _WEAK_STEP_WORDS
    is_within = slot.opens == "-" and reading.decisions[place - 1].role == "epoch"  # Epoch 3-20
    may_be = is_named or (not slot.name and (slot.has_total or is_within or slot.opens in "[,"))
    if not may_be or not (is_strong or _is_of_steps(reading)) or not _moves(reading, values):
        return 0.0
    rises = _rises(values, _turns(reading))
    is_even = reading.family.is_bar or _usual_share(values) >= SURE
    if rises < _MOSTLY or not (is_even or (is_strong and rises >= _NEARLY)):
        return 0.0
    score = 0.5 * rises + 0.15 * is_even
    score += 0.3 * is_strong + 0.15 * slot.has_total
    return score + (0.1 if "global" in slot.words else 0.0)


def _moves(reading: Reading, values: Array) -> bool:
    """Whether a count changes from line to line often enough; bars and ranks repeat it."""
    if not _is_count(values) or len(values) < FEWEST_ROWS:
        return False
    repeats = reading.family.is_bar or reading.has("rank")
    return repeats or float((np.diff(values) != 0).mean()) >= _SOME


def _is_of_steps(reading: Reading) -> bool:
    """Whether something beside a count without a name says that it counts steps."""
    is_timed = reading.family.phase == "train" and reading.has("left")
    is_lossy = any("loss" in slot.words for slot in reading.family.slots)  # loss of epoch 3 is 0.1
    return (
        is_timed
        or is_lossy
        or reading.family.is_bar
        or reading.has("loss", "steps/s", "time of a step")
    )


def _epoch_by_nesting(reading: Reading) -> None:
    """Find the epoch that no name tells: a count left of the step that rises where that resets."""
    step = reading.column("step")
    if step is None or reading.has("epoch"):
        return
    back = np.diff(step) < 0
    if back.sum() < 2:
        return
    for place, slot in enumerate(reading.family.slots[: reading.place("step")]):
        values = reading.family.column(place)
        if slot.is_total or slot.unit or not _is_count(values):
            continue
        rises = np.diff(values)
        # A process that goes on from an earlier epoch repeats some.
        is_next = (rises[back] <= 1).all() and (rises[back] == 1).mean() >= SURE
        if is_next and (rises[~back] == 0).mean() >= 1 - _LOST:
            reading.settle("epoch", 0.8, "rises where the step begins anew", place=place)
            if place + 1 < len(reading.decisions) and reading.family.slots[place + 1].is_total:
                reading.settle("epochs in all", 0.8, "stands after the epoch", place=place + 1)
            return


def name_epochs(readings: list[Reading]) -> None:
    """Know a count that no step names, ``Train: [3/50]``, as the epoch that other lines name."""
    named = [one for one in readings if one.place("epoch") >= 0]
    for one in readings:
        for place, slot in enumerate(one.family.slots) if one not in named else ():
            may_be = one.decisions[place].evidence in COUNTS or place == one.place("step")
            if not may_be or slot.is_total or set(slot.words) & _STEP_WORDS:
                continue
            if any(_go_together(one, place, other) for other in named):
                one.settle("epoch", 0.8, "goes as the epoch on other lines does", place=place)
                if slot.has_total:
                    one.settle("epochs in all", 0.8, "stands after the epoch", place=place + 1)


def _go_together(one: Reading, place: int, other: Reading) -> bool:
    """Whether there is one line with a count for each that names an epoch, and both rise alike."""
    count, epoch = one.family.column(place), other.column("epoch")
    if epoch is None or len(epoch) != len(count) or len(count) < FEWEST_ROWS:
        return False
    lines, others = np.array(one.family.line), np.array(other.family.line)
    first, second = (lines, others) if lines[0] < others[0] else (others, lines)
    in_turn = bool((first < second).all() and (second[:-1] < first[1:]).all())
    return in_turn and bool(np.ptp(count) > 0) and np.array_equal(np.diff(count), np.diff(epoch))


def _as_told(reading: Reading, name: str) -> None:
    for place, slot in enumerate(reading.family.slots):
        if slot.name.lower() == name.lower() and not slot.is_total and not slot.is_mean:
            reading.settle("step", 1.0, "named by the user", place=place)
            return


def _is_count(values: Array) -> bool:
    """Whether all are whole numbers that a counter can have."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(((finite >= 0) & (finite == np.floor(finite))).all())


def _turns(reading: Reading) -> Mask:
    """Lines with which a named epoch ends and the next begins: a count may begin anew there."""
    epoch = reading.column("epoch")
    count = max(len(reading.family) - 1, 0)
    return np.zeros(count, dtype=bool) if epoch is None else np.diff(np.floor(epoch)) > 0


def _rises(values: Array, turns: Mask) -> float:
    """Share of rises among the changes: a bar may be drawn twice at one count."""
    changes = np.diff(values)
    changes = changes[(changes != 0) & ~(turns & (changes < 0))]
    return float((changes > 0).mean()) if len(changes) else 0.0


def _usual_rise(values: Array) -> float:
    rises = np.diff(values)
    rises = rises[rises > 0]
    if not len(rises):
        return 0.0
    found, counts = np.unique(rises, return_counts=True)
    return float(found[np.argmax(counts)])


def _usual_share(values: Array) -> float:
    """Share of the rises that are the usual one."""
    rises = np.diff(values)
    rises = rises[rises > 0]
    return float((rises == _usual_rise(values)).mean()) if len(rises) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is known of the time of a step from elsewhere than a printed time of it."""

    step: Array
    """Steps over the run."""
    at: Array
    """Moments of the lines; NaN without a clock."""
    left: Array
    """Steps left at each line; NaN where that is not known."""
    left_in_epoch: Array
    """The same in the epoch."""
    within: Mask
    """Whether a line goes on from the one before, in the same epoch."""

    @property
    def usual(self) -> float:
        """Steps between two lines, mostly."""
        rises = np.diff(self.step)
        return float(np.median(rises[rises > 0])) if (rises > 0).any() else 1.0

    @property
    def has_clock(self) -> bool:
        """Whether timestamps tell the time between lines."""
        good = np.isfinite(self.at)
        return bool(good.mean() > _NEARLY) and float(np.ptp(self.at[good])) > 0


def judge_times(reading: Reading, pace: Pace, *, named_time: str) -> None:
    """Decide what the times of a family are: by the clock, by time left, by rates, by names.

    Args:
        reading: Its step is known.
        pace: What other sources say.
        named_time: Name of the time of a step, as the user gave it.
    """
    slots = reading.family.slots
    whole = [place for place, slot in enumerate(slots) if not set(slot.words) & _DATA_WORDS]
    for place, slot in enumerate(slots):
        if named_time and slot.name.lower() == named_time.lower() and not slot.is_mean:
            reading.settle("time of a step", 1.0, "named by the user", place=place)
    # Times since a start first: the others are held against them.
    for judge in (_judge_running, _judge_time, _judge_printed):
        for place in whole:
            judge(reading, place, pace)
    for place, decision in enumerate(reading.decisions):
        if decision.role == "time":
            _judge_wait(reading, place, pace)


def _judge_printed(reading: Reading, place: int, pace: Pace) -> None:
    """Believe a time of a step or its rate unless the clock contradicts it."""
    decision = reading.decisions[place]
    is_agreed = decision.confidence == 1 or decision.evidence in (_AGREES, _PLAIN)
    if decision.role not in ("time of a step", "steps/s") or reading.family.is_bar or is_agreed:
        return
    values = reading.family.column(place)
    if reading.decisions[place].role == "steps/s":
        values = 1 / np.where(values > 0, values, np.nan)
    if _is_rounded(reading.family.column(place)):
        evidence = "printed in whole numbers, too few for a time"
        reading.settle("not understood", 0.4, evidence, place=place)
    elif pace.has_clock and _agreement(values, reading, pace) not in ("step", ""):
        reading.settle("not understood", 0.4, "the timestamps contradict it", place=place)
    elif not pace.has_clock and not reading.family.slots[reading.place("step")].name:
        # Keras prints the mean since the epoch began beside such a count.
        evidence = "beside a count without a name: of a step, or of the epoch so far"
        reading.settle("not understood", 0.4, evidence, place=place)


def _is_rounded(values: Array) -> bool:
    """Whether rounding to whole units changes a number by a tenth or more: ``3s/step``."""
    finite = values[np.isfinite(values)]
    return bool((finite == np.round(finite)).all()) and float(np.median(finite)) < _FEWEST_UNITS


def _judge_running(reading: Reading, place: int, pace: Pace) -> None:
    """Know a time that counts from a start: it rises, and as the timestamps do where there are."""
    slot, values = reading.family.slots[place], reading.family.column(place)
    if reading.decisions[place].role != "time" or not _is_running(values, pace):
        return
    agrees = _agreement(_mean_of(reading, place, values), reading, pace)
    if agrees == "running" or (slot.unit in ("time", "duration") and not pace.has_clock):
        reading.settle("elapsed", 0.8, "rises from line to line", place=place)
    else:
        # No time of a step rises on each of many lines, whatever agrees with it by chance.
        evidence = "a time that rises from line to line: since when is not known"
        reading.settle("not understood", 0.4, evidence, place=place)


def _judge_time(reading: Reading, place: int, pace: Pace) -> None:
    """Take a time for a step's or an interval's where a second source or its name says so."""
    if reading.decisions[place].role != "time":
        return
    slot, values = reading.family.slots[place], reading.family.column(place)
    agrees = _agreement(_mean_of(reading, place, values), reading, pace)
    if not agrees and not slot.name:
        reading.settle("not understood", 0.4, "a time without a name", place=place)
    elif agrees in _AGREED:
        reading.settle(_AGREED[agrees], 0.95, _AGREES, place=place)
    elif not agrees and _is_plain(slot, pace) and _is_longest(reading, place):
        reading.settle("time of a step", 0.8, _PLAIN, place=place)
    else:
        other = "a part of it" if pace.usual == 1 else f"of {pace.usual:g}"
        evidence = f"a time of one step or {other}: the log does not tell"
        if agrees:
            evidence = "a second source contradicts it as the time of a step"
        reading.settle("not understood", 0.4, evidence, place=place)


def _is_plain(slot: Slot, pace: Pace) -> bool:
    """Whether name and unit leave no doubt: a known name, or each step's own line."""
    hint = HINTS.get(slot.name.lower().replace(" ", "_"))
    is_each = slot.unit == "time" and _is_each_step(slot, pace)
    return _is_hinted(slot, hint) or is_each


def _is_hinted(slot: Slot, hint: Hint | None) -> bool:
    if hint is None or hint.role != "time of a step" or slot.unit == "duration":
        return False
    return slot.unit == "time" or not hint.needs_unit


def _is_each_step(slot: Slot, pace: Pace) -> bool:
    """Whether each step has a line, and the name is no part's of it: ``Backpropagation: 0.3 s``."""
    words = set(slot.words) - {"per", "train", "training", "s", "ms"}
    if words & _STEP_WORDS and words & _TIME_WORDS:
        words.discard("total")  # a total time of the step, not of all steps
    is_whole = words <= _STEP_WORDS | _TIME_WORDS and not words & _ELAPSED_WORDS
    return pace.usual == 1 and is_whole


def _is_longest(reading: Reading, place: int) -> bool:
    """Whether no other time on the line is longer: a part of a step is shorter than the step."""
    longest = max(
        float(np.nanmedian(reading.family.column(there)))
        for there, decision in enumerate(reading.decisions)
        if decision.role in ("time", "time of a step")
    )
    return float(np.nanmedian(reading.family.column(place))) >= longest


def _mean_of(reading: Reading, place: int, values: Array) -> Array:
    """The mean in brackets where there is one: time left is computed from it."""
    slots = reading.family.slots
    if place + 1 < len(slots) and slots[place + 1].is_mean:
        return reading.family.column(place + 1)
    return values


def _judge_wait(reading: Reading, place: int, pace: Pace) -> None:
    """Believe a wait for data that is part of a known time of a step."""
    slot, values = reading.family.slots[place], reading.family.column(place)
    whole = _known_step(reading, pace)
    is_plain = slot.unit == "time" and bool(set(slot.words) & _TIME_WORDS)
    if whole is None or not np.isfinite(whole):
        if is_plain:
            reading.settle("wait for data", 0.7, "by its name and unit", place=place)
            return
        evidence = "a wait for data, or another number"
    elif np.nanmedian(values) <= 1.1 * whole and (slot.unit or reading.has("time of a step")):
        reading.settle("wait for data", 0.8, "by its name, and part of the step", place=place)
        return
    else:
        evidence = "longer than the step, so no wait within it"
    reading.settle("not understood", 0.4, evidence, place=place)


def _known_step(reading: Reading, pace: Pace) -> float | None:
    """Seconds of a step as far as they are known by now."""
    printed = reading.column("time of a step")
    if printed is not None:
        return float(np.nanmedian(printed))
    if pace.has_clock:
        spent, steps = np.diff(pace.at), np.diff(pace.step)
        good = (spent > 0) & (steps > 0)
        return float(np.median(spent[good] / steps[good])) if good.any() else None
    return None


def _is_running(values: Array, pace: Pace) -> bool:
    """Whether a time only rises while steps do: then it counts from a start.

    Lines that do not print it are left out: what lies on both sides of them is compared.
    """
    good = np.isfinite(values) & np.isfinite(pace.step)
    epochs = np.cumsum(~pace.within)[good]
    together = np.diff(values[good])[(np.diff(pace.step[good]) > 0) & (np.diff(epochs) == 0)]
    if len(together) < FEWEST_ROWS:
        return False
    rises = float((together > 0).mean())
    # A clock of whole seconds stands still from line to line, and never goes back.
    is_coarse = rises > _SOME and len(together) >= _FEWEST_LEFT and bool((together >= 0).all())
    return rises > 0.95 or is_coarse


def _agreement(values: Array, reading: Reading, pace: Pace) -> str:
    """Hold times against other sources: are they of a step, of all steps in between, running?

    Returns:
        ``""`` without another source, ``"no"`` where none agrees.
    """
    found = ""
    for spent, steps, is_loose in _sources(reading, pace):
        good = np.isfinite(spent) & (spent > 0) & (steps > 0) & (values > 0)
        several = good & (steps > 1)
        if several.sum() >= FEWEST_ROWS:
            good = several  # of single steps, a step and an interval are the same
        if good.sum() < FEWEST_ROWS:
            continue
        whole = float(np.median(values[good] / spent[good]))
        single = values[good] * steps[good] / spent[good]
        if abs(float(np.median(single)) - 1) < _NEAR and (
            not is_loose or float((np.abs(single - 1) < _NEAR).mean()) >= _NEARLY
        ):
            return "step"
        if is_loose:
            continue
        if abs(whole - 1) < _NEAR:
            return "interval"
        rising = np.diff(values[good])
        if len(rising) and abs(float(np.median(rising / spent[good][1:])) - 1) < _NEAR:
            return "running"
        found = "no"
    return found


def _sources(reading: Reading, pace: Pace) -> list[tuple[Array, Array, bool]]:
    """Times, how many steps they are for, and whether they say nothing where they differ.

    By timestamps, by a rate, by what is left: that may be of the run, of the epoch or of a stage,
    and is held only against the time of a step.
    """
    count = len(pace.step)
    steps = np.diff(pace.step, prepend=np.nan)
    found: list[tuple[Array, Array, bool]] = []
    if pace.has_clock:
        found.append((np.diff(pace.at, prepend=np.nan), steps, False))
    if not found and (elapsed := reading.column("elapsed")) is not None:
        passed = np.where(pace.within, np.diff(elapsed, prepend=np.nan), np.nan)
        found.append((passed, steps, False))
    if not found and (rate := reading.column("steps/s")) is not None:
        with np.errstate(divide="ignore"):
            found.append((steps / rate, steps, False))
    if not found and (left := reading.column("left")) is not None:
        for steps_left in (pace.left, pace.left_in_epoch):
            each = left / np.where(steps_left >= _FEWEST_LEFT, steps_left, np.nan)
            found.append((each * pace.usual, np.full(count, pace.usual), True))
    return found
